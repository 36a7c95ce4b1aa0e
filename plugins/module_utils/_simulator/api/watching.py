# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Lists and watches: selection, paging, and the stream of changes."""

from __future__ import annotations

import asyncio
import base64
import random
import time
import typing as t

from . import event_views, selectors, tables
from .deps import orjson, web
from .errors import ApiError, bad_request, expired, forbidden_field, invalid
from .objects import Object
from .registry import Registry
from .request_data import is_true
from .resources import Resource
from .store import Change, Stored

_BOOKMARK_SECONDS = 60


class View(t.NamedTuple):
    """How objects are written: plain, Table or PartialObjectMetadata. include: what travels in the rows of a Table."""

    form: str
    include: str = "Metadata"


PLAIN = View("")


def wanted_view(accept: str, query: t.Mapping[str, str]) -> View:
    """The first form an Accept header asks for that this server can write. Raises 406."""
    if "as=" not in accept:
        return PLAIN if _accepts_json(accept) else _not_acceptable()
    for clause in accept.split(","):
        parts = [part.strip() for part in clause.split(";")]
        if parts[0] not in ("application/json", "*/*", "application/*"):
            continue
        settings = dict(part.split("=", 1) for part in parts[1:] if "=" in part)
        form = settings.get("as", "")
        if form in ("", "Table", "PartialObjectMetadata", "PartialObjectMetadataList") and settings.get("v", "v1") == "v1":
            return View(form.removesuffix("List"), query.get("includeObject") or "Metadata")
    return _not_acceptable()


def _accepts_json(accept: str) -> bool:
    return not accept or "json" in accept or "*/*" in accept or "application/*" in accept


def _not_acceptable() -> t.NoReturn:
    message = "only the following media types are accepted: application/json"
    raise ApiError(406, "NotAcceptable", message)


class Selection:
    """The objects a list or watch is about: a namespace, a label selector and a field selector."""

    def __init__(self, resource: Resource, namespace: str | None, query: t.Mapping[str, str], name: str = "") -> None:
        extra = resource.custom.selectable if resource.custom is not None else ()
        self.namespace = namespace
        self.labels = selectors.label_selector(query.get("labelSelector", ""))
        fields = query.get("fieldSelector", "")
        if name:
            fields = f"{fields},metadata.name={name}" if fields else f"metadata.name={name}"
        self.fields = selectors.field_selector(fields, resource.group, resource.kind, extra)
        self.terms = selectors.field_terms(fields) if fields else {}
        # Two names for one stored field would need the view; event views are rare enough to select on the view itself.
        self._viewed = resource.group == "events.k8s.io"

    @property
    def everything(self) -> bool:
        """Whether no selector narrows the namespace."""
        return self.labels is None and self.fields is None

    def holds(self, stored: Stored | None) -> bool:
        """Whether a version of an object belongs to the selection."""
        if stored is None or (self.namespace is not None and stored.namespace != self.namespace):
            return False
        if self.labels is not None and not self.labels(stored.obj["metadata"].get("labels") or {}):
            return False
        return self.fields is None or self.fields(self._fields_of(stored))

    def _fields_of(self, stored: Stored) -> Object:
        if not self._viewed:
            return stored.obj
        return event_views.from_core(stored.obj)

    def current(self, registry: Registry, resource: Resource) -> list[Stored]:
        """The selected objects, by namespace and name."""
        collection = registry.store.collection(resource.storage)
        name = self.terms.get("metadata.name")
        if name is not None and self.namespace is not None:
            found = collection.get(self.namespace, name)
            return [found] if found is not None and self.holds(found) else []
        items = collection.ordered(self.namespace)
        return items if self.everything else [item for item in items if self.holds(item)]


# --- lists ----------------------------------------------------------------------------------------------------------------


