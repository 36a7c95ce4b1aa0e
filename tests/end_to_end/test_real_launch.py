# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The script of our pods with a real ssh server and a real Open MPI, on two hosts that are network namespaces of this machine.

Needs root, ip, unshare, sshd, ssh and mpirun (Debian: openssh-server openmpi-bin iproute2); elsewhere it says what is missing.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.anchors import make_ssh_key
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.mpi_script import mpi_script
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.objects import ssh_secret

MPIRUN = "/usr/bin/mpirun"
PREFIX = f"rdy{os.getpid() % 10000}"
# What a kubelet does for a pod: its own home, its mounts, its names.
HOST = """
set -e
mount --make-rprivate /
for path in /root /etc/mpi /etc/readiness-ssh /run; do mkdir -p $path; mount -t tmpfs none $path; done
cp {work}/hostfile /etc/mpi/; echo host{index} > /etc/mpi/me; cp -p {work}/secret/* /etc/readiness-ssh/
mount --bind {work}/hosts /etc/hosts
hostname job-{index}
export HOME=/root JOB_COMPLETION_INDEX={index} PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec /bin/bash -c "$(cat {work}/script.sh)"
"""


def missing() -> str:
    programs = [name for name in ("ip", "unshare", "ssh", "sshd") if not (shutil.which(name) or os.path.exists(f"/usr/sbin/{name}"))]
    if not os.path.exists(MPIRUN):
        programs.append("mpirun")
    return "" if os.geteuid() == 0 and not programs else f"needs root and {', '.join(programs) or 'nothing else'}"


@pytest.fixture
def hosts(tmp_path: pathlib.Path) -> t.Iterator[t.Callable[[int], list[str]]]:
    """hosts(index) → the command that runs the pod of that index on its host."""
    if missing():
        pytest.skip(f"not run: {missing()}")

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    names = [f"{PREFIX}n{index}" for index in (0, 1)]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", f"{PREFIX}v0", "type", "veth", "peer", "name", f"{PREFIX}v1")
        for index, name in enumerate(names):
            ip("link", "set", f"{PREFIX}v{index}", "netns", name)
            for words in (
                ["link", "set", f"{PREFIX}v{index}", "name", "eth0"],
                ["addr", "add", f"10.99.0.1{index}/24", "dev", "eth0"],
                ["link", "set", "eth0", "up"],
                ["link", "set", "lo", "up"],
            ):
                ip("netns", "exec", name, "ip", *words)
        yield lambda index: [
            "ip", "netns", "exec", names[index], "unshare", "-m", "-u", "--propagation", "private",
            "bash", "-c", HOST.format(index=index, work=tmp_path),
        ]  # fmt: skip
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def test_ranks_start_on_every_node_over_ssh_with_their_environment(hosts, tmp_path):
    private, public = make_ssh_key()
    secret = ssh_secret("run", "default", "c01", [], private_key=private, public_key=public, port=2222)
    (tmp_path / "secret").mkdir()
    for name, value in secret["stringData"].items():
        path = tmp_path / "secret" / name
        path.write_text(value)
        path.chmod(0o400)
    (tmp_path / "hostfile").write_text("".join(f"job-{index}.job.default.svc slots=2\n" for index in (0, 1)))
    lines = [f"10.99.0.1{index} job-{index}.job.default.svc job-{index}\n" for index in (0, 1)]
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
    interface = ["--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0"]
    shown = "echo rank $OMPI_COMM_WORLD_RANK on $(cat /etc/mpi/me) says $ODD"
    script = mpi_script(
        mpirun=MPIRUN, mpirun_args=interface, binary="/usr/bin/env", args=["bash", "-c", shown],
        env=[{"name": "ODD", "value": "a b"}], slots=2, nodes=2, ssh_port=2222,
    )  # fmt: skip
    (tmp_path / "script.sh").write_text(script)
    worker = subprocess.Popen(hosts(1), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        launcher = subprocess.run(hosts(0), capture_output=True, text=True, timeout=120, check=False)
    finally:
        worker.terminate()
        worker.wait(timeout=20)
    assert launcher.returncode == 0, launcher.stdout + launcher.stderr
    ranks = sorted(line for line in launcher.stdout.splitlines() if line.startswith("rank"))
    assert ranks == [f"rank {rank} on host{rank // 2} says a b" for rank in range(4)]
