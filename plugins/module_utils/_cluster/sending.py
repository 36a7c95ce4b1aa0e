# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""One request to the API server: sent with the one retry policy, answered with success or with a ClusterError that says what to do."""

from __future__ import annotations

import contextlib
import dataclasses
import email.utils
import json
import re
import time
import typing as t
from collections.abc import Mapping
from urllib.parse import urlencode

from .._common.errors import ClusterError
from .answers import ANY, Shape
from .auth import Transport, without_credentials
from .hints import hint_for, hint_for_failure
from .retry import RetryPolicy, Tries, surely_not_stored, worth_retrying

MAX_WARNINGS = 50


class Expired(ClusterError):
    """The resource version is too old to continue from (410): list again."""


@dataclasses.dataclass
class Request:
    """What is asked of the API server.

    repeatable: it may be sent again when an earlier try may have been carried out. stream: the body is read by the caller.
    read_timeout_s: None for the sender's own. shape: what an answer must be to be one.
    in_doubt: receives a note for every try whose outcome is unknown.
    """

    method: str
    path: str
    query: Mapping[str, t.Any] | None = None
    body: t.Any = None
    content_type: str = "application/json"
    repeatable: bool = True
    stream: bool = False
    read_timeout_s: float | None = None
    shape: Shape = ANY
    in_doubt: list[str] = dataclasses.field(default_factory=list)

    @property
    def place(self) -> str:
        """Where an error of it happened."""
        return f"{self.method} {self.path}"


class Sender:
    """Sends requests over one transport. Safe to use from several threads."""

    def __init__(self, transport: Transport, retry: RetryPolicy, connect_timeout_s: float, read_timeout_s: float) -> None:
        self._transport, self._retry = transport, retry
        self.warnings: dict[str, None] = {}
        self.clock_ahead_s = 0.0  # the server's clock against ours, as its last answer told
        self._connect_timeout_s, self._read_timeout_s = connect_timeout_s, read_timeout_s

    @property
    def host(self) -> str:
        """The URL of the API server, without credentials."""
        return without_credentials(self._transport.host)

    def json(self, request: Request) -> dict[str, t.Any]:
        """The answer of a request. Raises ClusterError.

        One that is cut short, a page of a proxy, and one of another shape are none: the request is sent again where that is allowed.
        """
        tries = self._retry.tries()
        while True:
            answer = _decoded(self.send(request, tries))
            if answer is not None and request.shape.holds(answer):
                return answer
            if not tries.are_left or not request.repeatable:
                break
            request.in_doubt.append("no readable answer")
            tries.pause()
        wanted = ANY.name if answer is None else request.shape.name
        hint = "Is this address a Kubernetes API server, and nothing between that answers in its place?"
        raise ClusterError(f"the answer of {self.host} is no {wanted}", place=request.place, hint=hint)

    def send(self, request: Request, tries: Tries | None = None) -> t.Any:
        """The response of a request that was answered with success. tries: those that it may use up. Raises ClusterError."""
        tries = tries or self._retry.tries()
        url = f"{self._transport.host}{request.path}{_encode(request.query)}"
        data = None if request.body is None else json.dumps(request.body, separators=(",", ":")).encode()
        logged_in_again = False
        while True:
            last = not tries.are_left
            pool = self._transport.pool
            try:
                response = pool.request(
                    request.method,
                    url,
                    body=data,
                    headers=self._headers(request.content_type if data else None),
                    timeout=self._timeout(request.read_timeout_s),
                    retries=False,
                    redirect=False,
                    preload_content=not request.stream,
                )
            except failures() as error:
                last = not tries.are_left  # a time-out has used up patience
                unsent = _was_not_sent(error)
                if last or _is_certificate(error) or not (request.repeatable or unsent):
                    raise self.no_answer(request, error) from None
                if not unsent:
                    request.in_doubt.append("no answer")
                tries.pause()
                continue
            if response.status < 300:
                self._heed(response)
                return response
            status = _status_body(response)
            message = str(status.get("message") or "")
            if response.status == 401 and not logged_in_again and not last and self._transport.log_in_again(pool):
                logged_in_again = True
                continue
            quota_race = _quota_race(request.method, response.status, status)
            harmless = surely_not_stored(response.status, message) or quota_race
            again = worth_retrying(response.status, message) and (request.repeatable or harmless)
            if last or not (again or quota_race):
                raise self.error(request, response.status, status)
            if not harmless:
                request.in_doubt.append(str(response.status))
            tries.pause(response.headers.get("Retry-After"))

    def _heed(self, response: t.Any) -> None:
        """Keeps its time, and what it warns of, such as pods that a Job's namespace will refuse. Each warning once, a bounded number."""
        with contextlib.suppress(ValueError, TypeError):  # a proxy may strip it, or write what is no date
            self.clock_ahead_s = email.utils.parsedate_to_datetime(response.headers.get("Date")).timestamp() - time.time()
        for header in getattr(response.headers, "getlist", lambda _name: ())("Warning"):
            text = _warning(header)
            if text and len(self.warnings) < MAX_WARNINGS:
                self.warnings.setdefault(without_credentials(text))

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

    def error(self, request: Request, code: t.Any, status: Mapping[str, t.Any]) -> ClusterError:
        number = int(code) if str(code).isdigit() else None
        reason = str(status.get("reason") or "")
        message = str(status.get("message") or reason or f"the API server answered {number}")
        if number == 401 and "401" not in message:  # "Unauthorized" alone is not what people look for
            message = f"the API server answered 401: {message}"
        kind = Expired if number == 410 else ClusterError
        return kind(
            without_credentials(message),
            place=request.place,
            hint=hint_for(request.method, request.path, number, message),
            status=number,
            api_reason=reason,
        )

    def no_answer(self, request: Request, error: Exception) -> ClusterError:
        cause = without_credentials(str(error.__cause__ or error))
        return ClusterError(
            f"no answer from {self.host}: {type(error).__name__}: {cause}", place=request.place, hint=hint_for_failure(cause)
        )


def _decoded(response: t.Any) -> dict[str, t.Any] | None:
    """The body of an answer; None when it is no JSON object."""
    try:
        answer = json.loads(response.data)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _warning(header: str) -> str:
    """The text of a Warning header: `299 - "text"`."""
    quoted = re.search(r'"((?:[^"\\]|\\.)*)"', header)
    return re.sub(r"\\(.)", r"\1", quoted.group(1)) if quoted else header.strip()


def _encode(query: Mapping[str, t.Any] | None) -> str:
    """The query string; None and "" are left out, booleans are spelled the way Kubernetes reads them."""
    pairs = [
        (key, str(value).lower() if isinstance(value, bool) else value) for key, value in (query or {}).items() if value not in (None, "")
    ]
    return f"?{urlencode(pairs)}" if pairs else ""


def failures() -> tuple[type[Exception], ...]:
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
    except failures():
        data = b""
    try:
        body = json.loads(data)
        if isinstance(body, dict):
            return body
    except ValueError:
        pass
    text = " ".join(data.decode("utf-8", errors="replace").split())[:200]
    return {"message": text or f"the API server answered {response.status} {response.reason or ''}".rstrip(), "reason": ""}
