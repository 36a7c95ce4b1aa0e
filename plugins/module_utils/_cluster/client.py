# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A thin Kubernetes client: raw JSON, one retry policy, timeouts on every call, errors that say what to do.

Paths are API paths such as `/api/v1/nodes` or `/apis/batch/v1/namespaces/x/jobs/y`. Objects are plain dicts, as the
server sends them. Safe to use from several threads; each running watch or log holds one connection of the pool.
"""

from __future__ import annotations

import dataclasses
import json
import typing as t
from collections.abc import Iterator, Mapping
from urllib.parse import urlencode

from .._common.errors import ClusterError, InputError
from .auth import Transport, open_transport, without_credentials
from .hints import hint_for, hint_for_failure
from .kinds import POD_LOG
from .retry import RetryPolicy, surely_not_stored, worth_retrying

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0
PAGE_SIZE = 500
CHUNK_BYTES = 64 * 1024

PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}

Object = dict[str, t.Any]
Strings = list[str]  # "list" is a method of Client below
Things = list[t.Any]


class Expired(ClusterError):
    """The resource version is too old to continue from (410): list again."""


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
        self._connect_timeout_s = connect_timeout_s
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
        return without_credentials(self._transport.host)

    # Reading

    def get(self, path: str, query: Mapping[str, t.Any] | None = None) -> Object:
        """One object. Raises ClusterError, status 404 when it does not exist."""
        return self._json("GET", path, query=query)

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
        """The whole list and its resource version; *project* reduces each item as it is read."""
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
    ) -> Iterator[tuple[str, Object]]:
        """Changes since *resource_version* as (ADDED | MODIFIED | DELETED | BOOKMARK, object), for *timeout_s* at most.

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
        response = self._open("GET", path, query=query, read_timeout_s=timeout_s + 15.0)
        try:
            for line in _lines(response):
                kind, thing = _event(line)
                if kind == "ERROR":
                    raise self._error("GET", path, thing.get("code"), thing)
                if kind:
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
        file never holds half a log unnoticed; raises ClusterError when it cannot be read whole.
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
        start = into.tell()
        for attempt in range(1, self._retry.attempts + 1):
            response = self._open("GET", path, query=query)
            try:
                return _copy(response, into)
            except _failures() as error:
                into.seek(start)
                into.truncate()
                if attempt == self._retry.attempts:
                    raise self._no_answer("GET", path, error) from None
                self._retry.pause(attempt)
            finally:
                response.close()
        raise AssertionError("unreachable: the last attempt returns or raises")

    def can_i(self, verb: str, resource: str, group: str = "", namespace: str = "", subresource: str = "") -> bool:
        """Whether our user may do this; an empty namespace asks for all namespaces and for cluster-wide resources."""
        attributes = {"verb": verb, "resource": resource, "group": group, "namespace": namespace, "subresource": subresource}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
        }
        # A review is answered, not stored: it may be sent again like a read.
        review = self._json("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body, repeatable=True)
        return bool((review.get("status") or {}).get("allowed"))

    def version(self) -> Object:
        """The server's version: major, minor, gitVersion …"""
        return self.get("/version")

    def groups(self) -> set[str]:
        """The names of the API groups that are served, such as `trainer.kubeflow.org`."""
        return {group["name"] for group in self.get("/apis").get("groups") or []}

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
        """Creates an object; *path* is that of its collection. Returns it as stored.

        strict: an unknown or duplicate field is an error. A request that may have been stored although no answer came is
        sent again only with *is_ours*: if the object then exists and *is_ours* says so of it, it is returned as created.
        """
        name = (body.get("metadata") or {}).get("name")
        repeatable = dry_run or bool(name and is_ours)
        query = {**_dry_run(dry_run), "fieldValidation": "Strict" if strict else None}
        sent: Strings = []
        try:
            return self._json("POST", path, query=query, body=body, repeatable=repeatable, in_doubt=sent)
        except ClusterError as error:
            if not (sent and is_ours and error.api_reason == "AlreadyExists"):
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
        """Patches an object. kind: merge, json, strategic, or apply (needs *field_manager*; *force* takes over fields)."""
        if kind not in PATCH_TYPES:
            raise InputError(f"unknown patch kind {kind!r}", hint=f"Allowed: {', '.join(PATCH_TYPES)}")
        query = {
            **_dry_run(dry_run),
            "fieldValidation": "Strict" if strict else None,
            "fieldManager": field_manager,
            "force": force or None,
        }
        # A JSON patch may add to a list: twice is not the same as once.
        return self._json("PATCH", path, query=query, body=body, content_type=PATCH_TYPES[kind], repeatable=dry_run or kind != "json")

    def replace(self, path: str, body: Mapping[str, t.Any], *, dry_run: bool = False, strict: bool = True) -> Object:
        """Replaces an object; with metadata.resourceVersion a change in between is a ClusterError, status 409."""
        query = {**_dry_run(dry_run), "fieldValidation": "Strict" if strict else None}
        return self._json("PUT", path, query=query, body=body)

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

        With *uid* another object of the same name is left alone: ClusterError, status 409. Returns the answer of the
        server; the object may live on while finalizers or a grace period hold it.
        """
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        try:
            return self._json("DELETE", path, query=_dry_run(dry_run), body=options)
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    def delete_collection(
        self, path: str, *, label_selector: str, propagation: str = "Background", grace_period_s: int | None = None
    ) -> Object:
        """Deletes the objects of a collection that carry our labels; without a selector it refuses."""
        if not label_selector.strip():
            raise InputError("refused to delete a whole collection", place=f"DELETE {path}", hint="Give a label selector.")
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        return self._json("DELETE", path, query={"labelSelector": label_selector}, body=options)

    # Transport

    def _pages(self, path: str, query: Mapping[str, t.Any], limit: int) -> Iterator[Object]:
        """Pages of a list. If a page expires while we read, the rest is taken from one whole list, each item once."""
        seen: set[str] = set()
        token: str | None = None
        while True:
            try:
                page = self.get(path, {**query, "limit": limit, "continue": token})
            except Expired:
                page = self.get(path, query)
                page["items"] = [item for item in page.get("items") or [] if _identity(item) not in seen]
            token = (page.get("metadata") or {}).get("continue")
            if token:
                seen.update(_identity(item) for item in page.get("items") or [])
            yield page
            if not token:
                return

    def _json(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, t.Any] | None = None,
        body: t.Any = None,
        content_type: str = "application/json",
        repeatable: bool = True,
        in_doubt: Strings | None = None,
    ) -> Object:
        """One answered request. The body is read inside the retry loop: an answer cut short is no answer."""
        response = self._open(
            method, path, query=query, body=body, content_type=content_type, repeatable=repeatable, in_doubt=in_doubt, stream=False
        )
        try:
            return json.loads(response.data)
        except ValueError:
            raise ClusterError(
                f"the answer of {self.host} is not JSON", place=f"{method} {path}", hint="Is this address a Kubernetes API server?"
            ) from None

    def _open(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, t.Any] | None = None,
        body: t.Any = None,
        content_type: str = "application/json",
        read_timeout_s: float | None = None,
        repeatable: bool = True,
        in_doubt: Strings | None = None,
        stream: bool = True,
    ) -> t.Any:
        """Sends a request until it is answered with success, or raises ClusterError.

        repeatable: whether it may be sent again when an earlier try may have been carried out.
        in_doubt: receives a note for every try whose outcome is unknown.
        """
        url = f"{self._transport.host}{path}{_encode(query)}"
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        logged_in_again = False
        for attempt in range(1, self._retry.attempts + 1):
            last = attempt == self._retry.attempts
            pool = self._transport.pool
            try:
                response = pool.request(
                    method,
                    url,
                    body=data,
                    headers=self._headers(content_type if data else None),
                    timeout=self._timeout(read_timeout_s),
                    retries=False,
                    redirect=False,
                    preload_content=not stream,
                )
            except _failures() as error:
                unsent = _was_not_sent(error)
                if last or _is_certificate(error) or not (repeatable or unsent):
                    raise self._no_answer(method, path, error) from None
                if in_doubt is not None and not unsent:
                    in_doubt.append("no answer")
                self._retry.pause(attempt)
                continue
            if response.status < 300:
                return response
            status = _status_body(response)
            message = str(status.get("message") or "")
            if response.status == 401 and not logged_in_again and self._transport.log_in_again(pool):
                logged_in_again = True
                continue
            harmless = surely_not_stored(response.status, message) or _quota_race(method, response.status, status)
            again = worth_retrying(response.status, message) and (repeatable or harmless)
            if last or not (again or _quota_race(method, response.status, status)):
                raise self._error(method, path, response.status, status)
            if in_doubt is not None and not harmless:
                in_doubt.append(str(response.status))
            self._retry.pause(attempt, response.headers.get("Retry-After"))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _headers(self, content_type: str | None) -> t.Any:
        from urllib3._collections import HTTPHeaderDict  # the place that both urllib3 1.26 and 2 have

        headers = HTTPHeaderDict()
        headers["Accept"] = "application/json, */*"
        headers["Accept-Encoding"] = "gzip"  # a list of 1000 nodes is 20 MB, and 1 MB so
        headers["User-Agent"] = "gpu_cluster.readiness"
        if content_type:
            headers["Content-Type"] = content_type
        authorization = self._transport.authorization()
        if authorization:
            headers["Authorization"] = authorization
        for name, value in self._transport.headers or []:
            headers.add(name, value)
        return headers

    def _timeout(self, read_timeout_s: float | None) -> t.Any:
        import urllib3

        return urllib3.Timeout(connect=self._connect_timeout_s, read=read_timeout_s or self._read_timeout_s)

    def _error(self, method: str, path: str, code: t.Any, status: Mapping[str, t.Any]) -> ClusterError:
        number = int(code) if code else None
        reason = str(status.get("reason") or "")
        message = str(status.get("message") or reason or f"the API server answered {number}")
        kind = Expired if number == 410 else ClusterError
        return kind(
            without_credentials(message),
            place=f"{method} {path}",
            hint=hint_for(method, path, number, message),
            status=number,
            api_reason=reason,
        )

    def _no_answer(self, method: str, path: str, error: Exception) -> ClusterError:
        cause = without_credentials(str(error.__cause__ or error))
        return ClusterError(
            f"no answer from {self.host}: {type(error).__name__}: {cause}", place=f"{method} {path}", hint=hint_for_failure(cause)
        )


def _selectors(label_selector: str | None, field_selector: str | None) -> dict[str, t.Any]:
    return {"labelSelector": label_selector, "fieldSelector": field_selector}


def _dry_run(dry_run: bool) -> dict[str, t.Any]:
    return {"dryRun": "All" if dry_run else None}


def _encode(query: Mapping[str, t.Any] | None) -> str:
    """The query string; None and "" are left out, booleans are spelled the way Kubernetes reads them."""
    pairs = [
        (key, str(value).lower() if isinstance(value, bool) else value) for key, value in (query or {}).items() if value not in (None, "")
    ]
    return f"?{urlencode(pairs)}" if pairs else ""


def _identity(item: Mapping[str, t.Any]) -> str:
    metadata = item.get("metadata") or {}
    return metadata.get("uid") or f"{metadata.get('namespace')}/{metadata.get('name')}"


def _failures() -> tuple[type[Exception], ...]:
    """What urllib3 raises when there is no answer, or half of one."""
    import http.client

    import urllib3

    return (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError)


def _was_not_sent(error: Exception) -> bool:
    """Whether the connection was never made, so that the server cannot have seen the request."""
    import urllib3

    return isinstance(error, (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError, ConnectionRefusedError))


def _is_certificate(error: Exception) -> bool:
    """TLS verification failures stay what they are, however often one tries."""
    return "CERTIFICATE_VERIFY_FAILED" in str(error) or "certificate verify failed" in str(error)


def _quota_race(method: str, code: int, status: Mapping[str, t.Any]) -> bool:
    """Many creates at once collide on the ResourceQuota's own version: refused, nothing stored, to be tried again."""
    return method == "POST" and code == 409 and status.get("reason") == "Conflict"


def _status_body(response: t.Any) -> dict[str, t.Any]:
    """The Status of an error answer; a proxy's HTML or an empty body becomes a message of one line."""
    try:
        data = response.data
    except _failures():
        data = b""
    try:
        body = json.loads(data)
        if isinstance(body, dict):
            return body
    except ValueError:
        pass
    text = " ".join(data.decode("utf-8", errors="replace").split())[:200]
    return {"message": text or f"the API server answered {response.status} {response.reason or ''}".rstrip(), "reason": ""}


def _copy(response: t.Any, into: t.BinaryIO) -> int:
    written = 0
    for chunk in response.stream(CHUNK_BYTES):
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
    except _failures():
        return


def _event(line: bytes) -> tuple[str, dict[str, t.Any]]:
    """A watch line as (type, object); a line cut short by a broken connection is ("", {})."""
    try:
        event = json.loads(line)
        return str(event["type"]), event["object"]
    except (ValueError, KeyError, TypeError):
        return "", {}
