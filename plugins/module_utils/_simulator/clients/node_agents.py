# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The node agents: one process that acts as the kubelet of every node of a simulated cluster.

It registers the nodes of a workload model (`node_registration`), renews their leases (`node_leases`), runs the pods bound to them
(`pod_worker`), serves their logs (`kubelet_logs`) and carries out what the model plans for the nodes. It uses the API as a kubelet does,
so it can be attached to the simulator or to a genuine control plane.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import ssl

from ..._common.errors import ClusterError
from ..hardware.seam import NodeChange, Peers, PodView, Rejection, WorkloadModel
from .api import Api, ApiError, Object, resource_path
from .cluster_dns import ClusterDns
from .events import EventRecorder
from .informer import Informer, key_of
from .job_rules import is_terminal
from .kubelet_logs import ContainerLog, LogProblem, LogServer
from .node_leases import NodeLeases
from .node_registration import KUBELET_CONDITIONS, complete_node, register, with_times
from .node_state import NodeState
from .pod_state import PodState
from .pod_view import References
from .pod_worker import PodWorker, needs_end
from .tasks import Tasks, gather_bounded

log = logging.getLogger(__name__)

_SAY_AGAIN_S = 1.0


class NodeAgents:
    """Kubelets of all nodes of `model`. `pods`, `services` and `nodes` are informers; the pods may include pods of other nodes.

    `tls` makes the log server speak https, as a genuine API server wants it. `lease_interval_s`: see `NodeLeases`.
    """

    def __init__(
        self,
        api: Api,
        model: WorkloadModel,
        pods: Informer,
        services: Informer,
        nodes: Informer,
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
        self._pods = pods
        self._dns = ClusterDns(services)
        self._nodes: dict[str, NodeState] = {}
        self._workers: dict[str, PodWorker] = {}
        self._by_name: dict[tuple[str, str], PodWorker] = {}
        self._tasks = Tasks()
        self._timers: list[asyncio.TimerHandle] = []
        self._leases = NodeLeases(api, self._nodes, model.time_scale, lease_interval_s, self._tasks)
        pods.on_change(self._pod_changed)
        nodes.on_change(self._node_changed)

    async def start(self) -> None:
        """Registers all nodes, with their leases. Start the informers afterwards: a pod of an unknown node is not ours.

        Raises ApiError or ClusterError when a node is refused.
        """
        self.events.start()
        await self._logs.start()
        await self._leases.ensure_namespace()
        for number, manifest in enumerate(self.model.node_registration()):
            node = NodeState(complete_node(manifest, self.host, self._logs.port), number)
            self._nodes[node.name] = node
        answers = await gather_bounded(self._register(node) for node in self._nodes.values())
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        self._tasks.spawn(self._leases.renew())
        for change in self.model.node_changes():
            self._plan(change)

    async def _register(self, node: NodeState) -> None:
        node.node = await register(self.api, node.node)
        if node.alive:
            await self._leases.create(node)
        self.events.record(node.node, "Normal", "Starting", "Starting kubelet.", host=node.name)

    async def stop(self) -> None:
        """Ends everything that runs here, and leaves the objects of the cluster as they are."""
        for timer in self._timers:
            timer.cancel()
        for worker in self._workers.values():
            worker.abandon()
        await self._tasks.cancel()
        await self._logs.stop()
        await self.events.stop()

    # -- what the model plans for nodes

    def _plan(self, change: NodeChange) -> None:
        node = self._nodes[change.node]
        if change.since == "registration":
            self._change_after(node, change)
        else:
            node.waiting.append(change)

    def _change_after(self, node: NodeState, change: NodeChange) -> None:
        def due() -> None:
            self._tasks.spawn(self._change(node, change))

        self._timers.append(asyncio.get_running_loop().call_later(change.after_s / self.model.time_scale, due))

    async def _change(self, node: NodeState, change: NodeChange) -> None:
        try:
            await self._patch(node, change)
        except (ApiError, ClusterError) as exc:
            log.warning("change of node %s: %s", node.name, exc)
        if change.event:
            kind, reason, message = change.event
            self.events.record(node.node, kind, reason, message, host=node.name)
        if change.lost:
            self._lose(node)
        elif change.lost is False:
            await self._return(node)

    async def _patch(self, node: NodeState, change: NodeChange) -> None:
        path = resource_path("nodes", name=node.name)
        if change.patch:
            await self.api.patch(path, change.patch)
        if change.status_patch:
            patch = copy.deepcopy(change.status_patch)
            rows = patch.get("status", {}).get("conditions")
            if rows:
                patch["status"]["conditions"] = [with_times(row) for row in rows]
            node.node = await self.api.patch(f"{path}/status", patch)

    def _lose(self, node: NodeState) -> None:
        node.alive, node.lost = False, True
        for worker in list(node.workers.values()):
            worker.abandon(broken=True)

    async def _return(self, node: NodeState) -> None:
        """The node has booted again: its containers are gone."""
        node.alive, node.lost = True, False
        await self._leases.create(node)
        await self._say_how(node)
        for worker in list(node.workers.values()):
            self._forget(worker)
        for pod in [pod for pod in self._pods.items.values() if pod["spec"].get("nodeName") == node.name]:
            self._pod_changed("MODIFIED", pod, None)  # also those which were bound or deleted meanwhile

    async def _say_how(self, node: NodeState) -> None:
        rows = [row for row in node.node["status"]["conditions"] if row["type"] in KUBELET_CONDITIONS]
        patch = {"status": {"conditions": [with_times({**row, "lastTransitionTime": None}) for row in rows]}}
        await self.api.patch(resource_path("nodes", name=node.name, subresource="status"), patch)

    def _node_changed(self, kind: str, node: Object, _old: Object | None) -> None:
        """A kubelet that was given up although it lives, since its machine was short of CPU time, says again how its node is."""
        state = self._nodes.get(node["metadata"]["name"])
        if kind == "DELETED" or state is None or not state.alive or state.lost:
            return
        if _given_up(node) and not _given_up(state.node):  # else the model wants it so
            self._tasks.spawn(self._say_again(state))

    async def _say_again(self, node: NodeState) -> None:
        said = False
        while node.alive and not node.lost and not said:
            await asyncio.sleep(_SAY_AGAIN_S)
            try:
                await self._say_how(node)
                said = True
            except (ApiError, ClusterError) as exc:
                log.debug("status of node %s: %s", node.name, exc)

    # -- pods

    def _pod_changed(self, kind: str, pod: Object, _old: Object | None) -> None:
        node = self._nodes.get(pod["spec"].get("nodeName", ""))
        if node is None:
            return
        worker = self._workers.get(pod["metadata"]["uid"])
        if kind == "DELETED":
            if worker is not None:
                worker.abandon()
                self._forget(worker)
        elif node.lost or not node.alive:
            return
        elif worker is not None:
            worker.update(pod)
        elif not is_terminal(pod):
            self._adopt(node, pod)
        elif pod["metadata"].get("deletionTimestamp"):
            self._tasks.spawn(self._delete_ended(pod))

    def _adopt(self, node: NodeState, pod: Object) -> None:
        worker = PodWorker(self, pod, node.next_address())
        self._workers[pod["metadata"]["uid"]] = worker
        self._by_name[key_of(pod)] = worker
        self._dns.add(worker.state)
        node.hold(worker)
        if needs_end(pod):
            worker.lost_containers()
        else:
            worker.start()
        if pod["metadata"].get("deletionTimestamp"):
            worker.update(pod)

    def _forget(self, worker: PodWorker) -> None:
        """Drops a pod whose object is gone, with its logs."""
        self.freed(worker.state)
        pod = worker.state.pod
        self._workers.pop(pod["metadata"]["uid"], None)
        if self._by_name.get(key_of(pod)) is worker:
            del self._by_name[key_of(pod)]
        self._dns.remove(worker.state)

    async def _delete_ended(self, pod: Object) -> None:
        """Confirms the deletion of a pod that had ended before this process started."""
        try:
            await self.api.delete(resource_path("pods", *key_of(pod)), grace_s=0, uid=pod["metadata"]["uid"])
        except (ApiError, ClusterError) as exc:
            log.debug("delete %s: %s", key_of(pod), exc)

    # -- asked by pod workers (see `pod_worker.Kubelet`)

    def admit(self, pod: Object, view: PodView) -> Rejection | None:
        """The kubelet's own check of resources, then the model's."""
        return self._nodes[view.node].shortage(pod) or self.model.pod_admission(view)

    def freed(self, state: PodState) -> None:
        """The pod holds no resources of its node any more."""
        self._nodes[state.node].release(state)

    def pull(self, node: str, image: str) -> bool:
        """Notes that the node has the image; True if it was pulled just now."""
        images = self._nodes[node].images
        fresh = image not in images
        images.add(image)
        return fresh

    def container_started(self, node: str, spec: Object) -> None:
        """Starts the clock of the node's planned changes at its first container with a device."""
        state = self._nodes[node]
        if state.worked or not any("/" in name for name in (spec.get("resources") or {}).get("limits") or {}):
            return
        state.worked = True
        for change in state.waiting:
            self._change_after(state, change)

    def service_variables(self, namespace: str) -> dict[str, str]:
        """The environment that Services of the namespace give to its pods."""
        return self._dns.service_variables(namespace)

    def peers_of(self, state: PodState) -> Peers:
        """The cluster's DNS, as seen from the pod."""
        return self._dns.peers_of(state)

    # -- asked by the log server

    def _find_log(self, namespace: str, pod: str, container: str, previous: bool) -> ContainerLog | LogProblem:
        worker = self._by_name.get((namespace, pod))
        if worker is None:
            return LogProblem(404, f'pod "{pod}" not found')
        if self._nodes[worker.state.node].lost:
            return LogProblem(0, "")
        return worker.state.find_log(container, previous)


def _given_up(node: Object) -> bool:
    """Whether the node controller says that the kubelet is silent."""
    rows = (node.get("status") or {}).get("conditions") or []
    return any(row["type"] == "Ready" and row.get("reason") == "NodeStatusUnknown" for row in rows)
