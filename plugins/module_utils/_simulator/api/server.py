# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The HTTP side of the simulated API server, and a small program that runs the server alone.

    python -m ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api.server --kubeconfig PATH [--port N]

One process, one event loop, objects in memory. Plain HTTP on the loopback interface.

Not here, though a genuine server has it: enforcement of RBAC, admission webhooks, limit ranges and disruption budgets (all of these are
stored); exec, attach, port-forward and proxying; the scale subresource; conversion webhooks; protobuf answers, and protobuf bodies with a
pod template; priority and fairness. Controllers and node agents are clients of their own (package clients).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import secrets
import signal
import socket
import sys
import typing as t
from urllib.parse import unquote

from ..deps import orjson, require, web
from ..kubeconfig import write_kubeconfig
from . import errors as api_errors
from . import gc, openapi, pod_api, protobuf, watching
from .admission import system_priority_classes
from .audit import Audit
from .errors import ApiError
from .registry import Options, Registry
from .resources import Resource
from .schema import built_in_types

__all__ = ["ApiServer", "main", "write_kubeconfig"]

Object = dict[str, t.Any]
_LOG = logging.getLogger(__name__)

_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_MAX_BODY = 3 * 1024 * 1024
_POD_GC_SECONDS = 20
_PATCH_KINDS = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
    "application/apply-patch+yaml": "apply",
}
_BODY_TYPES = ("application/json", "application/yaml")
_ANONYMOUS = ("/healthz", "/livez", "/readyz", "/version")
_JOB_WARNING = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set"
    " propagationPolicy=Orphan to suppress this warning"
)
_WRITE_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class Target(t.NamedTuple):
    """What a path names. namespace: empty outside of namespaces; spaced: whether the path named one."""

    resource: Resource
    namespace: str
    spaced: bool
    name: str
    subresource: str


class Answer(t.NamedTuple):
    """A finished answer: code and JSON."""

    code: int
    body: bytes


