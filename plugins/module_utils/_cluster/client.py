# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A thin Kubernetes client: raw JSON, one retry policy, timeouts on every call, errors that say what to do.

Paths are API paths such as `/api/v1/nodes` or `/apis/batch/v1/namespaces/x/jobs/y`. Objects are plain dicts, as the
server sends them. Safe to use from several threads; each running watch or log holds one connection of the pool.
"""

from __future__ import annotations

import dataclasses
import json
import time
import typing as t
from collections.abc import Iterator, Mapping

from .._common.errors import ClusterError, InputError
from .answers import ANY, DELETED, LIST, OBJECT, REVIEW, with_objects
from .auth import Transport, open_transport
from .kinds import POD_LOG
from .retry import RetryPolicy
from .sending import Expired, Request, Sender, failures

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0
HURRIED_TIMEOUT_S, HURRIED_PATIENCE_S = 10.0, 60.0
# Tries are then bounded by time alone.
UNCOUNTED = 10_000
PAGE_SIZE = 500
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
CHUNK_BYTES = 64 * 1024

PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}

Object = dict[str, t.Any]
Things = list[t.Any]


@dataclasses.dataclass
class ListResult:
    """All items of a list, and the version to start a watch from."""

    items: list[t.Any]
    resource_version: str


class Client:
    """One cluster. Make it with `Client.from_options` or, in tests, from a Transport."""

    def __init__(
        self,
        transport: Transport,
        *,
        retry: RetryPolicy | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._transport = transport
        self._retry = retry or RetryPolicy()
        self._sender = Sender(transport, self._retry, connect_timeout_s, read_timeout_s)
        self._read_timeout_s = read_timeout_s

    @classmethod
    def from_options(
        cls,
        options: Mapping[str, t.Any],
        *,
        retry: RetryPolicy | None = None,
        pool_size: int = 16,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> Client:
        """A client for the connection options of the modules; each falls back to `K8S_AUTH_*` (see auth.ENVIRONMENT).

        Opens no connection. Raises InputError when the options lead nowhere, ClusterError when `kubernetes` is missing.
        """
        return cls(open_transport(options, pool_size=pool_size), retry=retry, read_timeout_s=read_timeout_s)

    @property
    def host(self) -> str:
        """The URL of the API server, without credentials."""
        return self._sender.host

    def hurried(self) -> Client:
        """The same cluster with little patience, for the end of a run: two tries, ten seconds for an answer, a minute for a long one."""
        timeout_s = min(HURRIED_TIMEOUT_S, self._read_timeout_s)
        retry = dataclasses.replace(self._retry, attempts=2, patience_s=min(HURRIED_PATIENCE_S, self._retry.patience_s))
        return self._with(retry, HURRIED_TIMEOUT_S, timeout_s)

    def patient(self, seconds: float) -> Client:
        """The same cluster, asked for so long before a question counts as not answered. One that hangs leaves time for another try."""
        retry = dataclasses.replace(self._retry, attempts=UNCOUNTED, patience_s=seconds)
        return self._with(retry, CONNECT_TIMEOUT_S, min(self._read_timeout_s, seconds / 2))

    def _with(self, retry: RetryPolicy, connect_timeout_s: float, read_timeout_s: float) -> Client:
        client = Client(self._transport, retry=retry, connect_timeout_s=connect_timeout_s, read_timeout_s=read_timeout_s)
        client._sender.clock_ahead_s = self._sender.clock_ahead_s
        return client

    def now(self) -> float:
        """Seconds since the epoch by the API server's clock, as its last answer told: what is kept there is dated by it."""
        return time.time() + self._sender.clock_ahead_s

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the API server has warned of in its answers so far."""
        return tuple(self._sender.warnings)

    # Reading

    def get(self, path: str, query: Mapping[str, t.Any] | None = None) -> Object:
        """One object. Raises ClusterError, status 404 when it does not exist."""
        return self._sender.json(Request("GET", path, query, shape=OBJECT))

    def document(self, path: str, list_key: str = "") -> Object:
        """What is served and is no object of a kind, such as /version. list_key: a list of objects that it must have."""
        return self._sender.json(Request("GET", path, shape=with_objects(list_key) if list_key else ANY))

    def list(
        self, path: str, *, label_selector: str | None = None, field_selector: str | None = None, limit: int = PAGE_SIZE
    ) -> Iterator[Object]:
        """The items of a list, read page by page, so that a large cluster never stands in memory at once."""
        for page in self._pages(path, _selectors(label_selector, field_selector), limit):
            yield from page.get("items") or []

    def list_result(
        self,
        path: str,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = PAGE_SIZE,
        project: t.Callable[[Object], t.Any] | None = None,
    ) -> ListResult:
        """The whole list and its resource version; `project` reduces each item as it is read."""
        items: Things = []
        version = ""
        for page in self._pages(path, _selectors(label_selector, field_selector), limit):
            items.extend(project(item) if project else item for item in page.get("items") or [])
            version = (page.get("metadata") or {}).get("resourceVersion") or version
        return ListResult(items, version)

    def watch(
        self,
        path: str,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
        timeout_s: float = 240.0,
        silence_s: float = 90.0,
    ) -> Iterator[tuple[str, Object]]:
        """Changes since *resource_version* as (ADDED | MODIFIED | DELETED | BOOKMARK, object), for *timeout_s* at most.

        silence_s: a watch of which nothing comes for so long, not even a BOOKMARK, which servers send every minute, counts as broken.
        Ends quietly at the timeout and when the connection breaks: watch again from the last version seen (a BOOKMARK
        carries nothing else). Raises Expired when that version is too old: list again.
        """
        query = {
            **_selectors(label_selector, field_selector),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": max(1, round(timeout_s)),
        }
        # The server ends the watch itself; the margin is for one that does not.
        request = Request("GET", path, query, stream=True, read_timeout_s=min(timeout_s + 15.0, silence_s))
        response = self._sender.send(request)
        try:
            for line in _lines(response):
                event = _event(line)
                if event is None:
                    return
                kind, thing = event
                if kind == "ERROR":
                    raise self._sender.error(request, thing.get("code"), thing)
                yield kind, thing
        finally:
            response.close()

    def read_log(
        self,
        namespace: str,
        pod: str,
        *,
        into: t.BinaryIO,
        container: str | None = None,
        previous: bool = False,
        since_time: str | None = None,
        tail_lines: int | None = None,
        limit_bytes: int | None = None,
        timestamps: bool = False,
    ) -> int:
        """Writes a container's log, byte for byte, into a seekable binary file; returns the number of bytes written.

        since_time: RFC 3339. A log that breaks off is read again from its start, over what was written, so that the
        file never holds half a log unnoticed; raises ClusterError when it cannot be read whole within the client's patience.
        """
        path = POD_LOG.path(namespace, pod)
        query = {
            "container": container,
            "previous": previous or None,
            "sinceTime": since_time,
            "tailLines": tail_lines,
            "limitBytes": limit_bytes,
            "timestamps": timestamps or None,
        }
        request = Request("GET", path, query, stream=True)
        start = into.tell()
        tries = self._retry.tries()
        while True:
            response = self._sender.send(request, tries)
            try:
                return _copy(response, into, self._retry)
            except failures() as error:
                into.seek(start)
                into.truncate()
                if not tries.are_left:
                    raise self._sender.no_answer(request, error) from None
                tries.pause()
            finally:
                response.close()

    def can_i(self, verb: str, resource: str, group: str = "", namespace: str = "", subresource: str = "") -> bool:
        """Whether our user may do this; an empty namespace asks for all namespaces and for cluster-wide resources."""
        attributes = {"verb": verb, "resource": resource, "group": group, "namespace": namespace, "subresource": subresource}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
        }
        # A review is answered, not stored: it may be sent again like a read.
        review = self._sender.json(Request("POST", ACCESS_REVIEWS, body=body, shape=REVIEW))
        return bool(review["status"]["allowed"])

    def version(self) -> Object:
        """The server's version: major, minor, gitVersion …"""
        return self.document("/version")

    def groups(self) -> set[str]:
        """The names of the API groups that are served, such as `trainer.kubeflow.org`."""
        return {str(group["name"]) for group in self.document("/apis", "groups")["groups"] if "name" in group}

    # Writing

    def create(
        self,
        path: str,
        body: Mapping[str, t.Any],
        *,
        dry_run: bool = False,
        strict: bool = True,
        is_ours: t.Callable[[Object], bool] | None = None,
    ) -> Object:
        """Creates an object; `path` is that of its collection. Returns it as stored.

        strict: an unknown or duplicate field is an error. A request that may have been stored although no answer came is
        sent again only with `is_ours`: if the object then exists and `is_ours` says so of it, it is returned as created.
        """
        name = (body.get("metadata") or {}).get("name")
        repeatable = dry_run or bool(name and is_ours)
        query = {**_dry_run(dry_run), "fieldValidation": "Strict" if strict else None}
        request = Request("POST", path, query, body, repeatable=repeatable, shape=OBJECT)
        try:
            return self._sender.json(request)
        except ClusterError as error:
            if not (request.in_doubt and is_ours and error.api_reason == "AlreadyExists"):
                raise
            found = self.get(f"{path.rstrip('/')}/{name}")
            if is_ours(found):
                return found
            raise

    def patch(
        self,
        path: str,
        body: t.Any,
        *,
        kind: str = "merge",
        dry_run: bool = False,
        strict: bool = True,
        field_manager: str | None = None,
        force: bool = False,
    ) -> Object:
        """Patches an object. kind: merge, json, strategic, or apply (needs `field_manager`; `force` takes over fields)."""
        if kind not in PATCH_TYPES:
            raise InputError(f"unknown patch kind {kind!r}", hint=f"Allowed: {', '.join(PATCH_TYPES)}")
        query = {
            **_dry_run(dry_run),
            "fieldValidation": "Strict" if strict else None,
            "fieldManager": field_manager,
            "force": force or None,
        }
        # A JSON patch may add to a list: twice is not the same as once.
        request = Request("PATCH", path, query, body, content_type=PATCH_TYPES[kind], repeatable=dry_run or kind != "json", shape=OBJECT)
        return self._sender.json(request)

    def replace(self, path: str, body: Mapping[str, t.Any], *, dry_run: bool = False, strict: bool = True) -> Object:
        """Replaces an object; with metadata.resourceVersion a change in between is a ClusterError, status 409."""
        query = {**_dry_run(dry_run), "fieldValidation": "Strict" if strict else None}
        return self._sender.json(Request("PUT", path, query, body, shape=OBJECT))

    def delete(
        self,
        path: str,
        *,
        uid: str | None = None,
        propagation: str = "Background",
        grace_period_s: int | None = None,
        dry_run: bool = False,
    ) -> Object | None:
        """Deletes an object; None when it does not exist (any more).

        With `uid` another object of the same name is left alone: ClusterError, status 409. Returns the answer of the
        server; the object may live on while finalizers or a grace period hold it.
        """
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        try:
            return self._sender.json(Request("DELETE", path, _dry_run(dry_run), options, shape=DELETED))
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    # Transport

    def _pages(self, path: str, query: Mapping[str, t.Any], limit: int) -> Iterator[Object]:
        """Pages of a list. If a page expires while we read, the rest is taken from one whole list, each item once."""
        seen: set[str] = set()
        token: str | None = None
        while True:
            try:
                page = self._page(path, {**query, "limit": limit, "continue": token})
            except Expired:
                page = self._page(path, query)
                page["items"] = [item for item in page.get("items") or [] if _identity(item) not in seen]
            token = (page.get("metadata") or {}).get("continue")
            if token:
                seen.update(_identity(item) for item in page.get("items") or [])
            yield page
            if not token:
                return

    def _page(self, path: str, query: Mapping[str, t.Any]) -> Object:
        return self._sender.json(Request("GET", path, query, shape=LIST))


