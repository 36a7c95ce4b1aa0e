# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A small asynchronous Kubernetes client: just the calls that the controllers and agents of the simulated cluster make.

It reads a kubeconfig (token, client certificate or neither; http or https), so the same agents work against the simulator and
against a genuine API server. Objects are plain dictionaries as in the API.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import os
import pathlib
import random
import ssl
import tempfile
import typing as t
from collections.abc import AsyncIterator
from urllib.parse import quote

from ..._common.errors import ClusterError, InputError

Object: t.TypeAlias = dict[str, t.Any]

_PATCH_TYPES = {"strategic": "application/strategic-merge-patch+json", "merge": "application/merge-patch+json"}
_RETRY_STATUS = (429, 500, 502, 503, 504)
_ATTEMPTS = 6
_CALM_CALLS = 6


class ApiError(Exception):
    """An answer with an error status. `reason` and `message` come from the Status body where there is one."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


def now_rfc3339() -> str:
    """The time as the API writes it: UTC, whole seconds."""
    return rfc3339(datetime.datetime.now(datetime.UTC))


def rfc3339(when: datetime.datetime) -> str:
    """A time as the API writes it. `when` is in UTC."""
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def now_micro() -> str:
    """The time as Leases and events.k8s.io write it: UTC, microseconds."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> datetime.datetime:
    """An API time as an aware datetime; ValueError if it is none."""
    body, _dot, fraction = text.replace("Z", "+00:00").partition(".")
    if fraction:  # nanoseconds: keep what a datetime can hold
        zone = fraction.find("+") if "+" in fraction else fraction.find("-")
        digits, offset = (fraction[:zone], fraction[zone:]) if zone >= 0 else (fraction, "+00:00")
        body = f"{body}.{digits[:6].ljust(6, '0')}{offset}"
    return datetime.datetime.fromisoformat(body)


def resource_path(resource: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """The URL path of a resource such as `pods` or `batch/v1/jobs`; core/v1 needs no prefix."""
    group, _slash, plural = resource.rpartition("/")
    path = f"/apis/{group}" if group else "/api/v1"
    if namespace:
        path += f"/namespaces/{quote(namespace)}"
    path += f"/{plural}"
    if name:
        path += f"/{quote(name)}"
    return f"{path}/{subresource}" if subresource else path


class Api:
    """Calls to one API server. Use `Api.from_kubeconfig` inside a running event loop and `await close()` at the end.

    Reads, creates, patches and deletes are tried again on connection errors, 429 and 5xx, with jittered back-off.
    """

    def __init__(
        self,
        server: str,
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        user_agent: str = "simulated-cluster",
        parallel: int = 48,
    ) -> None:
        import aiohttp

        self.server = server.rstrip("/")
        headers = {"Accept": "application/json", "User-Agent": user_agent}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connector = aiohttp.TCPConnector(limit=parallel, ssl=tls if tls is not None else True, keepalive_timeout=60)
        watch_connector = aiohttp.TCPConnector(limit=0, ssl=tls if tls is not None else True)
        # Watches stay open for ever: a pool of their own keeps them from starving the short calls.
        self._session = aiohttp.ClientSession(connector=connector, headers=headers, timeout=aiohttp.ClientTimeout(total=60))
        self._watch_session = aiohttp.ClientSession(
            connector=watch_connector, headers=headers, read_bufsize=1 << 20, timeout=aiohttp.ClientTimeout(total=None)
        )
        self._closed = False
        self._in_flight = 0
        self._calm = asyncio.Event()
        self._calm.set()

    @classmethod
    def from_kubeconfig(cls, path: str, user_agent: str = "simulated-cluster") -> Api:
        """Connects with the current context of a kubeconfig. Raises InputError on a broken file."""
        server, token, tls = read_kubeconfig(path)
        return cls(server, token=token, tls=tls, user_agent=user_agent)

    async def close(self) -> None:
        """Closes the connections; calls under way are not tried again."""
        self._closed = True
        await self._session.close()
        await self._watch_session.close()

    async def get(self, path: str, **params: str) -> Object:
        """An object, or a list as the API answers it. Raises ApiError."""
        return await self._call("GET", path, params=params)

    async def list(self, path: str, **params: str) -> tuple[list[Object], str]:
        """All items and the resourceVersion to watch from. Items get the apiVersion and kind which lists leave out."""
        answer = await self._call("GET", path, params=params)
        kind = answer.get("kind", "List").removesuffix("List")
        for item in answer["items"]:
            item.setdefault("kind", kind)
            item.setdefault("apiVersion", answer.get("apiVersion", "v1"))
        return answer["items"], answer["metadata"].get("resourceVersion", "")

    async def create(self, path: str, body: Object) -> Object:
        """The object as it was made. Raises ApiError."""
        return await self._call("POST", path, body=body)

    async def patch(self, path: str, body: Object, kind: str = "strategic") -> Object:
        """The object as it is afterwards. kind: strategic or merge. Raises ApiError."""
        return await self._call("PATCH", path, body=body, content_type=_PATCH_TYPES[kind])

    async def delete(self, path: str, *, grace_s: int | None = None, uid: str = "", propagation: str = "") -> Object:
        """Deletes an object, only that of the uid where one is given. Raises ApiError."""
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid:
            options["preconditions"] = {"uid": uid}
        if propagation:
            options["propagationPolicy"] = propagation
        return await self._call("DELETE", path, body=options)

    async def watch(self, path: str, resource_version: str, **params: str) -> AsyncIterator[tuple[str, Object]]:
        """Yields (type, object) until the server ends the watch. Raises ApiError, with status 410 when the version is too old."""
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(random.randint(300, 600)),
            **params,
        }
        async with self._watch_session.get(self.server + path, params=query) as response:
            if response.status >= 400:
                raise _error(response.status, await response.read())
            rest = b""
            async for chunk in response.content.iter_any():
                lines = (rest + chunk).split(b"\n")
                rest = lines.pop()
                for line in lines:
                    if not line.strip():
                        continue
                    event = _loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise ApiError(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
                    yield event["type"], event["object"]

    async def calm(self) -> None:
        """Waits until few calls are in flight: for work that must not hold up other work."""
        await self._calm.wait()

    async def _call(
        self,
        method: str,
        path: str,
        body: t.Any = None,
        content_type: str = "application/json",
        params: dict[str, str] | None = None,
    ) -> Object:
        self._in_flight += 1
        if self._in_flight > _CALM_CALLS:
            self._calm.clear()
        try:
            return await self._call_patiently(method, path, body, content_type, params)
        finally:
            self._in_flight -= 1
            if self._in_flight <= _CALM_CALLS:
                self._calm.set()

    async def _call_patiently(
        self,
        method: str,
        path: str,
        body: t.Any,
        content_type: str,
        params: dict[str, str] | None,
    ) -> Object:
        import aiohttp

        data = None if body is None else _dumps(body)
        headers = {"Content-Type": content_type} if data is not None else None
        delay = 0.1
        for attempt in range(_ATTEMPTS):
            last = attempt == _ATTEMPTS - 1 or self._closed
            try:
                async with self._session.request(method, self.server + path, data=data, headers=headers, params=params) as response:
                    payload = await response.read()
                    if response.status < 400:
                        return t.cast(Object, _loads(payload))
                    error = _error(response.status, payload)
                    if response.status not in _RETRY_STATUS or last:
                        raise error
            except (TimeoutError, aiohttp.ClientConnectionError) as exc:
                if last:
                    raise ClusterError(
                        f"{method} failed: {exc or type(exc).__name__}",
                        place=self.server + path,
                        hint="Is the API server running and reachable?",
                    ) from exc
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))
            delay = min(delay * 2, 2.0)
        raise AssertionError("unreachable")