class ApiServer:
    """A Kubernetes API server in memory.

    version:       what /version reports; it also picks the schemas (the newest release not above it).
    token:         the bearer token; requests with another token are refused, requests without one are accepted, because clients
                   do not send tokens over plain HTTP. None makes one up.
    audit_path:    a file that gets one JSON line per request: verb, resource, namespace, name, user_agent, status.
    history_limit: how many changes per kind a watch can go back.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        version: str = "v1.36.3",
        token: str | None = None,
        audit_path: str | None = None,
        history_limit: int = 8192,
    ) -> None:
        require()
        self.host = host
        self.port = port
        self.version = version
        self.token = token or secrets.token_urlsafe(24)
        types = built_in_types(version)
        self.registry = Registry(types, history_limit)
        self._audit = Audit(audit_path)
        self._openapi = openapi.OpenApi(self.registry.table, types, version)
        self._logs = pod_api.LogProxy(self.registry)
        self._runner: web.ServerRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    @property
    def url(self) -> str:
        """The address clients use; known once the server has started."""
        return f"http://{self.host}:{self.port}"

    # --- life -------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bind, create what every cluster has, and serve. Raises OSError when the port is taken."""
        self._stopping = asyncio.Event()
        housekeeper = gc.Housekeeper(self.registry)
        self._seed()
        # A client that leaves ends its watch and its log at once, not at the next event.
        server = web.Server(self._handle, access_log=None, handler_cancellation=True)
        self._runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=2)
        await self._runner.setup()
        listener = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.host, self.port))
        except OSError:
            listener.close()
            await self._runner.cleanup()
            raise
        self.port = listener.getsockname()[1]
        await web.SockSite(self._runner, listener, backlog=1024).start()
        self._tasks = [asyncio.create_task(housekeeper.run()), asyncio.create_task(self._collect_pods())]

    async def stop(self) -> None:
        """End watches, close connections and forget everything. Safe to call twice."""
        self._stopping.set()
        for collection in self.registry.store.collections.values():
            for waker in collection.wakers:
                waker.set()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []
        await self._logs.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self._audit.close()

    def _seed(self) -> None:
        """Namespaces, priority classes and the service of the API itself."""
        registry = self.registry
        if registry.store.collection(("", "namespaces")).get("", "default") is not None:
            return
        find = registry.table.find
        for name in _NAMESPACES:
            registry.create(t.cast(Resource, find("", "v1", "namespaces")), "", {"metadata": {"name": name}}, Options())
        for obj in system_priority_classes():
            registry.create(t.cast(Resource, find("scheduling.k8s.io", "v1", "priorityclasses")), "", obj, Options())
        service = {"metadata": {"name": "kubernetes"}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]}}
        registry.create(t.cast(Resource, find("", "v1", "services")), "default", service, Options())

    async def _collect_pods(self) -> None:
        while True:
            await asyncio.sleep(_POD_GC_SECONDS)
            gc.collect_lost_pods(self.registry)

    # --- requests ---------------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = unquote(request.path)
        target: Target | None = None
        options = Options()
        try:
            self._authenticate(request, path)
            target = self._target(path)
            if target is None:
                answer: Answer | web.StreamResponse = self._document(request, path)
            else:
                answer = await self._serve(request, target, options)
        except ApiError as error:
            answer = _error_answer(error)
        except asyncio.CancelledError:
            if target is not None and self._audit.enabled:
                self._record(request, target, target.name, 200)
            raise
        except Exception as error:  # a fault of the simulator: answer like a server that panicked, and say where
            _LOG.exception("%s %s", request.method, path)
            answer = _error_answer(ApiError(500, "InternalError", f"Internal error occurred: {type(error).__name__}: {error}"))
        code = answer.code if isinstance(answer, Answer) else answer.status
        if target is not None and self._audit.enabled:
            self._record(request, target, target.name or options.name, code)
        if isinstance(answer, Answer):
            return _response(answer, options.warnings)
        return answer

    def _record(self, request: web.BaseRequest, target: Target, name: str, code: int) -> None:
        resource = target.resource.plural + (f"/{target.subresource}" if target.subresource else "")
        self._audit.write(_verb(request, target), resource, target.namespace, name, request.headers.get("User-Agent", ""), code)

    def _authenticate(self, request: web.BaseRequest, path: str) -> None:
        given = request.headers.get("Authorization")
        if not given or path.startswith(_ANONYMOUS):
            return
        kind, _space, token = given.partition(" ")
        # Old Python clients send the token as it stands in api_key, with or without the word Bearer.
        if not secrets.compare_digest((token if kind.lower() == "bearer" else given).strip().encode(), self.token.encode()):
            raise ApiError(401, "Unauthorized", "Unauthorized")

    def _target(self, path: str) -> Target | None:
        """The kind and object a path names; None for paths outside of the resource API. Raises 404."""
        parts = path.strip("/").split("/")
        if parts[0] == "api" and len(parts) > 2:
            group, version, rest = "", parts[1], parts[2:]
        elif parts[0] == "apis" and len(parts) > 3:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            return None
        find = self.registry.table.find
        if rest[0] == "namespaces" and len(rest) > 2 and (resource := find(group, version, rest[2])) is not None and resource.namespaced:
            return _target_of(resource, rest[1], True, rest[3:])
        found = find(group, version, rest[0])
        if found is None:
            raise api_errors.no_such_path()
        if found.namespaced and len(rest) > 1:
            raise api_errors.no_such_path()
        return _target_of(found, "", False, rest[1:])

    # --- documents --------------------------------------------------------------------------------------------------------

    def _document(self, request: web.BaseRequest, path: str) -> Answer | web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            raise api_errors.no_such_path()
        parts = path.strip("/").split("/")
        if parts[0] in ("healthz", "livez", "readyz"):
            return web.Response(text="ok")
        document = self._discovery(parts)
        if document is None:
            raise api_errors.no_such_path()
        return Answer(200, document if isinstance(document, bytes) else orjson.dumps(document))

    def _discovery(self, parts: list[str]) -> Object | bytes | None:
        table = self.registry.table
        match parts:
            case ["version"]:
                return _version(self.version)
            case ["api"]:
                return openapi.core_versions()
            case ["apis"]:
                return openapi.groups(table)
            case ["api", "v1"]:
                return openapi.resources(table, "", "v1")
            case ["apis", group] if group in table.groups and group:
                return {"kind": "APIGroup", "apiVersion": "v1", **openapi.group(group, table.groups[group])}
            case ["apis", group, version] if version in table.groups.get(group, ()):
                return openapi.resources(table, group, version)
            case ["openapi", "v3"]:
                return self._openapi.index()
            case ["openapi", "v3", "api", version]:
                return self._openapi.document("", version)
            case ["openapi", "v3", "apis", group, version]:
                return self._openapi.document(group, version)
            case [""]:
                return {"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]}
        return None

    # --- resources --------------------------------------------------------------------------------------------------------

    async def _serve(self, request: web.BaseRequest, target: Target, options: Options) -> Answer | web.StreamResponse:
        method = request.method
        if target.resource.create_only:
            if method != "POST":
                raise api_errors.method_not_allowed()
            return Answer(201, orjson.dumps(pod_api.review(target.resource, await _raw(request))))
        if method in ("GET", "HEAD"):
            return await self._read(request, target)
        if method == "DELETE":
            return await self._delete(request, target, options)
        if method in _WRITE_VERBS:
            return await self._write(request, target, options)
        raise api_errors.method_not_allowed()

    async def _read(self, request: web.BaseRequest, target: Target) -> Answer | web.StreamResponse:
        query = request.query
        resource = target.resource
        if target.subresource == "log":
            pod = self.registry.get(resource, target.namespace, target.name)
            return await self._logs.serve(request, pod)
        if target.subresource not in ("", "status"):
            raise api_errors.method_not_allowed()
        view = watching.wanted_view(request.headers.get("Accept", ""), query)
        watched = watching.is_true(query.get("watch"))
        if target.name and not watched:
            stored = self.registry.get(resource, target.namespace, target.name)
            return Answer(200, watching.one_body(self.registry, resource, stored, view))
        namespace = target.namespace if target.spaced else None
        selection = watching.Selection(resource, namespace, query, target.name)
        if watched:
            return await watching.Watch(self.registry, resource, selection, query, view).serve(request, self._stopping)
        return Answer(200, watching.list_body(self.registry, resource, selection, query, view))

    async def _write(self, request: web.BaseRequest, target: Target, options: Options) -> Answer:
        _read_options(request, options)
        resource, namespace, name = target.resource, target.namespace, target.name
        if request.method == "POST":
            return await self._post(request, target, options)
        if not name or (target.subresource not in ("", "status", "finalize")):
            raise api_errors.method_not_allowed()
        view = watching.wanted_view(request.headers.get("Accept", ""), request.query)
        created = False
        if request.method == "PUT":
            body = await _body(request, _BODY_TYPES)
            stored = self.registry.update(resource, namespace, name, body, options, target.subresource)
        else:
            kind = _PATCH_KINDS.get(request.content_type)
            if kind is None:
                raise api_errors.unsupported_media_type(request.content_type, list(_PATCH_KINDS))
            change = _parse(await _raw(request), yaml=kind == "apply")
            if kind == "apply":
                stored, created = self._apply(request, target, change, options)
            else:
                stored = self.registry.patch(resource, namespace, name, kind, change, options, target.subresource)
        return Answer(201 if created else 200, watching.one_body(self.registry, resource, stored, view))

    def _apply(self, request: web.BaseRequest, target: Target, config: t.Any, options: Options) -> tuple[t.Any, bool]:
        if "fieldManager" not in request.query:
            error = api_errors.required("fieldManager", "is required for apply patch")
            raise api_errors.invalid("meta.k8s.io", "PatchOptions", "", [error])
        return self.registry.apply(target.resource, target.namespace, target.name, config, options, target.subresource)

    async def _post(self, request: web.BaseRequest, target: Target, options: Options) -> Answer:
        resource, namespace = target.resource, target.namespace
        body = await _body(request, _BODY_TYPES)
        if target.subresource in ("binding", "eviction"):
            act = pod_api.bind if target.subresource == "binding" else pod_api.evict
            return Answer(201, orjson.dumps(act(self.registry, resource, namespace, target.name, body, options)))
        if target.subresource == "token":
            self.registry.get(resource, namespace, target.name)
            return Answer(201, orjson.dumps(_token_request(body, self.token)))
        if target.name:
            raise api_errors.method_not_allowed()
        if resource.namespaced and not target.spaced:
            raise api_errors.bad_request("an empty namespace may not be set during creation")
        stored = self.registry.create(resource, namespace, body, options)
        view = watching.wanted_view(request.headers.get("Accept", ""), request.query)
        return Answer(201, watching.one_body(self.registry, resource, stored, view))

    async def _delete(self, request: web.BaseRequest, target: Target, options: Options) -> Answer:
        _read_options(request, options)
        if target.subresource:
            raise api_errors.method_not_allowed()
        how = await _delete_options(request)
        dry_run = options.dry_run or how.get("dryRun") == ["All"]
        resource, registry = target.resource, self.registry
        if resource.kind == "Job" and not how.get("propagationPolicy") and how.get("orphanDependents") is None:
            options.warnings.append(_JOB_WARNING)
        if not target.name:
            return self._delete_collection(request, target, how, dry_run)
        stored, gone = registry.delete(resource, target.namespace, target.name, how, dry_run=dry_run)
        if gone and (resource.group, resource.kind) != ("", "Pod"):
            details = {"name": stored.name, "kind": resource.plural, "uid": stored.obj["metadata"]["uid"]}
            if resource.group:
                details["group"] = resource.group
            status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
            return Answer(200, orjson.dumps(status))
        return Answer(200, registry.body(resource, stored))

    def _delete_collection(self, request: web.BaseRequest, target: Target, how: Object, dry_run: bool) -> Answer:
        resource, registry = target.resource, self.registry
        if resource.namespaced and not target.spaced:
            raise api_errors.method_not_allowed()
        selection = watching.Selection(resource, target.namespace if target.spaced else None, request.query)
        deleted = []
        for stored in list(selection.current(registry, resource)):
            with contextlib.suppress(ApiError):  # gone, or protected: the others are still deleted
                deleted.append(registry.delete(resource, stored.namespace, stored.name, how, dry_run=dry_run)[0])
        items = [stored.obj for stored in deleted]
        metadata = {"resourceVersion": str(registry.store.version)}
        body = {"kind": resource.list_kind, "apiVersion": resource.api_version, "metadata": metadata, "items": items}
        return Answer(200, orjson.dumps(body))


def _target_of(resource: Resource, namespace: str, spaced: bool, rest: list[str]) -> Target:
    name = rest[0] if rest else ""
    subresource = rest[1] if len(rest) > 1 else ""
    if len(rest) > 2 or (subresource and subresource not in resource.subresources):
        raise api_errors.no_such_path()
    return Target(resource, namespace, spaced, name, subresource)


def _verb(request: web.BaseRequest, target: Target) -> str:
    if request.method in ("GET", "HEAD"):
        if watching.is_true(request.query.get("watch")):
            return "watch"
        return "get" if target.name else "list"
    if request.method == "DELETE":
        return "delete" if target.name else "deletecollection"
    return _WRITE_VERBS.get(request.method, request.method.lower())


def _response(answer: Answer, warnings: t.Sequence[str]) -> web.Response:
    response = web.Response(status=answer.code, body=answer.body, content_type="application/json")
    for text in dict.fromkeys(warnings):
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{escaped}"')
    return response


def _error_answer(error: ApiError) -> Answer:
    return Answer(error.code, orjson.dumps(error.body()))


async def _raw(request: web.BaseRequest) -> bytes:
    if (request.content_length or 0) > _MAX_BODY:
        raise ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {_MAX_BODY}")
    return await request.content.read() if request.can_read_body else b""


async def _body(request: web.BaseRequest, accepted: t.Sequence[str]) -> t.Any:
    content_type = request.content_type
    if content_type == protobuf.MEDIA_TYPE:
        return _from_protobuf(await _raw(request), accepted)
    # A body without a type is read as JSON, as the real server does.
    if "Content-Type" in request.headers and content_type not in accepted:
        raise api_errors.unsupported_media_type(content_type, accepted)
    return _parse(await _raw(request), yaml=content_type == "application/yaml")


def _from_protobuf(raw: bytes, accepted: t.Sequence[str]) -> Object:
    try:
        found = protobuf.decode(raw)
    except ValueError as error:
        raise api_errors.bad_request(f"error decoding protobuf: {error}") from error
    if found is None:
        raise api_errors.unsupported_media_type(protobuf.MEDIA_TYPE, accepted)
    return found


def _parse(raw: bytes, *, yaml: bool) -> t.Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if not yaml:
            raise api_errors.bad_request(f"couldn't get version/kind; json parse error: {error}") from error
    import yaml as yaml_library

    try:
        return yaml_library.safe_load(raw)
    except yaml_library.YAMLError as error:
        raise api_errors.bad_request(f"error decoding YAML: {error}") from error


def _read_options(request: web.BaseRequest, options: Options) -> None:
    query = request.query
    dry_run = query.getall("dryRun", [])
    if any(value != "All" for value in dry_run if value):
        error = api_errors.unsupported("dryRun", dry_run, ("All",))
        raise api_errors.invalid("meta.k8s.io", "Options", "", [error])
    options.dry_run = "All" in dry_run
    validation = query.get("fieldValidation") or "Warn"
    if validation not in ("Strict", "Warn", "Ignore"):
        error = api_errors.unsupported("fieldValidation", validation, ("Ignore", "Strict", "Warn"))
        raise api_errors.invalid("meta.k8s.io", "Options", "", [error])
    options.validation = validation
    options.force = watching.is_true(query.get("force"))
    agent = request.headers.get("User-Agent", "")
    options.manager = query.get("fieldManager") or agent.partition("/")[0] or "unknown"


async def _delete_options(request: web.BaseRequest) -> Object:
    """DeleteOptions from the body, completed by the query."""
    how: Object = {}
    raw = await _raw(request)
    if request.content_type == protobuf.MEDIA_TYPE and raw:
        how = _from_protobuf(raw, _BODY_TYPES)
    elif raw.strip():
        parsed = _parse(raw, yaml=request.content_type == "application/yaml")
        how = parsed if isinstance(parsed, dict) else {}
    query = request.query
    if "gracePeriodSeconds" in query:
        if not query["gracePeriodSeconds"].lstrip("-").isdigit():
            raise api_errors.bad_request(f'strconv.ParseInt: parsing "{query["gracePeriodSeconds"]}": invalid syntax')
        how["gracePeriodSeconds"] = int(query["gracePeriodSeconds"])
    if "propagationPolicy" in query:
        how["propagationPolicy"] = query["propagationPolicy"]
    return how


def _token_request(body: t.Any, token: str) -> Object:
    spec = body.get("spec") or {} if isinstance(body, dict) else {}
    status = {"token": token, "expirationTimestamp": "2099-01-01T00:00:00Z"}
    return {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": spec, "status": status}


def _version(version: str) -> Object:
    major, minor = version.lstrip("v").split(".")[:2]
    return {
        "major": major,
        "minor": minor,
        "gitVersion": version,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "linux/amd64",
    }


# --- the program ----------------------------------------------------------------------------------------------------------


async def _run(arguments: argparse.Namespace) -> int:
    server = ApiServer(port=arguments.port, version=arguments.version, audit_path=arguments.audit)
    await server.start()
    write_kubeconfig(arguments.kubeconfig, server.url, server.token)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    sys.stdout.write(f"KUBECONFIG={arguments.kubeconfig}\n")
    sys.stdout.flush()
    await stop.wait()
    await server.stop()
    return 0


def run_loop(main_coroutine: t.Coroutine[t.Any, t.Any, int]) -> int:
    """Run a coroutine on the fastest event loop installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main_coroutine)
    return uvloop.run(main_coroutine)


def main(arguments: t.Sequence[str] | None = None) -> int:
    """Run the server alone until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description="A simulated Kubernetes API server.")
    parser.add_argument("--kubeconfig", required=True, help="where to write the kubeconfig")
    parser.add_argument("--port", type=int, default=0, help="the port to listen on; 0 takes a free one")
    parser.add_argument("--version", default="v1.36.3", help="the Kubernetes version to report")
    parser.add_argument("--audit", help="a file that gets one JSON line per request")
    return run_loop(_run(parser.parse_args(arguments)))


if __name__ == "__main__":
    raise SystemExit(main())
