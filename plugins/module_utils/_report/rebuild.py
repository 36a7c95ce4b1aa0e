# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A run's report from its archive alone: no cluster, no clock."""

from __future__ import annotations

import typing as t
from pathlib import Path

from .._archive.files import read_json
from .._criteria.criteria import compile_criteria
from .._judge.verdict import judge_category, roll_up
from .._measure.metrics import METRICS, OPEN
from .model import Row, build_report


def report_from_archive(run_dir: str | Path) -> Row:
    """The report model of a run directory.

    Reads run.json, snapshot.json, plan.json, spec.json (if there), judged/<category>.json and observations/<category>.json.
    A planned category without a judgement is reported as not run. Raises InputError for a directory that is not a run's.
    """
    root = Path(run_dir)
    meta, snapshot, plan = (read_json(root / f"{name}.json") for name in ("run", "snapshot", "plan"))
    spec = read_json(root / "spec.json") if (root / "spec.json").is_file() else {}
    judged = [_judged(root, category) for category in plan["categories"]]
    observations = [read_json(path) for path in sorted((root / "observations").glob("*.json"))]
    run = {
        "run_id": meta["run_id"],
        "started": meta.get("started"),
        "finished": meta.get("finished") or _last_end(observations),
        "certification": {
            **{key: spec[key] for key in ("stage",) if spec.get(key)},
            "name": spec.get("name") or plan.get("name") or meta.get("name"),
        },
        "version": meta.get("version"),
        "archive": meta.get("archive"),
        "notes": [*(meta.get("notes") or []), *_cancelled(observations)],
    }
    return build_report(run, snapshot, plan, roll_up(snapshot, judged), _cleanup(observations))


def _judged(root: Path, category: t.Mapping[str, t.Any]) -> Row:
    path = root / "judged" / f"{category['id']}.json"
    if path.is_file():
        return read_json(path)
    kind = (category.get("measure") or {}).get("kind", "")
    compiled = compile_criteria(
        category.get("criteria"),
        category.get("thresholds"),
        METRICS.get(kind, {}),
        place=category["id"],
        open_metrics=kind in OPEN or not kind,
    )
    return judge_category(category, None, {}, compiled)


def _last_end(observations: t.Iterable[Row]) -> str | None:
    attempts = [attempt for item in observations for group in item["groups"] for attempt in group["attempts"]]
    return max((attempt["finished"] for attempt in attempts if attempt.get("finished")), default=None)


def _cleanup(observations: t.Sequence[Row]) -> Row | None:
    """One proof over all categories: proven only when every one is."""
    proofs = [item["cleanup"] for item in observations if item.get("cleanup")]
    if not proofs:
        return None
    left = sorted({str(name) for proof in proofs for name in proof.get("left") or []})
    return {"proven": all(proof.get("proven") for proof in proofs), "left": left}


def _cancelled(observations: t.Iterable[Row]) -> list[str]:
    words = (item["cancelled"] for item in observations if isinstance(item.get("cancelled"), str) and item["cancelled"])
    return [f"the run was cut short: {word}" for word in dict.fromkeys(words)]
