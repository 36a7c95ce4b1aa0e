# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The fact sheet of a node, as the catalog's own script prints it: what its parts say of themselves, counted and judged.

A GPU that says that its memory is broken, or that it must be reset, convicts its node. What may have another cause is a note.
"""

from __future__ import annotations

import typing as t
from collections import Counter

from ..._causes.exit_codes import log_reason_of
from ..._common.shapes import Measurement, MeasurementFinding
from .. import json_documents
from ..measurement import finding
from ..outcomes import number
from .sheet_changes import changes
from .tool import Context, Document, Log, Said, Tool

_FIRST_KEYS = ("node_facts",)
Row = dict[str, t.Any]
# What slows a GPU down by force of the hardware; a power cap under load or an idle clock is its normal life.
_SLOWED = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


class _Check(t.NamedTuple):
    """Something that a GPU may say of itself. is_broken: whether that convicts. words: what it means, after the GPU's number."""

    metric: str
    bad: t.Callable[[Row], bool | int | None]
    is_broken: bool
    words: str


def _at(gpu: Row, *path: str) -> t.Any:
    node: t.Any = gpu
    for key in path:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _flag(*path: str) -> t.Callable[[Row], bool | None]:
    def read(gpu: Row) -> bool | None:
        value = _at(gpu, *path)
        return value if isinstance(value, bool) else None

    return read


def _count(*path: str) -> t.Callable[[Row], int | None]:
    def read(gpu: Row) -> int | None:
        value = number(_at(gpu, *path))
        return None if value is None else int(value)

    return read


def _asks_for_recovery(gpu: Row) -> bool | None:
    action = gpu.get("recovery_action")
    return action != "None" if isinstance(action, str) else None


def _is_slowed(gpu: Row) -> bool | None:
    reasons = gpu.get("slowed_by")
    return any(name in _SLOWED for name in reasons) if isinstance(reasons, list) else None


def _is_narrow(gpu: Row) -> bool | None:
    width, most = number(_at(gpu, "pcie", "width")), number(_at(gpu, "pcie", "max_width"))
    return None if width is None or most is None else width < most


def _inactive(gpu: Row) -> int | None:
    links = _at(gpu, "nvlinks", "inactive")
    return len(links) if isinstance(links, list) else None


def _link_errors(gpu: Row) -> int | None:
    errors = _at(gpu, "nvlinks", "errors")
    counts = [number(value) or 0 for value in errors.values()] if isinstance(errors, dict) else []
    return int(sum(counts)) if counts else None


_CHECKS = (
    _Check("remap_failures", _flag("remapped_rows", "failure"), True, "a row of its memory could not be remapped"),
    _Check("unrepairable", _flag("ecc", "unrepairable"), True, "its memory is beyond repair"),
    _Check("sram_threshold_exceeded", _flag("ecc", "sram_threshold_exceeded"), True, "its SRAM had more errors than it may have"),
    _Check("remaps_pending", _flag("remapped_rows", "pending"), True, "a row of its memory waits for a reset to be remapped"),
    _Check("retirements_pending", _flag("retired_pages", "pending"), True, "a page of its memory waits for a reset to be retired"),
    _Check("repairs_pending", _flag("ecc", "repair_pending"), True, "a repair waits for a reset"),
    _Check("ecc_uncorrectable", _count("ecc", "uncorrectable"), True, "had memory errors since its last reset that were not corrected"),
    _Check("recovery_actions", _asks_for_recovery, True, "its driver asks for a recovery action"),
    _Check("slowed_gpus", _is_slowed, False, "is slowed down by heat or power at this moment"),
    _Check("narrow_links", _is_narrow, False, "its PCIe link has fewer lanes than it can have"),
    _Check("nvlinks_inactive", _inactive, False, "some of its NVLinks are not active"),
    _Check("nvlink_errors", _link_errors, False, "its NVLinks have counted errors"),
)


