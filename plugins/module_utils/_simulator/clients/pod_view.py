# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a container gets from its Pod: environment and mounted files, with all references resolved."""

from __future__ import annotations

import asyncio
import base64
import re
import time
import typing as t

from ..hardware.seam import ContainerView, PodView
from .api import Api, ApiError, Object, resource_path
from .job_rules import index_of

_KEEP_S = 1.0
_VARIABLE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")
_RESOURCE = {"ConfigMap": "configmaps", "Secret": "secrets"}


class Unresolved(Exception):
    """A reference leads nowhere. `volume`: the volume that needs it, "" for an environment variable."""

    def __init__(self, message: str, volume: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.volume = volume


class References:
    """Reads ConfigMaps and Secrets; pods that start together share one read."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._reads: dict[tuple[str, str, str], tuple[float, asyncio.Future[dict[str, str] | None]]] = {}

    async def data(self, kind: str, namespace: str, name: str) -> dict[str, str] | None:
        """The object's data as text, or None if there is no such object."""
        key = (kind, namespace, name)
        known = self._reads.get(key)
        if known is None or known[0] < time.monotonic():
            self._drop_old()
            known = self._reads[key] = (time.monotonic() + _KEEP_S, asyncio.ensure_future(self._read(kind, namespace, name)))
        return await asyncio.shield(known[1])

    def _drop_old(self) -> None:
        now = time.monotonic()
        for key in [key for key, (until, _read) in self._reads.items() if until < now]:
            del self._reads[key]

    async def _read(self, kind: str, namespace: str, name: str) -> dict[str, str] | None:
        try:
            item = await self._api.get(resource_path(_RESOURCE[kind], namespace, name))
        except ApiError as exc:
            if exc.status == 404:
                return None
            raise
        data = item.get("data") or {}
        if kind == "Secret":
            return {key: base64.b64decode(value).decode("utf-8", errors="replace") for key, value in data.items()}
        binary = {key: base64.b64decode(value).decode("utf-8", errors="replace") for key, value in (item.get("binaryData") or {}).items()}
        return {**data, **binary}


def plain_view(pod: Object, pod_ip: str) -> PodView:
    """The pod without environment and files: nothing is read from the API."""
    return _view(pod, pod_ip, [_container(spec, {}, {}, init) for spec, init in container_specs(pod)])


async def full_view(pod: Object, pod_ip: str, host_ip: str, references: References, services: t.Mapping[str, str]) -> PodView:
    """The pod with everything resolved. `services`: the service variables of its namespace. Raises Unresolved."""
    facts = _facts(pod, pod_ip, host_ip)
    volumes = {volume["name"]: await _volume_files(volume, pod, facts, references) for volume in pod["spec"].get("volumes") or []}
    containers = []
    for spec, init in container_specs(pod):
        env = await _environment(spec, pod, facts, references)
        containers.append(_container(spec, {**services, **env}, _mounted_files(spec, volumes), init))
    return _view(pod, pod_ip, containers)


def container_specs(pod: Object) -> list[tuple[Object, bool]]:
    """(container, is an init container) in the order in which they start."""
    spec = pod["spec"]
    return [*((row, True) for row in spec.get("initContainers") or []), *((row, False) for row in spec["containers"])]


def _view(pod: Object, pod_ip: str, containers: list[ContainerView]) -> PodView:
    metadata, spec = pod["metadata"], pod["spec"]
    host_name, subdomain = spec.get("hostname") or metadata["name"], spec.get("subdomain", "")
    index = index_of(pod)
    return PodView(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        node=spec.get("nodeName", ""),
        pod_ip=pod_ip,
        host_name=host_name,
        fqdn=f"{host_name}.{subdomain}.{metadata['namespace']}.svc.cluster.local" if subdomain else host_name,
        subdomain=subdomain,
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        containers=containers,
        job_completion_index=index if index >= 0 else None,
        manifest=pod,
    )


def _container(spec: Object, env: dict[str, str], files: dict[str, str], init: bool) -> ContainerView:
    resources = spec.get("resources") or {}
    return ContainerView(
        name=spec["name"],
        image=spec.get("image", ""),
        command=[expand(text, env) for text in spec.get("command") or []],
        args=[expand(text, env) for text in spec.get("args") or []],
        env=env,
        files=files,
        limits={name: str(value) for name, value in (resources.get("limits") or {}).items()},
        requests={name: str(value) for name, value in (resources.get("requests") or {}).items()},
        init=init,
    )


def expand(text: str, env: t.Mapping[str, str]) -> str:
    """`$(NAME)` by its value; an unknown name stays as it is, `$$` is a literal dollar."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return env.get(match[1], match[0])

    return _VARIABLE.sub(value, text)


# -- environment


async def _environment(spec: Object, pod: Object, facts: t.Mapping[str, str], references: References) -> dict[str, str]:
    env: dict[str, str] = {}
    for source in spec.get("envFrom") or []:
        kind = "ConfigMap" if source.get("configMapRef") else "Secret"
        wanted = source.get("configMapRef") or source.get("secretRef") or {}
        data = await references.data(kind, pod["metadata"]["namespace"], wanted.get("name", ""))
        if data is None and not wanted.get("optional"):
            raise Unresolved(f'{kind.lower()} "{wanted.get("name")}" not found')
        env.update({source.get("prefix", "") + key: value for key, value in (data or {}).items()})
    for row in spec.get("env") or []:
        value = await _variable(row, spec, pod, facts, references, env)
        if value is not None:
            env[row["name"]] = value
    return env


async def _variable(
    row: Object, spec: Object, pod: Object, facts: t.Mapping[str, str], references: References, env: t.Mapping[str, str]
) -> str | None:
    source = row.get("valueFrom")
    if not source:
        return expand(row.get("value") or "", env)
    if source.get("fieldRef"):
        return field_value(source["fieldRef"]["fieldPath"], pod, facts)
    if source.get("resourceFieldRef"):
        return _resource_field(source["resourceFieldRef"], spec, pod)
    kind = "ConfigMap" if source.get("configMapKeyRef") else "Secret"
    wanted = source.get("configMapKeyRef") or source.get("secretKeyRef") or {}
    namespace = pod["metadata"]["namespace"]
    data = await references.data(kind, namespace, wanted.get("name", ""))
    if data is not None and wanted.get("key") in data:
        return data[wanted["key"]]
    if wanted.get("optional"):
        return None
    if data is None:
        raise Unresolved(f'{kind.lower()} "{wanted.get("name")}" not found')
    raise Unresolved(f"couldn't find key {wanted.get('key')} in {kind} {namespace}/{wanted.get('name')}")


def _facts(pod: Object, pod_ip: str, host_ip: str) -> dict[str, str]:
    metadata, spec = pod["metadata"], pod["spec"]
    return {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.hostIP": host_ip,
        "status.hostIPs": host_ip,
        "status.podIP": pod_ip,
        "status.podIPs": pod_ip,
    }


def field_value(path: str, pod: Object, facts: t.Mapping[str, str]) -> str:
    """A downward API field: one of `facts`, `metadata.labels['key']`, `metadata.annotations['key']` or all of them."""
    match = re.fullmatch(r"metadata\.(labels|annotations)(?:\['(.+)'\])?", path)
    if match is None:
        return facts.get(path, "")
    rows: dict[str, str] = pod["metadata"].get(match[1]) or {}
    if match[2]:
        return rows.get(match[2], "")
    return "\n".join(f'{key}="{value}"' for key, value in sorted(rows.items()))


def _resource_field(wanted: Object, spec: Object, pod: Object) -> str:
    name = wanted.get("containerName")
    for other, _init in container_specs(pod):
        if name and other["name"] == name:
            spec = other
    kind, _dot, resource = wanted["resource"].partition(".")
    return str(((spec.get("resources") or {}).get(kind) or {}).get(resource, "0"))


# -- files


async def _volume_files(volume: Object, pod: Object, facts: t.Mapping[str, str], references: References) -> dict[str, str]:
    """Relative path -> text of one volume; empty for volumes that hold no API data."""
    sources = (volume.get("projected") or {}).get("sources") or [volume]
    files: dict[str, str] = {}
    for source in sources:
        files.update(await _source_files(source, volume["name"], pod, facts, references))
    return files


async def _source_files(source: Object, volume: str, pod: Object, facts: t.Mapping[str, str], references: References) -> dict[str, str]:
    if source.get("downwardAPI"):
        rows = source["downwardAPI"].get("items") or []
        return {row["path"]: field_value(row["fieldRef"]["fieldPath"], pod, facts) for row in rows if row.get("fieldRef")}
    wanted = source.get("configMap") or source.get("secret")
    if not wanted:
        return {}
    kind = "ConfigMap" if source.get("configMap") else "Secret"
    name, namespace = wanted.get("secretName") or wanted.get("name", ""), pod["metadata"]["namespace"]
    data = await references.data(kind, namespace, name)
    if data is None:
        if wanted.get("optional"):
            return {}
        raise Unresolved(f'{kind.lower()} "{name}" not found', volume)
    items = wanted.get("items")
    if not items:
        return data
    missing = [row["key"] for row in items if row["key"] not in data]
    if missing and not wanted.get("optional"):
        raise Unresolved(f"references non-existent {'config' if kind == 'ConfigMap' else 'secret'} key: {missing[0]}", volume)
    return {row["path"]: data[row["key"]] for row in items if row["key"] in data}


def _mounted_files(spec: Object, volumes: t.Mapping[str, dict[str, str]]) -> dict[str, str]:
    files: dict[str, str] = {}
    for mount in spec.get("volumeMounts") or []:
        held, target, sub = volumes.get(mount["name"]) or {}, mount["mountPath"].rstrip("/"), mount.get("subPath", "").strip("/")
        for path, text in held.items():
            if not sub:
                files[f"{target}/{path}"] = text
            elif path == sub:
                files[target] = text
            elif path.startswith(f"{sub}/"):
                files[target + path[len(sub) :]] = text
    return files
