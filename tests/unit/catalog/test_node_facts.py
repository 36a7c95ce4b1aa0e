# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The fact sheet: read from a real machine's words by the catalog's own script, simulated alike, judged by what a GPU says of itself."""

from __future__ import annotations

import copy
import datetime
import gzip
import importlib.util
import json
import pathlib
import stat
import subprocess
import sys
import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.detect import detect_kind
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import compared
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.tools import node_facts
from ansible_collections.gpu_cluster.readiness.tests.unit.plugins.module_utils._simulator.world import World

ROOT = pathlib.Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "catalog" / "tests" / "diagnostics" / "node_facts.py"
REAL = ROOT / "tests" / "vectors" / "cases" / "real-h200x2" / "smi-q.xml.gz"
UUID = "GPU-00000000-0000-0000-0000-000000000000"
NODE = "gpu-r0-n00"
RUN = "exec python3 -u /etc/readiness/files/node_facts.py"
STATES = f"GPU 0: NVIDIA H200 (UUID: {UUID})\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
ERRORS = f"GPU 0: NVIDIA H200 (UUID: {UUID})\n\t Link 0: Replay Errors: 3\n\t Link 0: CRC Errors: 0\n\t Link 1: Replay Errors: 2\n"
KERNEL_LOG = (
    "6,1000,900000000,-;usb 1-1: new device\n SUBSYSTEM=usb\n"
    "3,1001,950500000,-;NVRM: Xid (PCI:0000:00:06): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    "6,1002,960000000,c;audit: secret words\n"
)
PORT = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "rate": "400 Gb/sec (4X NDR)",
    "link_layer": "InfiniBand",
    "gids/0": "fe80:0000:0000:0000:0200:00ff:fe00:0001",
    "gids/1": "0000:0000:0000:0000:0000:0000:0000:0000",
    "gid_attrs/types/0": "IB/RoCE v1",
    "counters/link_downed": "4",
}


