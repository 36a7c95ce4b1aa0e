# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start and stop a simulated cluster as a process of its own.

Beside the kubeconfig PATH lie PATH.state.json (written by the running cluster when it is ready, removed when it stops), PATH.log and, for a
definition given as data, PATH.definition.json. A process is recognised by its pid *and* by the token in its command line, so nothing
else is ever stopped, also when the pid has been reused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import typing as t
from pathlib import Path

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError, InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware.definition import load

PACKAGE = "ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator"
_TAIL_LINES = 20


@dataclasses.dataclass(frozen=True)
class Running:
    """A running simulated cluster."""

    pid: int
    token: str
    kubeconfig: str
    nodes: int
    digest: str


class Launcher:
    """Starts and stops the cluster that belongs to one kubeconfig path."""

    def __init__(self, kubeconfig: str, import_root: str = "") -> None:
        self.kubeconfig = Path(kubeconfig).absolute()
        self.import_root = import_root
        self.state_file = Path(f"{self.kubeconfig}.state.json")
        self.log_file = Path(f"{self.kubeconfig}.log")

    def running(self) -> Running | None:
        """The cluster that is running for this kubeconfig, None if there is none."""
        try:
            data = json.loads(self.state_file.read_text(encoding="utf-8"))
            found = Running(**{field.name: data[field.name] for field in dataclasses.fields(Running)})
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return found if is_ours(found.pid, found.token) else None

    def wants_start(self, definition: t.Any) -> bool:
        """True when no cluster of this definition is running yet. A broken definition raises InputError."""
        load(definition)
        found = self.running()
        return found is None or found.digest != digest(definition)

    def start(self, definition: t.Any, timeout_s: float = 120) -> tuple[Running, bool]:
        """Make a cluster of this definition run; (the cluster, whether it was started now).

        A cluster of another definition is stopped first. Raises InputError for a broken definition, ClusterError with the end of the log
        when the cluster does not become ready.
        """
        if not self.wants_start(definition):
            return t.cast(Running, self.running()), False
        self._check_target()
        self.stop()
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        token = secrets.token_hex(16)
        process = self._spawn(self._definition_file(definition), token, digest(definition))
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = self.running()
            if found is not None and found.token == token:
                return found, True
            if process.poll() is not None:
                raise self._failure(f"the simulated cluster ended with exit code {process.returncode} before it was ready")
            time.sleep(0.05)
        process.terminate()
        raise self._failure(f"the simulated cluster was not ready after {timeout_s:g} s")

    def stop(self, timeout_s: float = 15) -> bool:
        """Stop the cluster; True if one was running. Its files, except the log, are removed."""
        found = self.running()
        if found is not None:
            _end(found.pid, found.token, timeout_s)
        for leftover in (self.state_file, self.kubeconfig, Path(f"{self.kubeconfig}.definition.json")):
            # The kubeconfig is removed only when it was ours: without a state file it may be anybody's.
            if found is not None or leftover == self.state_file:
                leftover.unlink(missing_ok=True)
        return found is not None

    def _check_target(self) -> None:
        """Never write over a kubeconfig that is not of a simulated cluster."""
        if not self.kubeconfig.exists():
            return
        try:
            ours = json.loads(self.kubeconfig.read_text(encoding="utf-8"))["current-context"] == "simulated"
        except (OSError, ValueError, KeyError, TypeError):
            ours = False
        if not ours:
            raise InputError(
                "the file exists and is not the kubeconfig of a simulated cluster",
                place=str(self.kubeconfig),
                hint="Choose another path or remove it",
            )

    def _definition_file(self, definition: t.Any) -> str:
        if isinstance(definition, (str, Path)):
            return str(definition)
        path = Path(f"{self.kubeconfig}.definition.json")
        path.write_text(json.dumps(definition or {}, indent=2), encoding="utf-8")
        return str(path)

    def _spawn(self, definition_file: str, token: str, content: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable, "-m", PACKAGE, "--definition", definition_file, "--kubeconfig", str(self.kubeconfig),
            "--state-file", str(self.state_file), "--token", token, "--digest", content,
        ]  # fmt: skip
        environment = dict(os.environ)
        if self.import_root:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (self.import_root, environment.get("PYTHONPATH"))))
        with self.log_file.open("wb") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment
            )

    def _failure(self, message: str) -> ClusterError:
        try:
            tail = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        except OSError:
            tail = []
        text = "\n".join(tail) or "(the log is empty)"
        return ClusterError(f"{message}. The end of its log:\n{text}\n", place=str(self.log_file))


def digest(definition: t.Any) -> str:
    """A short name for the content of a definition (a path or data)."""
    if isinstance(definition, (str, Path)):
        return hashlib.sha256(Path(definition).read_bytes()).hexdigest()[:16]
    return hashlib.sha256(json.dumps(definition or {}, sort_keys=True).encode()).hexdigest()[:16]


def is_ours(pid: int, token: str) -> bool:
    """True when the process lives and carries the token in its command line."""
    if pid <= 1 or not token:
        return False
    return token in _command_line(pid)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return ""
    except OSError:
        return ""
    found = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout


def _end(pid: int, token: str, timeout_s: float) -> None:
    for number, patience in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, 5.0)):
        if not is_ours(pid, token):
            return
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + patience
        while is_ours(pid, token) and time.monotonic() < deadline:
            time.sleep(0.05)