def _selectors(label_selector: str | None, field_selector: str | None) -> dict[str, t.Any]:
    return {"labelSelector": label_selector, "fieldSelector": field_selector}


def _dry_run(dry_run: bool) -> dict[str, t.Any]:
    return {"dryRun": "All" if dry_run else None}


def _identity(item: Mapping[str, t.Any]) -> str:
    metadata = item.get("metadata") or {}
    return metadata.get("uid") or f"{metadata.get('namespace')}/{metadata.get('name')}"


def _copy(response: t.Any, into: t.BinaryIO, retry: RetryPolicy) -> int:
    """Raises TimeoutError for an answer that goes on for longer than the client is patient: one that trickles never times out by itself."""
    written, began = 0, retry.clock()
    for chunk in response.stream(CHUNK_BYTES):
        if retry.clock() - began >= retry.patience_s:
            raise TimeoutError(f"the answer had not ended after {retry.patience_s:.0f} s and {written} bytes")
        into.write(chunk)
        written += len(chunk)
    return written


def _lines(response: t.Any) -> Iterator[bytes]:
    """The lines of a watch as they come; a broken or silent connection ends them."""
    rest = b""
    try:
        for chunk in response.stream(CHUNK_BYTES):
            parts = (rest + chunk).split(b"\n")
            rest = parts.pop()
            yield from (part for part in parts if part.strip())
    except failures():
        return


def _event(line: bytes) -> tuple[str, Object] | None:
    """A watch line as (type, object); None for one that cannot be read: what it told is lost, so the watch ends and is listed anew."""
    try:
        event = json.loads(line)
        kind, thing = event["type"], event["object"]
    except (ValueError, KeyError, TypeError):
        return None
    return (str(kind), thing) if isinstance(thing, dict) else None
