# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What to do about an error of the API server."""

from __future__ import annotations

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def hint_for(method: str, path: str, status: int | None, message: str) -> str:
    """The remedy for an answer with this status, or ""."""
    if status == 401:
        return "The credentials were not accepted: log in again, or check api_key, context and their expiry."
    if status == 403 and "exceeded quota" in message:
        return "Raise the namespace's ResourceQuota or use another namespace."
    if status == 403:
        verb, resource, group, namespace = describe(method, path)
        where = f"in namespace {namespace}" if namespace else "cluster-wide"
        return f"Allow our user to {verb} {resource}{'.' + group if group else ''} {where}."
    if "failed calling webhook" in message:
        return "The admission webhook named here does not answer: look at its pods and its Service."
    if status == 429:
        return "The API server limits our requests: lower max_concurrent or try later."
    return ""


def hint_for_failure(cause: str) -> str:
    """The remedy when there was no answer at all."""
    lower = cause.lower()
    if "certificate" in lower or "ssl" in lower or "tls" in lower:
        return "Give the cluster's CA as ca_cert, check host against the certificate's names; validate_certs=false only for a test."
    if "proxy" in lower:
        return "Check proxy and no_proxy."
    return "Check host, the network from the machine that runs Ansible, and proxy and no_proxy."


def describe(method: str, path: str) -> tuple[str, str, str, str]:
    """(verb, resource with subresource, API group, namespace) of a request, as RBAC calls them."""
    parts = [part for part in path.split("?")[0].split("/") if part]
    group = parts[1] if parts[:1] == ["apis"] and len(parts) > 1 else ""
    rest = parts[3:] if parts[:1] == ["apis"] else parts[2:]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    named = len(rest) > 1
    resource = "/".join(rest[:1] + rest[2:3]) or path
    verb = _VERBS.get(method) or ("get" if named else "list")
    return verb, resource, group, namespace