def _judge(logs: t.Sequence[Log], context: Context) -> Said:
    """One node. context: exit_code, expected_gpus, nodes."""
    document = Document()
    for log in logs:
        for line in log:
            document.feed(line)
    root, damaged = json_documents.find_last(document.text, _is_root, _FIRST_KEYS)
    facts: Row = root["node_facts"] if root is not None and not damaged else {}
    gpus, ports = _rows(facts, "gpus"), [port for nic in _rows(facts, "nics") for port in _rows(nic, "ports")]
    findings = [*_gpu_findings(gpus, context), *_port_findings(facts, context), *_unread(facts, context)]
    verdict, reason = _verdict(facts, damaged, findings, context)
    values: Row = {
        "gpus": len(gpus),
        **{check.metric: _total(check, gpus) for check in _CHECKS},
        "ecc_uncorrectable_ever": _sum([_count("ecc", "uncorrectable_ever")(gpu) for gpu in gpus]),
        "rows_remapped": _sum([_count("remapped_rows", "uncorrectable")(gpu) for gpu in gpus]),
        "nics": len(_rows(facts, "nics")),
        "ports_down": sum(_is_down(port) for port in ports),
        "unread": len(_rows(facts, "unread")),
        "driver": _at(facts, "driver", "version"),
        "kernel": _at(facts, "host", "kernel"),
    }
    return Said(verdict, reason, values if facts else {}, {"facts": facts}, findings)


def _is_root(value: t.Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("node_facts"), dict)


