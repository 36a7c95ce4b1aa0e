# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The scripts of the catalog's own tests, run by bash: what an image or a mount lacks is said, and programs get what was asked for."""

from __future__ import annotations

import os
import pathlib
import socket
import stat
import subprocess
import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.entries import load_entry, render
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import shipped_catalog_dir
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.options import resolve_options
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.plain_script import exec_script
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.shell_parts import FILES_DIR, HOSTFILE, SETUP_ERROR

TOOLS = ("bash", "cat", "grep", "head", "mkdir", "rm", "mktemp", "timeout", "sleep", "dirname", "basename", "python3")


class Pod:
    """A pod of a test: its script, with files and hosts in a folder, and only the programs that are put there."""

    def __init__(self, folder: pathlib.Path, test: str, index: int = 0, nodes: int = 1, **options: t.Any) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir(exist_ok=True)
        for name in TOOLS:
            found = next(path for place in ("/usr/bin", "/bin") if (path := pathlib.Path(place) / name).exists())
            if not (self.bin / name).exists():
                (self.bin / name).symlink_to(found)
        entry = load_entry([shipped_catalog_dir()], test)
        values, _explain = resolve_options(entry, options, entry["test_scales"][0], "options")
        launch = render(entry["exec"], {"options": values, "measure": entry["measure"], "gpus_per_node": 8}, test)
        for name, text in entry["files"].items():
            (folder / name).write_text(text)
        (folder / "hosts").write_text("".join(f"pod-{number}.job slots=8\n" for number in range(nodes)))
        script = (
            exec_script(launch, env=[], nodes=nodes, gpus=8).replace(f"{FILES_DIR}/", f"{folder}/").replace(HOSTFILE, f"{folder}/hosts")
        )
        self.script, self.index = script, index

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def start(self, **env: str) -> subprocess.Popen[str]:
        variables = {"PATH": str(self.bin), "HOSTNAME": f"pod-{self.index}", "JOB_COMPLETION_INDEX": str(self.index), **env}
        command = [str(self.bin / "bash"), "-c", self.script]
        return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder)

    def run(self, **env: str) -> tuple[int, str]:
        process = self.start(**env)
        said = process.communicate(timeout=60)[0]
        return process.returncode, said


@pytest.mark.parametrize(
    ("test", "program"),
    [("diagnostics/fio", "fio"), ("communication/nvbandwidth", "nvbandwidth"), ("communication/ib-write-bw", "ib_write_bw")],
)
def test_an_image_without_the_program_is_told_so_by_its_name(tmp_path: pathlib.Path, test: str, program: str) -> None:
    status, said = Pod(tmp_path, test).run()
    assert status == 78 and said.startswith(f"{SETUP_ERROR} the image has no {program};")


# --- GEMM burn


def test_a_burn_needs_pytorch_and_says_so(tmp_path: pathlib.Path) -> None:
    pod = Pod(tmp_path, "diagnostics/gemm-burn")
    (pod.bin / "python3").unlink()
    pod.program("python3", f"#!{pod.bin}/bash\nexit 1\n")
    assert pod.run() == (78, f"{SETUP_ERROR} python3 of the image has no PyTorch; name another (workload.image)\n")


