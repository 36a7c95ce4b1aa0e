# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a request carries: its body, and the options in its query."""

from __future__ import annotations

import typing as t

from . import protobuf
from .deps import orjson, web
from .errors import ApiError, bad_request, invalid, unsupported, unsupported_media_type
from .objects import Object
from .options import Options

_MAX_BODY = 3 * 1024 * 1024
_BODY_TYPES = ("application/json", "application/yaml")
_TRUE = ("true", "True", "1")


def is_true(text: str | None) -> bool:
    """A boolean of a query: clients write true, True and 1."""
    return text in _TRUE


async def raw_body(request: web.BaseRequest) -> bytes:
    """The bytes of the body. Raises 413 when there are too many."""
    if (request.content_length or 0) > _MAX_BODY:
        raise ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {_MAX_BODY}")
    return await request.content.read() if request.can_read_body else b""


async def read_body(request: web.BaseRequest) -> t.Any:
    """The object in the body: JSON, YAML or protobuf. Raises 400, 413 or 415."""
    content_type = request.content_type
    if content_type == protobuf.MEDIA_TYPE:
        return _from_protobuf(await raw_body(request))
    # A body without a type is read as JSON, as the real server does.
    if "Content-Type" in request.headers and content_type not in _BODY_TYPES:
        raise unsupported_media_type(content_type, _BODY_TYPES)
    return parse(await raw_body(request), yaml=content_type == "application/yaml")


def _from_protobuf(raw: bytes) -> Object:
    try:
        found = protobuf.decode(raw)
    except ValueError as error:
        raise bad_request(f"error decoding protobuf: {error}") from error
    if found is None:
        raise unsupported_media_type(protobuf.MEDIA_TYPE, _BODY_TYPES)
    return found


def parse(raw: bytes, *, yaml: bool) -> t.Any:
    """JSON, or with `yaml` either. Raises 400."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if not yaml:
            raise bad_request(f"couldn't get version/kind; json parse error: {error}") from error
    import yaml as yaml_library

    try:
        return yaml_library.safe_load(raw)
    except yaml_library.YAMLError as error:
        raise bad_request(f"error decoding YAML: {error}") from error


def read_options(request: web.BaseRequest, options: Options) -> None:
    """Fill in what the query of a write asks for. Raises 422."""
    query = request.query
    dry_run = query.getall("dryRun", [])
    if any(value != "All" for value in dry_run if value):
        error = unsupported("dryRun", dry_run, ("All",))
        raise invalid("meta.k8s.io", "Options", "", [error])
    options.dry_run = "All" in dry_run
    validation = query.get("fieldValidation") or "Warn"
    if validation not in ("Strict", "Warn", "Ignore"):
        error = unsupported("fieldValidation", validation, ("Ignore", "Strict", "Warn"))
        raise invalid("meta.k8s.io", "Options", "", [error])
    options.validation = validation
    options.force = is_true(query.get("force"))
    agent = request.headers.get("User-Agent", "")
    options.manager = query.get("fieldManager") or agent.partition("/")[0] or "unknown"


async def read_delete_options(request: web.BaseRequest) -> Object:
    """DeleteOptions from the body, completed by the query. Raises 400, 413 or 415."""
    options: Object = {}
    raw = await raw_body(request)
    if request.content_type == protobuf.MEDIA_TYPE and raw:
        options = _from_protobuf(raw)
    elif raw.strip():
        parsed = parse(raw, yaml=request.content_type == "application/yaml")
        options = parsed if isinstance(parsed, dict) else {}
    query = request.query
    if "gracePeriodSeconds" in query:
        if not query["gracePeriodSeconds"].lstrip("-").isdigit():
            raise bad_request(f'strconv.ParseInt: parsing "{query["gracePeriodSeconds"]}": invalid syntax')
        options["gracePeriodSeconds"] = int(query["gracePeriodSeconds"])
    if "propagationPolicy" in query:
        options["propagationPolicy"] = query["propagationPolicy"]
    return options
