# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From the body of a request to an object of its kind: types checked, unknown fields dropped or refused."""

from __future__ import annotations

import typing as t

from . import event_views, structural
from .errors import FieldError, bad_request, required
from .objects import Object
from .options import Options
from .resources import CustomKind, Resource
from .schema import OBJECT_META, BuiltInTypes, Findings, drop_nulls, drop_path, path_text
from .validation.other_kinds import secret_data_problem

# Validation reports a container without a name together with its other errors.
_CHECKED_FOR_MISSING_FIELDS = ("Pod", "Job", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")


class Decoder:
    """Reads bodies by the types of one server."""

    def __init__(self, types: BuiltInTypes) -> None:
        self._types = types

    def decode(self, resource: Resource, body: t.Any, options: Options) -> tuple[Object, list[FieldError]]:
        """A body as an object of the kind, without kind and apiVersion. Returns it with the fields it lacks.

        Raises 400 for a wrong type, and for unknown fields under Strict validation.
        """
        obj = _without_type(resource, body)
        if resource.custom is not None:
            self._decode_custom(resource, resource.custom, obj, options)
            missing: list[FieldError] = []
        else:
            missing = self._decode_built_in(resource, obj, options)
        if resource.group == "events.k8s.io":
            obj = event_views.to_core(obj)
        return obj, missing

    def applied(self, resource: Resource, namespace: str, name: str, config: Object, options: Options) -> Object:
        """The configuration of a server-side apply, changed in place and checked for unknown fields before anything merges. Raises 400."""
        obj = _without_type(resource, config)
        metadata = obj["metadata"]
        if metadata.get("name", name) != name:
            raise bad_request("metadata.name must match the name on the URL")
        metadata["name"] = name
        if namespace:
            metadata["namespace"] = namespace
        if resource.custom is not None:
            drop_nulls(metadata)
            _report_unknown(structural.prune(obj, resource.custom.schema, root=True), options)
        else:
            self._decode_built_in(resource, obj, options)
        return {"kind": resource.kind, "apiVersion": resource.api_version, **obj}

    def _decode_built_in(self, resource: Resource, obj: Object, options: Options) -> list[FieldError]:
        drop_nulls(obj)
        name = self._types.names.get((resource.group, resource.version, resource.kind))
        if name is None:
            return []
        findings = self._types.check(name, obj)
        if findings.types:
            where, message = findings.types[0]
            raise bad_request(f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {where}: {message}')
        _report_unknown(findings.unknown, options)
        _drop_unknown(findings, obj)
        if resource.kind == "Secret" and (problem := secret_data_problem(obj)):
            raise bad_request(f'Secret in version "v1" cannot be handled as a Secret: {problem}')
        return [] if resource.kind in _CHECKED_FOR_MISSING_FIELDS else [required(where) for where, _message in findings.missing]

    def _decode_custom(self, resource: Resource, custom: CustomKind, obj: Object, options: Options) -> None:
        drop_nulls(obj["metadata"])
        findings = self._types.check(OBJECT_META, obj["metadata"])
        if findings.types:
            where, message = findings.types[0]
            raise bad_request(f"{resource.kind} cannot be handled: metadata.{where}: {message}")
        _drop_unknown(findings, obj["metadata"])
        dropped = [("metadata", *path) for path in findings.unknown] + custom.clean(obj)
        _report_unknown(dropped, options)


def _without_type(resource: Resource, body: t.Any) -> Object:
    """A body without kind and apiVersion, which must be those of the path. Raises 400."""
    if not isinstance(body, dict):
        raise bad_request(f"the body is not a {resource.kind} object")
    obj = dict(body)
    if resource.custom is not None and not obj.get("kind"):  # of a built-in kind the path is enough
        raise bad_request(f"the object provided is unrecognized (must be of type {resource.kind}): Object 'Kind' is missing")
    kind, api_version = obj.pop("kind", None) or resource.kind, obj.pop("apiVersion", None) or resource.api_version
    if (kind, api_version) != (resource.kind, resource.api_version):
        wanted = f"{resource.api_version}, Kind={resource.kind}"
        raise bad_request(f"the object provided is {api_version}, Kind={kind}; this path takes {wanted}")
    if obj.get("metadata") is None:
        obj["metadata"] = {}
    return obj


def _drop_unknown(findings: Findings, obj: Object) -> None:
    for path in findings.unknown:
        drop_path(obj, path)


def _report_unknown(paths: t.Sequence[tuple[t.Any, ...]], options: Options) -> None:
    texts = [f'unknown field "{path_text(path)}"' for path in paths]
    if texts and options.validation == "Strict":
        raise bad_request(f"strict decoding error: {', '.join(texts)}")
    if options.validation == "Warn":
        options.warnings += texts
