# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The table of evidence: a row that fits too much accuses the healthy, one that fits too little lets the broken pass."""

from __future__ import annotations

import time
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import shipped_evidence
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.evidence import CLASSES, Evidence

TABLE = shipped_evidence()
NAMED = [row for row in TABLE.rows if row["kind"] not in ("xid", "dcgm", "severity")]


def fits(row: dict[str, t.Any], text: str) -> bool:
    """Whether the table, asked for the text as a thing of the row's kind, answers with this row."""
    if row["kind"] == "condition":
        said = TABLE.of_condition({"type": text, "status": row["bad"]})
        first = next(
            (item for item in NAMED if item["kind"] == "condition" and alone(item).of_condition({"type": text, "status": item["bad"]})),
            None,
        )
        return said is not None and first is row
    if row["kind"] == "wording":
        return alone(row).words(text) is not None
    key, _mark, value = text.partition("=")
    if row["kind"] == "taint":
        key, _mark, value = text.rpartition(":")[0].partition("=")
        return row in TABLE.of_taint({"key": key, "value": value, "effect": text.rpartition(":")[2]}, row["class"])
    node: dict[str, t.Any] = {
        "label": {"metadata": {"labels": {key: value}}},
        "annotation": {"metadata": {"annotations": {key: value}}},
        "resource": {"status": {"capacity": {key: "1"}}},
        "instance_type": {"metadata": {"labels": {"node.kubernetes.io/instance-type": key}}},
    }[row["kind"]]
    return row in [found for kind, found, _quote in TABLE.marks(node, row["class"]) if kind == row["kind"]]


def alone(row: dict[str, t.Any]) -> Evidence:
    return Evidence([row])


@pytest.mark.parametrize("row", NAMED, ids=lambda row: f"{row['kind']}-{row['name']}")
def test_each_row_fits_its_examples_and_none_of_its_counter_examples(row: dict[str, t.Any]) -> None:
    assert row["source"] and row["examples"] and row["counter_examples"]
    assert [text for text in row["examples"] if not fits(row, text)] == []
    assert [text for text in row["counter_examples"] if fits(row, text)] == []


@pytest.mark.parametrize("row", [row for row in NAMED if row["kind"] == "wording"], ids=lambda row: row["name"])
def test_the_whole_table_gives_each_wording_its_own_class(row: dict[str, t.Any]) -> None:
    for text in row["examples"]:
        said = TABLE.words(text)
        assert said is not None and said.kind == row["class"]


