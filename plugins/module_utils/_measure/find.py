# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Logs given by path: which files, of which kind, and what they prove."""

from __future__ import annotations

import os
import typing as t

from .._common.errors import InputError, unknown_value
from .._common.shapes import Measurement
from .detect import detect_kind
from .measurement import KINDS, measure, measurement

LOG_SUFFIXES = (".log", ".txt", ".json", ".out", ".err", ".stdout", ".gz", "")
MAX_FILES = 10_000

Log = dict[str, t.Any]


def find_logs(logs: t.Any, kind: str = "auto", *, together: bool = False) -> dict[str, t.Any]:
    """The logs a path, or a list of paths, stands for.

    logs:     a file, a directory (searched below, names sorted; files that are no logs are skipped) or a list of them.
    kind:     a key of `KINDS`, or auto.
    together: all files are parts of one log, in the order given (a training run that was restarted).

    Returns {logs: [{name, paths, kind}], notes: [what was skipped]}. Raises InputError when a path cannot be read or
    nothing is left.
    """
    if kind != "auto" and kind not in KINDS:
        raise unknown_value("kind of measurement", kind, ["auto", *KINDS], "kind")
    files = _named(logs)
    if not files:
        raise InputError("holds no log", place=str(logs), hint=f"Names end in {', '.join(filter(None, LOG_SUFFIXES))}")
    if together:
        paths = [path for path, _explicit in files]
        found = detect_kind(paths) if kind == "auto" else kind
        return {"logs": [{"name": os.path.basename(paths[0]), "paths": paths, "kind": found}], "notes": []}
    return _each(files, kind, str(logs))


def measure_logs(logs: t.Sequence[Log], context: t.Mapping[str, t.Any]) -> list[Log]:
    """`measure` for each log of `find_logs`: {name, paths, kind, exit_code, measurement}.

    One of several logs that cannot be read is incomplete; the only one raises InputError, as a wrong context does.
    """
    return [{**log, "exit_code": context.get("exit_code"), "measurement": _measured(log, context, len(logs) > 1)} for log in logs]


def _measured(log: Log, context: t.Mapping[str, t.Any], one_of_several: bool) -> Measurement:
    try:
        return measure(log["kind"], log["paths"], _context(log, context))
    except InputError as error:
        if not one_of_several or error.place not in log["paths"]:
            raise
        return measurement(log["kind"], "LogIncomplete", f"{log['name']}: {error.message}", complete=False)


def _context(log: Log, context: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """What is known of this kind of log; other kinds take no transport or sizes."""
    only = {"expect_transport": "nccl", "expected_sizes": "nccl", "judged_size": "nccl", "require_data_check": "nccl"}
    return {key: value for key, value in context.items() if only.get(key, log["kind"]) == log["kind"]}


def _each(files: list[tuple[str, bool]], kind: str, place: str) -> dict[str, t.Any]:
    found: list[Log] = []
    notes: list[str] = []
    names = _names([path for path, _explicit in files])
    for path, explicit in files:
        try:
            found.append({"name": names[path], "paths": [path], "kind": detect_kind([path]) if kind == "auto" else kind})
        except InputError as error:
            if explicit:
                raise
            notes.append(f"skipped {names[path]}: {error.message}")
    if not found:
        raise InputError("holds no log of a known kind", place=place, hint="Name the kind, for example kind=nccl")
    return {"logs": found, "notes": notes}


def _named(logs: t.Any) -> list[tuple[str, bool]]:
    """(path, whether it was named itself) of every file."""
    given = logs if isinstance(logs, list) else [logs]
    result: list[tuple[str, bool]] = []
    for item in given:
        if not isinstance(item, str) or not item.strip():
            raise InputError(f"expected the path of a log, got {item!r}", place="logs")
        path = os.path.abspath(os.path.expanduser(item))
        if os.path.isdir(path):
            result += [(name, False) for name in _below(path)]
        elif os.path.exists(path):
            _readable(path)
            result.append((path, True))
        else:
            raise InputError("does not exist", place=path, hint="Give the path of a log file or of a directory with logs")
    return result


def _below(directory: str) -> list[str]:
    paths: list[str] = []

    def refuse(error: OSError) -> None:
        raise InputError(f"cannot be read: {error.strerror}", place=str(error.filename or directory))

    for root, folders, names in os.walk(directory, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths += [os.path.join(root, name) for name in sorted(names) if _is_log(name)]
        if len(paths) > MAX_FILES:
            raise InputError(f"holds more than {MAX_FILES} logs", place=directory, hint="Name a smaller directory")
    return paths


def _is_log(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in LOG_SUFFIXES


def _readable(path: str) -> None:
    if not os.path.isfile(path):
        raise InputError("is not a file", place=path)
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=path) from error


def _names(paths: list[str]) -> dict[str, str]:
    """Short names that stay different: the part of the path that is not common to all."""
    base = os.path.dirname(paths[0]) if len(paths) == 1 else os.path.commonpath([os.path.dirname(path) for path in paths])
    return {path: os.path.relpath(path, base) for path in paths}
