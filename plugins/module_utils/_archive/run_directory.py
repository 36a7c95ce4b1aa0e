# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Where things are in a run directory. The archive is the truth: every step reads what the steps before it wrote here."""

from __future__ import annotations

import json
import os
import typing as t

from .._common.errors import InputError


class RunDirectory:
    """The paths of one run."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    @property
    def snapshot(self) -> str:
        """The cluster as it was read at the start."""
        return os.path.join(self.path, "snapshot.json")

    @property
    def spec(self) -> str:
        """The certification as it was asked for, with defaults filled in."""
        return os.path.join(self.path, "spec.json")

    @property
    def plan(self) -> str:
        """Categories, groups, templates."""
        return os.path.join(self.path, "plan.json")

    @property
    def run(self) -> str:
        """When the run started and under which id."""
        return os.path.join(self.path, "run.json")

    @property
    def journal(self) -> str:
        """Every transition."""
        return os.path.join(self.path, "journal.jsonl")

    def observation(self, category: str) -> str:
        """What happened to the attempts of a category."""
        return os.path.join(self.path, "observations", f"{category}.json")

    def judged(self, category: str) -> str:
        """Measurements and verdicts of a category."""
        return os.path.join(self.path, "judged", f"{category}.json")

    def isolation(self, category: str) -> str:
        """State of the isolation of a category."""
        return os.path.join(self.path, "isolation", f"{category}.json")

    @property
    def report(self) -> str:
        """The report as data."""
        return os.path.join(self.path, "report.json")

    @property
    def report_text(self) -> str:
        """The report for people."""
        return os.path.join(self.path, "report.txt")

    def read(self, path: str) -> t.Any:
        """A JSON file of this run. Raises InputError when it is absent or broken."""
        try:
            with open(path, encoding="utf-8") as handle:
                return json.load(handle)
        except FileNotFoundError:
            raise InputError("is not there", place=path, hint="Is this the directory of a run?") from None
        except (OSError, ValueError) as error:
            raise InputError(f"cannot be read: {error}", place=path) from error

    def category(self, category_id: str) -> dict[str, t.Any]:
        """A category of the plan, by id."""
        categories = self.read(self.plan)["categories"]
        for category in categories:
            if category["id"] == category_id:
                return category
        raise InputError(
            f"unknown category {category_id!r}", place=self.plan, hint=f"It has {', '.join(item['id'] for item in categories)}"
        )
