# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""One cell: a certification through the proxy, and what it left."""

from __future__ import annotations

import collections
import json
import pathlib
import shutil
import typing as t

from .cells import Cell
from .proxy import FaultyProxy, Passed
from .world import Player, World

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEST = "communication/nccl-all-reduce"
BOUNDS = {"retries": 1, "deadline_s": 60, "api_outage_s": 8, "start_grace_s": 2, "queue_timeout_s": 15, "node_grace_s": 5}
CERTIFICATION = {
    "categories": [
        {"test": TEST, "test_scale": "intra-node", "criteria": ["measured.bus_bandwidth >= 400"]},
        {"test": TEST, "test_scale": "full-scale", "criteria": ["measured.bus_bandwidth >= 300"]},
    ],
    "options": {"max_bytes": "1G", "min_bytes": "64M", "iterations": 20},
    "isolate": "never",
    "bounds": BOUNDS,
}
# The run must have ended this long after its deadline (bounds.deadline_s).
MARGIN_S = 600
WINDOW_S = 10.0


def run_cell(cell: Cell | None, world: World, player: Player, folder: pathlib.Path) -> dict[str, t.Any]:
    """Certifies through the proxy and reads what came of it. cell: None for a run that nothing disturbs."""
    folder.mkdir(parents=True)
    with FaultyProxy(world.kubeconfig, cell.fault if cell else None) as proxy:
        kubeconfig = folder / "kubeconfig"
        proxy.write_kubeconfig(kubeconfig)
        status, seconds = player.play(_order(folder, kubeconfig))
    found = {
        "cell": cell.name if cell else f"{world.name}/undisturbed",
        "world": world.name,
        "hits": sum(item.spoilt for item in proxy.passed),
        "requests": len(proxy.passed),
        "most_spoilt_in_10_s": _most_at_once(proxy.passed),
        "foreign_writes": sorted({f"{item.asked.verb} {item.asked.resource}" for item in proxy.passed if _is_foreign(item)}),
        "status": status,
        "seconds": seconds,
        "left": world.objects_of_ours(),
        **_read(folder),
    }
    if cell:
        found |= {"request": cell.fault.request, "kind": cell.fault.kind, "forever": cell.fault.forever}
    return found


def _order(folder: pathlib.Path, kubeconfig: pathlib.Path) -> dict[str, t.Any]:
    variables = {"runs_dir": str(folder / "runs"), "readiness_kubeconfig": str(kubeconfig), "certification": CERTIFICATION}
    inventory = str(ROOT / "inventories" / "simulated")
    return {
        "arguments": ["-i", inventory, "gpu_cluster.readiness.certify", "-e", json.dumps(variables)],
        "folder": str(folder),
        "log": str(folder / "play.log"),
        "limit_s": BOUNDS["deadline_s"] + MARGIN_S,
    }


def _read(folder: pathlib.Path) -> dict[str, t.Any]:
    """What the run told: its report where there is one, and its output."""
    runs = [path for path in (folder / "runs").glob("*") if path.is_dir() and not path.is_symlink()]
    reports = [path / "report.json" for path in runs if (path / "report.json").exists()]
    report = json.loads(reports[0].read_text()) if reports else None
    nodes = {node["name"]: node for node in report["nodes"]} if report else {}
    return {
        "runs": len(runs),
        "reports": len(reports),
        "verdict": report["verdict"] if report else None,
        "nodes": {name: node["verdict"] for name, node in nodes.items()},
        "reasons": {name: sorted({item["reason"] for item in node["findings"]}) for name, node in nodes.items() if node["findings"]},
        "cleanup": report["cleanup"] if report else None,
        "told": json.dumps(report) if report else "",
        "output": (folder / "play.log").read_text(errors="replace"),
    }


def _is_foreign(item: Passed) -> bool:
    """A write to what is not ours to write."""
    written = item.asked.verb in ("create", "update", "patch", "delete")
    return written and item.asked.resource.split("/")[0] in ("nodes", "namespaces")


def _most_at_once(passed: list[Passed]) -> int:
    """The most spoilt requests in any ten seconds: whether the API server was asked again without a pause."""
    recent: collections.deque[float] = collections.deque()
    most = 0
    for item in passed:
        if item.spoilt:
            recent.append(item.at)
            while item.at - recent[0] > WINDOW_S:
                recent.popleft()
            most = max(most, len(recent))
    return most


def forget(folder: pathlib.Path) -> None:
    """Removes what a cell wrote."""
    shutil.rmtree(folder, ignore_errors=True)


def explain(row: t.Mapping[str, t.Any]) -> str:
    """What a reader needs who sees a cell fail."""
    about = {key: value for key, value in row.items() if key not in ("told", "output")}
    return f"{json.dumps(about, indent=1)}\n{row['output'][-6000:]}"