def _decode_token(token: str) -> tuple[int, tuple[str, str]]:
    try:
        version, namespace, name = orjson.loads(base64.urlsafe_b64decode(token.encode()))
    except ValueError as error:
        raise bad_request("continue key is not valid") from error
    return int(version), (str(namespace), str(name))


def _page(registry: Registry, resource: Resource, selection: Selection, query: t.Mapping[str, str]) -> tuple[list[Stored], Object]:
    """One page and the metadata of its list.

    All pages of a list carry the version of the first, so that a watch from there misses nothing that changed in between.
    """
    items = selection.current(registry, resource)
    version = registry.store.version
    if query.get("continue"):
        version, after = _decode_token(query["continue"])
        if version < registry.store.collection(resource.storage).expired_version:
            raise expired("The provided continue parameter is too old to display a consistent list result.")
        items = [item for item in items if (item.namespace, item.name) > after]
    metadata: Object = {"resourceVersion": str(version)}
    limit = _number(query, "limit")
    if limit and len(items) > limit:
        last = items[limit - 1]
        metadata["continue"] = base64.urlsafe_b64encode(orjson.dumps([version, last.namespace, last.name])).decode()
        if selection.everything:
            metadata["remainingItemCount"] = len(items) - limit
        items = items[:limit]
    return items, metadata


def _number(query: t.Mapping[str, str], key: str) -> int:
    text = query.get(key) or "0"
    if not text.isdigit():
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)


def _check_version(registry: Registry, query: t.Mapping[str, str]) -> None:
    version = _number(query, "resourceVersion")
    if version > registry.store.version:
        message = f"Too large resource version: {version}, current: {registry.store.version}"
        causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
        raise ApiError(504, "Timeout", message, {"causes": causes, "retryAfterSeconds": 1})


