# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The table of reasons, and the page that is written from it."""

from __future__ import annotations

import pathlib

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes import reasons

ROOT = pathlib.Path(__file__).resolve().parents[5]
KINDS = {"hardware", "data", "transport", "performance", "setup", "scheduling", "infrastructure", "log"}


def test_the_page_is_written_from_the_table():
    assert (ROOT / "docs/reasons.md").read_text(encoding="utf-8") == reasons.as_markdown(), "run python tools/write_reasons.py"


def test_rows_are_whole():
    for row in reasons.REASONS.values():
        assert row.effect in reasons.EFFECTS
        assert row.kind in KINDS
        assert row.meaning.endswith(".") and row.hint.endswith(".")
        assert row.verdict == "passed" if row.effect == "note" else row.verdict in ("failed", "incomplete", "error")
        if row.effect in ("convicts", "suspects"):
            assert row.verdict == "failed"
        if row.effect == "untested":
            assert row.verdict != "failed"


def test_the_names_others_read_are_there():
    names = (
        "HardwareFailureDetected ThresholdViolation WorkloadFailed Unschedulable Queued SetupError ImagePull AdmissionDenied Quota"
        " OOMKilled Evicted NodeLost DeviceRejected LogIncomplete NoMeasurement TransportFallback DataCorruption TimedOut Unstable"
        " Untested Cancelled"
    )
    assert set(names.split()) <= set(reasons.REASONS)


def test_an_unknown_reason_cannot_pass_unseen():
    assert reasons.finding("Frobnicated", "x")["reason"] == "WorkloadFailed"
