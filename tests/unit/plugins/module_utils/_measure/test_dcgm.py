# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""DCGM: a node is taken out of service, or sent into production, on what these tests pin down."""

from __future__ import annotations

import json
import sys
import typing as t
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from dcgm_samples import TABLE_V3, check, failing, passing, result, v4

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import shipped_evidence
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes import dcgm_exits
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.dcgm import codes as dcgm_codes
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.dcgm import results as dcgm
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.metrics import METRICS

_SEVERITIES = {row["code"]: dcgm_codes.severity_of(row["code"]) for row in shipped_evidence().rows if row["kind"] == "dcgm"}


def judged(text: str, **context: t.Any) -> tuple[str, str | None, list[str]]:
    said = dcgm.parse(text, context)
    return said["class"], said["verdict"], said["failed_entities"]


@pytest.mark.parametrize(
    ("code", "severity", "expected"),
    [
        (52, 2, "hardware_fail"),
        (85, 6, "hardware_reset"),
        (101, 4, "hardware_fail"),
        (56, 4, "inconclusive"),
        (124, 4, "inconclusive"),
        (29, 5, "config_fail"),
        (10, 1, "warn"),
    ],
)
def test_severity_decides_the_class_of_a_failure(code: int, severity: int, expected: str) -> None:
    """A wrong setting reported as hardware starts an RMA for nothing."""
    said = dcgm.parse(v4(failing("memory", 5, code, severity)), {"exit_code": 226})
    assert said["class"] == expected
    assert said["failed_entities"] == (["GPU5"] if expected in ("hardware_fail", "hardware_reset", "config_fail") else [])


def test_a_finding_names_gpu_test_code_and_advice() -> None:
    said = dcgm.parse(v4(failing("memory", 5, 52, 2, "bad cells")), {"exit_code": 205, "nodes": ["gpu-1"]})
    finding = said["findings"][0]
    assert (finding["reason"], finding["host"], finding["entity"], finding["test"], finding["code"]) == (
        "HardwareFailureDetected",
        "gpu-1",
        "GPU5",
        "memory",
        52,
    )
    assert "out of service" in finding["advice"]
    assert finding["evidence"] == ["bad cells"]


def test_pass_with_an_error_record_is_run_again() -> None:
    """Something else held the memory: neither a pass nor a broken GPU."""
    text = v4(check("memory", [result(n, code=56 if n == 2 else 0, severity=4) for n in range(8)]))
    assert judged(text, exit_code=226) == ("inconclusive", "NoMeasurement", [])


def test_runtime_error_busy() -> None:
    text = json.dumps({"DCGM Diagnostic": {"runtime_error": "Error: cannot run. Return: (-34) : in use", "version": "4.5.2"}}, indent=2)
    assert judged(text, exit_code=222) == ("busy", "NoMeasurement", [])


@pytest.mark.parametrize("code", [222, 217, 202])
def test_busy_exit_codes_are_never_hardware(code: int) -> None:
    assert judged("", exit_code=code)[:2] == ("busy", "NoMeasurement")


@pytest.mark.parametrize(
    ("code", "expected"), [(226, "incomplete"), (205, "incomplete"), (137, "incomplete"), (124, "timed_out"), (0, "incomplete")]
)
def test_without_a_document_the_exit_status_proves_no_gpu_bad(code: int, expected: str) -> None:
    reason = "TimedOut" if expected == "timed_out" else "LogIncomplete"
    assert judged("no output of interest", exit_code=code) == (expected, reason, [])


@pytest.mark.parametrize(
    ("code", "expected"), [(238, "hardware_fail"), (237, "hardware_reset"), (233, "setup_error"), (199, "inconclusive")]
)
def test_exit_codes_that_say_more(code: int, expected: str) -> None:
    assert judged("", exit_code=code)[0] == expected


def test_generation_3_3_with_holes_and_mixed_types() -> None:
    """3.3 leaves null where a GPU has no result, and spells one key differently in the deployment part."""
    warning = {"warnings": "persistence mode is off", "error_id": 29, "error_category": 3, "error_severity": 5}
    root = {
        "DCGM GPU Diagnostic": {
            "version": "3.3.5",
            "Driver Version Detected": "535.1",
            "GPU Device IDs": ["2330", "2330"],
            "test_categories": [
                {
                    "category": "Deployment",
                    "tests": [{"name": "Persistence Mode", "results": [{"gpu_id": 1, "status": "Fail", "warnings": [warning]}]}],
                },
                {"category": "Hardware", "tests": [{"name": "GPU Memory", "results": [None, {"gpu_id": "1", "status": "Pass"}]}]},
            ],
        }
    }
    said = dcgm.parse(json.dumps(root, indent=2), {"exit_code": 226})
    assert (said["class"], said["failed_entities"]) == ("config_fail", ["GPU1"])
    assert said["parsed"]["generation"] == "v3"
    assert said["parsed"]["dcgm"] == "3.3.5"
    assert said["parsed"]["gpus"] == 2
    assert said["parsed"]["tests"][0]["warnings"] == ["persistence mode is off"]


