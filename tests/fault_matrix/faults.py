# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a request asks for, as RBAC names it, and which requests a fault is about."""

from __future__ import annotations

import dataclasses
import typing as t
from urllib.parse import parse_qs, urlsplit

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Asked(t.NamedTuple):
    """verb: get, list, watch, create, dryrun, update, patch or delete. resource: plural with subresource, or version, apis."""

    verb: str
    resource: str


@dataclasses.dataclass(frozen=True)
class Fault:
    """One cell's fault: such a request is answered so, once or for ever, after `skip` of them have passed."""

    verb: str
    resource: str
    kind: str
    forever: bool = False
    skip: int = 0

    @property
    def request(self) -> str:
        """The row of the table that it stands in."""
        return f"{self.verb} {self.resource}" + (f"@{self.skip}" if self.skip else "")

    def is_about(self, asked: Asked) -> bool:
        """Whether a request is one of those that fail."""
        return asked == (self.verb, self.resource)


def asked_by(method: str, target: str) -> Asked:
    """What a request line asks for."""
    url = urlsplit(target)
    query = parse_qs(url.query)
    parts = [part for part in url.path.split("/") if part]
    if parts[:1] not in (["api"], ["apis"]):
        return Asked("get", "/".join(parts))
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if not rest:  # discovery: /apis, /apis/batch/v1
        return Asked("get", parts[0])
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    named = len(rest) > 1
    resource = "/".join([rest[0], *rest[2:3]])
    if method == "GET":
        verb = "get" if named else "watch" if query.get("watch") == ["true"] else "list"
    else:
        verb = _VERBS.get(method, method.lower())
    return Asked("dryrun" if "dryRun" in query else verb, resource)