def _rows(facts: Row, key: str) -> list[Row]:
    found = facts.get(key)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _sum(counts: t.Sequence[int | None]) -> int | None:
    """None when no GPU has such a counter."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _total(check: _Check, gpus: t.Sequence[Row]) -> int | None:
    said = [check.bad(gpu) for gpu in gpus]
    return _sum([None if item is None else int(item) for item in said])


def _node(context: Context) -> str | None:
    nodes = list(context.get("nodes") or [])
    return str(nodes[0]) if len(nodes) == 1 else None


def _gpu_findings(gpus: t.Sequence[Row], context: Context) -> list[MeasurementFinding]:
    found = []
    for gpu in gpus:
        name = f"GPU{gpu.get('number')}"
        identity = ", ".join(f"{key} {gpu[key]}" for key in ("serial", "uuid", "bus_id") if gpu.get(key))
        for check in _CHECKS:
            said = check.bad(gpu)
            if said:
                amount = f" ({said})" if not isinstance(said, bool) else ""
                reason = "HardwareFailureDetected" if check.is_broken else "Warning"
                text = f"GPU {gpu.get('number')}: {check.words}{amount}"
                found.append(finding(reason, text, host=_node(context), entity=name, evidence=[identity]))
    return found


def _is_down(port: Row) -> bool:
    return port.get("state") not in ("ACTIVE", None)


def _port_findings(facts: Row, context: Context) -> list[MeasurementFinding]:
    found = []
    for nic in _rows(facts, "nics"):
        for port in _rows(nic, "ports"):
            if _is_down(port):
                text = f"port {port.get('number')} of {nic.get('device')} is {port.get('state')} ({port.get('physical')})"
                found.append(finding("Warning", text, host=_node(context), entity=str(nic.get("device"))))
    return found


def _unread(facts: Row, context: Context) -> list[MeasurementFinding]:
    return [
        finding("Warning", f"{item.get('what')} could not be read: {item.get('why')}", host=_node(context))
        for item in _rows(facts, "unread")
    ]


def _verdict(facts: Row, damaged: bool, findings: t.Sequence[MeasurementFinding], context: Context) -> tuple[str | None, str]:
    gpus, expected = _rows(facts, "gpus"), context.get("expected_gpus")
    failed = log_reason_of(context.get("exit_code"))
    if failed:
        return failed, f"exit {context.get('exit_code')}"
    if damaged or not facts:
        return ("LogIncomplete", "the fact sheet is cut or damaged") if damaged else ("NoMeasurement", "no fact sheet")
    broken = [item["message"] for item in findings if item["reason"] == "HardwareFailureDetected"]
    if broken:
        return "HardwareFailureDetected", "; ".join(broken[:4])
    if not gpus:
        why = next((str(item.get("why")) for item in _rows(facts, "unread")), "no GPU is listed")
        return "NoMeasurement", f"nothing is known of the GPUs: {why}"
    if isinstance(expected, int) and len(gpus) < expected:
        return "LogIncomplete", f"{len(gpus)} of {expected} GPUs are on the fact sheet"
    return None, f"{len(gpus)} GPUs and {len(_rows(facts, 'nics'))} NICs"


# --- the nodes of a category, side by side ---------------------------------------------------------------------------


def _alike(rows: t.Sequence[Row], *path: str) -> str | None:
    """What the parts of a node have in common, or all that they have; None when nothing is known."""
    found = {str(_at(row, *path)) for row in rows if _at(row, *path) is not None}
    return ", ".join(sorted(found)) if found else None


def _traits(facts: Row) -> dict[str, str | None]:
    """What should be the same on all nodes of one pool."""
    gpus, nics = _rows(facts, "gpus"), _rows(facts, "nics")
    ports = [port for nic in nics for port in _rows(nic, "ports")]
    return {
        "kernel": _alike([facts], "host", "kernel"),
        "GPU driver": _alike([facts], "driver", "version"),
        "number of GPUs": str(len(gpus)),
        "GPU": _alike(gpus, "name"),
        "VBIOS": _alike(gpus, "vbios"),
        "GPU part number": _alike(gpus, "part_number"),
        "ECC": _alike(gpus, "ecc", "enabled"),
        "power limit (W)": _alike(gpus, "power", "limit_w"),
        "PCIe lanes of GPUs": _alike(gpus, "pcie", "width"),
        "NVLinks of a GPU": _alike(gpus, "nvlinks", "links"),
        "number of NICs": str(len(nics)),
        "NIC": _alike(nics, "model"),
        "NIC firmware": _alike(nics, "firmware"),
        "rate of NIC ports": _alike(ports, "rate"),
    }


def compare(measurements: t.Mapping[str, Measurement | None], nodes: t.Mapping[str, str]) -> dict[str, list[MeasurementFinding]]:
    """By group, in what its node differs from most others. nodes: group -> its node. Which of them is right nobody knows: all are notes."""
    traits = {name: _traits(made["parsed"]["facts"]) for name, made in measurements.items() if made and made["parsed"].get("facts")}
    found: dict[str, list[MeasurementFinding]] = {}
    for trait in next(iter(traits.values()), {}):
        said = {name: text for name, own in traits.items() if (text := own[trait]) is not None}
        counts = Counter(said.values())
        usual, most = counts.most_common(1)[0] if counts else ("", 0)
        has_usual = 2 * most > len(said)
        for name, text in said.items():
            if len(counts) > 1 and not (has_usual and text == usual):
                others = (
                    f"{most} of {len(said)} nodes have {usual}" if has_usual else f"the nodes of the pool have {len(counts)} different ones"
                )
                found.setdefault(name, []).append(finding("Warning", f"{trait}: {text}; {others}", host=nodes.get(name)))
    return found


# --- the same node, before other tests and after them ------------------------------------------------------------------


def since(before: Measurement | None, after: Measurement, node: str | None) -> list[MeasurementFinding]:
    """What came up on a node between two sheets."""
    first, second = (made["parsed"].get("facts") if made else None for made in (before, after))
    if second and not first:
        return [finding("Warning", "there is no fact sheet of this node from before the tests: nothing is compared", host=node)]
    return changes(first, second, node) if first and second else []


_TOOL = Tool("node_facts", _judge)
measure_files, parse = _TOOL.measure_files, _TOOL.parse
