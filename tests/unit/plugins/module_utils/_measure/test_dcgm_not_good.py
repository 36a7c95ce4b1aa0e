# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""DCGM: what is not known to be good is not good, and what is not hardware convicts no GPU."""

from __future__ import annotations

import json
import sys
import time
import typing as t
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from dcgm_samples import check, failing, passing, result, v4

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure import json_documents
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.dcgm import results as dcgm

NOISE = "I1129 16:46:15.123456    1 main.go:77] lease renewed"


def said(text: str, **context: t.Any) -> t.Any:
    return dcgm.parse(text, context)


def word(text: str, **context: t.Any) -> str:
    return str(said(text, **context)["class"])


def table(*rows: tuple[str, str], devices: int = 2) -> str:
    """A text table of these (first cell, second cell) rows."""
    border = f"+{'-' * 27}+{'-' * 48}+"
    head = [border, f"| {'Diagnostic':25} | {'Result':46} |", border.replace("-", "="), f"|-----  Metadata  ----------+{'-' * 48}|"]
    head += [f"| {'GPU Device IDs Detected':25} | {', '.join(['2330'] * devices):46} |", f"+-----  Hardware  ----------+{'-' * 48}+"]
    return "\n".join(["Successfully ran diagnostic for group.", *head, *(f"| {name:25} | {cell:46} |" for name, cell in rows), border, ""])


# --- statuses ---


@pytest.mark.parametrize("status", [None, "", "Error", "FAILED", "passed?", 1, ["Pass"], {"a": 1}, True])
def test_a_status_that_is_not_known_is_no_pass(status: t.Any) -> None:
    bad = {**result(3), "status": status}
    assert word(v4(check("memory", [result(0), result(1), result(2), bad]), gpus=4), exit_code=0) == "incomplete"
    assert word(v4({**passing(gpus=4), "test_summary": {"status": status or "?"}}, gpus=4), exit_code=0) == "incomplete"


def test_a_result_without_a_status_is_no_pass_and_hides_no_failure_beside_it() -> None:
    bare = {key: value for key, value in result(1, code=52, severity=2).items() if key != "status"}
    assert word(v4(check("memory", [result(0), bare]), gpus=2)) == "incomplete"
    hard = said(v4(check("memory", [bare, result(0, "Fail", code=52, severity=2)], "Fail"), gpus=2), exit_code=205)
    assert (hard["class"], hard["failed_entities"]) == ("hardware_fail", ["GPU0"])


@pytest.mark.parametrize("damage", ["a text", 7, {"x": 1}, [["Fail"]], ["Fail", None]])
def test_results_that_cannot_be_read_are_no_pass(damage: t.Any) -> None:
    assert word(v4({"name": "memory", "results": damage, "test_summary": {"status": "Pass"}}, passing("pcie")), exit_code=0) == "incomplete"


def test_a_skipped_result_with_a_hardware_code_is_looked_at_again() -> None:
    skipped = result(1, "Skip", code=120, severity=2)
    assert word(v4(check("memory", [result(0), skipped]), gpus=2), exit_code=0) == "inconclusive"


# --- tables ---


@pytest.mark.parametrize(
    ("rows", "expected", "named"),
    [
        ([("GPU Memory", "Pass - GPU: 1"), ("", "Fail - GPU: 0")], "hardware_fail", ["GPU0"]),
        ([("GPU Memory", "Pass - GPU: 1"), ("", "Skip - GPU: 0")], "pass", []),
        ([("GPU Memory", "Pass - GPU: 0"), ("", "Warn - GPU: 1")], "warn", []),
        ([("GPU Memory", "Pass - GPU: 0"), ("", "Error - GPU: 1")], "incomplete", []),
        ([("GPU Memory", "Pass - GPU: 0")], "incomplete", []),
        ([("GPU Memory", "Error - All")], "incomplete", []),
        ([("GPU Memory", "Unknown")], "incomplete", []),
        ([("memory", "Pass"), ("", "GPU0: Pass"), ("", "GPU1: Error")], "incomplete", []),
        ([("memory", "Pass"), ("", "GPU0: Pass")], "incomplete", []),
    ],
    ids=range(9),
)
def test_each_row_of_a_table_counts(rows: list[tuple[str, str]], expected: str, named: list[str]) -> None:
    got = said(table(*rows))
    assert (got["class"], got["failed_entities"]) == (expected, named)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Fail - GPU: 1                                  |", f"Fail - GPU: 1 {NOISE}"),
        ("Fail - GPU: 1", "Fa"),
        ("| GPU Memory                | Fail - GPU: 1", "| GPU Mem| Fail - GPU: 1"),
        ("Fail - GPU: 1", "Fail - GPU: 1,"),
        ("Fail - GPU: 1                                  ", "Fail - GPU: " + "1" * 5000),
    ],
    ids=range(5),
)
def test_a_row_that_another_process_tore_is_no_pass(old: str, new: str) -> None:
    text = table(("PCIe", "Pass - All"), ("GPU Memory", "Fail - GPU: 1"))
    assert old in text
    assert word(text.replace(old, new)) in ("incomplete", "hardware_fail")
    assert word(text) == "hardware_fail"


