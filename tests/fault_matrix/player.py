# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Plays of the same collection, one after another, each in a process of its own.

    python tests/fault_matrix/player.py

Reads one JSON line {arguments, folder, log, limit_s} for each play and answers with {status, seconds}; status null: it did
not end in time. What every play imports is imported once, and each play is a fork: half of a short play's time is imports.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import typing as t
import warnings

IMPORTED = ("ansible.cli.playbook", "ansible.executor.process.worker", "ansible.plugins.strategy.linear", "kubernetes.config")
# What each task of ours imports; kubernetes and the CEL engine among it are imported late.
ACTIONS = ("category_judge", "certification_plan", "certification_report", "cluster_preflight", "gpu_cluster_info", "workload_batch")
LATE = ("celpy", "cryptography.hazmat.primitives.asymmetric.ed25519", "kubernetes.client.rest")
# After this much longer a play that was asked to end is killed.
END_S = 30.0


def main() -> int:
    """Serves until standard input ends."""
    for name in IMPORTED:
        importlib.import_module(name)
    _find_collections()
    for name in (*(f"ansible_collections.gpu_cluster.readiness.plugins.action.{action}" for action in ACTIONS), *LATE):
        importlib.import_module(name)
    for line in sys.stdin:
        _say(play(json.loads(line)))
    return 0


def _find_collections() -> None:
    """Sets up ansible-core's importer of collections; each play would set it up again, and says so."""
    from ansible.plugins.loader import init_plugin_loader

    init_plugin_loader()
    warnings.filterwarnings("ignore", message="AnsibleCollectionFinder has already been configured")


def play(order: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Runs one play to its end, or ends it."""
    started = time.monotonic()
    child = os.fork()
    if not child:
        _run(order)
    status = _wait(child, order["limit_s"])
    for number in (signal.SIGINT, signal.SIGKILL):
        if status is not None:
            break
        os.kill(child, number)
        if _wait(child, END_S) is not None:
            break
    return {"status": status, "seconds": round(time.monotonic() - started, 1)}


def _wait(child: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    return None


def _run(order: t.Mapping[str, t.Any]) -> t.NoReturn:
    """In the fork: becomes ansible-playbook. Never returns."""
    code = 250
    try:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.chdir(order["folder"])
        sys.argv = ["ansible-playbook", *order["arguments"]]
        from ansible.cli.playbook import PlaybookCLI

        PlaybookCLI.cli_executor(sys.argv)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _say(answer: t.Mapping[str, t.Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