def test_gpu_burn_runs_beside_its_own_files(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "opt" / "gpu_burn"
    pod = Pod(tmp_path, "diagnostics/gemm-burn", gpu_burn=str(path), seconds=30)
    status, said = pod.run()
    assert status == 78 and str(path) in said
    path.parent.mkdir()
    path.write_text(f'#!{pod.bin}/bash\necho "$PWD $@"\n')
    path.chmod(0o755)
    assert pod.run() == (0, f"{path.parent} -m 60% 30\n")


# --- fio


def test_fio_is_given_a_directory_of_its_own_that_ends_with_the_pod(tmp_path: pathlib.Path) -> None:
    data = tmp_path / "data"
    pod = Pod(tmp_path, "diagnostics/fio", directory=str(data), pattern="randread", block_size="4k", direct=False)
    pod.program("fio", f'#!{pod.bin}/bash\n[ -d {data}/readiness-fio-pod-0 ] && echo "$@"\nexit 7\n')
    status, said = pod.run()
    assert status == 78 and f"there is no {data}; mount a volume" in said
    data.mkdir()
    status, said = pod.run()
    assert status == 7, "how fio ended is how the pod ends"
    assert {"--rw=randread", "--bs=4K", "--direct=0", "--output-format=json", f"--directory={data}/readiness-fio-pod-0"} <= set(
        said.split()
    )
    assert list(data.iterdir()) == []


# --- nvbandwidth


@pytest.mark.parametrize(("help_text", "wanted"), [("--json  print JSON", ["--json"]), ("nothing of that kind", [])])
def test_nvbandwidth_prints_json_where_it_can(tmp_path: pathlib.Path, help_text: str, wanted: list[str]) -> None:
    pod = Pod(tmp_path, "communication/nvbandwidth", tests=["host_to_device_memcpy_ce"])
    pod.program("nvbandwidth", f'#!{pod.bin}/bash\n[ "$1" = --help ] && echo "{help_text}" || echo "$@"\n')
    assert pod.run()[1].split() == [*wanted, "-b", "512", "-i", "3", "-t", "host_to_device_memcpy_ce"]


# --- pairs of NICs

# A stand-in for ib_write_bw: server and client meet at the port, each pod has an address of its own, and the client prints a table.
PERFTEST = """#!{python}
import os, socket, sys
words = sys.argv[1:]
address = lambda pod: "127.0.1.%d" % (pod + 1)
if "--help" in words:
    sys.exit(print("{help}"))
device, port = words[words.index("-d") + 1], int(words[words.index("-p") + 1])
host = words[-1] if words[-1].startswith("pod-") else None
if host is None:
    server = socket.create_server((address(int(os.environ["READINESS_INDEX"])), port))
    connection, _address = server.accept()
    connection.sendall(device.encode())
    connection.recv(10)
else:
    try:
        connection = socket.create_connection((address(int(host[4:].partition(".")[0])), port), timeout=20)
    except OSError:
        sys.exit("Couldn't connect to %s:%d" % (host, port))
    other = connection.recv(100).decode()
    if other != device:
        sys.exit("completion with error: the rails do not fit, %s and %s" % (device, other))
    connection.sendall(b"x")
    print("                    RDMA_Write BW Test")
    print(" Dual-port       : OFF		Device         : " + device)
    print(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]")
    print(" 65536      5000           0.00               %.2f             %.6f" % (394.0, 394.0e3 / 8 / 65536))
    print("-" * 87)
    print("called with " + " ".join(words))
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def pairs(folder: pathlib.Path, nodes: int, port: int, **options: t.Any) -> list[str]:
    """The logs of all pods of a group."""
    running = []
    for index in range(nodes):
        pod_folder = folder / str(index)
        pod_folder.mkdir()
        pod = Pod(pod_folder, "communication/ib-write-bw", index=index, nodes=nodes, **options)
        (pod.bin / "python3").unlink()
        pod.program("ib_write_bw", PERFTEST.format(python=os.path.realpath("/proc/self/exe"), help="--use_cuda"))
        pod.script = pod.script.replace("--rounds", f"--port {port} --wait 40 --rounds")
        running.append(pod.start())
    logs = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0] * nodes
    return logs


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_every_pair_of_nodes_meets_rail_by_rail(tmp_path: pathlib.Path, nodes: int) -> None:
    logs = pairs(tmp_path, nodes, free_port(), devices=["mlx5_0", "mlx5_4"])
    shown = [line for log in logs for line in log.splitlines() if line.startswith("pair:")]
    assert len(shown) == len(set(shown)) == nodes * (nodes - 1) // 2 * 2
    paths = []
    for index, log in enumerate(logs):
        paths.append(tmp_path / f"{index}.log")
        paths[-1].write_text(log)
    found = measure("perftest", [str(path) for path in paths], {"exit_code": 0})
    assert found["complete"] and found["parsed"]["tables"] == len(shown), (found["reason"], logs)


def test_what_was_asked_for_reaches_the_program(tmp_path: pathlib.Path) -> None:
    options = {"devices": "mlx5_0,mlx5_1", "use_cuda": True, "gid_index": 3, "message_size": 4096, "bidirectional": True}
    log = "".join(pairs(tmp_path, 2, free_port(), **options))
    called = [line.split()[2:] for line in log.splitlines() if line.startswith("called with")]
    assert [words[-2] for words in called] == ["--use_cuda=0", "--use_cuda=1"]
    for words in called:
        assert {"-b", "--report_gbits"} <= set(words)
        assert [words[words.index(flag) + 1] for flag in ("-D", "-q", "-s", "-x")] == ["5", "4", "4096", "3"]


def test_without_a_device_in_the_pod_the_test_is_not_set_up(tmp_path: pathlib.Path) -> None:
    pod = Pod(tmp_path, "communication/ib-write-bw", nodes=2)
    pod.program("ib_write_bw", f"#!{pod.bin}/bash\n")
    place = tmp_path / "sys" / "class" / "infiniband" / "mlx5_7" / "device" / "infiniband_verbs" / "uverbs7"
    place.mkdir(parents=True)
    seen = {"READINESS_SYS": str(tmp_path / "sys"), "READINESS_DEV": str(tmp_path / "dev")}
    status, said = pod.run(**seen)
    assert status == 78 and "sees no RDMA device" in said, "a device of the host that the pod may not open is not one of the pod"


def test_gpudirect_needs_a_program_that_was_built_for_it(tmp_path: pathlib.Path) -> None:
    pod = Pod(tmp_path, "communication/ib-write-bw", nodes=2, use_cuda=True, devices=["mlx5_0"])
    pod.program("ib_write_bw", f"#!{pod.bin}/bash\necho no such option\n")
    status, said = pod.run()
    assert status == 78 and "built without CUDA" in said


def test_a_group_of_one_node_has_no_pair(tmp_path: pathlib.Path) -> None:
    pod = Pod(tmp_path, "communication/ib-write-bw", nodes=1, devices=["mlx5_0"])
    pod.program("ib_write_bw", f"#!{pod.bin}/bash\n")
    status, said = pod.run()
    assert status == 78 and "a pair needs two nodes" in said
