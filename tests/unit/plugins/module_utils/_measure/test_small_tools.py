# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""perftest, fio, nvbandwidth, gpu-burn and key=value results: units, completeness, and what is at fault."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.metrics import METRICS
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.tools import fio, gpu_burn, key_value, nvbandwidth, perftest

RULE = "-" * 87 + "\n"
WRITE_BW = (
    RULE
    + "                    RDMA_Write BW Test\n Dual-port       : OFF\t\tDevice         : mlx5_0\n"
    + " Number of qps   : 1\t\tTransport type : IB\n"
    + " Mtu             : 4096[B]\n Link type       : IB\n"
    + RULE
    + " local address: LID 0x15 QPN 0x0 PSN 0x1\n"
    + RULE
    + " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
    + " 65536      5000             46900.12            46850.55\t\t   0.749609\n"
    + RULE
)
SEND_LAT = (
    "                    Send Latency Test\n"
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   "
    "99.9% percentile[usec] \n"
    " 2       1000          0.85           3.12         0.89     \t       0.90        \t0.05   \t\t1.05    \t\t3.12   \n"
    " 4       1000          0.86           3.13         0.90     \t       0.91        \t0.05   \t\t1.06    \t\t3.13   \n" + RULE
)
FIO: dict[str, t.Any] = {
    "fio version": "fio-3.36",
    "jobs": [
        {
            "jobname": f"job{number}",
            "error": 0,
            "job_runtime": 30000,
            "read": {
                "io_bytes": 10,
                "total_ios": 100,
                "bw_bytes": 2_000_000_000,
                "iops": 1000.5,
                "clat_ns": {"mean": 250000.0, "percentile": {"50.000000": 1, "99.000000": 900000 + number}},
            },
            "write": {"io_bytes": 0, "total_ios": 0, "bw_bytes": 0, "iops": 0.0, "clat_ns": {"mean": 0.0}},
        }
        for number in range(2)
    ],
}
BURN = (
    "GPU 0: NVIDIA H200 (UUID: GPU-0)\nGPU 1: NVIDIA H200 (UUID: GPU-1)\nBurning for 20 seconds.\n"
    "\r50.0%  proc'd: 499 (48430 Gflop/s) - 499 (48391 Gflop/s)   errors: 0 - 0   temps: 54 C - 59 C \n"
    "\tSummary at:   Sun Nov 29 05:06:50 PM UTC 2026\n\n"
    "\r100.0%  proc'd: 998 (48000 Gflop/s) - 998 (47000 Gflop/s)   errors: 0 - {}   temps: 60 C - 61 C \n"
    "Killing processes with SIGTERM (soft kill)\ndone\n\nTested 2 GPUs:\n\tGPU 0: OK\n\tGPU 1: {}\n"
)
NVBANDWIDTH = (
    "nvbandwidth Version: v0.8\nDevice 0: NVIDIA H200 (0)\nDevice 1: NVIDIA H200 (1)\n\nRunning host_to_device_memcpy_ce.\n"
    "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n           0         1\n 0     54.94     25.05\n\n"
    "SUM host_to_device_memcpy_ce 79.99\n\n"
    "Running device_to_device_memcpy_read_ce.\nmemcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n           0         1\n"
    " 0       N/A    390.10\n"
    " 1    391.20       N/A\n\nSUM device_to_device_memcpy_read_ce 781.30\n\nRunning multinode_x.\nWAIVED\n\n"
    "NOTE: The reported results may not reflect the full capabilities of the platform.\n"
)


def test_perftest_megabytes_are_binary() -> None:
    """Read as decimal, every port looks 5 % slow."""
    said = perftest.parse(WRITE_BW, {"exit_code": 0})
    assert said["verdict"] is None
    assert said["values"]["bandwidth"] == pytest.approx(46850.55 * 2**20 / 1e9, abs=1e-5)
    assert said["values"]["bandwidth_gbit"] == pytest.approx(393.0109, abs=1e-3)
    assert (said["values"]["device"], said["values"]["link_type"], said["values"]["mtu"]) == ("mlx5_0", "IB", 4096)