def list_body(registry: Registry, resource: Resource, selection: Selection, query: t.Mapping[str, str], view: View) -> bytes:
    """A list as JSON. Raises 400, 410 or 504."""
    _check_version(registry, query)
    items, metadata = _page(registry, resource, selection, query)
    if view.form == "Table":
        return orjson.dumps(tables.table(resource, items, metadata, view.include, registry.shown))
    if view.form:
        partial = [tables.partial(item) for item in items]
        return orjson.dumps({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": partial})
    head = f'{{"kind":"{resource.list_kind}","apiVersion":"{resource.api_version}","metadata":'.encode() + orjson.dumps(metadata)
    # Items of built-in lists carry no kind and apiVersion, those of custom lists do.
    opening = resource.prefix if resource.custom is not None else b"{"
    tails = [registry.tail(resource, item) for item in items] if resource.group == "events.k8s.io" else [item.tail for item in items]
    body = (b"," + opening).join(tails)
    return b"".join((head, b',"items":[', opening if tails else b"", body, b"]}"))


def one_body(registry: Registry, resource: Resource, stored: Stored, view: View) -> bytes:
    """One object as JSON."""
    if view.form == "Table":
        metadata = {"resourceVersion": str(stored.version)}
        return orjson.dumps(tables.table(resource, [stored], metadata, view.include, registry.shown))
    if view.form:
        return orjson.dumps(tables.partial(stored))
    return registry.body(resource, stored)


# --- watches --------------------------------------------------------------------------------------------------------------


class Watch:
    """One watch: where it starts, what it shows and when it ends."""

    def __init__(self, registry: Registry, resource: Resource, selection: Selection, query: t.Mapping[str, str], view: View) -> None:
        self._registry = registry
        self._resource = resource
        self._selection = selection
        self._view = view
        self._collection = registry.store.collection(resource.storage)
        self._bookmarks = is_true(query.get("allowWatchBookmarks"))
        self._initial_events = is_true(query.get("sendInitialEvents"))
        version = _number(query, "resourceVersion")
        self._from_state = version == 0 or self._initial_events
        seconds = _number(query, "timeoutSeconds") or random.randint(1800, 3600)
        self._deadline = time.monotonic() + seconds
        if self._initial_events and query.get("resourceVersionMatch") != "NotOlderThan":
            why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            raise invalid("meta.k8s.io", "ListOptions", "", [forbidden_field("resourceVersionMatch", why)])
        # An expired version is reported as an ERROR event in a stream that starts well, as a genuine server does.
        self._error: ApiError | None = None
        self._sequence = self._collection.next
        if not self._from_state:
            try:
                self._sequence = self._collection.sequence_after(version)
            except ApiError as error:
                self._error = error

    async def serve(self, request: web.BaseRequest, stopping: asyncio.Event) -> web.StreamResponse:
        """Stream until the time is over, the client leaves or the server stops."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        waker = asyncio.Event()
        self._collection.wakers.add(waker)
        try:
            initial = self._initial()
            await response.prepare(request)
            if initial:
                await response.write(initial)
            if self._error is None:
                await self._follow(response, waker, stopping)
            await response.write_eof()
        except (ConnectionResetError, ConnectionError):
            pass  # the client left
        finally:
            self._collection.wakers.discard(waker)
        return response

    def _initial(self) -> bytes:
        if self._error is not None:
            return self._line("ERROR", orjson.dumps(self._error.body()))
        if not self._from_state:
            return b""
        self._sequence = self._collection.next
        lines = [self._event("ADDED", item) for item in self._selection.current(self._registry, self._resource)]
        if self._initial_events and self._bookmarks:
            lines.append(self._bookmark({"k8s.io/initial-events-end": "true"}))
        return b"".join(lines)

    async def _follow(self, response: web.StreamResponse, waker: asyncio.Event, stopping: asyncio.Event) -> None:
        next_bookmark = time.monotonic() + _BOOKMARK_SECONDS
        while not stopping.is_set():
            waker.clear()
            try:
                changes = self._collection.since(self._sequence)
            except ApiError as error:
                await response.write(self._line("ERROR", orjson.dumps(error.body())))
                return
            self._sequence += len(changes)
            lines = b"".join(line for change in changes if (line := self._change(change)))
            if lines:
                await response.write(lines)
            now = time.monotonic()
            if now >= self._deadline:
                return
            if now >= next_bookmark:
                next_bookmark = now + _BOOKMARK_SECONDS
                if self._bookmarks:
                    await response.write(self._bookmark({}))
            try:
                await asyncio.wait_for(waker.wait(), min(self._deadline, next_bookmark) - now)
            except TimeoutError:
                continue

    def _change(self, change: Change) -> bytes:
        """A change as this selection sees it: entering is ADDED, leaving is DELETED."""
        before = self._selection.holds(change.old)
        after = change.type != "DELETED" and self._selection.holds(change.new)
        if after:
            return self._event("MODIFIED" if before else "ADDED", change.new)
        return self._event("DELETED", change.new) if before else b""

    def _event(self, kind: str, stored: Stored) -> bytes:
        return self._line(kind, one_body(self._registry, self._resource, stored, self._view))

    @staticmethod
    def _line(kind: str, body: bytes) -> bytes:
        return b'{"type":"%s","object":%s}\n' % (kind.encode(), body)

    def _bookmark(self, annotations: Object) -> bytes:
        metadata: Object = {"resourceVersion": str(self._registry.store.version), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        if self._view.form == "Table":
            table = tables.table(self._resource, [], {"resourceVersion": metadata["resourceVersion"]}, "None", self._registry.shown)
            marker = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
            table["rows"] = [{"cells": [None] * len(table["columnDefinitions"]), "object": marker}]
            return self._line("BOOKMARK", orjson.dumps(table))
        kind, api_version = self._resource.kind, self._resource.api_version
        if self._view.form:
            kind, api_version = "PartialObjectMetadata", "meta.k8s.io/v1"
        return self._line("BOOKMARK", orjson.dumps({"kind": kind, "apiVersion": api_version, "metadata": metadata}))