def test_whole_lines_of_others_between_the_rows_change_nothing() -> None:
    text = table(("PCIe", "Pass - All"), ("GPU Memory", "Pass - All"))
    assert word(text.replace("| GPU Memory", f"{NOISE}\n| GPU Memory")) == "pass"


def test_a_wrapped_warning_is_read_as_it_was_before_the_table_broke_it() -> None:
    text = "GPU 0 Unable to initialize CUDA library: 'system not yet initialized'. Check the host."
    for width in (44, 30, 61):
        pieces = [text[at : at + width] for at in range(0, len(text), width)]
        got = said(
            table(("GPU Memory", "Fail - GPU: 0"), ("", "Pass - GPU: 1"), ("Warning", pieces[0]), *[("", piece) for piece in pieces[1:]])
        )
        assert (got["class"], got["failed_entities"]) == ("setup_error", [])


@pytest.mark.parametrize(
    "line", ["+---------------------------+------------------------------------------------+", "| Diagnostic | Result |"]
)
def test_a_border_or_header_in_the_middle_of_a_table_is_not_its_end(line: str) -> None:
    text = table(("PCIe", "Pass - All"), ("GPU Memory", "Fail - GPU: 1"))
    assert word(text.replace("| GPU Memory", f"{line}\n| GPU Memory")) in ("incomplete", "hardware_fail")


def test_a_table_of_another_program_behind_it_changes_nothing() -> None:
    other = "+-----------------+----------+\n| NVIDIA-SMI 580  | CUDA 13  |\n+-----------------+----------+\n"
    assert word(table(("PCIe", "Pass - All"), ("GPU Memory", "Pass - All")) + other) == "pass"


def test_one_warning_about_the_test_explains_all_that_failed_there() -> None:
    text = "Unable to initialize CUDA library: 'system not yet initialized'"
    got = said(table(("GPU Memory", "Fail - All"), ("Warning", text[:44]), ("", text[44:])))
    assert (got["class"], got["failed_entities"]) == ("setup_error", [])
    one = said(table(("GPU Memory", "Fail - All"), ("Warning", f"GPU 0 {text}"[:44]), ("", f"GPU 0 {text}"[44:])))
    assert (one["class"], one["failed_entities"]) == ("setup_error", [])
    hard = said(table(("GPU Memory", "Fail - All"), ("Warning", "GPU 0 A DBE/ECC error was detected")))
    assert (hard["class"], hard["failed_entities"]) == ("hardware_fail", ["GPU0", "GPU1"])


# --- documents that others wrote into ---


def test_a_line_torn_by_another_process_is_no_pass() -> None:
    lines = v4(passing(), passing("pcie")).split("\n")
    for number, line in enumerate(lines):
        if '"status"' in line:
            torn = "\n".join([*lines[:number], line + NOISE, *lines[number + 1 :]])
            assert word(torn, exit_code=0) == "incomplete"
            before = "\n".join([*lines[:number], NOISE + line, *lines[number + 1 :]])
            assert word(before, exit_code=0) == "incomplete"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_noise_anywhere_never_turns_a_failure_into_a_pass(data: st.DataObject) -> None:
    text = v4(failing("memory", 5, 52, 2), passing("pcie"))
    noise = data.draw(
        st.sampled_from([NOISE, NOISE + "\n", "\n" + NOISE + "\n", '{"level": "info"}\n', "}\n", "{\n", '"status": "Pass",\n'])
    )
    at = data.draw(st.integers(0, len(text)))
    for code in (0, None):
        assert word(text[:at] + noise + text[at:], exit_code=code) not in ("pass", "warn")


