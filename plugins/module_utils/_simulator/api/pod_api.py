# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Subresources of pods that are more than an object: binding to a node, eviction and logs."""

from __future__ import annotations

import typing as t

from . import clock
from .deps import aiohttp, orjson, web
from .errors import ApiError, bad_request, conflict, forbidden_field, invalid, invalid_value, not_found, required
from .objects import Object
from .options import Options
from .registry import Registry
from .request_data import is_true
from .resources import Resource
from .store import Stored

_LOG_QUERY = ("follow", "timestamps", "tailLines", "sinceSeconds", "sinceTime", "limitBytes", "previous")
_TOPOLOGY_LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")


def _success() -> Object:
    """The Status that answers an action without a result."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def bind(registry: Registry, resource: Resource, namespace: str, name: str, body: t.Any, options: Options) -> Object:
    """Assign a pod to a node, once. Raises 400, 404 or 409."""
    node = ((body or {}).get("target") or {}).get("name") if isinstance(body, dict) else None
    if not node:
        raise invalid("", "Binding", name, [required("target.name")])
    old = registry.get(resource, namespace, name)
    uid = (body.get("metadata") or {}).get("uid")
    if uid and uid != old.obj["metadata"]["uid"]:
        raise conflict("", "pods/binding", name, "Precondition failed: UID in precondition does not match the UID of the pod")
    if old.obj["metadata"].get("deletionTimestamp"):
        raise conflict("", "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if old.obj["spec"].get("nodeName"):
        raise conflict("", "pods/binding", name, f'pod {name} is already assigned to node "{old.obj["spec"]["nodeName"]}"')
    if old.obj["spec"].get("schedulingGates"):
        raise conflict("", "pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")
    if options.dry_run:
        return _success()
    now = clock.stamp(clock.now())
    status = dict(old.obj.get("status") or {})
    conditions = [item for item in status.get("conditions") or () if item.get("type") != "PodScheduled"]
    status["conditions"] = [*conditions, {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}]
    metadata = dict(old.obj["metadata"])
    given = body.get("metadata") or {}
    for key, added in (
        ("annotations", given.get("annotations") or {}),
        ("labels", {**(given.get("labels") or {}), **_topology_labels(registry, node)}),
    ):
        if added:
            metadata[key] = {**(metadata.get(key) or {}), **added}
    obj = {**old.obj, "metadata": metadata, "spec": {**old.obj["spec"], "nodeName": node}, "status": status}
    registry.store.write(resource.storage, obj, old)
    return _success()


def _topology_labels(registry: Registry, node: str) -> dict[str, str]:
    """What admission copies from a node to the pods that are bound to it."""
    found = registry.store.collection(("", "nodes")).get("", node)
    labels = (found.obj["metadata"].get("labels") or {}) if found is not None else {}
    return {key: labels[key] for key in _TOPOLOGY_LABELS if key in labels}


def evict(registry: Registry, resource: Resource, namespace: str, name: str, body: t.Any, options: Options) -> Object:
    """Delete a pod the way drain does. PodDisruptionBudgets are stored, not enforced."""
    delete_options = (body or {}).get("deleteOptions") or {} if isinstance(body, dict) else {}
    registry.delete(resource, namespace, name, delete_options, dry_run=options.dry_run)
    return _success()


class LogProxy:
    """Fetches container logs from the node agents, as an API server fetches them from kubelets."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._session: aiohttp.ClientSession | None = None
        # Agents may speak TLS or plain HTTP; what an address spoke last is tried first.
        self._schemes: dict[str, str] = {}

    async def close(self) -> None:
        """Close the connections to the agents."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        return self._session

    def _container(self, pod: Stored, wanted: str) -> str:
        spec = pod.obj["spec"]
        names: list[str] = [item["name"] for item in spec["containers"]]
        every = [*(item["name"] for item in spec.get("initContainers") or ()), *names]
        if wanted and wanted not in every:
            raise bad_request(f"container {wanted} is not valid for pod {pod.name}")
        if wanted:
            return wanted
        if len(names) > 1:
            choice = " ".join(names)
            raise bad_request(f"a container name must be specified for pod {pod.name}, choose one of: [{choice}]")
        return names[0]

    def _address(self, pod: Stored) -> str:
        node_name = pod.obj["spec"].get("nodeName")
        if not node_name:
            raise bad_request(f"pod {pod.name} does not have a host assigned")
        node = self._registry.store.collection(("", "nodes")).get("", node_name)
        if node is None:
            raise not_found("", "nodes", node_name)
        status = node.obj.get("status") or {}
        host = next((item["address"] for item in status.get("addresses") or () if item.get("type") == "InternalIP"), node_name)
        port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port") or 10250
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def serve(self, request: web.BaseRequest, pod: Stored) -> web.StreamResponse:
        """Answer GET .../pods/NAME/log. Raises 400, 404 or 422, and 500 when the node agent does not answer."""
        query = request.query
        container = self._container(pod, query.get("container", ""))
        address = self._address(pod)
        _check_log_query(query)
        asked = {key: "true" if is_true(query[key]) else query[key] for key in _LOG_QUERY if key in query}
        path = f"/containerLogs/{pod.namespace}/{pod.name}/{container}"
        source = await self._open(address, path, asked)
        try:
            if source.status != 200:
                raise _agent_error(source.status, (await source.text()).strip())
            return await _relay(request, source)
        finally:
            source.close()

    async def _open(self, address: str, path: str, query: dict[str, str]) -> aiohttp.ClientResponse:
        order = ["http", "https"] if self._schemes.get(address) != "https" else ["https", "http"]
        problem: Exception | None = None
        for scheme in order:
            try:
                answer = await self._client().get(f"{scheme}://{address}{path}", params=query, ssl=False)
            except (aiohttp.ClientError, TimeoutError) as error:
                problem = problem or error
                continue
            # A TLS listener may answer plain HTTP with 400 before any log server sees it.
            if scheme == "http" and answer.status == 400 and "HTTPS" in await answer.text():
                answer.close()
                continue
            self._schemes[address] = scheme
            return answer
        message = f'Get "https://{address}{path}": {problem}'
        raise ApiError(500, "InternalError", f"Internal error occurred: {message}")


def _check_log_query(query: t.Mapping[str, str]) -> None:
    errors = []
    if "sinceSeconds" in query and "sinceTime" in query:
        errors.append(forbidden_field("sinceSeconds", "at most one of `sinceTime` or `sinceSeconds` may be specified"))
    for key, least in (("tailLines", 0), ("limitBytes", 1), ("sinceSeconds", 1)):
        if key not in query:
            continue
        text = query[key]
        if not text.lstrip("-").isdigit():
            raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
        if int(text) < least:
            errors.append(invalid_value(key, int(text), f"must be greater than or equal to {least}"))
    if errors:
        raise invalid("", "PodLogOptions", "", errors)


def _agent_error(code: int, text: str) -> ApiError:
    reasons = {400: "BadRequest", 404: "NotFound", 500: "InternalError"}
    return ApiError(code, reasons.get(code, "InternalError"), text or f"the node agent answered {code}")


async def _relay(request: web.BaseRequest, source: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    try:
        async for chunk in source.content.iter_any():
            await response.write(chunk)
    except aiohttp.ClientError:
        # The agent died in the middle of a log. What was sent stays sent, as with a real server.
        pass
    await response.write_eof()
    return response


REVIEW_ANSWERS: dict[str, Object] = {
    "SelfSubjectAccessReview": {"allowed": True, "reason": "access is not restricted here"},
    "SubjectAccessReview": {"allowed": True, "reason": "access is not restricted here"},
    "LocalSubjectAccessReview": {"allowed": True, "reason": "access is not restricted here"},
    "SelfSubjectRulesReview": {
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        "incomplete": False,
    },
    "SelfSubjectReview": {"userInfo": {"username": "simulated", "groups": ["system:masters", "system:authenticated"]}},
    "TokenReview": {"authenticated": True, "user": {"username": "simulated", "groups": ["system:authenticated"]}},
}


def review(resource: Resource, raw: bytes) -> Object:
    """Answer a review. The question is echoed when it is JSON and not needed for the answer."""
    try:
        asked = orjson.loads(raw)
    except orjson.JSONDecodeError:
        asked = {}
    spec = asked.get("spec") or {} if isinstance(asked, dict) else {}
    answer = REVIEW_ANSWERS[resource.kind]
    return {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": {}, "spec": spec, "status": answer}
