# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""JSON as older tools write it: one `key: value` a line, with or without quotes, commas before closing braces."""

from __future__ import annotations

import json
import typing as t

# Braces deeper than this are not what tools write about their results.
_DEEPEST = 20


def read(text: str) -> tuple[dict[str, t.Any] | None, bool]:
    """The document a text begins with, and whether its last brace is there. Lines that are no part of one are passed over.

    Scalars are texts, unless the document is JSON by the book.
    """
    try:
        value, _end = json.JSONDecoder().raw_decode(text)
        return (value, True) if isinstance(value, dict) else (None, False)
    except (ValueError, RecursionError):
        return _by_lines(text)


def _by_lines(text: str) -> tuple[dict[str, t.Any] | None, bool]:
    root: dict[str, t.Any] | None = None
    open_objects: list[dict[str, t.Any]] = []
    for raw in text.split("\n"):
        line = raw.strip().rstrip(",").rstrip()
        if line == "{" and root is None:
            root = {}
            open_objects.append(root)
        elif line == "}" and open_objects:
            open_objects.pop()
            if not open_objects:
                return root, True
        elif open_objects and ":" in line:
            key, _colon, value = (part.strip() for part in line.partition(":"))
            key = key.strip('"')
            if value == "{" and len(open_objects) < _DEEPEST:
                inner: dict[str, t.Any] = {}
                open_objects[-1][key] = inner
                open_objects.append(inner)
            elif key and value and not any(mark in value for mark in "{}"):
                open_objects[-1][key] = value.strip('"')
    return root, False
