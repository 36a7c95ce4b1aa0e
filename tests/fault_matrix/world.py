# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated cluster that serves cell after cell, and programs that live as long as we do."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
import typing as t
import urllib.error
import urllib.parse
import urllib.request

from .cells import NODES, WORLDS

SIMULATOR = "ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator"
PLAYER = pathlib.Path(__file__).with_name("player.py")
OURS = urllib.parse.urlencode({"labelSelector": "app.kubernetes.io/managed-by=gpu-cluster-readiness"})
KINDS = ("apis/batch/v1/{}jobs", "api/v1/{}pods", "api/v1/{}configmaps", "api/v1/{}secrets", "api/v1/{}services")
# ansible-core looks a thousand times a second whether a task has ended; two plays and two clusters share two cores here.
SETTINGS = "[defaults]\ninternal_poll_interval = 0.02\nlocalhost_warning = False\nnocolor = True\n"
READY_S = 120.0
GONE_S = 10.0


class World:
    """One simulated cluster, in a process that ends when we do: it reads our end of a pipe."""

    def __init__(self, name: str, folder: pathlib.Path) -> None:
        self.name, self.kubeconfig = name, folder / "upstream.kubeconfig"
        folder.mkdir(parents=True, exist_ok=True)
        definition = folder / "definition.json"
        definition.write_text(json.dumps({"seed": 7, "racks": 1, "nodes_per_rack": len(NODES), "time_scale": 3600, "faults": WORLDS[name]}))
        command = [sys.executable, "-m", SIMULATOR, "--definition", str(definition), "--kubeconfig", str(self.kubeconfig), "--lifeline"]
        log = folder / "simulator.log"
        with log.open("w") as handle:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=handle, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + READY_S
        while "KUBECONFIG=" not in log.read_text():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"the simulated cluster did not start: {log.read_text()}")
            time.sleep(0.05)
        config = json.loads(self.kubeconfig.read_text())
        self._server = config["clusters"][0]["cluster"]["server"]
        self._token = config["users"][0]["user"]["token"]

    def stop(self) -> None:
        """Ends the cluster."""
        self._process.terminate()
        self._process.wait(30)

    def objects_of_ours(self) -> list[str]:
        """Whatever bears our label, as resource/name; asked without the proxy."""
        return [f"{kind.rpartition('}')[2]}/{item['metadata']['name']}" for kind in KINDS for item in self._list(kind)]

    def tidy(self) -> bool:
        """Removes what a run left; False when it cannot be removed."""
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline:
            if not self.objects_of_ours():
                return True
            for kind in KINDS:
                for item in self._list(kind):
                    meta = item["metadata"]
                    path = kind.format(f"namespaces/{meta['namespace']}/") + f"/{meta['name']}?gracePeriodSeconds=0"
                    try:
                        self._ask("DELETE", path)
                    except urllib.error.HTTPError as error:
                        if error.code != 404:
                            raise
            time.sleep(0.1)
        return False

    def _list(self, kind: str) -> list[dict[str, t.Any]]:
        return list(self._ask("GET", f"{kind.format('')}?{OURS}")["items"])

    def _ask(self, method: str, path: str) -> t.Any:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        request = urllib.request.Request(f"{self._server}/{path}", method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())


class Player:
    """Plays, one at a time; see player.py."""

    def __init__(self, folder: pathlib.Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        settings = folder / "ansible.cfg"
        settings.write_text(SETTINGS)
        environment = {**os.environ, "ANSIBLE_CONFIG": str(settings), "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
        command = [sys.executable, "-P", str(PLAYER)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def play(self, order: dict[str, t.Any]) -> tuple[int | None, float]:
        """The exit status, None for a play that did not end in time, and the seconds it took."""
        stdin, stdout = t.cast(t.IO[str], self._process.stdin), t.cast(t.IO[str], self._process.stdout)
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        answer = json.loads(stdout.readline())
        return answer["status"], answer["seconds"]

    def stop(self) -> None:
        """Ends the program."""
        t.cast(t.IO[str], self._process.stdin).close()
        self._process.wait(60)
