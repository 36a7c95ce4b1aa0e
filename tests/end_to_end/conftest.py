# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Certifications through the real playbooks, on a cluster that is told to be faulty.

A scenario is written once: it gets a cluster from the fixture "start_cluster" and does not know which backend serves it.
READINESS_BACKEND=control_plane takes a genuine control plane (tests/control_plane) with simulated nodes instead of the simulator.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import typing as t

import jsonschema
import pytest
import yaml

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common import shapes
from ansible_collections.gpu_cluster.readiness.tests.control_plane import backend, build, selection

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "unit"))

from shape_check import violations  # noqa: E402

SIMULATOR = "ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator"
READY_S = 60
PLAY_S = 1200
pytest_configure, pytest_collection_modifyitems = selection.pytest_configure, selection.pytest_collection_modifyitems
collect_ignore = ["test_two_clusters.py"] if selection.GENUINE else ["test_control_plane.py"]


@dataclasses.dataclass
class Result:
    """What a play left: exit status, output, and the report if there is one."""

    status: int
    output: str
    run_dir: pathlib.Path | None
    report: dict[str, t.Any] | None

    def node(self, name: str) -> dict[str, t.Any]:
        return next(node for node in self.report["nodes"] if node["name"] == name)

    def verdicts(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for node in self.report["nodes"]:
            found.setdefault(node["verdict"], set()).add(node["name"])
        return found

    def reasons(self, name: str) -> set[str]:
        return {finding["reason"] for finding in self.node(name)["findings"]}


class Cluster:
    """A running cluster and the means to certify it."""

    def __init__(self, kubeconfig: pathlib.Path, work: pathlib.Path, genuine: backend.Backend | None = None) -> None:
        self.kubeconfig, self.work, self._genuine = kubeconfig, work, genuine
        self._audit_start = genuine.audit.stat().st_size if genuine and genuine.audit else 0

    @property
    def audit(self) -> pathlib.Path:
        """Every request since this cluster was started, one JSON line each (see docs/simulation.md)."""
        path = self.work / "audit.jsonl"
        if self._genuine:
            rows = backend.plain_rows(self.audit_events())
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return path

    def audit_events(self) -> list[dict[str, t.Any]]:
        """The audit.k8s.io events of a genuine control plane since this cluster was started."""
        if self._genuine is None or self._genuine.audit is None:
            pytest.skip("the audit log of a cluster that was not started by the tests cannot be read")
        return backend.audit_rows(self._genuine.audit, self._audit_start)

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "ANSIBLE_LOCALHOST_WARNING": "False",
            "ANSIBLE_NOCOLOR": "1",
            "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def command(self, playbook: str, variables: t.Mapping[str, t.Any], *arguments: str) -> list[str]:
        extra = {"runs_dir": str(self.work / "runs"), **variables}
        inventory = str(ROOT / "inventories" / "simulated")
        return ["ansible-playbook", "-i", inventory, f"gpu_cluster.readiness.{playbook}", "-e", json.dumps(extra), *arguments]

    def play(self, playbook: str = "certify", variables: t.Mapping[str, t.Any] | None = None, *arguments: str) -> Result:
        command = self.command(playbook, variables or {}, *arguments)
        done = subprocess.run(
            command,
            cwd=self.work,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PLAY_S,
            check=False,
        )
        return self.result(done.returncode, done.stdout)

    def result(self, status: int, output: str) -> Result:
        latest = self.work / "runs" / "latest"
        run_dir = latest.resolve() if latest.exists() else None
        path = run_dir / "report.json" if run_dir else None
        report = json.loads(path.read_text()) if path and path.exists() else None
        if report is not None:  # every report of every scenario keeps the published schema
            jsonschema.validate(report, json.loads((ROOT / "docs" / "report.schema.json").read_text()))
            assert archive_violations(run_dir) == []
        return Result(status, output, run_dir, report)

    def certify(self, *categories: tuple[str, t.Sequence[str]], **spec: t.Any) -> Result:
        """Certifies with (test scale, criteria) categories of all-reduce; keyword arguments are keys of the certification."""
        certification = {
            "categories": [
                {"test": "communication/nccl-all-reduce", "test_scale": scale, "criteria": list(criteria)} for scale, criteria in categories
            ],
            **spec,
        }
        return self.play("certify", {"certification": certification})

    def kubectl(self, *arguments: str) -> str:
        return subprocess.run(
            ["kubectl", *arguments], env=self.environment(), capture_output=True, text=True, timeout=60, check=True
        ).stdout

    def objects_of_ours(self) -> list[str]:
        """Every object in the cluster that carries our label, as kubectl sees it."""
        shown = self.kubectl(
            "get", "jobs,pods,configmaps,secrets,services", "-A", "-l", "app.kubernetes.io/managed-by=gpu-cluster-readiness", "-o", "name"
        )
        return shown.split()


def archive_violations(run_dir: pathlib.Path) -> list[str]:
    """Where the files of an archive are not what docs/data_shapes.md says."""
    whole = {"spec": shapes.Request, "snapshot": shapes.Snapshot, "plan": shapes.Plan, "run": shapes.RunMeta, "report": shapes.Report}
    many = {"observations": shapes.Observation, "judged": shapes.JudgedCategory}
    files = [(run_dir / f"{name}.json", shape) for name, shape in whole.items() if (run_dir / "spec.json").exists()]
    files += [(path, shape) for name, shape in many.items() for path in sorted((run_dir / name).glob("*.json"))]
    return [f"{path.name}{found}" for path, shape in files for found in violations(json.loads(path.read_text()), shape)]


@pytest.fixture(scope="session")
def genuine() -> t.Iterator[backend.Backend | None]:
    """The control plane of this session; None when the simulator is the backend."""
    if not selection.GENUINE:
        yield None
        return
    try:
        with backend.open_backend() as opened:
            yield opened
    except build.Unavailable as error:
        pytest.skip(f"not run on a genuine control plane: {error}")


@pytest.fixture
def start_cluster(tmp_path: pathlib.Path, genuine: backend.Backend | None) -> t.Iterator[t.Callable[..., Cluster]]:
    """start_cluster(racks=…, faults=[…]) → Cluster. Everything that was started is stopped at the end."""
    started: list[subprocess.Popen[str]] = []
    count = 0

    def start(**definition: t.Any) -> Cluster:
        nonlocal count
        work = tmp_path / f"cluster{count}"
        count += 1
        work.mkdir()
        path = work / "definition.yml"
        path.write_text(yaml.safe_dump({"seed": 7, "racks": 2, "nodes_per_rack": 4, "time_scale": 3600, **definition}))
        kubeconfig = work / "kubeconfig"
        if genuine:
            genuine.attach(path, work)
            kubeconfig.write_text(genuine.kubeconfig.read_text())
        else:
            started.append(_start_simulator(path, kubeconfig, work))
        return Cluster(kubeconfig, work, genuine)

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
    for process in started:
        process.wait(timeout=30)
    if genuine:
        genuine.reset()


def _start_simulator(definition: pathlib.Path, kubeconfig: pathlib.Path, work: pathlib.Path) -> subprocess.Popen[str]:
    log, audit = work / "simulator.log", work / "audit.jsonl"
    command = [sys.executable, "-m", SIMULATOR, "--definition", str(definition), "--kubeconfig", str(kubeconfig), "--audit", str(audit)]
    with log.open("w") as handle:
        process = subprocess.Popen(command, cwd=work, stdout=handle, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + READY_S
    while "KUBECONFIG=" not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(log.read_text())
        time.sleep(0.1)
    return process
