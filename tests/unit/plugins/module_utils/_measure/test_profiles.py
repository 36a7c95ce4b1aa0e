# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Log profiles: a wrong one must be refused before it costs GPU time, a right one must read what it says."""

from __future__ import annotations

import datetime
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import KINDS, measure
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.profiles import files as profile_files
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.profiles import go_syntax
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.profiles import results as profiles

OWN = r"""
name: my-inference
patterns:
  throughput:
    regex: 'step (?P<step>\d+): (?P<tokens>[\d.]+) tok/s'
    example: 'step 20: 1234.5 tok/s'
    units: {tokens: tokens/s}
  done:
    regex: '^benchmark finished'
json:
  summary:
    where: "event == 'summary'"
    fields: {p99: latency.p99, ok: ok}
    units: {p99: ms}
    example: '{"event": "summary", "latency": {"p99": 12.5}, "ok": true}'
metrics:
  tokens_per_second: {from: throughput.tokens, statistic: mean, unit: tokens/s}
  slowest: {from: throughput.tokens, statistic: p50, unit: 1/s}
  latency_p99: {from: summary.p99, statistic: last, unit: s}
  correct: {from: summary.ok, statistic: last, type: bool}
  steps: {from: throughput, statistic: count, type: int}
complete: done
warmup_steps: 10
"""
LOG = (
    "step 10: 1.0 tok/s\nnoise\nstep 20: 1000.0 tok/s\nstep 30: 2000.0 tok/s\nstep 40: 3000.0 tok/s\n"
    '{"event": "other", "latency": {"p99": 99}}\n{"event": "summary", "latency": {"p99": 12.5}, "ok": true}\nbenchmark finished\n'
)
NVCRE = r"""
apiVersion: nvcre.nvidia.com/v1alpha1
kind: LogProfile
metadata: {name: my-megatron}
spec:
  timestamp:
    layout: "2006-01-02 15:04:05"
  warmupSteps: 10
  logInterval: 10
  workerStrategy: {type: Multi, lifecyclePod: first, trainingStepPod: last, replicatedJobName: node}
  patterns:
    trainingStep:
      regex: '\[(?P<timestamp>[^\]]+)\] iteration (?P<iteration>\d+) took (?P<elapsedTime>[\d.]+) at (?P<tflops>[\d.]+) loss (?P<loss>\S+)'
      example: '[2026-03-02 10:00:00] iteration 10 took 1000.0 at 300.0 loss 9.5'
      units: {elapsedTime: ms}
    checkpointSave:
      regex: '\[(?P<timestamp>[^\]]+)\] saving (?P<step>\d+)'
    checkpointDone:
      regex: '\[(?P<timestamp>[^\]]+)\] saved (?P<step>\d+)'
    applicationStart:
      regex: '\[(?P<timestamp>[^\]]+)\] hello'
"""


def load(tmp_path: Path, text: str) -> profile_files.Profile:
    path = tmp_path / "profile.yml"
    path.write_text(text)
    return profile_files.load_file(path)[0]


def test_metrics_of_patterns_and_json(tmp_path: Path) -> None:
    said = profiles.apply_text(load(tmp_path, OWN), LOG, {"exit_code": 0})
    assert said["verdict"] is None
    assert said["values"] == {"tokens_per_second": 2000.0, "slowest": 2000.0, "latency_p99": 0.0125, "correct": True, "steps": 3}
    assert said["units"]["latency_p99"] == "s"
    assert profiles.declared_metrics(load(tmp_path, OWN))["correct"].type == "bool"