def test_3_x_json_fail_with_exit_0_is_a_warning_but_its_table_is_not() -> None:
    root = {
        "DCGM GPU Diagnostic": {
            "test_categories": [
                {"category": "Hardware", "tests": [{"name": "PCIe", "results": [{"gpu_ids": "0,1", "status": "Fail", "warnings": "slow"}]}]}
            ]
        }
    }
    assert judged(json.dumps(root), exit_code=0)[:2] == ("warn", None)
    assert judged(json.dumps(root), exit_code=226) == ("hardware_fail", "HardwareFailureDetected", ["GPU0", "GPU1"])
    assert judged(TABLE_V3, exit_code=0)[1] == "HardwareFailureDetected"


def test_v3_table_names_both_gpus() -> None:
    said = dcgm.parse(TABLE_V3, {"exit_code": 226})
    assert (said["class"], said["failed_entities"]) == ("hardware_fail", ["GPU0", "GPU3"])
    assert said["parsed"]["generation"] == "v3_text"
    assert said["parsed"]["warned_entities"] == ["GPU1"]
    assert said["parsed"]["tests"][-1] == {
        "category": "Hardware", "name": "Diagnostic", "result": "Skip", "entities": 0, "failed": [], "codes": [], "warnings": [],
    }  # fmt: skip


def _table(*rows: tuple[str, str]) -> str:
    """A text table of two GPUs with these (first cell, second cell) rows."""
    border = f"+{'-' * 27}+{'-' * 48}+"
    head = [border, f"| {'Diagnostic':25} | {'Result':46} |", border.replace("-", "="), f"|-----  Metadata  ----------+{'-' * 48}|"]
    head += [f"| {'GPU Device IDs Detected':25} | {'2330, 2330':46} |", f"|-----  Deployment  --------+{'-' * 48}|"]
    return "\n".join(["Successfully ran diagnostic for group.", *head, *(f"| {name:25} | {cell:46} |" for name, cell in rows), border, ""])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([("Persistence Mode", "Fail"), ("GPU Memory", "Pass - All")], "config_fail"),
        ([("Graphics Processes", "Fail - GPU: 1"), ("GPU Memory", "Pass - All")], "config_fail"),
        ([("software", "Fail"), ("", "GPU0: Fail"), ("Warning: GPU0", "Persistence Mode: is off")], "config_fail"),
        ([("Inforom", "Fail"), ("GPU Memory", "Pass - All")], "hardware_fail"),
        ([("Page Retirement/Row Remap", "Fail"), ("GPU Memory", "Pass - All")], "hardware_fail"),
    ],
)
def test_settings_without_a_code_are_no_broken_gpu(rows: list[tuple[str, str]], expected: str) -> None:
    """A table prints no codes; persistence mode that is off must not put a node out of service."""
    assert dcgm.parse(_table(*rows), {"exit_code": 226})["class"] == expected


def test_warning_of_a_4_x_table_explains_its_exit_status() -> None:
    """226 counts the record of a warning too: nothing is to be run again."""
    rows = [("pcie", "Warn"), ("", "GPU0: Fail"), ("", "GPU1: Pass"), ("Warning: GPU0", "link width 8 below 16")]
    assert dcgm.parse(_table(*rows), {"exit_code": 226})["class"] == "warn"


def test_all_gpus_of_a_table_are_named() -> None:
    assert dcgm.parse(_table(("GPU Memory", "Fail - All")), {"exit_code": 226})["failed_entities"] == ["GPU0", "GPU1"]


def test_a_switch_that_fails_counts_although_the_exit_status_is_0() -> None:
    results = [*(result(n) for n in range(8)), result(0, "Fail", code=109, severity=2, group="Switch")]
    assert judged(v4(check("nvbandwidth", results, "Fail")), exit_code=0) == ("hardware_fail", "HardwareFailureDetected", ["Switch0"])


