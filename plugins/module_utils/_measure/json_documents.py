# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Finding a JSON document inside a log: banners before it, text after it, a cut end, lines of others between its own.

The parts of a document that cannot be read prove less than the whole, so nothing is ever looked for inside one.
"""

from __future__ import annotations

import json
import re
import typing as t

_JSON_LINE = re.compile(
    r'\s*(?:[\]\[{}]+,?|"(?:[^"\\]|\\.)*"\s*(?::\s*(?:[\[{]+[\]}]*|"(?:[^"\\]|\\.)*"|-?[\d.eE+-]+|true|false|null)?)?,?'
    r"|-?\d[\d.eE+-]*,?|true,?|false,?|null,?)\s*"
)


def find_last(text: str, is_root: t.Callable[[t.Any], bool], first_keys: t.Sequence[str]) -> tuple[dict[str, t.Any] | None, bool]:
    """The last document of a text, and whether something damaged follows it (or stands alone).

    is_root:    whether a decoded object is the document that is looked for.
    first_keys: the keys such a document can begin with, as regular expressions; other braces are not looked at.
    """
    decoder = json.JSONDecoder()
    start = re.compile(r'\{\s*"(?:' + "|".join(first_keys) + r')"')
    root: dict[str, t.Any] | None = None
    end = 0
    match = start.search(text)
    while match is not None:
        try:
            value, end = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            # What follows a damaged document may be a part of it: the rest is not looked at.
            cleaned = _without_noise(text[match.start() :], is_root)
            return (cleaned, False) if cleaned is not None else (root, True)
        if is_root(value):
            root = value
        match = start.search(text, end)
    return root, _begins(text[end:], first_keys)


def _begins(rest: str, first_keys: t.Sequence[str]) -> bool:
    """Whether a text ends with the first bytes of a document that was cut. A brace alone is no sign of one."""
    tail = re.search(r'\{\s*"([\w ]{1,40})$', rest)
    if tail is None:
        return False
    word = tail.group(1)
    plain = [key.partition("[")[0] for key in first_keys]
    return any(key.startswith(word) or word.startswith(key) for key in plain)


def _without_noise(text: str, is_root: t.Callable[[t.Any], bool]) -> dict[str, t.Any] | None:
    """A pretty-printed document between whose lines another process wrote; None if that does not repair it."""
    kept = [line for line in text.split("\n") if _JSON_LINE.fullmatch(line)]
    try:
        value, _end = json.JSONDecoder().raw_decode("\n".join(kept).lstrip())
    except (ValueError, RecursionError):
        return None
    return value if is_root(value) else None