def test_a_log_without_its_last_line_or_a_metric_is_incomplete(tmp_path: Path) -> None:
    profile = load(tmp_path, OWN)
    assert profiles.apply_text(profile, LOG.replace("benchmark finished\n", ""), {"exit_code": 0})["verdict"] == "LogIncomplete"
    assert profiles.apply_text(profile, LOG.replace("summary", "x"), {"exit_code": 0})["verdict"] == "LogIncomplete"
    assert profiles.apply_text(profile, "nothing\n", {"exit_code": 0})["verdict"] == "NoMeasurement"
    assert profiles.apply_text(profile, LOG, {"exit_code": 1})["verdict"] == "WorkloadFailed"
    open_ended = load(tmp_path, OWN.replace("complete: done", ""))
    assert profiles.apply_text(open_ended, LOG, {})["verdict"] == "LogIncomplete"


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("step 20: 1234.5 tok/s", "something else", 6, "does not match its own example"),
        (r"(?P<step>\d+)", r"(?P<step>\d+", 5, "regular expression is wrong"),
        ("units: {tokens: tokens/s}", "units: {tokens: parsecs}", 7, "unknown unit"),
        ("units: {tokens: tokens/s}", "units: {nothing: s}", 7, "unknown group"),
        ("from: throughput.tokens, statistic: mean", "from: throughput.nothing, statistic: mean", 17, "unknown group"),
        ("from: throughput.tokens, statistic: mean", "from: nothing.tokens, statistic: mean", 17, "unknown pattern"),
        ("statistic: mean, unit: tokens/s", "statistic: mean, unit: ms", 17, "cannot be turned into"),
        ("statistic: mean", "statistic: average", 17, "unknown statistic"),
        ("complete: done", "complete: end", 22, "unknown pattern"),
        ("warmup_steps: 10", "warmup_steps: -1", 23, "at least 0"),
        ("warmup_steps: 10", "warm_up: 10", 23, "unknown key"),
        ("\"event == 'summary'\"", '"event =="', 12, "JMESPath"),
        ('"latency": {"p99": 12.5}', '"latency": {}', 15, "not in its own example"),
        ("name: my-inference", "name: My Inference", 2, "needs a name"),
    ],
)
def test_a_wrong_profile_is_refused_with_its_line(old: str, new: str, line: int, words: str, tmp_path: Path) -> None:
    assert old in OWN
    with pytest.raises(InputError) as caught:
        load(tmp_path, OWN.replace(old, new, 1))
    assert f"profile.yml:{line}" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("(?P<iteration>", "(?P<it>", "needs the named groups"),
        ("elapsedTime: ms", "elapsedTime: min", "unknown unit"),
        ("iteration 10 took", "iteration x took", "does not match its own example"),
        ("2006-01-02 15:04:05", "yyyy-mm-dd", "no Go time layout"),
        ("trainingStepPod: last", "trainingStepPod: middle", "unknown pod"),
        ("logInterval", "log_interval", "unknown key"),
        ("trainingStep:", "trainingSteps:", "unknown pattern"),
    ],
)
def test_a_wrong_nvcre_profile_is_refused(old: str, new: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        load(tmp_path, NVCRE.replace(old, new, 1))


def test_bandwidth_pattern_needs_its_three_groups(tmp_path: Path) -> None:
    text = "kind: LogProfile\nspec:\n  patterns:\n    bandwidthResult: {regex: '(?P<size>[0-9]+) (?P<busBW>[0-9.]+)'}\n"
    with pytest.raises(InputError, match="algBW, busBW, size"):
        load(tmp_path, text)
    profile = load(tmp_path, text.replace("+) (?P<b", "+) (?P<algBW>[0-9.]+) (?P<b"))
    said = profiles.apply_text(profile, "8 1.0 2.0\n16 3.0 4.0\n16 5.0 6.0\n", {"exit_code": 0})
    assert (said["verdict"], said["values"]["bus_bandwidth_peak"], said["values"]["alg_bandwidth_peak"]) == (None, 5.0, 4.0)


def test_nvcre_profile_reads_steps_checkpoints_and_goodput(tmp_path: Path) -> None:
    rows = ["[2026-03-02 10:00:00] hello", "[2026-03-02 10:00:20] iteration 10 took 1000.0 at 300.0 loss 9.5"]
    rows += [
        "[2026-03-02 10:00:30] iteration 20 took 1000.0 at 310.0 loss 9.0",
        "[2026-03-02 10:00:30] saving 20",
        "[2026-03-02 10:00:35] saved 20",
    ]
    rows += ["[2026-03-02 10:00:45.5] iteration 30 took 1010.0 at 320.0 loss nan"]
    said = profiles.apply_text(load(tmp_path, NVCRE), "\n".join(rows) + "\n", {"exit_code": 0})
    assert said["computed"]["avg_step_s"] == 1.005
    assert said["values"]["tflops_per_gpu"] == 315.0249  # over time: the slower line counts for more
    assert said["parsed"]["checkpoints"][0]["blocking_s"] == 5
    assert said["values"]["goodput"] is not None
    assert said["verdict"] == "DataCorruption"  # the loss is not a number at the end


def test_samples_of_a_profile_take_no_room_in_memory(tmp_path: Path) -> None:
    """Every match was kept as a dict of texts: a log of 200 MB took a gigabyte."""
    profile = profile_files.find(
        {
            "name": "x",
            "patterns": {"p": {"regex": r"step (?P<step>\d+): (?P<v>\d+) (?P<w>\w+)"}},
            "metrics": {"v": {"from": "p.v"}, "w": {"from": "p.w", "type": "string", "statistic": "last"}},
        }
    )
    lines = "".join(f"step {number}: {number} word{number}\n" for number in range(20_000))
    path = tmp_path / "log"
    path.write_text(lines)
    tracemalloc.start()
    said = profiles.apply(profile, [str(path)], {"exit_code": 0, "warmup_steps": 10})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert said["values"] == {"v": sum(range(11, 20_000)) / 19_989, "w": "word19999"}
    assert peak < 4 * len(lines)


def test_a_sum_beyond_every_number_is_no_value() -> None:
    profile = profile_files.find(
        {"name": "x", "patterns": {"p": {"regex": r"(?P<v>\S+)"}}, "metrics": {"v": {"from": "p.v", "statistic": "sum", "type": "int"}}}
    )
    assert profiles.apply_text(profile, "1.7e308\n1.7e308\n", {"exit_code": 0})["values"] == {"v": None}


def test_rows_below_zero_are_no_bandwidth(tmp_path: Path) -> None:
    text = "kind: LogProfile\nspec:\n  patterns:\n    bandwidthResult: {regex: '(?P<size>\\S+) (?P<algBW>\\S+) (?P<busBW>\\S+)'}\n"
    said = profiles.apply_text(load(tmp_path, text), "8 -1.0 -2.0\n-8 1.0 2.0\n", {"exit_code": 0})
    assert (said["verdict"], said["values"]["bus_bandwidth_peak"]) == ("NoMeasurement", None)


def test_first_matches_can_be_skipped(tmp_path: Path) -> None:
    text = OWN.replace("    units: {tokens: tokens/s}", "    units: {tokens: tokens/s}\n    skip: 3")
    assert profiles.apply_text(load(tmp_path, text), LOG, {"exit_code": 0})["values"]["tokens_per_second"] == 3000.0


def test_which_pods_are_read(tmp_path: Path) -> None:
    pods = [
        {"name": "w-1", "role": "worker", "index": 1, "log": "w1.log"},
        {"name": "l-0", "role": "launcher", "index": 0, "log": "l.log"},
        {"name": "w-0", "role": "worker", "index": 0, "log": "w0.log"},
        {"name": "w-2", "role": "worker", "index": 2, "log": None},
    ]
    workers = [pod for pod in pods if pod["role"] == "worker"]
    assert profiles.select_logs(profile_files.find("nccl"), pods) == ["l.log"]
    assert profiles.select_logs(profile_files.find("megatron-training"), workers) == [
        "w0.log",
        "w1.log",
    ]
    assert profiles.select_logs(load(tmp_path, NVCRE.replace("type: Multi", "type: Single")), pods)[0] in ("l.log", "w0.log")


def test_built_in_profiles_cover_every_reader() -> None:
    built_in = profile_files.load_directory(profile_files.BUILT_IN)
    assert {profile.reader for profile in built_in.values()} >= set(KINDS) - {"log_profile", "goodput"}


def test_own_directories_win_over_built_in(tmp_path: Path) -> None:
    (tmp_path / "dcgm.yml").write_text("name: dcgm\nreader: dcgm\nread: {pods: first}\n")
    assert profile_files.find("dcgm", [str(tmp_path)]).reading.pods == "first"
    with pytest.raises(InputError, match="Did you mean"):
        profile_files.find("dcgmm")


def test_reader_with_defaults_and_extra_metrics(tmp_path: Path) -> None:
    path = tmp_path / "p.yml"
    path.write_text(
        "name: burn-and-more\nreader: key_value\npatterns:\n  power: {regex: 'power: (?P<watts>[0-9.]+)', units: {watts: W}}\n"
        "metrics:\n  power_max: {from: power.watts, statistic: max, unit: kW}\n"
    )
    (tmp_path / "log").write_text("x=1\npower: 650\npower: 700\n")
    said = measure("log_profile", [str(tmp_path / "log")], {"profile": str(path), "exit_code": 0})
    assert said["values"] == {"x": 1, "power_max": 0.7}
    (tmp_path / "log").write_text("x=1\n")
    assert measure("log_profile", [str(tmp_path / "log")], {"profile": str(path), "exit_code": 0})["verdict"] == "LogIncomplete"


@pytest.mark.parametrize(
    ("layout", "text", "expected"),
    [
        ("2006-01-02 15:04:05", "2026-03-02 10:00:01.5", datetime.datetime(2026, 3, 2, 10, 0, 1, 500000)),
        ("2006-01-02T15:04:05Z07:00", "2026-03-02T10:00:01+02:00", datetime.datetime(2026, 3, 2, 8, 0, 1)),
        ("Jan _2 15:04:05 2006", "Mar  2 10:00:01 2026", datetime.datetime(2026, 3, 2, 10, 0, 1)),
        ("01/02/06 03:04:05 PM", "03/02/26 12:00:01 AM", datetime.datetime(2026, 3, 2, 0, 0, 1)),
        ("2006-01-02 15:04:05", "2026-13-02 10:00:01", None),
    ],
)
def test_go_layouts(layout: str, text: str, expected: datetime.datetime | None) -> None:
    assert go_syntax.GoLayout(layout).parse(text) == expected


def test_go_regular_expressions() -> None:
    assert go_syntax.compile_re2(r"a(?i)Bc(?P<x>[[:digit:]]+)\z").search("abC12")["x"] == "12"  # type: ignore[index]
    assert go_syntax.compile_re2(r"\Q[a]\E(?<n>\d)").search("[a]5")["n"] == "5"  # type: ignore[index]
    assert go_syntax.compile_re2(r"\d").search("٣") is None  # RE2 knows ASCII digits only


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    profile = profile_files.find({"name": "x", "patterns": {"p": {"regex": r"(?P<v>\d+)"}}, "metrics": {"v": {"from": "p.v"}}})
    assert profiles.apply_text(profile, text, {"exit_code": 0})["verdict"] in (None, "NoMeasurement", "LogIncomplete")


@settings(max_examples=50, deadline=None)
@given(st.integers(0, len(LOG) - 1))
def test_a_cut_log_is_never_measured_with_another_number(cut: int) -> None:
    import yaml

    profile = profile_files.find(yaml.safe_load(OWN))
    whole, said = profiles.apply_text(profile, LOG, {"exit_code": 0}), profiles.apply_text(profile, LOG[:cut], {"exit_code": 0})
    assert said["verdict"] is not None or said["values"] == whole["values"]
