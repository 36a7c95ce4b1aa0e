# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Go's regular expressions and time layouts, which NVCRE's log profiles are written in."""

from __future__ import annotations

import datetime
import re

from ..._common.errors import InputError

# Lines beyond this length are not matched: profiles are for people's lines, and matching can be slow.
MAX_LINE = 8192

_POSIX_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
    "blank": r"\t ",
}
_POSIX = re.compile(r"\[:(\^?)(\w+):\]")
_FLAGS = re.compile(r"(?<!\\)\(\?([ims]+)\)")
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|$)", re.DOTALL)


def compile_re2(pattern: str, place: str = "") -> re.Pattern[str]:
    """A Go (RE2) regular expression as a Python one. Raises InputError with the place when it is wrong."""
    text = _QUOTED.sub(lambda match: re.escape(match.group(1)), pattern)
    text = text.replace("(?<", "(?P<").replace("(?P<=", "(?<=").replace("(?P<!", "(?<!")
    text = re.sub(r"(?<!\\)((?:\\\\)*)\\z", r"\1\\Z", text)
    text = _POSIX.sub(lambda match: _posix(match, place), text)
    text = _scope_flags(text)
    try:
        # RE2's classes are ASCII.
        return re.compile(text, re.ASCII)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(f"the regular expression is wrong: {error}", place=place, hint="Use Go (RE2) syntax") from error


def _posix(match: re.Match[str], place: str) -> str:
    inside = _POSIX_CLASSES.get(match.group(2))
    if inside is None or match.group(1):
        raise InputError(f"unknown character class {match.group(0)}", place=place, hint=f"Known: {', '.join(sorted(_POSIX_CLASSES))}")
    return inside


def _scope_flags(text: str) -> str:
    """Flags in the middle hold from there on; Python allows them at the start or around a group only."""
    match = _FLAGS.search(text)
    if match is None:
        return text
    head, rest = text[: match.start()], _scope_flags(text[match.end() :])
    return f"{head}(?{match.group(1)}:{rest})" if head.count("(") == head.count(")") else text


# Go writes layouts as an example time; longest first, so that "2006" is not read as "20" and "06".
_LAYOUT_PARTS: tuple[tuple[str, str], ...] = (
    ("January", r"(?P<month_name>[A-Z][a-z]+)"),
    ("Monday", r"[A-Z][a-z]+"),
    ("2006", r"(?P<year>\d{4})"),
    ("Z07:00", r"(?P<offset>Z|[+-]\d\d:\d\d)"),
    ("-07:00", r"(?P<offset>[+-]\d\d:\d\d)"),
    ("Z0700", r"(?P<offset>Z|[+-]\d{4})"),
    ("-0700", r"(?P<offset>[+-]\d{4})"),
    ("Jan", r"(?P<month_name>[A-Z][a-z]{2})"),
    ("Mon", r"[A-Z][a-z]{2}"),
    ("MST", r"[A-Z]{3,4}"),
    ("01", r"(?P<month>\d\d)"),
    ("02", r"(?P<day>\d\d)"),
    ("03", r"(?P<hour12>\d\d)"),
    ("04", r"(?P<minute>\d\d)"),
    ("05", r"(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"),
    ("06", r"(?P<year2>\d\d)"),
    ("15", r"(?P<hour>\d\d)"),
    ("PM", r"(?P<half>[AP]M)"),
    ("_2", r"\s?(?P<day>\d{1,2})"),
)
_LAYOUT_TOKEN = re.compile("|".join(re.escape(part) for part, _pattern in _LAYOUT_PARTS) + r"|[.,][09]+")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


class GoLayout:
    """A Go time layout such as `2006-01-02 15:04:05`. A fraction after the seconds is always accepted, as in Go."""

    def __init__(self, layout: str, place: str = "") -> None:
        pattern, at = "", 0
        parts = dict(_LAYOUT_PARTS)
        for token in _LAYOUT_TOKEN.finditer(layout):
            pattern += re.escape(layout[at : token.start()]) + parts.get(token.group(), "")
            at = token.end()
        pattern += re.escape(layout[at:])
        if "<second>" not in pattern and "<minute>" not in pattern:
            hint = "Write the layout as Go does, for example 2006-01-02 15:04:05"
            raise InputError(f"{layout!r} is no Go time layout", place=place, hint=hint)
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise InputError(f"{layout!r} names a part twice", place=place) from error

    def parse(self, text: str) -> datetime.datetime | None:
        """The time, as UTC when the text carries an offset; None when the text does not fit."""
        match = self._pattern.fullmatch(text.strip())
        if match is None:
            return None
        part = {name: value for name, value in match.groupdict().items() if value is not None}
        hour = int(part.get("hour", part.get("hour12", 0)))
        if "half" in part:
            hour = hour % 12 + (12 if part["half"] == "PM" else 0)
        year = int(part["year"]) if "year" in part else 2000 + int(part.get("year2", 0))
        month = int(part.get("month", 1))
        if "month_name" in part:
            short = part["month_name"][:3].lower()
            month = _MONTHS.index(short) + 1 if short in _MONTHS else 0
        try:
            time = datetime.datetime(year, month, int(part.get("day", 1)), hour, int(part.get("minute", 0)), int(part.get("second", 0)))
            time += datetime.timedelta(microseconds=int(part.get("fraction", "0").ljust(6, "0")[:6]))
            return time - _offset(part.get("offset", "Z"))
        except (ValueError, OverflowError):
            return None


def _offset(text: str) -> datetime.timedelta:
    if text == "Z":
        return datetime.timedelta()
    digits = text[1:].replace(":", "")
    delta = datetime.timedelta(hours=int(digits[:2]), minutes=int(digits[2:4]))
    return -delta if text[0] == "-" else delta