def test_mndiag_names_the_host() -> None:
    hosts = [
        {
            "host_id": n,
            "hostname": f"gpu-a{n}",
            "dcgm_version": "4.6.0",
            "entities": [{"entity_group": "GPU", "entity_group_id": 1, "entity_id": 3}],
        }
        for n in range(2)
    ]
    results = [result(3, host_id=0), result(3, "Fail", code=111, severity=2, host_id=1)]
    root = {
        "DCGM Diagnostic": "DCGM Multi-Node Diagnostic",
        "hosts": hosts,
        "metadata": {"num_hosts": 2},
        "test_categories": [{"category": "Multi-Node Tests", "tests": [check("mnubergemm", results, "Fail")]}],
    }
    said = dcgm.parse(json.dumps(root, indent=2), {"exit_code": 205})
    assert said["failed_entities"] == ["gpu-a1/GPU3"]
    assert said["findings"][0]["host"] == "gpu-a1"


def test_mig_is_a_setting() -> None:
    skipped = check("memory", [result(n, "Skip", info=["MIG mode is enabled"]) for n in range(8)], "Skip")
    assert judged(v4(skipped), exit_code=0, required_tests=["memory"])[1] == "SetupError"
    assert judged(v4(skipped), exit_code=0)[1] == "SetupError"


def test_nvbandwidth_that_read_busy_clocks_is_run_again() -> None:
    assert judged(v4(failing("nvbandwidth", 1, 62, 4, "MCUTIL 13 % > 10 %")), exit_code=226)[1] == "NoMeasurement"
    assert judged(v4(failing("memory_bandwidth", 1, 62, 4, "180 GB/s")), exit_code=226)[1] == "HardwareFailureDetected"


def test_exit_226_without_any_error_in_the_document_is_no_pass() -> None:
    assert judged(v4(passing()), exit_code=226)[1] == "NoMeasurement"
    assert judged(v4(passing()), exit_code=77)[1] == "NoMeasurement"
    assert judged(v4(passing()), exit_code=143)[1] == "LogIncomplete"


def test_not_run_after_an_abort() -> None:
    assert judged(v4(passing(), {"name": "pcie"}), exit_code=0)[1] == "LogIncomplete"


