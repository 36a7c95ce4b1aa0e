# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The manifest of a finished archive.

MANIFEST.sha256 lists every file with its SHA-256, sorted, in the format of sha256sum, so that `sha256sum -c MANIFEST.sha256` checks an
archive without this collection. An archive with a manifest is sealed: whoever goes on in it verifies and opens it first.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from .._common.errors import InputError
from .files import LOCK, is_half_written, write_text

MANIFEST = "MANIFEST.sha256"
# Views of the rest: a rebuild makes them anew, whatever became of them.
VIEWS = frozenset({"report.json", "report.txt"})


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
    # What is half written now may be listed by a manifest of an earlier version.
    present = set(_files(root)) | {name for name in listed if (root / name).is_file()}
    problems += [f"{name}: missing" for name in sorted(set(listed) - present)]
    problems += [f"{name}: not in the manifest" for name in sorted(present - set(listed))]
    problems += [f"{name}: changed" for name in sorted(present & set(listed)) if _digest(root / name) != listed[name]]
    return problems


def is_sealed(run_dir: str | Path) -> bool:
    """Whether a manifest says that the archive is finished."""
    return (Path(run_dir) / MANIFEST).exists()


def check_sealed(run_dir: str | Path) -> None:
    """Raises InputError when a sealed archive is no longer what it was; files that came after it are no harm, views are made anew."""
    if not is_sealed(run_dir):
        return
    problems = [item for item in verify_manifest(run_dir) if not item.endswith("not in the manifest")]
    problems = [item for item in problems if item.partition(":")[0] not in VIEWS]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise InputError(
            f"the archive was changed after it was finished: {'; '.join(problems[:3])}{more}",
            place=str(run_dir),
            hint=f"Take an unchanged copy; sha256sum -c {MANIFEST} lists every file. Whoever trusts it as it is removes {MANIFEST}",
        )


def unseal(run_dir: str | Path) -> None:
    """Opens an archive to go on in it: a sealed one is verified (InputError), and is no longer sealed."""
    check_sealed(run_dir)
    (Path(run_dir) / MANIFEST).unlink(missing_ok=True)


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


def _files(root: Path) -> list[str]:
    """Relative names of every file but the manifest, the lock and half-written ones, sorted."""
    found = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink() and not is_half_written(path))
    return sorted(name for path in found if (name := path.relative_to(root).as_posix()) not in (MANIFEST, LOCK))


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
