# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What an answer of the API must be to be one: whatever else comes with status 200 proves nothing."""

from __future__ import annotations

import typing as t


class Shape(t.NamedTuple):
    """name: in words, for the message "the answer is no …". holds: whether a JSON object is of this shape."""

    name: str
    holds: t.Callable[[dict[str, t.Any]], bool]


def with_objects(key: str) -> Shape:
    """A document with a list of objects under this key."""
    return Shape(f"document with {key}", lambda answer: _are_objects(answer.get(key)))


def _is_object(answer: t.Any) -> bool:
    metadata = answer.get("metadata") if isinstance(answer, dict) else None
    return isinstance(metadata, dict) and isinstance(metadata.get("name"), str)


def _are_objects(items: t.Any) -> bool:
    return isinstance(items, list) and all(isinstance(item, dict) for item in items)


def _is_list(answer: dict[str, t.Any]) -> bool:
    """Its items are there, if only none, and each is an object."""
    items = answer.get("items", ...)
    return isinstance(answer.get("metadata"), dict) and (items is None or isinstance(items, list) and all(map(_is_object, items)))


def _is_review(answer: dict[str, t.Any]) -> bool:
    status = answer.get("status")
    return isinstance(status, dict) and isinstance(status.get("allowed"), bool)


ANY = Shape("JSON object", lambda _answer: True)
OBJECT = Shape("object with a name", _is_object)
LIST = Shape("list of objects", _is_list)
DELETED = Shape("answer to a deletion", lambda answer: answer.get("kind") == "Status" or _is_object(answer))
REVIEW = Shape("access review", _is_review)
