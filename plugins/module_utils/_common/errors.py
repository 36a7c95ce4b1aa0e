# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The error tree. Library code raises these; modules, filters and actions turn them into one message.

An error says what was wrong, where, and what to do. It never carries a secret.
"""

from __future__ import annotations

import typing as t


class ReadinessError(Exception):
    """Base of every error the collection raises on purpose.

    message: one sentence naming the thing and the value that is wrong.
    place:   where it was found: a file and line, a key path such as `categories[1].criteria[0]`, an API path.
    hint:    the remedy.
    """

    def __init__(self, message: str, *, place: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.hint = hint

    def render(self) -> str:
        """One line for a person: place, message, hint."""
        text = f"{self.place}: {self.message}" if self.place else self.message
        if self.hint:
            text = f"{text.rstrip('.')}. {self.hint}"
        return text

    def as_dict(self) -> dict[str, str]:
        """The same as data, for failures that carry results."""
        return {"message": self.message, "place": self.place, "hint": self.hint}

    def __str__(self) -> str:
        return self.render()


class InputError(ReadinessError):
    """The user's input is wrong: unknown key, wrong type, bad expression, broken file."""


class ClusterError(ReadinessError):
    """The API server could not be used: unreachable, forbidden, refused an object.

    status: the HTTP status, or None when there was no answer.
    """

    def __init__(self, message: str, *, place: str = "", hint: str = "", status: int | None = None, api_reason: str = "") -> None:
        super().__init__(message, place=place, hint=hint)
        self.status = status
        self.api_reason = api_reason


def unknown_value(what: str, value: object, allowed: t.Iterable[object], place: str = "") -> InputError:
    """The error for a value outside a closed set; suggests the nearest allowed one."""
    import difflib

    names = sorted(str(item) for item in allowed)
    near = difflib.get_close_matches(str(value), names, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return InputError(f"unknown {what} {value!r}", place=place, hint=f"{hint}Allowed: {', '.join(names) or 'none'}")
