# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Answers on their way to the client."""

from __future__ import annotations

import typing as t

from .deps import orjson, web
from .errors import ApiError


class Answer(t.NamedTuple):
    """A finished answer: code and JSON."""

    code: int
    body: bytes


def of_error(error: ApiError) -> Answer:
    """The Status of an error."""
    return Answer(error.code, orjson.dumps(error.body()))


def response(answer: Answer, warnings: t.Sequence[str]) -> web.Response:
    """The answer with one Warning header for each different text."""
    made = web.Response(status=answer.code, body=answer.body, content_type="application/json")
    for text in dict.fromkeys(warnings):
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        made.headers.add("Warning", f'299 - "{escaped}"')
    return made
