# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The shell scripts of pods that start no MPI: any command (exec), or torchrun with one process per GPU (torch).

Every pod of the group runs the same script. It finds its place in READINESS_INDEX (from 0), the size of the group in READINESS_NODES,
the host names of all in the file READINESS_HOSTS, one a line, and its GPUs counted in READINESS_GPUS_PER_NODE.
"""

from __future__ import annotations

import shlex
import typing as t

from .shell_parts import FAIL, HOSTFILE, PEER_WAIT_S, export_line

INDEX = "${JOB_COMPLETION_INDEX:-0}"


def _opening(env: t.Sequence[t.Mapping[str, str]], nodes: int, gpus: int) -> list[str]:
    return [
        "set -u",
        FAIL,
        f"export READINESS_INDEX={INDEX} READINESS_NODES={nodes} READINESS_GPUS_PER_NODE={gpus} READINESS_HOSTS={HOSTFILE}",
        *[export_line(item) for item in env],
    ]


def exec_script(launch: t.Mapping[str, t.Any], *, env: t.Sequence[t.Mapping[str, str]], nodes: int, gpus: int) -> str:
    """launch: {script} or {command}, and pre_command."""
    body = [f"exec {shlex.join(launch['command'])}"] if launch.get("command") else [launch["script"].rstrip("\n")]
    return "\n".join([*_opening(env, nodes, gpus), *launch.get("pre_command", ()), *body]) + "\n"


def torch_script(
    launch: t.Mapping[str, t.Any], *, env: t.Sequence[t.Mapping[str, str]], hosts: t.Sequence[str], gpus: int, port: int, run: str
) -> str:
    """launch: {script or module, args, rendezvous, prepare, pre_command}. hosts: of the group's pods; the first is where all meet, at port.

    Ranks follow the index: a static rendezvous gives each pod its own; c10d leaves that to torchrun, which can then take a pod back.
    run: names the rendezvous, so that two groups never meet.
    """
    first = hosts[0]
    words = ["torchrun", "--nnodes", str(len(hosts)), "--nproc-per-node", str(gpus)]
    if launch.get("rendezvous") == "c10d":
        words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{first}:{port}", "--rdzv-id", run]
        place = ""
    else:
        words += ["--master-addr", first, "--master-port", str(port)]
        place = f' --node-rank "{INDEX}"'
    what = ["-m", launch["module"]] if launch.get("module") else [launch["script"]]
    lines = [
        *_opening(env, len(hosts), gpus),
        'command -v torchrun >/dev/null || fail "the image has no torchrun; name one with PyTorch (workload.image)"',
    ]
    if launch.get("script"):
        script = shlex.quote(launch["script"])
        lines.append(f'[ -r {script} ] || fail "there is no {launch["script"]} in the image or among the files of the test"')
    if len(hosts) > 1:
        # torchrun gives up at once on a name that is not there yet.
        lines += [
            f"while command -v getent >/dev/null && ! getent hosts {first} >/dev/null; do",
            f'  [ "$SECONDS" -lt {PEER_WAIT_S} ] || fail "the name {first} is not known after {PEER_WAIT_S} s"; sleep 1',
            "done",
        ]
    prepare = [launch["prepare"].rstrip("\n")] if launch.get("prepare") else []
    lines += [*launch.get("pre_command", ()), *prepare, f"exec {shlex.join(words)}{place} {shlex.join([*what, *launch.get('args', ())])}"]
    return "\n".join(lines) + "\n"
