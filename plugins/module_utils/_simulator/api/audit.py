# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The audit log: one JSON line per request, for tests that prove what was written by whom."""

from __future__ import annotations

import typing as t

from .deps import orjson


class Audit:
    """Appends to a file; does nothing without a path."""

    def __init__(self, path: str | None) -> None:
        self._file: t.BinaryIO | None = open(path, "ab", buffering=0) if path else None  # noqa: SIM115  closed by close()

    @property
    def enabled(self) -> bool:
        """Whether anything is written."""
        return self._file is not None

    def write(self, verb: str, resource: str, namespace: str, name: str, user_agent: str, status: int) -> None:
        """One request. resource carries its subresource: pods/status."""
        if self._file is not None:
            line = {"verb": verb, "resource": resource, "namespace": namespace, "name": name, "user_agent": user_agent, "status": status}
            self._file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