def test_perftest_gigabits() -> None:
    text = WRITE_BW.replace("MB/sec", "Gb/sec").replace("46850.55", "392.10")
    assert perftest.parse(text, {"exit_code": 0})["values"]["bandwidth_gbit"] == pytest.approx(392.10)


@pytest.mark.parametrize(("average", "expected"), [(390.2, 48.775), (46516.4, 48.776)])
def test_perftest_json_unit_follows_from_the_message_rate(average: float, expected: float) -> None:
    root = {
        "test_info": {"Device": "mlx5_1"},
        "results": {"MsgSize": 65536, "n_iterations": 5, "BW_peak": average, "BW_average": average, "MsgRate": 0.744247},
    }
    assert perftest.parse("banner {\n" + json.dumps(root, indent=1), {"exit_code": 0})["values"]["bandwidth"] == pytest.approx(
        expected, abs=1e-2
    )


def test_perftest_latency_is_judged_at_the_smallest_message() -> None:
    said = perftest.parse(SEND_LAT, {"exit_code": 0})
    assert (said["values"]["latency_us"], said["values"]["latency_p99_us"], said["values"]["message_size"]) == (0.89, 1.05, 2)
    assert perftest.parse(SEND_LAT, {"exit_code": 0, "judged_size": 4})["values"]["latency_us"] == 0.90
    assert perftest.parse(SEND_LAT, {"exit_code": 0, "judged_size": 8})["verdict"] == "LogIncomplete"


def test_perftest_causes() -> None:
    assert perftest.parse("Couldn't connect to gpu-2:18515\n", {"exit_code": 1})["verdict"] == "SetupError"
    failed = perftest.parse(" Completion with error at client\n Failed status 12: wr_id 0\n", {"exit_code": 1})
    assert (failed["verdict"], failed["findings"][0]["reason"]) == ("WorkloadFailed", "WorkloadFailed")
    assert perftest.parse(WRITE_BW, {"exit_code": 0, "expected_sizes": [65536, 131072]})["verdict"] == "LogIncomplete"


def test_fio_sums_jobs_and_takes_the_worst_tail() -> None:
    said = fio.parse("fio: note\n" + json.dumps(FIO, indent=2) + "\nbye\n", {"exit_code": 0})
    assert said["verdict"] is None
    assert said["values"]["read_bandwidth"] == 4.0
    assert said["values"]["read_iops"] == 2001.0
    assert said["values"]["read_latency_us"] == 250.0
    assert said["values"]["read_latency_p99_us"] == 900.001
    assert said["values"]["write_bandwidth"] is None
    broken = json.loads(json.dumps(FIO))
    broken["jobs"][0]["error"] = 5
    assert fio.parse(json.dumps(broken), {"exit_code": 0})["verdict"] == "WorkloadFailed"


def test_nvbandwidth_takes_the_slowest_gpu() -> None:
    """A sum hides that one GPU sits behind a narrow slot."""
    said = nvbandwidth.parse(NVBANDWIDTH, {"exit_code": 0})
    assert said["verdict"] is None
    assert (said["values"]["host_to_device"], said["values"]["device_to_device"]) == (25.05, 390.1)
    assert said["values"]["host_to_device_memcpy_ce_sum"] == 79.99
    assert said["values"]["skipped"] == 1
    assert said["parsed"]["testcases"][1]["matrix"] == [[None, 390.1], [391.2, None]]
    assert nvbandwidth.parse(NVBANDWIDTH, {"exit_code": 0, "required_tests": ["multinode_x"]})["verdict"] == "LogIncomplete"
    assert nvbandwidth.parse(NVBANDWIDTH, {"exit_code": 0, "expected_gpus": 8})["verdict"] == "LogIncomplete"


def test_gpu_burn_summary() -> None:
    said = gpu_burn.parse(BURN.format("0", "OK"), {"exit_code": 0})
    assert said["verdict"] is None
    assert (said["values"]["gflops_min"], said["values"]["temperature_max"], said["values"]["errors"]) == (47000.0, 61, 0)


