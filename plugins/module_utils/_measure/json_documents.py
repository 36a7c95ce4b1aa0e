# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Finding a JSON document inside a log: banners before it, text after it, a cut end, lines of others between its own.

The parts of a document that cannot be read prove less than the whole, so nothing is ever looked for inside one.
"""

from __future__ import annotations

import json
import re
import typing as t

IsRoot: t.TypeAlias = t.Callable[[t.Any], bool]

# A line of a pretty-printed document: brackets, a member, a value of a list.
_JSON_LINE = re.compile(
    r'[\]\[{}]+,?|"(?:[^"\\]|\\.)*"(?:\s*:\s*(?:[\[{]+[\]}]*|"(?:[^"\\]|\\.)*"|-?[\d.eE+-]+|true|false|null)?)?,?'
    r"|-?\d[\d.eE+-]*,?|true,?|false,?|null,?"
)
# A member of an object, wherever it stands in a line.
_MEMBER = re.compile(r'"[^"\\]{1,80}"\s{0,8}:')


class Found(t.NamedTuple):
    """The last document of a text.

    damaged: something follows it that is cut, or it stands alone and cannot be read.
    torn:    another process wrote into one of its lines, so that something of it is lost.
    """

    root: dict[str, t.Any] | None
    damaged: bool = False
    torn: bool = False


def find_last(text: str, is_root: IsRoot, first_keys: t.Sequence[str]) -> tuple[dict[str, t.Any] | None, bool]:
    """As `find`, for readers that need no difference between a damaged and a torn document."""
    found = find(text, is_root, first_keys)
    return found.root, found.damaged or found.torn


def find(text: str, is_root: IsRoot, first_keys: t.Sequence[str]) -> Found:
    """The last document of a text.

    is_root:    whether a decoded object is the document that is looked for.
    first_keys: the keys such a document can begin with, as regular expressions; other braces are not looked at.
    """
    plain = _scan(text, is_root, first_keys, json.JSONDecoder())
    if not plain.damaged:
        return plain
    lines, torn = _without_noise(text)
    cleaned = _scan(lines, is_root, first_keys, json.JSONDecoder(object_pairs_hook=_each_key_once))
    return plain if cleaned.root is None or cleaned.damaged else cleaned._replace(torn=torn)


def _scan(text: str, is_root: IsRoot, first_keys: t.Sequence[str], decoder: json.JSONDecoder) -> Found:
    """The last document, as the text stands."""
    keys = "|".join(first_keys)
    start = re.compile(r'\{\s*"(?:' + keys + r')"')
    member = re.compile(rf'"(?:{keys})"\s*:')
    root: dict[str, t.Any] | None = None
    end = 0
    stray = False
    match = start.search(text)
    while match is not None:
        # A key of a document outside of all that can be read: they are parts of a larger one that other lines interrupt.
        stray = stray or member.search(text, end, match.start()) is not None
        try:
            value, end = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            # What follows a damaged document may be a part of it: the rest is not looked at.
            return Found(root, damaged=True)
        if is_root(value):
            root = value
        match = start.search(text, end)
    stray = stray or (root is not None and member.search(text, end) is not None)
    return Found(root, damaged=stray or _begins(text[end:], first_keys))


def _begins(rest: str, first_keys: t.Sequence[str]) -> bool:
    """Whether a text ends with the first bytes of a document that was cut. A brace alone is no sign of one."""
    tail = re.search(r'\{\s*"([\w ]{1,40})$', rest)
    if tail is None:
        return False
    word = tail.group(1)
    plain = [key.partition("[")[0] for key in first_keys]
    return any(key.startswith(word) or word.startswith(key) for key in plain)


def _without_noise(text: str) -> tuple[str, bool]:
    """The lines of a text that can be those of a pretty-printed document, and whether a dropped one held a part of it."""
    kept: list[str] = []
    torn = False
    lines = text.rstrip().split("\n")
    for number, raw in enumerate(lines, start=1):
        line = raw.strip()
        # The last line may be the first bytes of a document that was cut.
        if _JSON_LINE.fullmatch(line) or (number == len(lines) and line.startswith('"')):
            kept.append(line)
        elif _MEMBER.search(line) and not _is_object(line):
            torn = True
    return "\n".join(kept), torn


def _is_object(line: str) -> bool:
    """Whether a line is a whole object of its own: what other programs log."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _each_key_once(pairs: list[tuple[str, t.Any]]) -> dict[str, t.Any]:
    """A key that stands twice means that the line between two objects was lost. Raises ValueError."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice")
    return made
