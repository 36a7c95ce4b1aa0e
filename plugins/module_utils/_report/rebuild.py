# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A run's report from its archive alone: no cluster, no clock."""

from __future__ import annotations

import typing as t

from .._archive.journal import open_batches, read_journal
from .._archive.run_directory import RunDirectory
from .._common.shapes import Category, CleanupProof, JudgedCategory, Observation, Report
from .._criteria.category import criteria_of
from .._judge.categories import judge_category
from .._judge.certification import roll_up, with_cleanup
from .._judge.last_look import final_findings
from .model import build_report


def report_from_archive(run: RunDirectory) -> Report:
    """The report model of a run directory.

    A planned category without a judgement is reported as not run. Raises InputError for a directory that is not a run's.
    """
    meta, snapshot, plan, request = run.read_meta(), run.read_snapshot(), run.read_plan(), run.read_request()
    judged = [_judged(run, category) for category in plan["categories"]]
    observed = run.read_observations()
    observations = list(observed.values())
    since = final_findings([category["id"] for category in plan["categories"]], observed, run.read_last_look())
    about = {
        "run_id": meta["run_id"],
        "started": meta.get("started"),
        "finished": meta.get("finished") or _last_end(observations),
        "certification": {"name": request["name"] if request else plan.get("name") or meta.get("name")},
        "version": meta.get("version"),
        "archive": meta.get("archive"),
        "notes": [*(meta.get("notes") or []), *_cancelled(observations)],
    }
    cleanup = _cleanup(observations, open_batches(read_journal(run.journal)))
    return build_report(about, snapshot, plan, with_cleanup(roll_up(snapshot, judged, since), cleanup), cleanup)


def _judged(run: RunDirectory, category: Category) -> JudgedCategory:
    known = run.read_judged(category["id"])
    return known if known else judge_category(category, None, {}, criteria_of(category, place=category["id"]))


def _last_end(observations: t.Iterable[Observation]) -> str | None:
    attempts = [attempt for item in observations for group in item["groups"] for attempt in group["attempts"]]
    return max((attempt["finished"] for attempt in attempts if attempt["finished"]), default=None)


def _cleanup(observations: t.Sequence[Observation], open_: t.Iterable[str]) -> CleanupProof | None:
    """One proof over all batches: proven only when every one is. open_: those whose process was killed before it could clean up."""
    proofs = [item["cleanup"] for item in observations if item["cleanup"]]
    proofs += [
        {"proven": False, "left": [], "message": f"{batch} was ended before it could clean up: the playbook cleanup does"}
        for batch in open_
    ]
    if not proofs:
        return None
    left = sorted({str(name) for proof in proofs for name in proof["left"]})
    messages = dict.fromkeys(str(proof["message"]) for proof in proofs if proof.get("message"))
    return {"proven": all(proof["proven"] for proof in proofs), "left": left, "message": "; ".join(messages)}


def _cancelled(observations: t.Iterable[Observation]) -> list[str]:
    words = (item["cancelled"] for item in observations if item["cancelled"])
    return [f"the run was cut short: {word}" for word in dict.fromkeys(words)]