def test_gpu_burn_names_the_gpu_that_computes_wrong() -> None:
    said = gpu_burn.parse(BURN.format("12  (WARNING!)", "FAULTY"), {"exit_code": 0, "nodes": ["gpu-1"]})
    assert said["verdict"] == "DataCorruption"
    assert [(entry["reason"], entry["host"], entry["entity"]) for entry in said["findings"]] == [
        ("HardwareFailureDetected", "gpu-1", "GPU1")
    ]
    assert said["values"]["errors"] == 12


def test_key_value_contract() -> None:
    text = (
        'PATH=/usr/bin\nbandwidth=12.5 GB/s latency=3 us\nRESULT {"name": "p99", "value": 1.5, "unit": "ms"}\n'
        '{"tokens": 3, "ok": true, "units": {"tokens": "1/s"}, "deep": {"x": 1}}\nnot a=result line\nmodel="llama 8b"\nnan=nan\n'
    )
    said = key_value.parse(text, {"exit_code": 0})
    assert said["values"] == {"bandwidth": 12.5, "latency": 3, "p99": 1.5, "tokens": 3, "ok": True, "model": "llama 8b"}
    assert said["units"] == {"bandwidth": "GB/s", "latency": "us", "p99": "ms", "tokens": "1/s"}
    assert key_value.parse(text, {})["verdict"] == "LogIncomplete"
    assert key_value.parse(text + "end=true\n", {})["verdict"] is None
    assert key_value.parse(text, {"exit_code": 0, "required_keys": ["missing"]})["verdict"] == "LogIncomplete"


def test_key_value_own_verdict() -> None:
    said = key_value.parse('x=1\nverdict=fail reason="ring broken" entity=GPU3\n', {"exit_code": 0, "nodes": ["n1"]})
    assert said["verdict"] == "WorkloadFailed"
    assert (said["findings"][0]["reason"], said["findings"][0]["host"], said["findings"][0]["entity"]) == ("WorkloadFailed", "n1", "GPU3")
    assert key_value.parse("verdict=maybe\n", {"exit_code": 0})["verdict"] == "LogIncomplete"


def test_key_value_of_several_pods(tmp_path: Path) -> None:
    for number, ok in enumerate(("true", "false")):
        (tmp_path / str(number)).write_text(f"speed={10 + number}\nok={ok}\n")
    values = measure("key_value", [str(tmp_path / "0"), str(tmp_path / "1")], {"exit_code": 0})["values"]
    assert values == {"speed": 10.5, "speed_min": 10.0, "speed_max": 11.0, "ok": False}


@pytest.mark.parametrize("kind", ["perftest", "fio", "nvbandwidth", "gpu_burn", "key_value"])
def test_no_file_is_no_data(kind: str) -> None:
    assert measure(kind, [], {"exit_code": 0})["verdict"] == "NoMeasurement"


@pytest.mark.parametrize(
    ("kind", "text"), [("perftest", WRITE_BW), ("perftest", SEND_LAT), ("fio", json.dumps(FIO)), ("gpu_burn", BURN.format("0", "OK"))]
)
def test_values_are_declared(kind: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(text)
    assert set(measure(kind, [str(tmp_path / "log")], {"exit_code": 0})["values"]) <= set(METRICS[kind])


SAMPLES: list[tuple[t.Any, str]] = [
    (perftest, WRITE_BW),
    (perftest, SEND_LAT),
    (fio, json.dumps(FIO, indent=2)),
    (nvbandwidth, NVBANDWIDTH),
    (gpu_burn, BURN.format("0", "OK")),
]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_cut_log_is_never_measured_with_another_number(data: st.DataObject) -> None:
    module, text = data.draw(st.sampled_from(SAMPLES))
    cut = data.draw(st.integers(0, len(text) - 1))
    whole, said = module.parse(text, {"exit_code": 0}), module.parse(text[:cut], {"exit_code": 0})
    assert whole["verdict"] is None
    assert said["verdict"] is not None or said["values"] == whole["values"]


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([perftest, fio, nvbandwidth, gpu_burn, key_value]),
    st.one_of(st.text(max_size=200), st.text(alphabet='{}[]":,=0123456789abGPU%-()\n #', max_size=200)),
)
def test_any_text_is_read(module: t.Any, text: str) -> None:
    assert module.parse(text, {"exit_code": 0})["kind"]
