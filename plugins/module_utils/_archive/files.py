# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Files of the archive: written whole or not at all, free of secrets."""

from __future__ import annotations

import json
import os
import re
import tempfile
import typing as t
from pathlib import Path

from .._common.errors import InputError
from .._common.plain import finite

REMOVED = "(removed)"
LOCK = ".lock"
# What a killed process may leave: files that would have been renamed, and logs that it was still reading.
_HALF_WRITTEN = re.compile(r"^\..*\.tmp$|\.log(\.part)?\.new$|\.log\.part$")
_SECRET_KEYS = re.compile(
    r"(^|[-_.])(token|password|passwd|secret|api[-_]?key|private[-_]?key|client[-_]?key([-_]?data)?|client[-_]?certificate[-_]?data|authorization)$"
    r"|^(idToken|id-token|refresh-token|access-token|token[-_]?data|tokenFile|clientKeyData|clientCertificateData|privateKey|apiKey)$",
    re.IGNORECASE,
)
_SECRET_TEXT = (
    re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\bBearer\s+[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(r"(?im)(?<=client-key-data: )\S+|(?<=client-certificate-data: )\S+|(?<=token: )\S+|(?<=password: )\S+"),
)


def write_text(path: str | Path, text: str) -> None:
    """Replace a file at once: readers see the old content or the new one, also after a crash."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_directory(target.parent)


def is_half_written(path: str | Path) -> bool:
    """Whether a file is no part of an archive, since whoever wrote it was not done."""
    return bool(_HALF_WRITTEN.search(Path(path).name))


def sweep_half_written(root: str | Path) -> None:
    """Removes what a killed process left half written. Only for whoever holds the lock of the directory."""
    for path in Path(root).rglob("*"):
        if is_half_written(path) and path.is_file():
            path.unlink(missing_ok=True)


def dump(data: t.Any) -> str:
    """JSON text as the archive keeps it: sorted keys, indent 2, no NaN, no secret."""
    return json.dumps(finite(redact(data)), sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: str | Path, data: t.Any) -> None:
    """`dump` to a file, atomically and synced."""
    write_text(path, dump(data))


def read_json(path: str | Path) -> t.Any:
    """The content of a JSON file of the archive. Raises InputError naming the file."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=str(path)) from error
    except ValueError as error:
        raise InputError(f"is not JSON: {error}", place=str(path), hint="Check the archive with its manifest") from error


def redact(value: t.Any) -> t.Any:
    """The same structure without what looks like a credential: by key, and inside texts."""
    if isinstance(value, dict):
        return {key: REMOVED if _is_secret(key, item) else redact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(item) for item in value]
    return redact_text(value) if isinstance(value, str) else value


def redact_text(text: str) -> str:
    """A text without private keys, bearer tokens, passwords in addresses and kubeconfig credentials."""
    for pattern in _SECRET_TEXT:
        text = pattern.sub(REMOVED, text)
    return text


def _is_secret(key: t.Any, item: t.Any) -> bool:
    return isinstance(item, str) and bool(item) and bool(_SECRET_KEYS.search(str(key)))


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
