# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The shell script every pod of an MPI workload runs: index 0 launches, the others serve ssh."""

from __future__ import annotations

import shlex
import typing as t

from .recap import DEBUG_DIR, DEBUG_FILE, has_own_debug_file, recap_lines
from .shell_parts import FAIL, HOSTFILE, PEER_WAIT_S, export_line, extends_itself

SSH_SECRET_DIR = "/etc/readiness-ssh"
# Only the run's key opens the server. Modes of the image's home directory are no reason to refuse it.
SSHD_OPTIONS = " ".join(
    f"-o {option}"
    for option in (
        'AuthorizedKeysFile="$HOME/.ssh/authorized_keys"',
        "StrictModes=no",
        "PasswordAuthentication=no",
        "KbdInteractiveAuthentication=no",
        "PermitRootLogin=prohibit-password",
        "UsePAM=no",
        "PidFile=none",
    )
)


def _exports(env: t.Sequence[t.Mapping[str, str]]) -> tuple[list[str], list[str]]:
    """Shell lines and mpirun arguments for the environment of the ranks.

    A value that refers to its own variable extends what the image has, so the shell must fill it in; every other is passed as it stands.
    """
    lines, arguments = [], []
    for item in env:
        if extends_itself(item):
            lines.append(export_line(item))
            arguments += ["-x", item["name"]]
        else:
            arguments += ["-x", f"{item['name']}={item['value']}"]
    return lines, arguments


def mpi_script(*, mpirun: str, mpirun_args: t.Sequence[str], binary: str, args: t.Sequence[str], env: t.Sequence[dict[str, str]],
               slots: int, nodes: int, ssh_port: int, pre_command: t.Sequence[str] = ()) -> str:  # fmt: skip
    """The script for a group of nodes; env goes to every rank by mpirun -x, since ranks started over ssh see no container env."""
    if not has_own_debug_file(env):
        env = [*env, {"name": "NCCL_DEBUG_FILE", "value": DEBUG_FILE}]
    export_lines, exports = _exports(env)
    command = shlex.join([mpirun, "--hostfile", HOSTFILE, "-N", str(slots), "--allow-run-as-root", *mpirun_args, *exports, binary, *args])
    everywhere = shlex.join([mpirun, "--hostfile", HOSTFILE, "-N", "1", "--allow-run-as-root", *mpirun_args]) if nodes > 1 else ""
    lines = ["set -u", FAIL, f"mkdir -p {DEBUG_DIR}"]
    if nodes > 1:
        lines += [
            'mkdir -p "$HOME/.ssh" /run/sshd && chmod 700 "$HOME/.ssh" || fail "cannot write to $HOME/.ssh or /run/sshd"',
            f'cp {SSH_SECRET_DIR}/* "$HOME/.ssh/" && chmod 600 "$HOME/.ssh"/* || fail "the ssh keys of the run are not mounted"',
            'if [ "${JOB_COMPLETION_INDEX:-0}" != 0 ]; then',
            '  [ -x /usr/sbin/sshd ] || fail "the image has no /usr/sbin/sshd; name one that carries an ssh server (workload.image)"',
            f'  exec /usr/sbin/sshd -De -p {ssh_port} -h "$HOME/.ssh/id_ed25519" {SSHD_OPTIONS}',
            "fi",
            'command -v ssh >/dev/null || fail "the image has no ssh client"',
            f'while read -r host _; do until (exec 3<>"/dev/tcp/$host/{ssh_port}") 2>/dev/null; do',
            f'  [ "$SECONDS" -lt {PEER_WAIT_S} ] || fail "no ssh server answers at $host after {PEER_WAIT_S} s"; sleep 1',
            f"done; done < <(tail -n +2 {HOSTFILE})",
        ]
    lines += [
        f'[ -x {shlex.quote(mpirun)} ] || fail "the image has no {mpirun}"',
        f'[ -x {shlex.quote(binary)} ] || fail "the image has no {binary}"',
        *export_lines,
        *pre_command,
        *recap_lines(command, everywhere),
    ]
    return "\n".join(lines) + "\n"


def ssh_config(port: int) -> str:
    """The ssh client configuration: the run's own key is also the only host key that is trusted."""
    return (
        f"Host *\n  Port {port}\n  User root\n  IdentityFile ~/.ssh/id_ed25519\n  UserKnownHostsFile ~/.ssh/known_hosts\n"
        "  StrictHostKeyChecking yes\n  BatchMode yes\n  ConnectionAttempts 10\n  LogLevel ERROR\n"
    )
