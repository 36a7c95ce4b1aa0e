# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster, a play on it, and a hand that reaches into both while the play runs."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import threading
import time
import urllib.parse

import yaml

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.client import Client
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError

OURS = "app.kubernetes.io/managed-by=gpu-cluster-readiness"
NODES = "/api/v1/nodes"
N = [f"gpu-r0-n0{index}" for index in range(4)]
LONG = {"max_bytes": "16G", "iterations": 400}
SAID = b'{"kind": "Status", "status": "Failure", "message": "Unauthorized", "reason": "Unauthorized", "code": 401}'
UNAUTHORIZED = b"HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (
    len(SAID),
    SAID,
)
BOUNDS = {"start_grace_s": 2, "queue_timeout_s": 20, "node_grace_s": 6}


class World:
    """spec: keys of the certification; the play is on its way from `begin` to `end`, and the other methods are the hand."""

    def __init__(self, cluster, scale="intra-node", limit=300, **spec):
        self.cluster, self.api = cluster, Client.from_options({"kubeconfig": str(cluster.kubeconfig)})
        category = {"test": "communication/nccl-all-reduce", "test_scale": scale, "criteria": [f"measured.bus_bandwidth >= {limit}"]}
        self.spec = {"categories": [category], "options": LONG, "bounds": BOUNDS, "isolate": "never", **spec}
        self.process = None

    def begin(self, **variables):
        command = self.cluster.command("certify", {"certification": self.spec, **variables})
        self.process = subprocess.Popen(
            command, cwd=self.cluster.work, env=self.cluster.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return self

    def end(self):
        output, _nothing = self.process.communicate(timeout=300)
        return self.cluster.result(self.process.returncode, output)

    def entries(self):
        found = list((self.cluster.work / "runs").glob("2*/journal.jsonl"))
        return [json.loads(line) for line in found[0].read_text().splitlines()] if found else []

    def until(self, condition, why, wait_s=120):
        deadline = time.monotonic() + wait_s
        while not condition():
            assert self.process is None or self.process.poll() is None or condition(), f"the play ended before: {why}"
            assert time.monotonic() < deadline, why
            time.sleep(0.05)

    def until_running(self, node):
        self.until(
            lambda: any(item["event"] == "attempt_running" and item["group"] in self.groups(node) for item in self.entries()), "runs"
        )

    def groups(self, node):
        return {item["group"] for item in self.entries() if item["event"] == "attempt_creating" and node in item["nodes"]}

    def status(self, node, **changes):
        self.api.patch(f"{NODES}/{node}/status", {"status": changes}, kind="strategic")

    def ready(self, node, status):
        reason = {"True": "KubeletReady", "False": "KubeletNotReady"}[status]
        condition = {
            "type": "Ready",
            "status": status,
            "reason": reason,
            "message": "container runtime status check may not have completed",
        }
        self.status(node, conditions=[condition])

    @contextlib.contextmanager
    def silent(self, *nodes):
        """These nodes are not Ready for the body, whatever their kubelets say."""
        stop = threading.Event()

        def silence():
            while not stop.wait(0.2):
                for name in nodes:
                    self.ready(name, "False")

        hand = threading.Thread(target=silence)
        hand.start()
        try:
            yield
        finally:
            stop.set()
            hand.join()

    def taint(self, node, key):
        self.api.patch(f"{NODES}/{node}", {"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}}, kind="strategic")

    def condition(self, node, kind, status="True"):
        told = {"type": kind, "status": status, "reason": "Planted", "message": f"planted on {node}"}
        self.status(node, conditions=[told])

    def objects(self, plural):
        """The pods, jobs … of the run, as kubectl sees them."""
        return json.loads(self.cluster.kubectl("get", plural, "-A", "-l", OURS, "-o", "json"))["items"]

    def pod_on(self, node):
        """The pod of the run on this node, once there is one."""
        found = []

        def look():
            found[:] = [item for item in self.objects("pods") if item["spec"].get("nodeName") == node]
            return found

        self.until(look, f"a pod comes to {node}")
        return found[0]

    def until_ended(self, wait_s=240):
        """The workers of a play that was ended come to their end after it."""
        deadline = time.monotonic() + wait_s
        while not any(item["event"] == "batch_end" for item in self.entries()):
            assert time.monotonic() < deadline, "the batch did not come to its end"
            time.sleep(0.5)

    def until_gone(self, path, wait_s=60):
        deadline = time.monotonic() + wait_s
        while True:
            try:
                self.api.get(path)
            except ClusterError as error:
                assert error.status == 404, error
                return
            assert time.monotonic() < deadline, f"{path} is still there"
            time.sleep(0.2)

    def interrupt(self, number=signal.SIGINT):
        self.process.send_signal(number)
        return time.monotonic()


class Tap:
    """The way from a play to the API server, which can be shut (`refuse`) or fall silent (`hang`) and be opened again.

    `deny`: whoever asks something from now on is answered 401, as when a token has expired. Only for a server that speaks no TLS.
    """

    def __init__(self, cluster):
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        target = config["clusters"][0]["cluster"]
        url = urllib.parse.urlsplit(target["server"])
        self._upstream, self._lock, self._ends, self._hung = (url.hostname, url.port), threading.Lock(), [], threading.Event()
        self._denied = threading.Event()
        self._listener = self._listen(0)
        self._port = self._listener.getsockname()[1]
        target["server"] = f"{url.scheme}://127.0.0.1:{self._port}"
        self.kubeconfig = cluster.work / "tap.kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def _listen(self, port):
        listener = socket.create_server(("127.0.0.1", port), reuse_port=False)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener):
        while True:
            try:
                near = listener.accept()[0]
                far = socket.create_connection(self._upstream)
            except OSError:
                return
            with self._lock:
                self._ends += [near, far]
            for source, sink, asks in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pump, args=(source, sink, asks), daemon=True).start()

    def _pump(self, source, sink, asks):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                while self._hung.is_set():
                    time.sleep(0.05)
                if self._denied.is_set():
                    if asks:
                        source.sendall(UNAUTHORIZED)
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def refuse(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def hang(self):
        self._hung.set()

    def deny(self):
        self._denied.set()

    def open(self):
        self._hung.clear()
        self._denied.clear()
        if self._listener.fileno() < 0:
            self._listener = self._listen(self._port)


def small(start_cluster, nodes=3, time_scale=20, **definition):
    return start_cluster(racks=1, nodes_per_rack=nodes, time_scale=time_scale, **definition)
