# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Lines that the scripts of all frameworks share. Nothing is installed or downloaded: what an image lacks is said.

A line that starts with SETUP_ERROR and exit code 78 end a pod whose image or mounts lack something, so that the report can say what,
instead of blaming nodes.
"""

from __future__ import annotations

import shlex
import typing as t

SETUP_ERROR = "gpu-cluster-readiness: setup error:"
SETUP_EXIT_CODE = 78  # EX_CONFIG of sysexits.h
HOSTFILE = "/etc/mpi/hostfile"
FILES_DIR = "/etc/readiness/files"
# How long a pod waits for the others of its group to be there.
PEER_WAIT_S = 300
FAIL = f'fail() {{ echo "{SETUP_ERROR} $1"; exit {SETUP_EXIT_CODE}; }}'


def extends_itself(item: t.Mapping[str, str]) -> bool:
    """Whether a value refers to its own variable (PATH=$PATH:/opt/x), so that only the image's shell can fill it in."""
    return f"${item['name']}" in item["value"]


def export_line(item: t.Mapping[str, str]) -> str:
    """`export NAME=value`; a value that refers to its own variable extends what the image has, every other stands as it is."""
    name, value = item["name"], item["value"]
    if not extends_itself(item):
        return f"export {name}={shlex.quote(value)}"
    own = "${" + name + ":-}"
    parts = [shlex.quote(part) if part else "" for part in value.split(f"${name}")]
    return f"export {name}=" + f'"{own}"'.join(parts)


def host_names(name: str, namespace: str, nodes: int) -> list[str]:
    """Host names of a group's pods; one node needs no DNS."""
    return ["localhost"] if nodes == 1 else [f"{name}-{index}.{name}.{namespace}.svc" for index in range(nodes)]