def read_kubeconfig(path: str) -> tuple[str, str, ssl.SSLContext | None]:
    """(server URL, bearer token or "", TLS context or None for http) of the current context. Raises InputError."""
    import yaml

    try:
        config = yaml.safe_load(pathlib.Path(path).read_text(encoding="utf-8"))
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config.get("users") or [], context.get("user", "")).get("user") or {}
        server = cluster["server"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as exc:
        raise InputError(
            f"no usable kubeconfig: {exc}", place=str(path), hint="Give the path of a kubeconfig with a current-context"
        ) from exc
    tls = _tls_context(cluster, user, pathlib.Path(path).parent) if server.startswith("https:") else None
    return server, user.get("token", ""), tls


def _named(rows: list[Object], name: str) -> Object:
    return next((row for row in rows if row["name"] == name), {})


def _tls_context(cluster: Object, user: Object, folder: pathlib.Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    authority = _pem(cluster, "certificate-authority", folder)
    if authority:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=authority)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = _pem(user, "client-certificate", folder), _pem(user, "client-key", folder)
    if certificate and key:
        # The ssl module loads a client certificate only from a file.
        handle, name = tempfile.mkstemp(prefix="client-", suffix=".pem")
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(certificate + "\n" + key)
            context.load_cert_chain(name)
        finally:
            os.unlink(name)
    return context


def _pem(section: Object, key: str, folder: pathlib.Path) -> str:
    if section.get(f"{key}-data"):
        return base64.b64decode(section[f"{key}-data"]).decode("ascii")
    if section.get(key):
        path: pathlib.Path = folder / section[key]
        return path.read_text(encoding="ascii")
    return ""


def _error(status: int, payload: bytes) -> ApiError:
    try:
        body = _loads(payload)
        return ApiError(status, body.get("reason", ""), body.get("message", ""))
    except (ValueError, AttributeError):
        return ApiError(status, "", payload[:500].decode("utf-8", errors="replace"))


try:
    import orjson
except ImportError:

    def _dumps(value: t.Any) -> bytes:
        return json.dumps(value, separators=(",", ":")).encode()

    _loads: t.Callable[[bytes], t.Any] = json.loads
else:

    def _dumps(value: t.Any) -> bytes:
        return orjson.dumps(value)

    _loads = orjson.loads
