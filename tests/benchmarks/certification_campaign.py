# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Certifies random simulated clusters with planted faults through the real playbooks, and holds every report against the truth.

    python tests/benchmarks/certification_campaign.py [--worlds N] [--first K] [--seed S] [--nodes MAX] [--work DIR]

One line per world: what was planted, what the report says, and what is wrong with it. World K of a seed is always the same cluster.
What counts as wrong:

    silent        a group that must fail by the hardware model passed, or everything passed although a fault must show
    accused       a node without a fault is failed
    unclear       a node without a fault is suspect or untested, though nothing near it explains that (a warning)
    missed        a node with a fault of its own that must show is passed
    reason        an excluded or condemned node has another reason than the planted one
    cleanup       objects are left, or the report does not prove that none are
    status        the exit status does not follow from the verdict
    internal      a traceback, an internal error, or no report
    schema        the report does not keep docs/report.schema.json

Exit status 1 if anything but warnings was found.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import typing as t

import jsonschema
import yaml

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware import definition as definitions
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware import gpus
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware.model import Hardware, Path

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIMULATOR = "ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator"
TEST = "communication/nccl-all-reduce"
SCALES = ("intra-node", "intra-rack", "full-scale")
OPTIONS = {"min_bytes": "64M", "max_bytes": "1G", "iterations": 20}
LIMIT = 0.8  # of the healthy value: the criterion of a world whose nodes are all alike
SIGMAS = 4.0  # a value this many sigmas off its limit is on a known side of it

PLATFORMS = ("onprem", "onprem", "aws", "gcp", "azure", "oci", "nscale", "togetherai", "mistral", "forge")
BREAKS = ("socket_fallback", "wrong_data", "crash", "oom")  # no bandwidth makes up for these
SLOWS = ("node_slow", "nic_slow", "intermittent", "nvl_port")
BETWEEN = ("uplink_slow", "pair_slow", "partition")
# Faults that the API shows before any test, or that keep a test from running: node verdict and reasons that may stand in the report.
EXCLUDED = {"cordoned": {"Cordoned"}, "not_ready": {"NotReady"}, "mig": {"Mig"}, "time_slicing": {"TimeSlicing"}}
STATIC = {"gpus_missing": {"HardwareFailureDetected"}, "unhealthy_condition": {"HardwareFailureDetected"}}
STUCK = ("image_pull", "device_rejects", "log_rotated", "node_lost", "unlabelled")
KINDS = BREAKS * 2 + SLOWS * 2 + BETWEEN + tuple(EXCLUDED) + tuple(STATIC) + STUCK


@dataclasses.dataclass
class World:
    """A cluster definition and the certification of it."""

    number: int
    definition: dict[str, t.Any]
    certification: dict[str, t.Any]
    playbook: str
    hardware: Hardware


