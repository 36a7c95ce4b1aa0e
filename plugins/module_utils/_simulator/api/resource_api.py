# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Requests about objects: from method, target and query to what the registry does, and back to an answer."""

from __future__ import annotations

import asyncio
import contextlib
import typing as t

from . import pod_api, watching
from .answers import Answer
from .deps import orjson, web
from .errors import ApiError, bad_request, invalid, method_not_allowed, required, unsupported_media_type
from .objects import Object
from .options import Options
from .registry import Registry
from .request_data import is_true, parse, raw_body, read_body, read_delete_options, read_options
from .routes import WRITE_VERBS, Target

_PATCH_KINDS = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
    "application/apply-patch+yaml": "apply",
}
_JOB_WARNING = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set"
    " propagationPolicy=Orphan to suppress this warning"
)


class ResourceApi:
    """The objects of one server. token: what a TokenRequest is answered with."""

    def __init__(self, registry: Registry, token: str) -> None:
        self._registry = registry
        self._token = token
        self._logs = pod_api.LogProxy(registry)
        self._stopping = asyncio.Event()

    def open(self) -> None:
        """Let watches begin; also after a close."""
        self._stopping = asyncio.Event()

    async def close(self) -> None:
        """End watches and the connections to node agents."""
        self._stopping.set()
        for collection in self._registry.store.collections.values():
            for waker in collection.wakers:
                waker.set()
        await self._logs.close()

    async def serve(self, request: web.BaseRequest, target: Target, options: Options) -> Answer | web.StreamResponse:
        """Answer one request. Raises ApiError."""
        method = request.method
        if target.resource.create_only:
            if method != "POST":
                raise method_not_allowed()
            return Answer(201, orjson.dumps(pod_api.review(target.resource, await raw_body(request))))
        if method in ("GET", "HEAD"):
            return await self._read(request, target)
        if method == "DELETE":
            return await self._delete(request, target, options)
        if method in WRITE_VERBS:
            return await self._write(request, target, options)
        raise method_not_allowed()

    async def _read(self, request: web.BaseRequest, target: Target) -> Answer | web.StreamResponse:
        query = request.query
        resource = target.resource
        if target.subresource == "log":
            pod = self._registry.get(resource, target.namespace, target.name)
            return await self._logs.serve(request, pod)
        if target.subresource not in ("", "status"):
            raise method_not_allowed()
        view = watching.wanted_view(request.headers.get("Accept", ""), query)
        watched = is_true(query.get("watch"))
        if target.name and not watched:
            stored = self._registry.get(resource, target.namespace, target.name)
            return Answer(200, watching.one_body(self._registry, resource, stored, view))
        namespace = target.namespace if target.in_namespace else None
        selection = watching.Selection(resource, namespace, query, target.name)
        if watched:
            return await watching.Watch(self._registry, resource, selection, query, view).serve(request, self._stopping)
        return Answer(200, watching.list_body(self._registry, resource, selection, query, view))

    async def _write(self, request: web.BaseRequest, target: Target, options: Options) -> Answer:
        read_options(request, options)
        resource, namespace, name = target.resource, target.namespace, target.name
        if request.method == "POST":
            return await self._post(request, target, options)
        if not name or (target.subresource not in ("", "status", "finalize")):
            raise method_not_allowed()
        view = watching.wanted_view(request.headers.get("Accept", ""), request.query)
        created = False
        if request.method == "PUT":
            body = await read_body(request)
            stored = self._registry.update(resource, namespace, name, body, options, target.subresource)
        else:
            kind = _PATCH_KINDS.get(request.content_type)
            if kind is None:
                raise unsupported_media_type(request.content_type, list(_PATCH_KINDS))
            change = parse(await raw_body(request), yaml=kind == "apply")
            if kind == "apply":
                stored, created = self._apply(request, target, change, options)
            else:
                stored = self._registry.patch(resource, namespace, name, kind, change, options, target.subresource)
        return Answer(201 if created else 200, watching.one_body(self._registry, resource, stored, view))

    def _apply(self, request: web.BaseRequest, target: Target, config: t.Any, options: Options) -> tuple[t.Any, bool]:
        if "fieldManager" not in request.query:
            error = required("fieldManager", "is required for apply patch")
            raise invalid("meta.k8s.io", "PatchOptions", "", [error])
        return self._registry.apply(target.resource, target.namespace, target.name, config, options, target.subresource)

    async def _post(self, request: web.BaseRequest, target: Target, options: Options) -> Answer:
        resource, namespace = target.resource, target.namespace
        body = await read_body(request)
        if target.subresource in ("binding", "eviction"):
            action = pod_api.bind if target.subresource == "binding" else pod_api.evict
            return Answer(201, orjson.dumps(action(self._registry, resource, namespace, target.name, body, options)))
        if target.subresource == "token":
            self._registry.get(resource, namespace, target.name)
            return Answer(201, orjson.dumps(_token_request(body, self._token)))
        if target.name:
            raise method_not_allowed()
        if resource.namespaced and not target.in_namespace:
            raise bad_request("an empty namespace may not be set during creation")
        stored = self._registry.create(resource, namespace, body, options)
        view = watching.wanted_view(request.headers.get("Accept", ""), request.query)
        return Answer(201, watching.one_body(self._registry, resource, stored, view))

    async def _delete(self, request: web.BaseRequest, target: Target, options: Options) -> Answer:
        read_options(request, options)
        if target.subresource:
            raise method_not_allowed()
        delete_options = await read_delete_options(request)
        dry_run = options.dry_run or delete_options.get("dryRun") == ["All"]
        resource, registry = target.resource, self._registry
        if resource.kind == "Job" and not delete_options.get("propagationPolicy") and delete_options.get("orphanDependents") is None:
            options.warnings.append(_JOB_WARNING)
        if not target.name:
            return self._delete_collection(request, target, delete_options, dry_run)
        stored, gone = registry.delete(resource, target.namespace, target.name, delete_options, dry_run=dry_run)
        if gone and (resource.group, resource.kind) != ("", "Pod"):
            details = {"name": stored.name, "kind": resource.plural, "uid": stored.obj["metadata"]["uid"]}
            if resource.group:
                details["group"] = resource.group
            status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
            return Answer(200, orjson.dumps(status))
        return Answer(200, registry.body(resource, stored))

    def _delete_collection(self, request: web.BaseRequest, target: Target, delete_options: Object, dry_run: bool) -> Answer:
        resource, registry = target.resource, self._registry
        if resource.namespaced and not target.in_namespace:
            raise method_not_allowed()
        selection = watching.Selection(resource, target.namespace if target.in_namespace else None, request.query)
        deleted = []
        for stored in list(selection.current(registry, resource)):
            with contextlib.suppress(ApiError):  # gone, or protected: the others are still deleted
                deleted.append(registry.delete(resource, stored.namespace, stored.name, delete_options, dry_run=dry_run)[0])
        items = [stored.obj for stored in deleted]
        metadata = {"resourceVersion": str(registry.store.version)}
        body = {"kind": resource.list_kind, "apiVersion": resource.api_version, "metadata": metadata, "items": items}
        return Answer(200, orjson.dumps(body))


def _token_request(body: t.Any, token: str) -> Object:
    spec = body.get("spec") or {} if isinstance(body, dict) else {}
    status = {"token": token, "expirationTimestamp": "2099-01-01T00:00:00Z"}
    return {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": spec, "status": status}
