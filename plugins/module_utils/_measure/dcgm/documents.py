# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a diagnostic said, in one shape for every generation of dcgmi: tests, results per entity, errors."""

from __future__ import annotations

import dataclasses
import re
import typing as t

PASS, FAIL, WARN, SKIP, NOT_RUN = "Pass", "Fail", "Warn", "Skip", "NotRun"
# No status, or a word that no version prints: never a pass.
UNKNOWN = "Unknown"
_STATUS = {"pass": PASS, "fail": FAIL, "warn": WARN, "skip": SKIP, "notrun": NOT_RUN, "not run": NOT_RUN}
# No machine has as many GPUs; a larger number is none of them.
MAX_ENTITY = 1023


@dataclasses.dataclass(frozen=True)
class Error:
    """One warning of a document. code and severity are None where the generation does not print them."""

    text: str
    code: int | None = None
    severity: int | None = None
    category: int | None = None


@dataclasses.dataclass
class Result:
    """What one test said about one entity. entity is None for a result about the whole node."""

    entity: str | None
    status: str
    errors: list[Error] = dataclasses.field(default_factory=list)
    info: list[str] = dataclasses.field(default_factory=list)
    host: str | None = None


@dataclasses.dataclass
class Test:
    """One test of a document: its own word, its results per entity and errors about no entity in particular."""

    category: str | None
    name: str
    status: str
    results: list[Result] = dataclasses.field(default_factory=list)
    errors: list[Error] = dataclasses.field(default_factory=list)
    info: list[str] = dataclasses.field(default_factory=list)
    iteration: int | None = None
    mpi_error: str | None = None
    string_warning: bool = False
    entity_shows: str | None = None


@dataclasses.dataclass
class Document:
    """What was printed, in one shape. complete is False when the text ends too early to be believed."""

    generation: str
    dcgm: str | None = None
    driver: str | None = None
    tests: list[Test] = dataclasses.field(default_factory=list)
    gpus: dict[str | None, set[str]] = dataclasses.field(default_factory=dict)  # by host; None: the only host
    iterations: int | None = None
    overall: str | None = None
    ret: int | None = None
    message: str = ""
    global_errors: list[str] = dataclasses.field(default_factory=list)
    complete: bool = True  # False: it ends too early, or lacks a part
    seen: list[str] = dataclasses.field(default_factory=list)

    def lacks(self, what: str) -> None:
        """Note that a part cannot be read: what is left is no longer the whole."""
        self.complete = False
        self.message = self.message or what


def status_of(word: t.Any) -> str:
    """The status a word stands for; UNKNOWN for every word that is not known."""
    return _STATUS.get(word.strip().lower(), UNKNOWN) if isinstance(word, str) else UNKNOWN


def worst_status(results: t.Sequence[Result]) -> str:
    """The status of a test by those of its results; NOT_RUN without any."""
    words = {result.status for result in results}
    return next((word for word in (FAIL, UNKNOWN, WARN, PASS, SKIP) if word in words), NOT_RUN)


def tested_gpus(tests: t.Sequence[Test]) -> set[str]:
    """The GPUs that any result is about."""
    return {result.entity for test in tests for result in test.results if is_gpu(result.entity)}


def is_gpu(name: str | None) -> t.TypeGuard[str]:
    """Whether an entity is a whole GPU."""
    return name is not None and re.fullmatch(r"GPU\d+", name) is not None


def natural(names: t.Iterable[str | None]) -> list[str]:
    """Names sorted so that GPU2 stands before GPU10."""
    return sorted((name for name in names if name), key=lambda name: [int(p) if p.isdigit() else p for p in re.split(r"(\d{1,9})", name)])
