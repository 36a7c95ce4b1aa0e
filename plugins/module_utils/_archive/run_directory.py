# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The run directory: the only place that knows its paths. Each step reads what the steps before it wrote here: the archive is the truth."""

from __future__ import annotations

import os
import re
import secrets
import time
import typing as t
from pathlib import Path

from .._common.errors import InputError
from .._common.shapes import AttemptRecord, Category, FinalLook, JudgedCategory, Observation, Plan, Request, RunMeta, Snapshot
from . import manifest
from .files import read_json, write_json, write_text
from .journal import finished_attempts, read_journal

# Part of object names and label values, so short and plain.
RUN_ID = r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"
# Behind the path of a log: the file with the termination message of its container.
TERMINATION_SUFFIX = ".termination"


def new_run_id(given: str | None, now: float, prefix: str = "") -> str:
    """The given id, checked, or one made of the time and four random digits. Raises InputError."""
    run_id = given or f"{prefix}{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(2)}"
    if not re.fullmatch(RUN_ID, run_id):
        raise InputError(f"{run_id!r} cannot be a run id", place="run_id", hint="Lower-case letters, digits and hyphens, at most 32")
    return run_id


class RunDirectory:
    """The archive of one run. Reading raises InputError that names the file."""

    def __init__(self, path: str | Path) -> None:
        self.path = os.path.abspath(os.path.expanduser(path))

    @classmethod
    def create(cls, runs_dir: str, run_id: str) -> RunDirectory:
        """The directory of a new run under `runs_dir`; nothing is written yet. Raises InputError when a run with this id exists."""
        run = cls(os.path.join(os.path.expanduser(runs_dir), run_id))
        if os.path.exists(run.meta) or os.path.exists(run.plan):
            raise InputError("a run with this id exists", place=run.path, hint="Take another run_id")
        return run

    def _at(self, *parts: str) -> str:
        return os.path.join(self.path, *parts)

    # Paths

    @property
    def snapshot(self) -> str:
        """The cluster as it was read at the start."""
        return self._at("snapshot.json")

    @property
    def request(self) -> str:
        """The certification as it was asked for, with defaults filled in."""
        return self._at("spec.json")

    @property
    def plan(self) -> str:
        """Categories, groups, templates."""
        return self._at("plan.json")

    @property
    def meta(self) -> str:
        """When the run started and under which id."""
        return self._at("run.json")

    @property
    def journal(self) -> str:
        """Every transition."""
        return self._at("journal.jsonl")

    @property
    def last_look(self) -> str:
        """What had become of all tested nodes when all tests were over."""
        return self._at("last_look.json")

    @property
    def report(self) -> str:
        """The report as data."""
        return self._at("report.json")

    @property
    def report_text(self) -> str:
        """The report for people."""
        return self._at("report.txt")

    def observation(self, category: str) -> str:
        """What happened to the attempts of a category."""
        return self._at("observations", f"{category}.json")

    def judged(self, category: str) -> str:
        """Measurements and verdicts of a category."""
        return self._at("judged", f"{category}.json")

    def isolation(self, category: str) -> str:
        """State of the isolation of a category."""
        return self._at("isolation", f"{category}.json")

    def drawing(self, category: str) -> str:
        """The search of a category, drawn."""
        return self._at("isolation", f"{category}.svg")

    def logs(self, category: str = "") -> str:
        """The folder of the logs, or of those of a category (by short id)."""
        return self._at("logs", category) if category else self._at("logs")

    def relative(self, path: str) -> str:
        """A path as the archive names it."""
        return os.path.relpath(path, self.path)

    # Reading

    def read_request(self) -> Request | None:
        """The request; None where logs were analyzed, which nobody certified."""
        return t.cast(Request, read_json(self.request)) if os.path.exists(self.request) else None

    def read_plan(self) -> Plan:
        """The plan."""
        return t.cast(Plan, read_json(self.plan))

    def read_snapshot(self) -> Snapshot:
        """The snapshot."""
        return t.cast(Snapshot, read_json(self.snapshot))

    def read_meta(self) -> RunMeta:
        """When the run started and under which id."""
        return t.cast(RunMeta, read_json(self.meta))

    def read_observation(self, category: str) -> Observation | None:
        """The observation of a category; None before its batch has ended."""
        path = self.observation(category)
        return t.cast(Observation, read_json(path)) if os.path.exists(path) else None

    def read_judged(self, category: str) -> JudgedCategory | None:
        """The judged category; None before it was judged."""
        path = self.judged(category)
        return t.cast(JudgedCategory, read_json(path)) if os.path.exists(path) else None

    def read_isolation(self, category: str) -> dict[str, t.Any] | None:
        """The record of the isolation of a category; None before one has begun."""
        path = self.isolation(category)
        return t.cast(dict[str, t.Any], read_json(path)) if os.path.exists(path) else None

    def read_observations(self) -> dict[str, Observation]:
        """Every observation, of categories and waves, by its id, sorted."""
        return {path.stem: t.cast(Observation, read_json(path)) for path in sorted(Path(self._at("observations")).glob("*.json"))}

    def read_last_look(self) -> FinalLook | None:
        """The look at all tested nodes when all tests were over; None where nobody was asked to look."""
        return t.cast(FinalLook, read_json(self.last_look)) if os.path.exists(self.last_look) else None

    def read_attempts(self, category: str) -> dict[str, list[AttemptRecord]]:
        """By group, the attempts of a category (by short id) that an earlier start of the run has ended."""
        return finished_attempts(read_journal(self.journal), category)

    def read_category(self, category_id: str) -> Category:
        """A category of the plan, by id."""
        categories = self.read_plan()["categories"]
        for category in categories:
            if category["id"] == category_id:
                return category
        known = ", ".join(item["id"] for item in categories)
        raise InputError(f"unknown category {category_id!r}", place=self.plan, hint=f"It has {known}")

    # Writing

    def write(self, path: str, data: t.Any) -> None:
        """A JSON file of this archive, whole or not at all. Raises InputError when it cannot be written."""
        try:
            write_json(path, data)
        except OSError as error:
            raise self._cannot_write(error) from error

    def write_text(self, path: str, text: str) -> None:
        """The same for a text."""
        try:
            write_text(path, text)
        except OSError as error:
            raise self._cannot_write(error) from error

    def open(self) -> None:
        """Before going on in an archive: a finished one must be what it was (InputError), and is finished no longer."""
        manifest.unseal(self.path)

    def check(self) -> None:
        """Before reading a finished archive: it must be what it was. Raises InputError."""
        manifest.check_sealed(self.path)

    def seal(self) -> None:
        """The archive is finished: checksums of all files, and the link `latest` beside it."""
        try:
            manifest.write_manifest(self.path)
            manifest.point_latest(self.path)
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> InputError:
        return InputError(f"cannot be written: {error.strerror}", place=self.path, hint="Check free space and permissions, or set runs_dir")