def world(seed: int, number: int, most_nodes: int) -> World:
    """World number of a seed."""
    chance = random.Random(f"{seed}/{number}")
    definition: dict[str, t.Any] = {"seed": chance.randrange(1000), "platform": chance.choice(PLATFORMS), "time_scale": 3600}
    definition["noise"] = chance.choice((0.0, 0.005, 0.01, 0.02, 0.02, 0.03, 0.05, 0.1))
    products = sorted(gpus.PRODUCTS)
    mixed = chance.random() < 0.2
    size = min(most_nodes, chance.choice((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)))
    per_rack = min(chance.choice((1, 2, 3, 4, 6, 8, 12, 16, 18)), size)
    product = chance.choice(products) if chance.random() < 0.6 else chance.choice(("NVIDIA-H100-80GB-HBM3", "NVIDIA-GB200"))
    if mixed:
        pools = [{"gpu": name, "racks": max(1, size // per_rack // 2), "nodes_per_rack": per_rack} for name in chance.sample(products, 2)]
        definition["gpu"] = pools
    else:
        definition.update(gpu=product, racks=max(1, size // per_rack), nodes_per_rack=per_rack)
    if chance.random() < 0.4:  # a cloud's own rules promise its fabric: another one is rightly a wrong transport
        definition["fabric"] = chance.choice(("ib", "roce", "tcp") if definition["platform"] == "onprem" else ("tcp",))
    names = list(Hardware(definitions.parse(definition)).nodes)
    definition["faults"] = _faults(chance, names, Hardware(definitions.parse(definition)))
    hardware = Hardware(definitions.parse(definition))
    return World(number, definition, *_request(chance, hardware, mixed), hardware)


def _faults(chance: random.Random, names: list[str], hardware: Hardware) -> list[dict[str, t.Any]]:
    count = chance.choice((0, 1, 1, 1, 2, 2, 3, 4, 5))
    racks: dict[str, list[str]] = {}
    for name in names:
        racks.setdefault(hardware.nodes[name].rack, []).append(name)
    where = chance.choice(("anywhere", "anywhere", "one node", "one rack", "first", "every node of a rack"))
    rack = racks[chance.choice(sorted(racks))]
    spots = {"anywhere": names, "one node": [chance.choice(names)], "one rack": rack, "first": [rack[0]], "every node of a rack": rack}
    places = spots[where]
    if where == "every node of a rack":
        kind = chance.choice([kind for kind in KINDS if kind not in BETWEEN])
        made = [_fault(chance, kind, name, racks, hardware) for name in places]
    else:
        made = [_fault(chance, chance.choice(KINDS), chance.choice(places), racks, hardware) for _number in range(count)]
    known, faults = set(), []
    for fault in made:
        key = (fault["kind"], str(fault.get("node") or fault.get("nodes") or fault.get("rack"))) if fault else None
        if fault and key not in known:
            known.add(key)
            faults.append(fault)
    return faults


def _fault(chance: random.Random, kind: str, node: str, racks: dict[str, list[str]], hardware: Hardware) -> dict[str, t.Any] | None:
    factor = round(chance.uniform(0.3, 0.7), 2) if chance.random() < 0.8 else round(chance.uniform(0.85, 0.95), 2)
    rack = hardware.nodes[node].rack
    members = racks[rack]
    if kind == "nvl_port" and not hardware.nodes[node].clique:
        kind = "nic_slow"
    if kind == "uplink_slow":
        return {"kind": kind, "rack": rack, "factor": factor} if len(racks) > 1 else None
    if kind == "pair_slow":
        others = [name for name in hardware.nodes if name != node]
        return {"kind": kind, "nodes": [node, chance.choice(others)], "factor": factor} if others else None
    if kind == "partition":
        return {"kind": kind, "nodes": members[: len(members) // 2], "factor": factor} if len(members) > 3 else None
    fault: dict[str, t.Any] = {"kind": kind, "node": node}
    if kind in SLOWS:
        fault["factor"] = factor
    if kind == "crash":
        fault["exit_code"] = chance.choice((1, 3, 134, 137, 139, 255))
    if kind == "unhealthy_condition":
        fault["type"] = "GpuXidError"
    if kind == "gpus_missing":
        if hardware.nodes[node].gpu.gpus_per_node == 1:
            return None
        fault["off_the_bus"] = chance.random() < 0.5
    return fault


def _request(chance: random.Random, hardware: Hardware, mixed: bool) -> tuple[dict[str, t.Any], str]:
    diagnose = chance.random() < 0.2
    isolate = chance.choice(("auto", "auto", "never"))
    floors = mixed or chance.random() < 0.25
    names = list(hardware.nodes)
    racks: dict[str, list[str]] = {}
    for name in names:
        racks.setdefault(hardware.nodes[name].clique or hardware.nodes[name].rack, []).append(name)
    largest = {"intra-node": names[:1], "intra-rack": max(racks.values(), key=len), "full-scale": names, "diagnose": names}
    categories = []
    for scale in ("diagnose",) if diagnose else SCALES:
        category: dict[str, t.Any] = {"test": TEST, "test_scale": scale, "isolate": isolate}
        if not floors:
            category["criteria"] = [f"measured.bus_bandwidth >= {LIMIT * healthy(hardware, largest[scale]):.3f}"]
        categories.append(category)
    bounds = {"start_grace_s": 2, "queue_timeout_s": 30}
    return {"name": "campaign", "options": OPTIONS, "bounds": bounds, "categories": categories}, "certify"


def _path(hardware: Hardware, names: t.Sequence[str]) -> Path:
    first = hardware.nodes[names[0]]
    return Path(network="socket" if first.fabric == "tcp" else first.fabric)


def healthy(hardware: Hardware, names: t.Sequence[str]) -> float:
    """GB/s at the judged size of a group without faults and noise, by the simulator's own model."""
    gpu = hardware.nodes[names[0]].gpu
    path = _path(hardware, names)
    if path.network == "socket" and len(names) > 1:
        return 1.5
    ranks = gpu.gpus_per_node * len(names)
    speed = hardware.healthy_speed("all_reduce", names, gpu.gpus_per_node, path, random.Random(0))
    size = float(1 << 30)
    factor = 2 * (ranks - 1) / ranks if ranks > 1 else 1.0
    return size * factor / speed.time_us(size, factor) / 1e3


def must(hardware: Hardware, names: t.Sequence[str], limit: float | None) -> bool | None:
    """Whether a complete run of this group must pass (True), must not (False), or may do either (None)."""
    faults = hardware.definition.faults
    inside = [fault for fault in faults if set(fault.where()) & set(names)]
    exercise = hardware.exercise("", names, _path(hardware, names))
    for fault in inside:
        if fault.kind in ("wrong_data", "crash", "oom", "image_pull", "device_rejects", *STATIC):
            return False
        if fault.kind == "socket_fallback" and exercise.over_nic and exercise.multi_node and hardware.nodes[names[0]].fabric != "tcp":
            return False
        if fault.kind in ("log_rotated", "node_lost", "unlabelled", "mig", "time_slicing", "cordoned", "not_ready"):
            return None
    if limit is None or (exercise.over_nic and _path(hardware, names).network == "socket"):
        return None  # the model draws the speed of TCP from a wide range
    left = min((fault.limit(exercise) for fault in faults if fault.kind != "intermittent"), default=1.0)
    maybe = any(fault.kind == "intermittent" for fault in inside)
    value, margin = healthy(hardware, names) * left, 1 + SIGMAS * max(hardware.definition.noise, 0.01)
    if value * margin < limit:
        return False
    return True if value > limit * margin and not maybe else None


@dataclasses.dataclass
class Outcome:
    """What one play left."""

    status: int
    output: str
    report: dict[str, t.Any] | None
    left: list[str]
    seconds: float
    simulator: str


def play(case: World, work: pathlib.Path) -> Outcome:
    """Starts the cluster of a world, certifies it, and stops the cluster."""
    work.mkdir(parents=True, exist_ok=True)
    path, kubeconfig, log = work / "definition.yml", work / "kubeconfig", work / "simulator.log"
    path.write_text(yaml.safe_dump(case.definition, sort_keys=False))
    (work / "certification.json").write_text(json.dumps({"certification": case.certification}))
    kubeconfig.unlink(missing_ok=True)
    with log.open("w") as handle:
        command = [sys.executable, "-m", SIMULATOR, "--definition", str(path), "--kubeconfig", str(kubeconfig)]
        process = subprocess.Popen(command, cwd=work, stdout=handle, stderr=subprocess.STDOUT)
    try:
        while "KUBECONFIG=" not in log.read_text():
            if process.poll() is not None:
                raise SystemExit(f"the simulator did not start: {log.read_text()}")
            time.sleep(0.1)
        return _certify(case, work, kubeconfig, log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def _certify(case: World, work: pathlib.Path, kubeconfig: pathlib.Path, log: pathlib.Path) -> Outcome:
    binaries = pathlib.Path(sys.executable).parent
    environment = {
        **os.environ, "KUBECONFIG": str(kubeconfig), "ANSIBLE_LOCALHOST_WARNING": "False", "ANSIBLE_NOCOLOR": "1",
        "PATH": f"{binaries}:{os.environ['PATH']}",
    }  # fmt: skip
    command = ["ansible-playbook", "-i", str(ROOT / "inventories" / "simulated"), f"gpu_cluster.readiness.{case.playbook}"]
    command += ["-e", f"runs_dir={work / 'runs'}", "-e", f"@{work / 'certification.json'}"]
    start = time.monotonic()
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=900, check=False)
    (work / "output.txt").write_text(done.stdout + done.stderr)
    selected = ["-A", "-l", "app.kubernetes.io/managed-by=gpu-cluster-readiness", "-o", "name"]
    listed = subprocess.run(
        [str(binaries / "kubectl"), "get", "jobs,pods,configmaps,secrets,services", *selected],
        env=environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    kept = {"status": done.returncode, "left": listed.stdout.split(), "seconds": time.monotonic() - start}
    (work / "outcome.json").write_text(json.dumps(kept))
    return again(work)


def again(work: pathlib.Path) -> Outcome:
    """The outcome that a play left in its directory."""
    latest = work / "runs" / "latest" / "report.json"
    report = json.loads(latest.read_text()) if latest.exists() else None
    kept = json.loads((work / "outcome.json").read_text())
    output, simulator = (work / "output.txt").read_text(), (work / "simulator.log").read_text()
    return Outcome(kept["status"], output, report, kept["left"], kept["seconds"], simulator)


def _limit(category: t.Mapping[str, t.Any]) -> float | None:
    """The limit of a category with one criterion "metric >= number"."""
    texts = category["criteria"]
    if len(texts) != 1 or ">=" not in texts[0]:
        return None
    return float(texts[0].split(">=")[1])


def examine(case: World, outcome: Outcome) -> list[tuple[str, str]]:
    """Everything that is wrong with an outcome, as (what, words); warnings have a lower-case w: before them."""
    wrong: list[tuple[str, str]] = []
    for text, where in ((outcome.output, "the play"), (outcome.simulator, "the simulator")):
        if "Traceback" in text or "nternal error" in text or "Unexpected failure" in text:
            wrong.append(("internal", f"{where} shows a traceback or an internal error"))
    report = outcome.report
    if report is None:
        return [*wrong, ("internal", "no report")]
    try:
        jsonschema.validate(report, json.loads((ROOT / "docs" / "report.schema.json").read_text()))
    except jsonschema.ValidationError as error:
        wrong.append(("schema", f"{error.json_path}: {error.message[:120]}"))
    if outcome.left or not report["cleanup"]["proven"]:
        wrong.append(("cleanup", f"{outcome.left[:3]} {report['cleanup']}"))
    if (outcome.status == 0) != (report["verdict"] == "passed"):
        wrong.append(("status", f"exit status {outcome.status} with verdict {report['verdict']}"))
    return wrong + _silent(case, report) + _nodes(case, report)


def _silent(case: World, report: t.Mapping[str, t.Any]) -> list[tuple[str, str]]:
    wrong, must_fail = [], False
    for category in report["categories"]:
        limit = _limit(category)
        for group in category["groups"]:
            truth = must(case.hardware, group["nodes"], limit)
            must_fail = must_fail or truth is False
            if truth is False and group["verdict"] == "passed":
                wrong.append(("silent", f"{category['id']} {group['name']} passed"))
            if truth is True and group["verdict"] == "failed":
                wrong.append(("accused", f"healthy {category['id']} {group['name']} failed: {group['findings'][:1]}"))
        if category["test_scale"] == "diagnose" and must(case.hardware, list(case.hardware.nodes), limit) is False:
            must_fail = True
    if must_fail and report["verdict"] == "passed":
        wrong.append(("silent", "the certification passed"))
    return wrong


def _nodes(case: World, report: t.Mapping[str, t.Any]) -> list[tuple[str, str]]:
    wrong = []
    by_node: dict[str, list[t.Any]] = {}
    for fault in case.hardware.definition.faults:
        for name in fault.where():
            by_node.setdefault(name, []).append(fault)
    between = {name for fault in case.definition["faults"] if fault["kind"] in BETWEEN for name in fault.get("nodes", [])}
    racks = {fault["rack"] for fault in case.definition["faults"] if fault["kind"] == "uplink_slow"}
    excluded = {item["node"]: item for item in report["excluded"]}
    nodes = {node["name"]: node for node in report["nodes"]}
    for name in case.hardware.nodes:
        faults = by_node.get(name, [])
        kinds = {fault.kind for fault in faults}
        if name in excluded:
            allowed = set().union(*({**EXCLUDED, **STATIC}.get(kind, set()) for kind in kinds))
            if excluded[name]["reason"] not in allowed:
                wrong.append(("reason", f"{name} excluded as {excluded[name]['reason']}, planted {sorted(kinds)}"))
            continue
        if name not in nodes:
            wrong.append(("reason", f"{name} is not in the report"))
            continue
        verdict, reasons = nodes[name]["verdict"], {finding["reason"] for finding in nodes[name]["findings"]}
        if kinds & set(EXCLUDED) and "unlabelled" not in kinds:
            wrong.append(("reason", f"{name} with {sorted(kinds)} was not excluded: {verdict}"))
        for kind in kinds & STATIC.keys():
            if verdict != "failed" or not reasons & STATIC[kind]:
                wrong.append(("missed", f"{name} with {kind} is {verdict} {sorted(reasons)}"))
        if verdict == "failed" and not kinds:
            near = not _must_pass(case, report, name) or name in between or case.hardware.nodes[name].rack in racks
            said = nodes[name]["findings"][0]["message"][:160]
            wrong.append(("w:accused" if near else "accused", f"{name} failed: {said}"))
        if verdict == "passed" and _must_show(case, report, name):
            wrong.append(("missed", f"{name} with {sorted(kinds)} passed"))
        if verdict in ("suspect", "untested") and not kinds and case.certification["categories"][0]["isolate"] == "auto":
            wrong.append(("w:unclear", f"{name} {verdict} {sorted(reasons)}"))
    return wrong


def _must_pass(case: World, report: t.Mapping[str, t.Any], name: str) -> bool:
    """Whether noise cannot have pulled the node below the limits."""
    hardware = Hardware(dataclasses.replace(case.hardware.definition, faults=()))
    limits = [(category, _limit(category)) for category in report["categories"]]
    return all(must(hardware, [name], limit) is True for category, limit in limits if category["test_scale"] == "intra-node")


def _must_show(case: World, report: t.Mapping[str, t.Any], name: str) -> bool:
    """Whether a fault of this very node must fail a group it was tested in, whatever the others have."""
    faults = [fault for fault in case.hardware.definition.faults if name in fault.where() and fault.kind not in BETWEEN]
    alone = dataclasses.replace(case.hardware.definition, faults=tuple(faults))
    hardware = Hardware(alone)
    for category in report["categories"]:
        groups = [group["nodes"] for group in category["groups"]] or [list(case.hardware.nodes)]
        if any(name in nodes and must(hardware, nodes, _limit(category)) is False for nodes in groups):
            return True
    return False


def _words(case: World) -> str:
    text = case.definition
    gpu = text["gpu"] if isinstance(text["gpu"], str) else "+".join(pool["gpu"] for pool in text["gpu"])
    isolate = case.certification["categories"][0]["isolate"]
    scale = "diagnose" if case.certification["categories"][0]["test_scale"] == "diagnose" else "certify"
    racks = len({node.rack for node in case.hardware.nodes.values()})
    head = f"{text['platform']}/{case.hardware.definition.fabric} {gpu.replace('NVIDIA-', '')} {len(case.hardware.nodes)}n/{racks}r"
    faults = ", ".join(" ".join(str(value) for value in fault.values()) for fault in text["faults"][:5]) or "healthy"
    return f"{head} noise {text['noise']} {scale} {isolate} | {faults}"


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--worlds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=16, help="most nodes of a world")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/tmp/certification-campaign"))
    parser.add_argument("--again", action="store_true", help="only examine what an earlier start left in --work")
    wanted = parser.parse_args()
    bad = 0
    for number in range(wanted.first, wanted.first + wanted.worlds):
        case = world(wanted.seed, number, wanted.nodes)
        work = wanted.work / f"world{wanted.seed}-{number}-{wanted.nodes}"
        outcome = again(work) if wanted.again else play(case, work)
        wrong = examine(case, outcome)
        counts: dict[str, int] = {}
        for node in (outcome.report or {"nodes": []})["nodes"]:
            counts[node["verdict"]] = counts.get(node["verdict"], 0) + 1
        verdict = (outcome.report or {"verdict": "none"})["verdict"]
        print(f"{number:4d} {outcome.seconds:5.0f}s {verdict:10s} {counts} | {_words(case)}", flush=True)
        for what, words in wrong[:12]:
            print(f"       {what}: {words}", flush=True)
        bad += any(not what.startswith("w:") for what, _words_of_it in wrong)
    print(f"{wanted.worlds} worlds, {bad} with something wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
