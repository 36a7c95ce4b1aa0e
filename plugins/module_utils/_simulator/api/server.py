# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The HTTP side of the simulated API server.

One process, one event loop, objects in memory. Plain HTTP on the loopback interface.

Not here, though a genuine server has it: enforcement of RBAC, admission webhooks, limit ranges and disruption budgets (all of these are
stored); exec, attach, port-forward and proxying; the scale subresource; conversion webhooks; protobuf answers, and protobuf bodies with a
pod template; priority and fairness. Controllers and node agents are clients of their own (package clients).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import typing as t
from urllib.parse import unquote

from . import gc
from .admission import system_priority_classes
from .answers import Answer, of_error, response
from .audit import Audit
from .deps import orjson, require, web
from .discovery import Documents
from .errors import ApiError, no_such_path
from .options import Options
from .registry import Registry
from .resource_api import ResourceApi
from .resources import Resource
from .routes import Target, find_target, verb_of
from .schema import built_in_types

_LOG = logging.getLogger(__name__)

_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_POD_GC_SECONDS = 20
_ANONYMOUS = ("/healthz", "/livez", "/readyz", "/version")


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
        self._resources = ResourceApi(self.registry, self.token)
        self._documents = Documents(self.registry.table, types, version)
        self._audit = Audit(audit_path)
        self._runner: web.ServerRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        """The address clients use; known once the server has started."""
        return f"http://{self.host}:{self.port}"

    # --- life -------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bind, create what every cluster has, and serve. Raises OSError when the port is taken."""
        self._resources.open()
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
        await self._resources.close()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self._audit.close()

    def _seed(self) -> None:
        """Create what every cluster has: namespaces, priority classes and the service of the API itself."""
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
            target = find_target(self.registry.table, path)
            if target is None:
                answer: Answer | web.StreamResponse = self._document(request, path)
            else:
                answer = await self._resources.serve(request, target, options)
        except ApiError as error:
            answer = of_error(error)
        except asyncio.CancelledError:
            if target is not None and self._audit.enabled:
                self._record(request, target, target.name, 200)
            raise
        except Exception as error:  # a fault of the simulator: answer like a server that panicked, and say where
            _LOG.exception("%s %s", request.method, path)
            answer = of_error(ApiError(500, "InternalError", f"Internal error occurred: {type(error).__name__}: {error}"))
        code = answer.code if isinstance(answer, Answer) else answer.status
        if target is not None and self._audit.enabled:
            self._record(request, target, target.name or options.name, code)
        if isinstance(answer, Answer):
            return response(answer, options.warnings)
        return answer

    def _record(self, request: web.BaseRequest, target: Target, name: str, code: int) -> None:
        resource = target.resource.plural + (f"/{target.subresource}" if target.subresource else "")
        verb = verb_of(request.method, request.query, target)
        self._audit.write(verb, resource, target.namespace, name, request.headers.get("User-Agent", ""), code)

    def _authenticate(self, request: web.BaseRequest, path: str) -> None:
        given = request.headers.get("Authorization")
        if not given or path.startswith(_ANONYMOUS):
            return
        kind, _space, token = given.partition(" ")
        # Old Python clients send the token as it stands in api_key, with or without the word Bearer.
        if not secrets.compare_digest((token if kind.lower() == "bearer" else given).strip().encode(), self.token.encode()):
            raise ApiError(401, "Unauthorized", "Unauthorized")

    def _document(self, request: web.BaseRequest, path: str) -> Answer | web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            raise no_such_path()
        parts = path.strip("/").split("/")
        if parts[0] in ("healthz", "livez", "readyz"):
            return web.Response(text="ok")
        document = self._documents.find(parts)
        if document is None:
            raise no_such_path()
        return Answer(200, document if isinstance(document, bytes) else orjson.dumps(document))
