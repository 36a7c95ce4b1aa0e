# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The files of a run directory: written whole or not at all, checksummed, free of secrets.

MANIFEST.sha256 lists every file with its SHA-256, sorted, in the format of sha256sum, so that
`sha256sum -c MANIFEST.sha256` checks an archive without this collection.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import typing as t
from pathlib import Path

from .._common.errors import InputError
from .._common.plain import finite

MANIFEST = "MANIFEST.sha256"
REMOVED = "(removed)"
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
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
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


def write_manifest(run_dir: str | Path) -> Path:
    """Write the checksums of every file of a run directory; call it last. Returns the manifest's path."""
    root = Path(run_dir)
    lines = [f"{_digest(root / name)}  {name}" for name in _files(root)]
    write_text(root / MANIFEST, "".join(f"{line}\n" for line in lines))
    return root / MANIFEST


def verify_manifest(run_dir: str | Path) -> list[str]:
    """What is wrong with an archive: changed, missing and unlisted files; an empty list when it is whole."""
    root = Path(run_dir)
    try:
        text = (root / MANIFEST).read_text(encoding="utf-8")
    except OSError as error:
        return [f"{root / MANIFEST}: cannot be read: {error.strerror}"]
    listed: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        digest, separator, name = line.partition("  ")
        if not separator or not re.fullmatch(r"[0-9a-f]{64}", digest) or name.startswith("/") or ".." in Path(name).parts:
            problems.append(f"{MANIFEST} line {number}: not a checksum and a file name")
        else:
            listed[name] = digest
    present = set(_files(root))
    problems += [f"{name}: missing" for name in sorted(set(listed) - present)]
    problems += [f"{name}: not in the manifest" for name in sorted(present - set(listed))]
    problems += [f"{name}: changed" for name in sorted(present & set(listed)) if _digest(root / name) != listed[name]]
    return problems


def point_latest(run_dir: str | Path) -> None:
    """Make `latest` beside the run directory a relative link to it, replaced in one step.

    A file system without links gets a text file with the name instead.
    """
    root = Path(run_dir)
    link, fresh = root.parent / "latest", root.parent / f".latest.{os.getpid()}"
    fresh.unlink(missing_ok=True)
    try:
        fresh.symlink_to(root.name)
    except (OSError, NotImplementedError):
        write_text(link, f"{root.name}\n")
        return
    os.replace(fresh, link)


def _is_secret(key: t.Any, item: t.Any) -> bool:
    return isinstance(item, str) and bool(item) and bool(_SECRET_KEYS.search(str(key)))


def _files(root: Path) -> list[str]:
    """Relative names of every file but the manifest and half-written ones, sorted."""
    names = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(name for name in names if name != MANIFEST and not name.startswith(f".{MANIFEST}."))


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
