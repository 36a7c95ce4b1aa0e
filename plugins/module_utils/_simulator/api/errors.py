# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""API errors and the Status bodies that carry them, worded as a Kubernetes API server words them."""

from __future__ import annotations

import json
import typing as t


class ApiError(Exception):
    """An error answer: HTTP code, machine-readable reason, message and details of a Status object."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, t.Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def body(self) -> dict[str, t.Any]:
        """The Status object."""
        status: dict[str, t.Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            status["details"] = self.details
        return status


class FieldError(t.NamedTuple):
    """One cause of an Invalid answer. reason is the API's, such as FieldValueInvalid."""

    field: str
    reason: str
    message: str


_WORDS = {
    "FieldValueInvalid": "Invalid value",
    "FieldValueRequired": "Required value",
    "FieldValueNotSupported": "Unsupported value",
    "FieldValueDuplicate": "Duplicate value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueTooLong": "Too long",
    "FieldValueTypeInvalid": "Invalid value",
    "FieldValueNotFound": "Not found",
}


def _show(value: t.Any) -> str:
    return json.dumps(value, default=str)


def invalid_value(field: str, value: t.Any, message: str) -> FieldError:
    """A value of the right type that is not acceptable."""
    return FieldError(field, "FieldValueInvalid", f"{_show(value)}: {message}")


def required(field: str, message: str = "") -> FieldError:
    """A missing value."""
    return FieldError(field, "FieldValueRequired", message)


def unsupported(field: str, value: t.Any, allowed: t.Iterable[str]) -> FieldError:
    """A value outside an enumeration."""
    choices = ", ".join(f'"{item}"' for item in sorted(allowed))
    return FieldError(field, "FieldValueNotSupported", f"{_show(value)}: supported values: {choices}")


def duplicate(field: str, value: t.Any) -> FieldError:
    """A second use of a value that must be unique."""
    return FieldError(field, "FieldValueDuplicate", _show(value))


def forbidden_field(field: str, message: str) -> FieldError:
    """A field that may not be set, or not be changed."""
    return FieldError(field, "FieldValueForbidden", message)


def _qualified(group: str, word: str) -> str:
    return f"{word}.{group}" if group else word


def not_found(group: str, plural: str, name: str) -> ApiError:
    """404 of one object."""
    message = f'{_qualified(group, plural)} "{name}" not found'
    return ApiError(404, "NotFound", message, _details(group, plural, name))


def already_exists(group: str, plural: str, name: str) -> ApiError:
    """409 of a create."""
    message = f'{_qualified(group, plural)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, _details(group, plural, name))


def conflict(group: str, plural: str, name: str, why: str) -> ApiError:
    """409 of an update."""
    message = f'Operation cannot be fulfilled on {_qualified(group, plural)} "{name}": {why}'
    return ApiError(409, "Conflict", message, _details(group, plural, name))


def invalid(group: str, kind: str, name: str, errors: t.Sequence[FieldError]) -> ApiError:
    """422 with one cause per field."""
    causes = []
    for error in errors:
        text = f"{_WORDS[error.reason]}: {error.message}" if error.message else _WORDS[error.reason]
        causes.append({"reason": error.reason, "message": text, "field": error.field})
    lines = [f"{cause['field']}: {cause['message']}" for cause in causes]
    joined = lines[0] if len(lines) == 1 else "[" + ", ".join(lines) + "]"
    message = f'{_qualified(group, kind)} "{name}" is invalid: {joined}'
    return ApiError(422, "Invalid", message, {**_details(group, kind, name), "causes": causes})


def forbidden(group: str, plural: str, name: str, why: str) -> ApiError:
    """403 of admission."""
    message = f'{_qualified(group, plural)} "{name}" is forbidden: {why}' if name else f"{_qualified(group, plural)} is forbidden: {why}"
    return ApiError(403, "Forbidden", message, _details(group, plural, name))


def bad_request(message: str) -> ApiError:
    """400."""
    return ApiError(400, "BadRequest", message)


def expired(message: str = "The resourceVersion for the provided watch is too old.") -> ApiError:
    """410: the history asked for is gone; list again."""
    return ApiError(410, "Expired", message)


def no_such_path() -> ApiError:
    """404 of a path that names nothing."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def method_not_allowed() -> ApiError:
    """405."""
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def unsupported_media_type(content_type: str, accepted: t.Sequence[str]) -> ApiError:
    """415."""
    message = f"the body of the request was in an unknown format ({content_type}) - accepted media types include: {', '.join(accepted)}"
    return ApiError(415, "UnsupportedMediaType", message)


def _details(group: str, kind: str, name: str) -> dict[str, t.Any]:
    details: dict[str, t.Any] = {"kind": kind}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    return details
