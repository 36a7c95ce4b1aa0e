# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The criteria of a category: its expressions and thresholds over the metrics that its measurement can carry.

The one place where criteria meet metrics: planning, judging, filters, rebuilding a report and logs from anywhere call `criteria_of`.
"""

from __future__ import annotations

import typing as t

from .._common.errors import unknown_value
from .._common.shapes import Measurement
from .._measure.measurement import KINDS, finding
from .._measure.metrics import METRICS, OPEN, Metric
from .._measure.profiles import files as profile_files
from .._measure.profiles.results import declared_metrics
from .criteria import Criterion, compile_criteria, evaluate_all


def metrics_of(measure: t.Mapping[str, t.Any], place: str = "") -> tuple[dict[str, Metric], bool]:
    """The metrics a measurement can carry, and whether it may carry others.

    measure: {kind, profile?, profile_directories?} of a category. A log profile declares its metrics itself; NVCRE's declare none.
    Raises InputError for an unknown kind or profile.
    """
    kind = measure.get("kind")
    if kind not in KINDS:
        raise unknown_value("kind of measurement", kind, KINDS, f"{place}.measure.kind" if place else "measure.kind")
    table, is_open = METRICS[kind], kind in OPEN
    if kind != "log_profile" or not measure.get("profile"):
        return table, is_open
    profile = profile_files.find(measure["profile"], measure.get("profile_directories") or ())
    if profile.nvcre:
        return table, is_open
    return {**METRICS.get(profile.reader or "", {}), **declared_metrics(profile)}, (profile.reader or "") in OPEN


def criteria_of(category: t.Mapping[str, t.Any], *, metrics: t.Mapping[str, t.Any] | None = None, place: str = "") -> list[Criterion]:
    """Every criterion of a category, compiled.

    category: {criteria?, thresholds?, measure: {kind, profile?}}. metrics: further metrics, name -> a Metric, {type, unit} or a type word.
    place: the category's key path, for messages. Raises InputError for the first criterion that cannot work.
    """
    table, is_open = metrics_of(category.get("measure") or {}, place)
    known = {**table, **(metrics or {})}
    return compile_criteria(category.get("criteria"), category.get("thresholds"), known, place=place, open_metrics=is_open)


def with_thresholds(measurement: Measurement, thresholds: t.Any) -> Measurement:
    """The measurement, with the verdict ThresholdViolation when it is complete and misses a limit that came along with its log.

    thresholds: NVCRE's map, {busBandwidthGBps: "value >= 400"}; the judged size is compared. Raises InputError when it cannot work.
    """
    compiled = criteria_of({"thresholds": thresholds, "measure": {"kind": measurement["kind"]}}, place="context")
    if measurement["verdict"] is not None or not measurement["complete"]:
        return measurement
    missed = [result for result in evaluate_all(compiled, measurement["values"]) if not result["passed"]]
    if not missed:
        return measurement
    found = [finding("ThresholdViolation", result["message"]) for result in missed]
    return {
        **measurement,
        "verdict": "ThresholdViolation",
        "reason": missed[0]["message"],
        "findings": [*measurement["findings"], *found],
    }
