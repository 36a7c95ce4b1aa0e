# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The one entry of this room: `measure(kind, paths, context)`.

A kind is a module of this package with a function `measure_files(paths, context)` that returns a measurement
(see docs/data_shapes.md). To add one: write the module, add a line to `KINDS`, a table to `metrics.METRICS`.
Modules are imported when first used, so that a play that only reads NCCL logs does not pay for the others.
"""

from __future__ import annotations

import importlib
import os
import traceback
import typing as t

from .._causes.wordings import reason_of_wording
from .._common.errors import ReadinessError, unknown_value
from .._common.shapes import Measurement, MeasurementFinding

# kind -> module of this package that provides measure_files(paths, context) -> measurement
KINDS: dict[str, str] = {
    "nccl": "nccl.recap",
    "dcgm": "dcgm.results",
    "training": "training.results",
    "goodput": "training.goodput",
    "log_profile": "profiles.results",
    "perftest": "tools.perftest",
    "fio": "tools.fio",
    "nvbandwidth": "tools.nvbandwidth",
    "gpu_burn": "tools.gpu_burn",
    "node_facts": "tools.node_facts",
    "key_value": "tools.key_value",
}


def measure(kind: str, paths: t.Sequence[str], context: t.Mapping[str, t.Any] | None = None) -> Measurement:
    """Read the files of one attempt and say what they prove.

    kind:    a key of `KINDS`.
    paths:   files in reading order; names ending in `.gz` are decompressed. An empty list is `no_data`.
    context: what the caller knows, all optional: exit_code, expected_sizes, judged_size, expect_transport,
             require_data_check, expected_gpus, required_tests, log_interval, warmup_steps, nodes, host_of_node ...

    Returns a measurement. Raises InputError for an unknown kind, a wrong context or a file that cannot be read;
    never for what a file contains: a reader that breaks off gives `LogIncomplete`.
    """
    if kind not in KINDS:
        raise unknown_value("kind of measurement", kind, KINDS)
    module = importlib.import_module(f"{__package__}.{KINDS[kind]}")
    made: Measurement
    try:
        made = module.measure_files(list(paths), dict(context or {}))
    except ReadinessError:
        raise
    except Exception as error:  # whatever a log holds, it must not end the judging of the others
        made = _unread(kind, paths, error, module)
    if made["verdict"] == "WorkloadFailed":
        # A log often names what no exit code tells: an eviction, a launcher without its workers, a missing file.
        made["verdict"] = reason_of_wording(made["reason"]) or "WorkloadFailed"
    return made


def compared(kind: str, measurements: t.Mapping[str, Measurement | None], nodes: t.Mapping[str, str]) -> dict[str, Measurement | None]:
    """The measurements of a category's groups, with what a look at all of them says of each as findings, for kinds that have `compare`.

    nodes: group -> its node, for groups of one node. What is wrong already says more than a difference would.
    """
    module = importlib.import_module(f"{__package__}.{KINDS[kind]}")
    told = module.compare(measurements, nodes) if hasattr(module, "compare") else {}
    result = dict(measurements)
    for name, findings in told.items():
        made = result[name]
        if made and made["verdict"] is None:
            result[name] = t.cast(Measurement, {**made, "findings": [*made["findings"], *findings]})
    return result


def risen(
    kind: str,
    category: str,
    before: t.Mapping[str, Measurement | None],
    measurements: t.Mapping[str, Measurement | None],
    nodes: t.Mapping[str, str],
) -> dict[str, Measurement | None]:
    """The measurements of a category's groups, with what came up on their nodes since an earlier category of the same kind as findings.

    category: the earlier one. before: its measurements by node. nodes: group -> its node. What that one has noted already is left out. What
    came up and convicts is the verdict: it names a node, whatever else the second measurement lacks.
    """
    module = importlib.import_module(f"{__package__}.{KINDS[kind]}")
    result = dict(measurements)
    for name, node in nodes.items():
        made, old = result.get(name), before.get(node)
        if not made:
            continue
        told: list[MeasurementFinding] = module.since(old, made, node)
        for item in told:
            item["since"] = category
        known = [item["message"] for item in old["findings"]] if old else []
        kept = [item for item in made["findings"] if item["reason"] != "Warning" or item["message"] not in known]
        result[name] = _with_news(made, told, kept)
    return result


def _with_news(made: Measurement, told: t.Sequence[MeasurementFinding], kept: t.Sequence[MeasurementFinding]) -> Measurement:
    news: Measurement = {**made, "findings": [*told, *kept]}
    broken = [item["message"] for item in told if item["reason"] == "HardwareFailureDetected"]
    if broken:
        reason = "; ".join([*broken[:4], *([made["reason"]] if made["verdict"] == "HardwareFailureDetected" else [])])
        news["verdict"], news["complete"], news["reason"] = "HardwareFailureDetected", False, reason
    return news


def _unread(kind: str, paths: t.Sequence[str], error: Exception, module: t.Any) -> Measurement:
    """The measurement of logs whose reader broke off. Says which logs and where, and nothing of what they hold: it may be secret."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    names = ", ".join(os.path.basename(path) for path in paths)
    text = f"{names} could not be read to its end: {type(error).__name__} at {place}, a defect of the collection; please report it"
    try:
        made: Measurement = module.measure_files([], {})  # the keys of this kind
    except Exception:
        made = measurement(kind, "LogIncomplete", text, complete=False)
    made["verdict"], made["complete"], made["reason"] = "LogIncomplete", False, text
    made["findings"] = [finding("LogIncomplete", text)]
    return made


def measurement(
    kind: str,
    verdict: str | None,
    reason: str,
    *,
    complete: bool,
    values: dict[str, t.Any] | None = None,
    units: dict[str, str] | None = None,
    parsed: dict[str, t.Any] | None = None,
    transport: dict[str, t.Any] | None = None,
    judged: dict[str, t.Any] | None = None,
    findings: list[MeasurementFinding] | None = None,
    **extra: t.Any,
) -> Measurement:
    """A measurement with every key of the contract present. `extra` adds keys of one kind only.

    verdict: what the logs prove to be wrong, a reason of the table; None when nothing is. reason: one sentence for people.
    """
    made = {
        "kind": kind,
        "verdict": verdict,
        "complete": complete,
        "reason": reason,
        "values": values or {},
        "units": units or {},
        "parsed": parsed or {},
        "transport": transport,
        "judged": judged,
        "findings": findings or [],
        **extra,
    }
    return t.cast(Measurement, made)


# More samples than this that differ by more than this are not one number.
UNSTABLE_SPREAD = 0.1
UNSTABLE_SAMPLES = 3


def is_unstable(spread: t.Any, samples: t.Any) -> bool:
    """Whether samples differ too much to convict anybody. spread: (max - min) / max; None: unknown, as when there is one sample."""
    return isinstance(spread, (int, float)) and isinstance(samples, int) and samples >= UNSTABLE_SAMPLES and spread > UNSTABLE_SPREAD


def finding(
    reason: str, message: str, *, host: str | None = None, entity: str | None = None, evidence: t.Sequence[str] = ()
) -> MeasurementFinding:
    """One finding: a reason of the reasons table, what is wrong, where, and the lines that prove it."""
    return {"reason": reason, "host": host, "entity": entity, "message": message, "evidence": list(evidence)}
