# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The text table of `dcgmi diag` without --json: lossy (no codes), good enough to name the GPUs.

A row that cannot be read takes the completeness from the whole table: it may have been the one that says Fail.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from . import codes
from .documents import FAIL, MAX_ENTITY, UNKNOWN, WARN, Document, Error, Result, Test, status_of, tested_gpus, worst_status

_HEADER = re.compile(r"\|\s{0,40}Diagnostic\s{1,40}\|\s{0,60}Result\s{1,60}\|")
_BORDER = re.compile(r"\+-{10,}\+-{10,}\+")
_HEADER_RULE = re.compile(r"\+={10,}\+={10,}\+")
_SECTION = re.compile(r"[|+]-{3,40}\s{1,20}(\S.{0,60}?)\s{1,20}-{1,40}\+-{0,90}[|+]")
_ROW = re.compile(r"\|(.{20,40}?)\|(.*)\|")
_ENTITY_CELL = re.compile(r"([A-Za-z_]{1,20}?)\s?(\d{1,4}):\s{0,9}([A-Za-z][A-Za-z ]{0,20})")
_STATUS_CELL = re.compile(r"([A-Za-z][A-Za-z ]{0,20}?)(?:\s{0,9}-\s{0,9}(All|GPUs?:\s{0,9}\d{1,4}(?:\s{0,9},\s{0,9}\d{1,4}){0,300}))?")
_OWNER_IN_TEXT = re.compile(r"GPU (\d{1,4})\b")
_MARKS = ("Warning", "Error", "Info")


def read_table(text: str) -> Document | None:
    """The last table of a text, or None; a container that ran twice printed two."""
    lines = [line.strip() for line in text.split("\n")]
    headers = [number for number, line in enumerate(lines) if _HEADER.fullmatch(line)]
    if not headers:
        return None
    whole = [
        number for number in headers if _HEADER_RULE.fullmatch(next((line for line in lines[number + 1 :] if line[:1] in ("|", "+")), ""))
    ]
    start = (whole or headers)[-1]
    table = _Table(lines[start])
    for line in lines[start + 1 :]:
        table.feed(line)
    return table.document()


@dataclasses.dataclass
class _Message:
    """A warning or a note below a test, wrapped over several rows."""

    test: Test
    owner: str | None
    is_warning: bool
    parts: list[str]

    def text(self) -> str:
        """The parts joined as they were before the table broke them: at its width in the middle of a word, else at a blank."""
        width = max(len(part) for part in self.parts)
        joined = ""
        for part in self.parts:
            joined += part if len(part) >= width else f"{part} "
        return re.sub(r" {2,}", " ", joined).strip()