def test_several_iterations_between_lines_of_others_are_read_as_a_whole() -> None:
    root = {"Overall Result": "Fail", "iterations": [json.loads(v4(passing())), json.loads(v4(failing("memory", 5, 52, 2)))]}
    lines = json.dumps(root, indent=3).split("\n")
    for places in ([1], [1, 5], [1, len(lines) // 2]):
        noisy = list(lines)
        for place in reversed(places):
            noisy.insert(place, NOISE)
        assert said("\n".join(noisy))["failed_entities"] == ["GPU5"]
    first = json.dumps(root, indent=3).replace('"iterations"', f'"iterations"{NOISE}')
    assert word(first) == "incomplete"


def test_an_overall_word_that_is_no_pass_takes_the_pass_away() -> None:
    root = {"Overall Result": "Fail", "iterations": [json.loads(v4(passing())), json.loads(v4(passing()))]}
    assert word(json.dumps(root), exit_code=0) == "inconclusive"
    assert word(json.dumps({**root, "Overall Result": "Pass"}), exit_code=0) == "pass"
    assert word(json.dumps({**root, "iterations": [*root["iterations"], "cut"], "Overall Result": "Pass"}), exit_code=0) == "incomplete"  # type: ignore[misc]


def test_a_required_test_must_be_in_every_iteration() -> None:
    root = {"Overall Result": "Pass", "iterations": [json.loads(v4(passing(), passing("pcie"))), json.loads(v4(passing()))]}
    assert word(json.dumps(root), exit_code=0, required_tests=["pcie"]) == "incomplete"
    assert word(json.dumps(root), exit_code=0, required_tests=["memory"]) == "pass"
    assert word(v4(passing()), exit_code=0, iterations=2) == "incomplete"


# --- counting ---


def test_gpus_are_counted_in_every_test_against_what_was_expected() -> None:
    seven = check("pcie", [result(number) for number in range(7)])
    assert word(v4(passing(), seven), exit_code=0) == "incomplete"
    assert word(v4(passing(), seven, gpus=8), exit_code=0, expected_gpus=8) == "incomplete"
    assert word(v4(passing(), passing("pcie")), exit_code=0, expected_gpus=8) == "pass"
    twice = check("pcie", [result(number % 7) for number in range(8)])
    assert word(v4(passing(), twice), exit_code=0) == "incomplete"


def test_a_gpu_that_was_tested_is_not_missing_and_a_torn_list_convicts_nobody() -> None:
    assert word(v4(passing(), gpus=7), exit_code=0, expected_gpus=8) == "pass"
    lines = v4(passing(gpus=7), gpus=7).split("\n")
    number = next(index for index, line in enumerate(lines) if '"status"' in line)
    lines[number] += NOISE
    assert word("\n".join(lines), exit_code=0, expected_gpus=8) == "incomplete"


def test_a_document_that_names_no_gpu_proves_none() -> None:
    node = check("memory", [{"status": "Pass"}])
    assert word(v4(node, gpus=0), exit_code=0, expected_gpus=8) == "incomplete"


def test_every_host_of_the_group_is_in_a_diagnostic_of_several_hosts() -> None:
    hosts = [{"host_id": 0, "hostname": "a", "entities": [{"entity_group": "GPU", "entity_group_id": 1, "entity_id": 0}]}]
    tests = [check("mnubergemm", [result(0, host_id=0)])]
    root = {"DCGM Diagnostic": "DCGM Multi-Node Diagnostic", "hosts": hosts, "test_categories": [{"category": "x", "tests": tests}]}
    assert word(json.dumps(root), exit_code=0, nodes=["a"]) == "pass"
    assert word(json.dumps(root), exit_code=0, nodes=["a", "b"]) == "incomplete"


def test_an_unknown_run_level_asks_for_no_less_than_the_highest() -> None:
    assert word(v4(passing()), exit_code=0, dcgm_level=9) == "incomplete"


def test_a_log_for_each_node_is_needed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(v4(passing()))
    got = dcgm.measure_files([str(tmp_path / "a")], {"exit_code": 0, "nodes": ["n1", "n2"]})
    assert (got["class"], got["complete"]) == ("incomplete", False)


# --- numbers ---


@pytest.mark.parametrize("number", [-1, 5000, 10**12, "-3", "1e3", 1.5e300, "9" * 5000, None, [], "x"])
def test_an_entity_that_no_machine_has_is_not_named(number: t.Any) -> None:
    bad = {**result(0, "Fail", code=52, severity=2), "entity_id": number}
    got = said(v4(check("memory", [result(0), bad], "Fail"), gpus=1), exit_code=205)
    assert got["class"] == "hardware_fail" and set(got["failed_entities"]) <= {"GPU"}
    old = {"name": "GPU Memory", "results": [{"gpu_ids": str(number), "status": "Fail", "warnings": "x"}]}
    root = {"DCGM GPU Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [old]}]}}
    assert said(json.dumps(root), exit_code=226)["failed_entities"] == []


@pytest.mark.parametrize(("code", "severity"), [(-5, 2), (10**9, 2), (52, -1), (52, 99), ("x", "y"), (None, 7), (123456, None)])
def test_absurd_codes_and_severities_are_no_pass_and_no_error(code: t.Any, severity: t.Any) -> None:
    bad = {**result(0, "Fail"), "warnings": [{"error_id": code, "error_severity": severity, "warning": "x"}]}
    assert word(v4(check("memory", [bad], "Fail"), gpus=1), exit_code=226) == "hardware_fail"


def test_nested_documents_without_end_are_judged() -> None:
    root: t.Any = {"DCGM Diagnostic": {}}
    for _level in range(300):
        root = {"iterations": [root], "Overall Result": "Pass"}
    assert word(json.dumps(root), exit_code=0) == "incomplete"


# --- whom a failure convicts ---


@pytest.mark.parametrize(
    ("code", "severity", "text", "expected"),
    [
        (51, 1, "Error using CUDA API cuInit. Unable to initialize CUDA library: 'system not yet initialized'.", "setup_error"),
        (64, 4, "API call cuInit failed: 'system not yet initialized'", "setup_error"),
        (0, 0, "no kernel image is available for execution on the device", "setup_error"),
        (0, 0, "all CUDA-capable devices are busy or unavailable", "busy"),
        (0, 0, "GPU 0 is being used by process 1234", "busy"),
        (0, 0, "only 4000 MB of memory are free", "inconclusive"),
        (0, 0, "MIG is enabled, the test is not supported", "config_fail"),
        (0, 0, "CUDA error: out of memory", "inconclusive"),
        (122, 2, "IMEX daemon status is -3 (not READY)", "config_fail"),
        (108, 1, "The fabric manager is not initialized", "setup_error"),
        (108, 1, "x", "config_fail"),
        (24, 2, "NVML library", "config_fail"),
        (25, 6, "a process runs on the GPU", "config_fail"),
        (101, 4, "Detected XID 31 for GPU 4", "inconclusive"),
        (101, 4, "Detected XID 79 for GPU 4", "hardware_fail"),
        (101, 4, "an Xid", "hardware_fail"),
        (51, 1, "cudaMemcpy failed", "inconclusive"),
        (52, 2, "faulty; also out of memory", "hardware_fail"),
        (0, 0, "A DBE/ECC error was detected", "hardware_fail"),
        (0, 0, "it is just bad", "hardware_fail"),
    ],
)
def test_the_table_of_evidence_decides_whom_a_failure_convicts(code: int, severity: int, text: str, expected: str) -> None:
    bad = {**result(0, "Fail"), "warnings": [{"error_id": code, "error_severity": severity, "warning": text}]}
    got = said(v4(check("memory", [bad], "Fail"), gpus=1), exit_code=226)
    assert got["class"] == expected
    assert got["failed_entities"] == (["GPU0"] if expected in ("hardware_fail", "config_fail") else [])
    if expected in ("busy", "inconclusive"):
        assert got["verdict"] == "NoMeasurement"


def test_a_warning_that_says_that_the_test_could_not_start_is_no_pass() -> None:
    assert (
        word(table(("GPU Memory", "Warn - GPU: 0"), ("", "Pass - GPU: 1"), ("Warning", "GPU 0 'system not yet initialized'")))
        == "setup_error"
    )


# --- time ---


@pytest.mark.parametrize("unit", [" ", "|", "{", '"', '{"DCGM', '"a" ', '"a":', "| x ", "+-", "1,", "GPU1: ", "{ ", "-", '"\\'])
def test_a_long_line_is_read_in_time_that_grows_with_its_length(unit: str) -> None:
    head = table(("GPU Memory", "Pass - All")).rsplit("+", 2)[0]

    def seconds(length: int) -> float:
        word_ = (unit * length)[:length]
        best = 1e9
        for _round in range(3):
            start = time.process_time()
            dcgm.parse(f"{head}\n{word_}\n| {word_} |\n", {})
            json_documents.find('{"DCGM": 1' + word_, lambda _value: False, ("DCGM",))
            best = min(best, time.process_time() - start)
        return best

    assert seconds(32_000) < 12 * seconds(8_000) + 0.1
