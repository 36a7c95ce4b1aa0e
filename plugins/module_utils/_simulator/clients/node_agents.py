# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The node agents: one process that acts as the kubelet of every node of a simulated cluster.

It registers the nodes of a workload model, renews their leases, runs the pods bound to them (`pod_worker`), serves their logs
(`kubelet_logs`) and carries out what the model plans for the nodes. It uses the API as a kubelet does, so it can be attached to
the simulator or to a genuine control plane.
"""

from __future__ import annotations

import asyncio
import collections
import copy
import itertools
import logging
import ssl
import typing as t

from ..._common.errors import ClusterError
from ..hardware.seam import NodeChange, Peers, PodView, Rejection, WorkloadModel
from .api import Api, ApiError, Object, now_micro, now_rfc3339, resource_path
from .events import EventRecorder
from .informer import Informer, cancel, gather_bounded, key_of
from .job_rules import is_terminal
from .kubelet_logs import ContainerLog, LogProblem, LogServer
from .matching import add_resources, milli, pod_requests
from .pod_view import References
from .pod_worker import PodWorker, needs_end

log = logging.getLogger(__name__)

_LEASE_INTERVAL_S, _LEAST_INTERVAL_S, _RENEWALS_PER_S = 10.0, 1.0, 50.0
_LEASE_NAMESPACE = "kube-node-lease"
_PRESSURES = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)


class _Agent:
    """What is kept for one node."""

    def __init__(self, node: Object, number: int) -> None:
        self.node = node
        self.name: str = node["metadata"]["name"]
        self.number = number
        self.alive = not any(row["type"] == "Ready" and row["status"] == "Unknown" for row in node["status"]["conditions"])
        self.lost = False
        self.used: dict[str, int] = {}
        self.images: set[str] = set()
        self.workers: set[PodWorker] = set()
        self.worked = False
        self.addresses = itertools.count(2)
        self.waiting: list[NodeChange] = []

    def next_address(self) -> str:
        """A pod address of its own for some thousand nodes: 10.128.0.0/9, a /24 for each node."""
        return f"10.{128 + self.number // 256 % 128}.{self.number % 256}.{next(self.addresses) % 254 or 254}"

    def allocatable(self, resource: str) -> int:
        status = self.node["status"]
        rows = status.get("allocatable") or status.get("capacity") or {}
        return milli(rows[resource]) if resource in rows else (110_000 if resource == "pods" else 0)


class NodeAgents:
    """Kubelets of all nodes of `model`. `pods` and `services` are informers; the pods may include pods of other nodes.

    `tls` makes the log server speak https, as a genuine API server wants it. `lease_interval_s` is derived from the number of nodes and
    the time scale when it is not given: a renewal every ten seconds of the simulated cluster, within bounds that the machine can bear.
    """

    def __init__(
        self,
        api: Api,
        model: WorkloadModel,
        pods: Informer,
        services: Informer,
        *,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        lease_interval_s: float | None = None,
    ) -> None:
        self.api = api
        self.model = model
        self.host = host
        self.events = EventRecorder(api, "kubelet")
        self.references = References(api)
        self._logs = LogServer(self._find_log, host, tls)
        self._services = services
        self._pods = pods
        self._agents: dict[str, _Agent] = {}
        self._workers: dict[str, PodWorker] = {}
        self._by_name: dict[tuple[str, str], PodWorker] = {}
        self._by_host: dict[tuple[str, str], list[PodWorker]] = collections.defaultdict(list)
        self._lease_interval_s = lease_interval_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: list[asyncio.TimerHandle] = []
        pods.on_change(self._pod_changed)

    async def start(self) -> None:
        """Registers all nodes, with their leases. Start the informers afterwards: a pod of an unknown node is not ours."""
        self.events.start()
        await self._logs.start()
        await self._ensure_lease_namespace()
        wanted = self.model.node_registration()
        for number, node in enumerate(wanted):
            agent = _Agent(self._complete(node), number)
            self._agents[agent.name] = agent
        answers = await gather_bounded(self._register(agent) for agent in self._agents.values())
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        self._spawn(self._renew_leases())
        for change in self.model.node_changes():
            self._plan(change)

    async def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for worker in self._workers.values():
            worker.abandon()
        await cancel(*self._tasks)
        await self._logs.stop()
        await self.events.stop()

    def _spawn(self, call: t.Coroutine[t.Any, t.Any, None]) -> None:
        task = asyncio.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- registration and leases

    def _complete(self, node: Object) -> Object:
        """The model's Node with what a kubelet adds."""
        node = copy.deepcopy(node)
        node.update(apiVersion="v1", kind="Node")
        name = node["metadata"]["name"]
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        node["metadata"]["labels"] = {**labels, **(node["metadata"].get("labels") or {})}
        status = node.setdefault("status", {})
        status.setdefault("capacity", {}).setdefault("pods", "110")
        status.setdefault("allocatable", dict(status["capacity"]))
        others = [row for row in status.get("addresses") or [] if row["type"] not in ("InternalIP", "Hostname")]
        status["addresses"] = [{"type": "InternalIP", "address": self.host}, {"type": "Hostname", "address": name}, *others]
        status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": self._logs.port}}
        given = {row["type"]: row for row in status.get("conditions") or []}
        rows = [{"type": kind, "status": "False", "reason": reason, "message": words} for kind, reason, words in _PRESSURES]
        rows.append({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"})
        standard = {row["type"]: row for row in rows}
        status["conditions"] = [with_times(row) for row in {**standard, **given}.values()]
        return node

    async def _ensure_lease_namespace(self) -> None:
        """A genuine control plane makes it, but not always before the first node comes."""
        try:
            await self.api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _LEASE_NAMESPACE}})
        except ApiError as exc:
            if exc.status != 409:
                raise

    async def _register(self, agent: _Agent) -> None:
        try:
            agent.node = await self.api.create("/api/v1/nodes", agent.node)
        except ApiError as exc:
            if exc.status != 409:
                raise
            await self._register_again(agent)
        if agent.alive:
            await self._create_lease(agent)
        self.events.record(agent.node, "Normal", "Starting", "Starting kubelet.", host=agent.name)

    async def _register_again(self, agent: _Agent) -> None:
        """The node exists: an agent that was restarted. Its labels and its status (the log server's port) are renewed."""
        path = resource_path("nodes", name=agent.name)
        await self.api.patch(path, {"metadata": {"labels": agent.node["metadata"]["labels"]}})
        agent.node = await self.api.patch(f"{path}/status", {"status": agent.node["status"]})

    async def _create_lease(self, agent: _Agent) -> None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": agent.name, "uid": agent.node["metadata"]["uid"]}
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": agent.name, "namespace": _LEASE_NAMESPACE, "ownerReferences": [owner]},
            "spec": {"holderIdentity": agent.name, "leaseDurationSeconds": self._lease_duration(), "renewTime": now_micro()},
        }
        try:
            await self.api.create(resource_path("coordination.k8s.io/v1/leases", _LEASE_NAMESPACE), lease)
        except ApiError as exc:
            if exc.status != 409:
                raise
            await self.api.patch(self._lease_path(agent), {"spec": lease["spec"]}, "merge")

    @staticmethod
    def _lease_path(agent: _Agent) -> str:
        return resource_path("coordination.k8s.io/v1/leases", _LEASE_NAMESPACE, agent.name)

    def _interval(self) -> float:
        if self._lease_interval_s is not None:
            return self._lease_interval_s
        return max(_LEASE_INTERVAL_S / self.model.time_scale, _LEAST_INTERVAL_S, len(self._agents) / _RENEWALS_PER_S)

    def _lease_duration(self) -> int:
        """As with a kubelet, four missed renewals are too many."""
        return max(4, round(4 * self._interval()))

    async def _renew_leases(self) -> None:
        gate = asyncio.Semaphore(8)
        while True:
            pause = self._interval() / max(len(self._agents), 1)
            for agent in list(self._agents.values()):
                if agent.alive:
                    await gate.acquire()
                    self._spawn(self._renew(agent, gate))
                await asyncio.sleep(pause)
            if not self._agents:
                await asyncio.sleep(_LEAST_INTERVAL_S)

    async def _renew(self, agent: _Agent, gate: asyncio.Semaphore) -> None:
        try:
            await self.api.patch(self._lease_path(agent), {"spec": {"renewTime": now_micro()}}, "merge")
        except ApiError as exc:
            if exc.status == 404 and agent.alive:
                await self._create_lease(agent)
        except ClusterError as exc:
            log.debug("lease of %s: %s", agent.name, exc)
        finally:
            gate.release()

    # -- what the model plans for nodes

    def _plan(self, change: NodeChange) -> None:
        agent = self._agents[change.node]
        if change.since == "registration":
            self._change_after(agent, change)
        else:
            agent.waiting.append(change)

    def _change_after(self, agent: _Agent, change: NodeChange) -> None:
        def due() -> None:
            self._spawn(self._change(agent, change))

        self._timers.append(asyncio.get_running_loop().call_later(change.after_s / self.model.time_scale, due))

    async def _change(self, agent: _Agent, change: NodeChange) -> None:
        path = resource_path("nodes", name=agent.name)
        try:
            if change.patch:
                await self.api.patch(path, change.patch)
            if change.status_patch:
                patch = copy.deepcopy(change.status_patch)
                rows = patch.get("status", {}).get("conditions")
                if rows:
                    patch["status"]["conditions"] = [with_times(row) for row in rows]
                agent.node = await self.api.patch(f"{path}/status", patch)
        except (ApiError, ClusterError) as exc:
            log.warning("change of node %s: %s", agent.name, exc)
        if change.event:
            kind, reason, message = change.event
            self.events.record(agent.node, kind, reason, message, host=agent.name)
        if change.lost:
            self._lose(agent)
        elif change.lost is False:
            await self._return(agent)

    def _lose(self, agent: _Agent) -> None:
        agent.alive, agent.lost = False, True
        for worker in list(agent.workers):
            worker.abandon(broken=True)

    async def _return(self, agent: _Agent) -> None:
        """The node has booted again: its containers are gone."""
        agent.alive, agent.lost = True, False
        await self._create_lease(agent)
        rows = [row for row in agent.node["status"]["conditions"] if row["type"] in ("Ready", *(kind for kind, _r, _m in _PRESSURES))]
        patch = {"status": {"conditions": [with_times({**row, "lastTransitionTime": None}) for row in rows]}}
        await self.api.patch(resource_path("nodes", name=agent.name, subresource="status"), patch)
        for worker in list(agent.workers):
            self._forget(worker)
        for pod in [pod for pod in self._pods.items.values() if pod["spec"].get("nodeName") == agent.name]:
            self._pod_changed("MODIFIED", pod, None)  # also those which were bound or deleted meanwhile

    # -- pods

    def _pod_changed(self, kind: str, pod: Object, _old: Object | None) -> None:
        agent = self._agents.get(pod["spec"].get("nodeName", ""))
        if agent is None:
            return
        worker = self._workers.get(pod["metadata"]["uid"])
        if kind == "DELETED":
            if worker is not None:
                worker.abandon()
                self._forget(worker)
        elif agent.lost or not agent.alive:
            return
        elif worker is not None:
            worker.update(pod)
        elif not is_terminal(pod):
            self._adopt(agent, pod)
        elif pod["metadata"].get("deletionTimestamp"):
            self._spawn(self._delete_ended(pod))

    def _adopt(self, agent: _Agent, pod: Object) -> None:
        worker = PodWorker(self, pod, agent.next_address())
        metadata, spec = pod["metadata"], pod["spec"]
        self._workers[metadata["uid"]] = worker
        self._by_name[metadata["namespace"], metadata["name"]] = worker
        self._by_host[metadata["namespace"], spec.get("hostname") or metadata["name"]].append(worker)
        agent.workers.add(worker)
        add_resources(agent.used, pod_requests(pod))
        if needs_end(pod):
            worker.lost_containers()
        else:
            worker.start()
        if metadata.get("deletionTimestamp"):
            worker.update(pod)

    def _forget(self, worker: PodWorker) -> None:
        """Drops a pod whose object is gone, with its logs."""
        self.freed(worker)
        metadata, spec = worker.pod["metadata"], worker.pod["spec"]
        self._workers.pop(metadata["uid"], None)
        if self._by_name.get((metadata["namespace"], metadata["name"])) is worker:
            del self._by_name[metadata["namespace"], metadata["name"]]
        host = (metadata["namespace"], spec.get("hostname") or metadata["name"])
        self._by_host[host].remove(worker)
        if not self._by_host[host]:
            del self._by_host[host]

    async def _delete_ended(self, pod: Object) -> None:
        """Confirms the deletion of a pod that had ended before this process started."""
        try:
            await self.api.delete(resource_path("pods", *key_of(pod)), grace_s=0, uid=pod["metadata"]["uid"])
        except (ApiError, ClusterError) as exc:
            log.debug("delete %s: %s", key_of(pod), exc)

    # -- asked by pod workers

    def admit(self, pod: Object, view: PodView) -> Rejection | None:
        """The kubelet's own check of resources, then the model's."""
        agent = self._agents[view.node]
        for name, need in pod_requests(pod).items():
            used, most = agent.used.get(name, 0) - need, agent.allocatable(name)
            if need and used + need > most:
                if "/" in name:
                    have = max(most - used, 0) // 1000
                    words = f"Allocate failed due to requested number of devices unavailable for {name}. "
                    words += f"Requested: {need // 1000}, Available: {have}, which is unexpected"
                    return Rejection("UnexpectedAdmissionError", words)
                words = f"Node didn't have enough resource: {name}, requested: {need}, used: {used}, capacity: {most}"
                return Rejection(f"OutOf{name}", words)
        return self.model.pod_admission(view)

    def freed(self, worker: PodWorker) -> None:
        """The pod holds no resources of its node any more."""
        agent = self._agents[worker.node]
        if worker in agent.workers:
            agent.workers.discard(worker)
            add_resources(agent.used, pod_requests(worker.pod), -1)

    def pull(self, node: str, image: str) -> bool:
        """Notes that the node has the image; True if it was pulled just now."""
        images = self._agents[node].images
        fresh = image not in images
        images.add(image)
        return fresh

    def container_started(self, worker: PodWorker, spec: Object) -> None:
        """Starts the clock of the node's planned changes at its first container with a device."""
        agent = self._agents[worker.node]
        if agent.worked or not any("/" in name for name in (spec.get("resources") or {}).get("limits") or {}):
            return
        agent.worked = True
        for change in agent.waiting:
            self._change_after(agent, change)

    def service_variables(self, namespace: str) -> dict[str, str]:
        """The docker-style variables of Services with an address."""
        env: dict[str, str] = {}
        for (where, name), service in self._services.items.items():
            address = service["spec"].get("clusterIP", "None")
            ports = service["spec"].get("ports") or []
            if where == namespace and address not in ("None", "") and ports:
                prefix = name.upper().replace("-", "_")
                env[f"{prefix}_SERVICE_HOST"] = address
                env[f"{prefix}_SERVICE_PORT"] = str(ports[0]["port"])
        return env

    def peers_of(self, worker: PodWorker) -> Peers:
        """The cluster's DNS, as seen from a pod."""

        def find(name: str) -> PodView | None:
            found = self._resolve(name, worker)
            return found.view if found is not None and found.is_running() else None

        return find

    def _resolve(self, name: str, asking: PodWorker) -> PodWorker | None:
        namespace = asking.pod["metadata"]["namespace"]
        own = asking.pod["spec"].get("hostname") or asking.pod["metadata"]["name"]
        if name in (own, "localhost", "127.0.0.1"):
            return asking
        parts = name.removesuffix(".").removesuffix(".cluster.local").split(".")
        if len(parts) > 2 and parts[-1] == "svc":
            parts.pop()
        if len(parts) == 4 and all(part.isdigit() for part in parts):
            return next((worker for worker in self._workers.values() if worker.pod_ip == name and worker.is_running()), None)
        for length in (1, 2):  # service[.namespace], host.service[.namespace]
            if len(parts) in (length, length + 1):
                where = parts[length] if len(parts) > length else namespace
                found = self._by_service(parts[0], where) if length == 1 else self._by_subdomain(parts[0], parts[1], where)
                if found is not None:
                    return found
        return None

    def _by_service(self, service: str, namespace: str) -> PodWorker | None:
        selector = self._selector(service, namespace)
        if not selector:
            return None
        workers = (worker for worker in self._workers.values() if worker.pod["metadata"]["namespace"] == namespace)
        return next((worker for worker in workers if worker.is_running() and _selected(selector, worker)), None)

    def _by_subdomain(self, host: str, subdomain: str, namespace: str) -> PodWorker | None:
        selector = self._selector(subdomain, namespace)
        for worker in reversed(self._by_host.get((namespace, host), [])):
            if worker.is_running() and worker.pod["spec"].get("subdomain") == subdomain and selector and _selected(selector, worker):
                return worker
        return None

    def _selector(self, service: str, namespace: str) -> dict[str, str]:
        item = self._services.items.get((namespace, service))
        return (item["spec"].get("selector") or {}) if item else {}

    def _find_log(self, namespace: str, pod: str, container: str, previous: bool) -> ContainerLog | LogProblem:
        worker = self._by_name.get((namespace, pod))
        if worker is None:
            return LogProblem(404, f'pod "{pod}" not found')
        if self._agents[worker.node].lost:
            return LogProblem(0, "")
        return worker.find_log(container, previous)


def _selected(selector: dict[str, str], worker: PodWorker) -> bool:
    labels = worker.pod["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in selector.items())


def with_times(row: Object) -> Object:
    """A node condition with its times."""
    now = now_rfc3339()
    return {**row, "lastHeartbeatTime": row.get("lastHeartbeatTime") or now, "lastTransitionTime": row.get("lastTransitionTime") or now}