def condition(kind: str, message: str, status: str = "True", reason: str = "") -> t.Any:
    return TABLE.of_condition({"type": kind, "status": status, "reason": reason, "message": message})


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("GpuXidError", "ErrorCode:79 gpu:0 XID error occured Recommended Action=NODE_REBOOT;"),
        ("SysLogsXIDError", "ErrorCode:79 PCI:0000:ef:00 MESSAGE=NVRM: Xid (PCI:0000:ef:00): 79, pid=0 Recommended Action=RESTART_BM;"),
        ("GpuMemWatch", "ErrorCode:DCGM_FR_VOLATILE_DBE_DETECTED GPU:2 Recommended Action=COMPONENT_RESET;"),
        ("SysLogsNICDriverError", "ErrorCode:unrecoverable_err MESSAGE=mlx5_core 0000:c1:00.0: unrecoverable hardware error detected"),
        (
            "GpuNvlinkWatch",
            "ErrorCode:DCGM_FR_IMEX_UNHEALTHY GPU:0 Recommended Action=NONE;ErrorCode:DCGM_FR_NVLINK_DOWN GPU:3 link 4;",
        ),
        ("GpuUnhealthy", "GPU 3 is very ill"),
        ("GpuUnhealthy", "failed to query NVML: GPU is lost"),
        ("AcceleratedHardwareBroken-GpuError", "NvidiaXID79Error"),
        ("GpuXidError", "XIDs detected: 31, 79"),
        ("GpuXidError", "xid_errors=[31 79]"),
        ("NvidiaDriverError", "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."),
    ],
)
def test_hardware_evidence_convicts(kind: str, message: str) -> None:
    assert condition(kind, message).convicts


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("GpuXidError", "ErrorCode:31 gpu:0 XID error occured Recommended Action=NONE;"),
        ("GpuXidError", "ErrorCode:43 gpu:0 Recommended Action=CONTACT_SUPPORT;"),
        ("SysLogsXIDError", "NVRM: Xid (PCI:0000:ef:00): 45, pid=12, Ch 00000010"),
        ("SysLogsXIDError", "ErrorCode:79 something Recommended Action=NONE;"),
        ("SysLogsSXIDError", "ErrorCode:28002 SXid (PCI:0000:ca:00.0): 28002, Therm Warn Deactivated Recommended Action=NONE;"),
        ("SysLogsSXIDError", "nvidia-nvswitch0: SXid (PCI:0000:ca:00.0): 30005, Non-fatal, Link 2"),
        ("GpuPowerWatch", "ErrorCode:DCGM_FR_CLOCKS_EVENT_POWER GPU:1 Recommended Action=NONE;"),
        ("GpuNvlinkWatch", "ErrorCode:DCGM_FR_IMEX_UNHEALTHY GPU:0 IMEX daemon status is -3 Recommended Action=CONTACT_SUPPORT;"),
        ("GpuNvlinkWatch", "ErrorCode:DCGM_FR_CUDA_FM_NOT_INITIALIZED GPU:0 Recommended Action=CONTACT_SUPPORT;"),
        ("GpuUnhealthy", "Failed to connect to DCGM hostengine at localhost:5555"),
        ("GpuUnhealthy", "Failed to initialize NVML: Driver/library version mismatch"),
        ("GpuUnhealthy", "health check timed out after 30 s"),
        ("UnhealthyNvidiaDevicePlugin", "device plugin pod is crash looping"),
        ("GpuXidError", "XIDs detected: 31, 43"),
        ("GpuXidError", "xid_errors=[31 43]"),
        ("GpuXidError", "GPU 3 reported XID-94"),
        ("NvidiaDriverNotReady", ""),
        ("GpuDevicePluginFailed", "CrashLoopBackOff"),
        ("GPUOperatorNotReady", ""),
        ("GpuUnhealthy", "NvidiaDCGMHealthCode122"),
        ("GpuUnhealthy", "health check skipped: GPU in use by a job"),
        ("GpuUnhealthy", "Initializing: waiting for first report"),
        ("GpuUnhealthy", "AgentNotReady"),
        ("GpuUnhealthy", "NvidiaPersistenceModeDisabled"),
    ],
)
def test_trouble_of_agents_programs_and_settings_convicts_nobody(kind: str, message: str) -> None:
    assert not condition(kind, message).convicts


@pytest.mark.parametrize("status", ["Unknown", "", None, "unknown", "maybe"])
def test_a_status_that_is_neither_true_nor_false_convicts_nobody(status: t.Any) -> None:
    said = TABLE.of_condition({"type": "GpuUnhealthy", "status": status, "message": "GPU 3 fell off the bus"})
    assert said.kind == "unknown" and not said.convicts


def test_every_row_has_a_known_class_and_hardware_alone_convicts() -> None:
    assert {row["class"] for row in TABLE.rows if "class" in row} <= set(CLASSES)
    for name in CLASSES:
        said = Evidence([{"kind": "xid", "code": 1, "class": name}]).xid(1)
        assert said is not None and said.convicts == (name == "hardware")


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_is_judged_without_an_error(kind: str, message: str) -> None:
    TABLE.of_condition({"type": kind, "status": "True", "reason": kind, "message": message})
    TABLE.of_text(message)
    TABLE.marks({"metadata": {"labels": {kind: message}, "annotations": {kind: message}}}, *CLASSES)


@pytest.mark.parametrize("unit", ["x", "1", " ", "xid ", "ErrorCode:", "unable to ", "driver ", "a/", "device plugin "])
def test_a_long_text_is_judged_in_time_that_grows_with_its_length(unit: str) -> None:
    def seconds(length: int) -> float:
        text = (unit * length)[:length]
        best = 1e9
        for _round in range(3):
            start = time.process_time()
            TABLE.of_condition({"type": "GpuUnhealthy", "status": "True", "message": text})
            TABLE.marks({"metadata": {"labels": {text: text}}, "spec": {"taints": [{"key": text, "effect": "NoSchedule"}]}}, *CLASSES)
            best = min(best, time.process_time() - start)
        return best

    assert seconds(16_000) < 12 * seconds(4_000) + 0.1
