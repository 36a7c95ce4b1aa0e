# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Reads nccl-tests output: text logs and `-J` documents become sections.

A section is one run of one test program: its configuration, devices, rows, footer and failures. A log may hold
several (two tests in one script, a second try). Nothing is judged here.
"""

from __future__ import annotations

import typing as t

from . import transport
from .documents import looks_like_json, read_document
from .reader import TextReader
from .sections import Section


class Log(t.NamedTuple):
    """Everything read from the files of one attempt."""

    sections: list[Section]
    transport: transport.Collector
    unavailable: bool
    empty: bool
    unparsable_json: str | None
    json_path: str | None


def read_log(paths: t.Sequence[str]) -> Log:
    """Reads text logs and JSON documents. A JSON document that parses is preferred to the text of the same run."""
    text = TextReader()
    documents: list[Section] = []
    broken: str | None = None
    for path in paths:
        if looks_like_json(path):
            section = read_document(path)
            if section is not None:
                documents.append(section)
                continue
            broken = path
        text.read(path)
    sections = text.finish()
    for section in documents:
        _take_from_text(section, sections)
    if documents:
        sections = documents
    return Log(sections, text.transport, text.unavailable, text.empty and not documents and broken is None, broken, text.json_path)


def _take_from_text(document: Section, sections: list[Section]) -> None:
    """What only the text of the same run tells: failures and the end of the run."""
    for section in sections:
        if section.collective in (None, document.collective):
            document.failures += section.failures
            document.ib_errors += section.ib_errors
            document.setup_faults.update(section.setup_faults)
            document.watchdog = document.watchdog or section.watchdog