def write(place: pathlib.Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def sheet(folder: pathlib.Path, smi: str | None = None, states: str = STATES, errors: str = ERRORS) -> dict[str, t.Any]:
    """What the script prints on a machine with that nvidia-smi, two NICs and the files of a kernel."""
    text = gzip.decompress(REAL.read_bytes()).decode() if smi is None else smi
    (folder / "q.xml").write_text(text)
    (folder / "states").write_text(states)
    (folder / "errors").write_text(errors)
    program = folder / "bin" / "nvidia-smi"
    write(
        program,
        f'#!/bin/sh\ncase "$1 $2" in\n"-q -x") cat {folder}/q.xml ;;\n'
        f'"nvlink -s") cat {folder}/states ;;\n"nvlink -e") cat {folder}/errors ;;\n'
        '"topo -m") printf "\\tGPU0\\n\\033[4mGPU0\\033[0m\\t X \\n" ;;\n*) echo "no such option" >&2; exit 2 ;;\nesac\n',
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    for device in ("mlx5_0", "mlx5_10", "mlx5_2"):
        for name, value in {
            "hca_type": "MT4129",
            "fw_ver": "28.39.1002",
            **{f"ports/1/{key}": value for key, value in PORT.items()},
        }.items():
            write(folder / "sys" / "class" / "infiniband" / device / name, value + "\n")
    write(folder / "proc" / "sys" / "kernel" / "osrelease", "6.8.0\n")
    write(folder / "proc" / "meminfo", "MemTotal:       2113536000 kB\n")
    write(folder / "proc" / "uptime", "1000.00 9000.00\n")
    write(folder / "kmsg", KERNEL_LOG)
    env = {"PATH": f"{folder}/bin:/usr/bin:/bin", **{f"READINESS_{name.upper()}": str(folder / name) for name in ("sys", "proc", "kmsg")}}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=env, capture_output=True, text=True, timeout=60, check=True)
    return dict(json.loads(done.stdout)["node_facts"])


def judged(facts: t.Mapping[str, t.Any], **context: t.Any) -> dict[str, t.Any]:
    return dict(node_facts.parse(json.dumps({"node_facts": facts}, indent=1), {"exit_code": 0, "nodes": [NODE], **context}))


def simulated(*faults: dict[str, t.Any], **keys: t.Any) -> dict[str, t.Any]:
    return dict(json.loads("\n".join(World(faults, **keys).run([NODE], RUN).lines))["node_facts"])


def keys(node: t.Any) -> t.Any:
    """The keys of a document; of a list its first item."""
    if isinstance(node, dict):
        return {key: keys(value) for key, value in node.items()}
    return [keys(node[0])] if isinstance(node, list) and node and isinstance(node[0], dict) else None


def test_a_real_machine_s_words_become_facts(tmp_path: pathlib.Path) -> None:
    facts = sheet(tmp_path)
    assert facts["driver"] == {"version": "580.159.04", "cuda": "13.0"} and len(facts["gpus"]) == 2
    gpu = facts["gpus"][0]
    assert (gpu["uuid"], gpu["name"], gpu["bus_id"], gpu["vbios"]) == (UUID, "NVIDIA H200", "00000000:00:06.0", "96.00.A5.00.1A")
    assert gpu["pcie"] == {"generation": 5, "max_generation": 5, "width": 16, "max_width": 16, "replays": 0}
    assert gpu["ecc"]["uncorrectable"] == 0 and gpu["ecc"]["enabled"] is True and gpu["remapped_rows"]["pending"] is False
    assert gpu["retired_pages"] == {"single_bit": None, "double_bit": None, "pending": None}, "this GPU remaps rows instead"
    assert (gpu["power"]["limit_w"], gpu["clocks"]["max_sm_mhz"], gpu["recovery_action"]) == (700, 1980, "None")
    assert gpu["slowed_by"] == ["gpu_idle"]
    assert (gpu["ecc"]["correctable"], gpu["ecc"]["correctable_ever"], gpu["slowed_us"]["hw_therm_slowdown"]) == (0, 0, 0)
    counters = {"0": {"replay_errors": 3, "crc_errors": 0}, "1": {"replay_errors": 2}}
    assert gpu["nvlinks"] == {"links": 2, "inactive": [1], "errors": {"replay_errors": 5, "crc_errors": 0}, "counters": counters}
    assert facts["topology"] == ["\tGPU0", "GPU0\t X "]


def test_nics_and_host_are_on_the_sheet_and_what_is_missing_is_said(tmp_path: pathlib.Path) -> None:
    facts = sheet(tmp_path)
    assert [nic["device"] for nic in facts["nics"]] == ["mlx5_0", "mlx5_2", "mlx5_10"]
    (port,) = facts["nics"][0]["ports"]
    assert (port["state"], port["physical"], port["rate"]) == ("ACTIVE", "LinkUp", "400 Gb/sec (4X NDR)")
    assert list(port["gids"]) == ["0"] and port["counters"]["link_downed"] == 4 and port["counters"]["symbol_error"] is None
    assert facts["host"]["kernel"] == "6.8.0" and facts["host"]["memory_kib"] == 2113536000
    assert [item["what"] for item in facts["unread"]] == [f"{tmp_path}/proc/sys/kernel/random/boot_id"]


def test_xids_of_the_kernel_s_log_are_on_the_sheet_with_their_times_and_nothing_else_of_it(tmp_path: pathlib.Path) -> None:
    log = sheet(tmp_path)["kernel_log"]
    assert log["last_s"] == 960.0 and "secret" not in json.dumps(log)
    (xid,) = log["xids"]
    assert (xid["at_s"], xid["code"], xid["bus_id"]) == (950.5, 79, "0000:00:06") and "fallen off the bus" in xid["line"]
    ago = (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(xid["at"])).total_seconds()
    assert 49 <= ago < 600, "the machine has been up for 1000 s"


def script(monkeypatch: pytest.MonkeyPatch, buffer: str | None) -> t.Any:
    """The script as a module, on a machine without /dev/kmsg. buffer: what klogctl gives."""
    spec = importlib.util.spec_from_file_location("node_facts_script", SCRIPT)
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    monkeypatch.setattr(made, "KMSG", "/nowhere/kmsg")
    monkeypatch.setattr(made, "kernel_buffer", lambda: buffer)
    return made


def test_a_kernel_s_log_is_read_through_the_system_call_where_the_device_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "<6>[   12.500000] usb\n<3>[  950.250000][  T12] NVRM: Xid (PCI:0000:4b:00 GPU-1): 48, DBE\n<6>no stamp: Xid\n"
    log = script(monkeypatch, text).kernel_log()
    (xid,) = log["xids"]
    assert (log["last_s"], xid["at_s"], xid["code"], xid["bus_id"]) == (950.25, 950.25, 48, "0000:4b:00")


def test_a_kernel_s_log_that_may_not_be_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    made = script(monkeypatch, None)
    assert made.kernel_log() is None
    (said,) = made.UNREAD
    assert said["what"] == "the kernel's log" and "/nowhere/kmsg: No such file" in said["why"] and "klogctl" in said["why"]


def test_the_simulator_writes_the_sheet_that_the_script_writes(tmp_path: pathlib.Path) -> None:
    world = World([{"kind": "memory_error", "node": NODE}], fabric="ib")
    world.alone(NODE)
    real, made = sheet(tmp_path), dict(json.loads("\n".join(world.run([NODE], RUN).lines))["node_facts"])
    for key in ("errors", "counters"):
        real["gpus"][0]["nvlinks"][key] = made["gpus"][0]["nvlinks"][key]
    real["host"]["numa_nodes"] = made["host"]["numa_nodes"]
    assert {**keys(real), "unread": None} == {**keys(made), "unread": None}


def test_a_healthy_sheet_passes_by_itself_with_its_counts() -> None:
    found = judged(simulated(), expected_gpus=8)
    assert (found["verdict"], found["complete"], found["findings"]) == (None, True, [])
    values = found["values"]
    assert (values["gpus"], values["nics"], values["ecc_uncorrectable"], values["unread"]) == (8, 8, 0, 0)
    assert values["retirements_pending"] is None, "no GPU of the node has such a counter"


BROKEN = [
    (("remapped_rows", "failure"), True, "remap_failures"),
    (("remapped_rows", "pending"), True, "remaps_pending"),
    (("retired_pages", "pending"), True, "retirements_pending"),
    (("ecc", "uncorrectable"), 2, "ecc_uncorrectable"),
    (("ecc", "unrepairable"), True, "unrepairable"),
    (("ecc", "sram_threshold_exceeded"), True, "sram_threshold_exceeded"),
    (("ecc", "repair_pending"), True, "repairs_pending"),
    (("recovery_action",), "Drain and Reset", "recovery_actions"),
]


@pytest.mark.parametrize(("path", "value", "metric"), BROKEN)
def test_what_a_gpu_says_against_itself_convicts_its_node_and_names_it(path: tuple[str, ...], value: t.Any, metric: str) -> None:
    facts = simulated()
    node = facts["gpus"][5]
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    found = judged(facts, expected_gpus=8)
    assert found["verdict"] == "HardwareFailureDetected" and found["values"][metric] in (1, 2)
    (said,) = found["findings"]
    assert (said["entity"], said["host"]) == ("GPU5", NODE) and facts["gpus"][5]["serial"] in said["evidence"][0]


NOTED = [
    (("slowed_by",), ["hw_thermal_slowdown"], "slowed_gpus"),
    (("pcie", "width"), 8, "narrow_links"),
    (("nvlinks", "inactive"), [3], "nvlinks_inactive"),
    (("nvlinks", "errors"), {"replay_errors": 1}, "nvlink_errors"),
]


@pytest.mark.parametrize(("path", "value", "metric"), NOTED)
def test_what_may_have_another_cause_is_said_and_convicts_nobody(path: tuple[str, ...], value: t.Any, metric: str) -> None:
    facts = simulated()
    node = facts["gpus"][2]
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    found = judged(facts)
    assert (found["verdict"], found["values"][metric]) == (None, 1)
    assert [(item["reason"], item["entity"]) for item in found["findings"]] == [("Warning", "GPU2")]


def test_a_power_cap_and_an_idle_clock_are_the_normal_life_of_a_gpu() -> None:
    facts = simulated()
    facts["gpus"][0]["slowed_by"] = ["sw_power_cap", "gpu_idle", "sync_boost"]
    assert judged(facts)["values"]["slowed_gpus"] == 0


def test_planted_faults_show_where_they_are() -> None:
    found = judged(simulated({"kind": "remap_pending", "node": NODE, "gpu": 6}))
    assert found["verdict"] == "HardwareFailureDetected" and [item["entity"] for item in found["findings"]] == ["GPU6"]
    assert judged(simulated({"kind": "pcie_slow", "node": NODE, "gpu": 1}))["values"]["narrow_links"] == 1
    assert {nic["firmware"] for nic in simulated({"kind": "old_firmware", "node": NODE})["nics"]} == {"28.36.1010"}
    assert World([{"kind": "remap_pending", "node": NODE}]).alone(NODE).peak() == World().alone(NODE).peak()


def test_a_sheet_is_known_among_logs(tmp_path: pathlib.Path) -> None:
    (tmp_path / "log").write_text("\n".join(World().run([NODE], RUN).lines) + "\n")
    assert detect_kind([str(tmp_path / "log")]) == "node_facts"


def test_a_port_that_is_down_and_what_was_not_read_are_noted() -> None:
    facts = copy.deepcopy(simulated())
    facts["nics"][3]["ports"][0].update(state="DOWN", physical="Disabled")
    facts["unread"] = [{"what": "/proc/x", "why": "Permission denied"}]
    found = judged(facts)
    assert (found["verdict"], found["values"]["ports_down"], found["values"]["unread"]) == (None, 1, 1)
    assert ["mlx5_3" in item["message"] or "Permission denied" in item["message"] for item in found["findings"]] == [True, True]


def test_a_machine_of_which_nothing_is_known_is_no_pass(tmp_path: pathlib.Path) -> None:
    facts = sheet(tmp_path, smi="NVIDIA-SMI has failed", states="", errors="")
    assert facts["gpus"] == [] and any(item["what"] == "nvidia-smi -q -x" for item in facts["unread"])
    assert judged(facts)["verdict"] == "NoMeasurement"
    assert judged(simulated(), expected_gpus=9)["verdict"] == "LogIncomplete"
    whole = json.dumps({"node_facts": simulated()}, indent=1)
    assert node_facts.parse(whole[: len(whole) // 2], {"exit_code": 0})["verdict"] in ("LogIncomplete", "NoMeasurement")
    assert node_facts.parse("", {"exit_code": 0})["verdict"] == "NoMeasurement"


@pytest.mark.parametrize(
    "facts", [{"gpus": "x"}, {"gpus": [{"ecc": 3, "nvlinks": []}]}, {"nics": [{"ports": {}}], "driver": 1}, {"host": None}]
)
def test_a_sheet_of_another_shape_breaks_nothing(facts: dict[str, t.Any]) -> None:
    assert judged(facts)["kind"] == "node_facts"


def sheets(changes: t.Mapping[str, t.Callable[[dict[str, t.Any]], None]], nodes: int = 4) -> dict[str, list[str]]:
    """What is told of each of so many nodes, some of which were changed."""
    made = {}
    for number in range(nodes):
        facts = simulated()
        changes.get(f"g{number}", lambda _facts: None)(facts)
        made[f"g{number}"] = judged(facts, expected_gpus=len(facts["gpus"]))
    found = compared("node_facts", made, {name: f"node-{name}" for name in made})
    return {name: [item["message"] for item in said["findings"]] for name, said in found.items()}


def test_a_node_that_differs_from_its_pool_is_told_so_and_the_others_are_not() -> None:
    told = sheets({"g2": lambda facts: facts["driver"].update(version="570.124.06")})
    assert told == {"g0": [], "g1": [], "g2": ["GPU driver: 570.124.06; 3 of 4 nodes have 580.95.05"], "g3": []}


def test_where_no_kind_is_usual_all_are_told() -> None:
    told = sheets({"g1": lambda facts: facts["nics"].pop()}, nodes=2)
    assert ["number of NICs" in said[0] and "2 different ones" in said[0] for said in told.values()] == [True, True]


def test_one_odd_part_makes_a_node_odd() -> None:
    told = sheets({"g0": lambda facts: facts["nics"][3].update(firmware="28.36.1010")})
    assert told["g0"] == ["NIC firmware: 28.36.1010, 28.39.1002; 3 of 4 nodes have 28.39.1002"] and told["g1"] == []


def test_what_is_not_known_of_a_node_is_no_difference() -> None:
    assert sheets({"g0": lambda facts: facts["host"].update(kernel=None)})["g0"] == []


def test_other_kinds_are_not_compared_and_a_group_without_a_measurement_stays_so() -> None:
    assert compared("fio", {"g0": None}, {}) == compared("node_facts", {"g0": None}, {}) == {"g0": None}