def test_severity_follows_from_the_code_when_it_is_missing() -> None:
    entry = {"name": "GPU Memory", "results": [{"gpu_ids": "1", "status": "Fail", "warnings": "persistence", "error_id": 29}]}
    root = {"DCGM GPU Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [entry]}]}}
    assert judged(json.dumps(root), exit_code=226)[0] == "config_fail"
    entry["results"][0]["error_id"] = 52  # type: ignore[index]
    said = dcgm.parse(json.dumps(root), {"exit_code": 226})
    assert said["findings"][0]["confidence"] == "low"


def test_missing_gpu_and_required_tests() -> None:
    """All tests that ran passed: still nothing to be proud of."""
    assert judged(v4(passing(gpus=7), gpus=7), exit_code=0, expected_gpus=8) == ("hardware_fail", "HardwareFailureDetected", ["missing:1"])
    assert judged(v4(passing(gpus=7), gpus=8), exit_code=0, expected_gpus=8, required_tests=["memory"])[1] == "LogIncomplete"
    assert judged(v4(passing()), exit_code=0, required_tests=["memory", "pcie"])[1] == "LogIncomplete"
    assert judged(v4(passing()), exit_code=0, dcgm_level=2)[1] == "LogIncomplete"
    assert judged(v4(passing(), passing("pcie"), passing("software")), exit_code=0, dcgm_level=2)[:2] == ("pass", None)


def test_one_gpu_skipped_in_a_required_test_is_incomplete() -> None:
    partly = check("memory", [result(n, "Skip" if n == 4 else "Pass") for n in range(8)])
    assert judged(v4(partly), exit_code=0, required_tests=["memory"])[1] == "LogIncomplete"
    assert judged(v4(partly), exit_code=0)[:2] == ("pass", None)


def test_unknown_generation_is_kept_as_seen() -> None:
    said = dcgm.parse('{"DCGM Future Diagnostic": {"results": []}}', {"exit_code": 0})
    assert said["verdict"] == "LogIncomplete"
    assert said["parsed"]["generation"] == "unknown"
    assert said["parsed"]["seen"] == ["DCGM Future Diagnostic"]


def test_a_second_document_that_is_cut_hides_behind_no_first_one() -> None:
    text = v4(passing()) + "\n" + v4(failing("memory", 1, 52, 2))
    for cut in (-1, -200, -len(v4(failing("memory", 1, 52, 2))) + 10):
        assert judged(text[:cut], exit_code=0)[1] == "LogIncomplete"
    assert judged(text, exit_code=205)[1] == "HardwareFailureDetected"


def test_lines_of_another_process_inside_the_document() -> None:
    lines = v4(failing("memory", 5, 52, 2)).split("\n")
    noisy = "\n".join([*lines[:20], "W0301 klog: something else happened", *lines[20:]])
    assert judged(noisy, exit_code=205) == ("hardware_fail", "HardwareFailureDetected", ["GPU5"])


def test_iterations_must_all_have_run() -> None:
    root = {"Overall Result": "Pass", "iterations": [json.loads(v4(passing())), json.loads(v4(passing()))]}
    assert judged(json.dumps(root, indent=2), exit_code=0, iterations=2)[:2] == ("pass", None)
    assert judged(json.dumps(root, indent=2), exit_code=0, iterations=3)[1] == "LogIncomplete"
    # The first iteration alone proves nothing when the second is cut.
    text = json.dumps(root, indent=2)
    assert judged(text[: int(len(text) * 0.7)], exit_code=0)[1] == "LogIncomplete"


def test_several_nodes_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(v4(passing()))
    (tmp_path / "b").write_text(v4(failing("memory", 5, 52, 2)))
    said = dcgm.measure_files([str(tmp_path / "a"), str(tmp_path / "b")], {"exit_codes": [0, 205], "nodes": ["n1", "n2"]})
    assert said["verdict"] == "HardwareFailureDetected"
    assert said["failed_entities"] == ["n2/GPU5"]
    assert said["values"]["gpus"] == 16


def test_prefixes_of_kubectl_do_not_matter(tmp_path: Path) -> None:
    lines = v4(failing("memory", 5, 52, 2)).split("\n")
    (tmp_path / "log").write_text("".join(f"[pod/x/y] 2026-03-02T08:11:04.120450113+01:00 {line}\n" for line in lines))
    assert dcgm.measure_files([str(tmp_path / "log")], {"exit_code": 205})["failed_entities"] == ["GPU5"]


def test_values_are_declared() -> None:
    """A criterion is type-checked against the table: what is produced must be in it."""
    assert set(dcgm.parse(v4(passing()), {})["values"]) <= set(METRICS["dcgm"])


def test_every_code_of_the_table_has_advice_and_one_severity() -> None:
    assert sorted({*_SEVERITIES, 0, 1, 2, 21}) == list(range(133))
    assert all(dcgm_codes.advice(code, None) or dcgm_codes.advice(code, severity) for code, severity in _SEVERITIES.items())
    assert {entry.outcome for entry in dcgm_exits.EXITS_OF_BYTE.values()} <= set(dcgm.CLASSES)


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.text(max_size=300), st.binary(max_size=300).map(lambda data: data.decode("utf-8", "replace"))))
def test_any_text_is_judged_and_never_passes(text: str) -> None:
    said = dcgm.parse(text, {"exit_code": 0})
    assert said["verdict"] not in (None, "HardwareFailureDetected")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.text(max_size=5) | st.sampled_from(["Pass", "Fail", "GPU", "memory"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "test_categories",
                    "tests",
                    "results",
                    "status",
                    "warnings",
                    "name",
                    "entity_id",
                    "entity_group",
                    "error_id",
                    "test_summary",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@settings(max_examples=80, deadline=None)
@given(_JSON, st.sampled_from(["DCGM Diagnostic", "DCGM GPU Diagnostic", "iterations"]))
def test_any_shape_of_json_is_judged(value: t.Any, root: str) -> None:
    """A document of a version nobody has seen must not stop a certification."""
    for document in (
        {root: value, "Overall Result": "Pass"},
        {root: {"test_categories": [{"tests": [value]}]}, "entity_groups": value, "metadata": value},
        {"DCGM Diagnostic": "DCGM Multi-Node Diagnostic", "hosts": [{"host_id": value}], "test_categories": value, "global_errors": value},
    ):
        said = dcgm.parse(json.dumps(document), {"exit_code": 0, "expected_gpus": 8})
        assert said["verdict"] in set(dcgm.REASONS.values())


_FAILING = v4(failing("memory", 5, 52, 2))
_PASSING = v4(passing(), passing("pcie"))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_cut_document_never_passes(data: st.DataObject) -> None:
    for text in (_PASSING, TABLE_V3.replace("Fail - GPUs: 0, 3", "Pass - All        ")):
        cut = data.draw(st.integers(0, len(text.rstrip()) - 1))
        assert dcgm.parse(text[:cut], {"exit_code": 0})["verdict"] == "LogIncomplete"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["Defaulted container x", "{not json}", "{", "}", "[x]", '{"level": "info"}', ""]), max_size=4))
def test_text_around_a_document_changes_nothing(noise: list[str]) -> None:
    text = "\n".join([*noise, _FAILING, *noise])
    said, plain = dcgm.parse(text, {"exit_code": 205}), dcgm.parse(_FAILING, {"exit_code": 205})
    assert (said["class"], said["failed_entities"], said["values"]) == (plain["class"], plain["failed_entities"], plain["values"])
