# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The script of our pods with a real ssh server and a real Open MPI, on two hosts that are network namespaces of this machine.

What the ranks run plays the output of a real test: the table on the first rank's stdout, NCCL's lines into the files of each host.

Needs root, ip, unshare, sshd, ssh and mpirun (Debian: openssh-server openmpi-bin iproute2); elsewhere it says what is missing.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import time
import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.holding import make_ssh_key
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.mpi_script import mpi_script
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.objects import ssh_secret
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.recap import DEBUG_DIR, TERMINATION_LOG

pytestmark = pytest.mark.simulator  # it asks no API server
MPIRUN = "/usr/bin/mpirun"
PREFIX = f"rdy{os.getpid() % 10000}"
# What a kubelet does for a pod: its own home, its mounts, its names.
HOST = """
set -e
mount --make-rprivate /
for path in /root /etc/mpi /etc/readiness-ssh /run; do mkdir -p $path; mount -t tmpfs none $path; done
cp {work}/hostfile /etc/mpi/; echo host{index} > /etc/mpi/me; cp -p {work}/secret/* /etc/readiness-ssh/
mount --bind {work}/hosts /etc/hosts; touch {work}/message{index}; mount --bind {work}/message{index} TERMINATION_LOG
mkdir -p DEBUG_DIR; mount -t tmpfs none DEBUG_DIR
hostname job-{index}
export HOME=/root JOB_COMPLETION_INDEX={index} PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec /bin/bash -c "$(cat {work}/script.sh)"
""".replace("TERMINATION_LOG", TERMINATION_LOG).replace("DEBUG_DIR", DEBUG_DIR)
LOG = pathlib.Path(__file__).parents[1] / "vectors" / "cases" / "logs" / "n01-allreduce-2node-ib-gdr.log"
INTERFACE = ["--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0"]
# Every rank writes the lines of its host where NCCL_DEBUG_FILE says; rank 0 prints the table.
PLAYER = r"""#!/bin/bash
host=gpu-a$(($(sed s/host// /etc/mpi/me) + 1))
file=${NCCL_DEBUG_FILE/\%h/$(hostname)}; file=${file/\%p/$$}
grep "^$host:.*NCCL INFO" LOG >"$file"
[ "$OMPI_COMM_WORLD_RANK" != 0 ] || grep -v "NCCL INFO" LOG
[ -z "$WAITS" ] || { touch "$WAITS.$OMPI_COMM_WORLD_RANK"; exec sleep 60; }
exit "$STATUS"
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
    message = pathlib.Path(TERMINATION_LOG)
    made = not message.exists()
    try:
        message.touch()  # where the hosts mount their own
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
        if made:
            message.unlink(missing_ok=True)


class Pods:
    """The two pods of a group, as a kubelet would run them."""

    def __init__(self, hosts: t.Callable[[int], list[str]], folder: pathlib.Path) -> None:
        self._hosts, self.folder = hosts, folder
        private, public = make_ssh_key()
        secret = ssh_secret("run", "default", "c01", [], private_key=private, public_key=public, port=2222)
        (folder / "secret").mkdir()
        for name, value in secret["stringData"].items():
            path = folder / "secret" / name
            path.write_text(value)
            path.chmod(0o400)
        (folder / "hostfile").write_text("".join(f"job-{index}.job.default.svc slots=2\n" for index in (0, 1)))
        lines = [f"10.99.0.1{index} job-{index}.job.default.svc job-{index}\n" for index in (0, 1)]
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))

    def run(
        self,
        binary: str,
        args: t.Sequence[str],
        env: t.Sequence[dict[str, str]],
        during: t.Callable[[subprocess.Popen[str]], None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """The launcher to its end; `during` may look at it, or end it, while it runs."""
        script = mpi_script(
            mpirun=MPIRUN, mpirun_args=INTERFACE, binary=binary, args=args, env=list(env), slots=2, nodes=2, ssh_port=2222,
        )  # fmt: skip
        (self.folder / "script.sh").write_text(script)
        worker = subprocess.Popen(self._hosts(1), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        launcher = subprocess.Popen(self._hosts(0), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            if during is not None:
                during(launcher)
            output, errors = launcher.communicate(timeout=120)
        finally:
            launcher.kill()
            worker.terminate()
            worker.wait(timeout=20)
        return subprocess.CompletedProcess(launcher.args, launcher.returncode, output, errors)

    def play(self, *, status: int = 0, waits: str = "", **options: t.Any) -> subprocess.CompletedProcess[str]:
        """The ranks play the log of a test that ends with this status."""
        player = self.folder / "all_reduce_perf"
        player.write_text(PLAYER.replace("LOG", str(LOG)))
        player.chmod(0o755)
        return self.run(str(player), [], [{"name": "STATUS", "value": str(status)}, {"name": "WAITS", "value": waits}], **options)

    def message(self) -> str:
        return (self.folder / "message0").read_text()


@pytest.fixture
def pods(hosts: t.Callable[[int], list[str]], tmp_path: pathlib.Path) -> Pods:
    return Pods(hosts, tmp_path)


def test_ranks_start_on_every_node_over_ssh_with_their_environment(pods: Pods) -> None:
    shown = "echo rank $OMPI_COMM_WORLD_RANK on $(cat /etc/mpi/me) says $ODD"
    launcher = pods.run("/usr/bin/env", ["bash", "-c", shown], [{"name": "ODD", "value": "a b"}])
    assert launcher.returncode == 0, launcher.stdout + launcher.stderr
    ranks = sorted(line for line in launcher.stdout.splitlines() if line.startswith("rank"))
    assert ranks == [f"rank {rank} on host{rank // 2} says a b" for rank in range(4)]
    assert pods.message() == "", "without a result the kubelet puts the end of the log there"


def test_the_log_ends_with_what_matters_and_the_message_holds_the_result(pods: Pods, tmp_path: pathlib.Path) -> None:
    launcher = pods.play()
    lines = launcher.stdout.splitlines()
    assert launcher.returncode == 0, launcher.stdout + launcher.stderr
    table = next(number for number, line in enumerate(lines) if "Avg bus bandwidth" in line)
    debug = [number for number, line in enumerate(lines) if "NCCL INFO" in line and not line.startswith("gcr|")]
    assert {lines[number].partition(":")[0] for number in debug} == {"gpu-a1", "gpu-a2"}, "the lines of both hosts"
    assert table < min(debug) and max(debug) < lines.index("gcr|gcr1")
    assert pods.message().splitlines() == [line.removeprefix("gcr|") for line in lines[lines.index("gcr|gcr1") :]]
    assert len(pods.message().encode()) <= 4096
    (tmp_path / "rotated").write_text(launcher.stdout[-400:])
    said = measure("nccl", [str(tmp_path / "rotated")], {"exit_code": 0, "termination_messages": [str(tmp_path / "message0")]})
    values = said["values"]
    assert (said["verdict"], values["bus_bandwidth"], values["ranks"], values["transport"]) == (None, 484.47, 16, "ib")


def test_the_exit_status_of_the_ranks_is_that_of_the_pod(pods: Pods) -> None:
    launcher = pods.play(status=7)
    assert launcher.returncode == 7, launcher.stdout + launcher.stderr
    assert pods.message().splitlines()[-1] == "X7~0"


def test_a_launcher_that_is_told_to_end_takes_its_ranks_along(pods: Pods, tmp_path: pathlib.Path) -> None:
    """A pod that is deleted must leave no rank on the GPUs of the others."""

    def end(launcher: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("waits.*"))) < 4:
            assert time.monotonic() < deadline and launcher.poll() is None
            time.sleep(0.1)
        launcher.terminate()

    started = time.monotonic()
    launcher = pods.play(waits=str(tmp_path / "waits"), during=end)
    assert launcher.returncode != 0
    assert time.monotonic() - started < 90
    assert "NCCL INFO" in launcher.stdout, "what NCCL said until then is shown"