class _Table:
    """Reads the rows of one text table in order."""

    def __init__(self, header: str) -> None:
        self._widths = [len(cell) for cell in header.split("|")[1:-1]]
        self._ruled = False
        self.closed = False
        self._section: str | None = None
        self._tests: list[Test] = []
        self._metadata: dict[str, str] = {}
        self._per_entity = False
        self._unread: list[str] = []
        # The message being read: continuation rows have an empty first cell.
        self._message: _Message | None = None
        self._messages: list[_Message] = []

    def feed(self, line: str) -> None:
        """One line of the text, stripped."""
        if self.closed:
            if self._is_row(line):  # a border in the middle of the table was not its end
                self._unread.append(line)
            return
        if _HEADER_RULE.fullmatch(line):
            self._ruled = True
            return
        if _BORDER.fullmatch(line):
            self.closed = bool(self._tests) and [len(part) for part in line.split("+")[1:-1]] == self._widths
            return
        section = _SECTION.fullmatch(line)
        if section:
            self._section = section.group(1)
            self._message = None
            return
        row = _ROW.fullmatch(line)
        if row:
            self._row(row.group(1).strip(), row.group(2))
        elif "|" in line or line.startswith("+-"):
            self._unread.append(line)  # lines without a bar are those of other programs

    def _is_row(self, line: str) -> bool:
        """Whether a line behind the end has the columns of this table; other programs print tables too."""
        return [len(cell) for cell in line.split("|")[1:-1]] == self._widths and line.startswith("|") and line.endswith("|")

    def _row(self, name: str, raw: str) -> None:
        cell = raw.strip()
        if (self._section == "Metadata" and not self._tests) or (
            self._section is None and not self._tests and name and not self._is_status(cell)
        ):
            self._metadata[name] = cell
            return
        if not name:
            self._continuation(raw)
            return
        self._message = None
        label, _mark, owner = name.partition(":")
        if label in _MARKS and self._tests:
            self._begin_message(label, owner, raw)
            return
        status = _STATUS_CELL.fullmatch(cell)
        if status is None or label in _MARKS or self._section == "Metadata":
            self._unread.append(f"{name}: {cell}")
            return
        word = status_of(status.group(1))
        test = Test(self._section, name, word, self._results(word, status.group(2)))
        self._tests.append(test)

    def _is_status(self, cell: str) -> bool:
        status = _STATUS_CELL.fullmatch(cell)
        return status is not None and status_of(status.group(1)) != UNKNOWN

    def _begin_message(self, label: str, owner: str, raw: str) -> None:
        named = owner.strip().replace(" ", "") or None
        inside = _OWNER_IN_TEXT.match(raw.strip())
        if named is None and inside:
            named = f"GPU{int(inside.group(1))}"
        self._message = _Message(self._tests[-1], named, label != "Info", [_content(raw)])
        self._messages.append(self._message)

    def _results(self, word: str, scope: str | None) -> list[Result]:
        """The results of a 3.x cell such as `Fail - GPUs: 0, 3`; none for `Pass - All`, which lists nobody."""
        numbers: t.Iterable[int] = [] if scope in (None, "All") else [int(n) for n in re.findall(r"\d{1,4}", scope or "")]
        if scope == "All" and word in (FAIL, WARN, UNKNOWN):
            numbers = range(len(self._device_ids()))
        return [Result(f"GPU{number}" if number <= MAX_ENTITY else None, word) for number in numbers]

    def _continuation(self, raw: str) -> None:
        cell = raw.strip()
        entity = _ENTITY_CELL.fullmatch(cell)
        more = _STATUS_CELL.fullmatch(cell)
        if entity and self._tests and (self._message is None or status_of(entity.group(3)) != UNKNOWN):
            self._per_entity = True
            self._message = None
            number = int(entity.group(2))
            name = f"{entity.group(1)}{number}" if number <= MAX_ENTITY else None
            self._tests[-1].results.append(Result(name, status_of(entity.group(3))))
        elif more and more.group(2) and self._tests and (self._message is None or self._is_status(cell)):
            # A test of 3.x with mixed results has one row for each status, the second and later ones without a name.
            self._message = None
            test = self._tests[-1]
            word = status_of(more.group(1))
            test.results += self._results(word, more.group(2)) or [Result(None, word)]
            test.status = worst_status([Result(None, test.status), *test.results])
        elif self._message is not None:
            if cell:
                self._message.parts.append(_content(raw))
        elif cell:
            self._unread.append(cell)

    def document(self) -> Document:
        """What was read."""
        for message in self._messages:
            target = next((result for result in message.test.results if result.entity == message.owner), None)
            if message.is_warning:
                (target.errors if target else message.test.errors).append(Error(message.text()))
            else:
                (target.info if target else message.test.info).append(message.text())
        for test in self._tests:
            if test.status == WARN and self._per_entity and any(result.status == FAIL for result in test.results):
                # Only the line of the test can say Warn; the lines of its entities print Fail for it.
                test.entity_shows = FAIL
                for result in test.results:
                    result.status = WARN if result.status == FAIL else result.status
        document = Document(
            "v4_text" if self._per_entity or not self._old_names() else "v3_text",
            dcgm=self._metadata.get("DCGM Version"),
            driver=self._metadata.get("Driver Version Detected"),
            tests=self._tests,
        )
        if not (self.closed and self._ruled):
            document.lacks("the table is cut")
        if self._unread:
            document.lacks(f"a row of the table cannot be read: {self._unread[0][:80]!r}")
        ids = self._device_ids()
        tested = tested_gpus(self._tests)
        document.gpus = {None: tested if len(tested) >= len(ids) else {f"GPU{number}" for number in range(len(ids))}}
        return document

    def _device_ids(self) -> list[str]:
        return [part for part in self._metadata.get("GPU Device IDs Detected", "").split(",") if part.strip()][: MAX_ENTITY + 1]

    def _old_names(self) -> bool:
        return any(test.name.lower() in codes.SOFTWARE_SUBTESTS or " " in test.name for test in self._tests)


def _content(raw: str) -> str:
    """A cell without its margin of one blank; blanks at its own begin belong to the text."""
    return raw.removeprefix(" ").rstrip()
