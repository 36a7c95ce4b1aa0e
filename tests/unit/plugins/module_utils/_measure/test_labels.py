# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Labels of launchers and collectors: in any stack, before any kind of log, they change no number; text of programs stays."""

from __future__ import annotations

import json
import sys
import typing as t
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.labels import Labels, labels_of
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.lines import lines_of
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure

sys.path.insert(0, str(Path(__file__).parent))

import nccl_text as text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("[default3]:[rank3]: x", " x"),
        ("0: gpu-a1:1:2 [0] NCCL INFO x", "gpu-a1:1:2 [0] NCCL INFO x"),
        ("10: 5", "10: 5"),
        ("12:30 is a time", "12:30 is a time"),
        ("[2026-03-02 10:00:00] iteration 10", "[2026-03-02 10:00:00] iteration 10"),
        ("[1,0][gpu-a1:22]<stderr>:x", "x"),
        ("\x1b]0;title\x07\x1b[1mx\x1b[0m", "x"),
        ("2026-03-02T01:05:10Z", ""),
    ],
)
def test_labels_and_what_only_looks_like_one(line: str, text: str) -> None:
    assert Labels().clean(line).text == text


def test_any_text_behind_a_known_label() -> None:
    """Once a log shows srun labels, they stand before free text too."""
    assert labels_of(["3: # nccl-tests"]).clean("3: ssh failed").rank == 3
    assert Labels().clean("3: ssh failed").text == "3: ssh failed"


# --- stacks ---

Label = t.Callable[[int], str]
HOSTS = ("node-a", "node-b")


def clock(number: int, form: str) -> str:
    return form.format(m=number // 60 % 60, s=number % 60, u=number * 7919 % 1_000_000)


LABELS: dict[str, Label] = {
    "kubectl --timestamps": lambda n: clock(n, "2026-03-02T10:{m:02}:{s:02}.{u:06}Z "),
    "kubelet with an offset": lambda n: clock(n, "2026-03-02T10:{m:02}:{s:02}.{u:06}-07:00 "),
    "kubectl --prefix": lambda n: "[pod/launcher-0-abcde/node] ",
    "CRI": lambda n: clock(n, "2026-03-02T10:{m:02}:{s:02}.{u:06}Z stdout F "),
    "stern": lambda n: "launcher-0-abcde node ",
    "stern with namespaces": lambda n: "gpu-test launcher-0-abcde node ",
    "kubetail": lambda n: "[launcher-0-abcde node] ",
    "syslog with an ISO time": lambda n: clock(n, "2026-03-02T10:{m:02}:{s:02}.{u:06}+00:00 node-a nccl[881]: "),
    "logging with a level": lambda n: clock(n, "[2026-03-02 10:{m:02}:{s:02},123][INFO] "),
    "stream of a cloud": lambda n: clock(n, "2026-03-02T10:{m:02}:{s:02}.{u:06}+00:00 nccl/launcher/0a1b "),
    "labels of a collector": lambda n: clock(n, '2026-03-02T10:{m:02}:{s:02}Z {{app="nccl", pod="launcher-0"}} '),
    "milliseconds since 1970": lambda n: f"{1772445000000 + n} ",
    "docker compose": lambda n: "launcher-1  | ",
    "docker compose v1": lambda n: "launcher_1 | ",
    "srun -l": lambda n: "0: ",
    "srun -l padded": lambda n: "  0: ",
    "Open MPI 4 tag": lambda n: "[1,0]<stdout>:",
    "Open MPI 4 tag and time": lambda n: clock(n, "Sun Nov 29 16:{m:02}:{s:02} 2026[1,0]<stdout>:"),
    "Open MPI 4 time": lambda n: clock(n, "Sun Nov 29 16:{m:02}:{s:02} 2026<stdout>:"),
    "Open MPI 5 tag": lambda n: "[1,0]<stdout>: ",
    "Open MPI 5 tag and time": lambda n: clock(n, "[Sun Nov 29 16:{m:02}:{s:02} 2026][1,0]<stdout>: "),
    "PRRTE": lambda n: "[prterun-gpu-a1-22@1,0]<stdout>: ",
    "PRRTE in detail": lambda n: "[prterun-gpu-a1-22@1,0][gpu-a1:4100]<stdout>: ",
    "Hydra": lambda n: "[0] ",
    "Hydra with host": lambda n: "[0@node-a] ",
    "torchrun": lambda n: "[default0]:",
    "torchx": lambda n: "trainer/0 ",
    "Ray": lambda n: "(TorchTrainer pid=4112, ip=10.0.0.8) ",
    "Ray in colour": lambda n: "\x1b[36m(RayTrainWorker pid=4112)\x1b[0m ",
    "SkyPilot": lambda n: "(head, rank=0, pid=4112) ",
    "SkyPilot worker": lambda n: "(worker1, rank=1, pid=4112, ip=10.0.0.8) ",
    "pdsh": lambda n: "node-a: ",
    "pdsh of two": lambda n: f"{HOSTS[n % 7 == 0]}: ",
    "clush by address": lambda n: "10.0.0.7: ",
    "jsrun": lambda n: "h41n08:0: ",
    "parallel --tag": lambda n: "node-a\t",
    "ts": lambda n: clock(n, "Mar 02 10:{m:02}:{s:02} "),
    "ts %F %T": lambda n: clock(n, "2026-03-02 10:{m:02}:{s:02} "),
    "ts %.s": lambda n: clock(n, "17724474{s:02}.{u:06} "),
    "ts -s": lambda n: clock(n, "00:{m:02}:{s:02} "),
    "time in brackets": lambda n: clock(n, "[10:{m:02}:{s:02}] "),
    "date in brackets": lambda n: clock(n, "[2026-03-02 10:{m:02}:{s:02}] "),
    "Jenkins": lambda n: clock(n, "[2026-03-02T10:{m:02}:{s:02}.123Z] "),
    "GitLab": lambda n: clock(n, "2026-03-02T10:{m:02}:{s:02}.{u:06}Z 00O "),
    "syslog": lambda n: clock(n, "Mar  2 10:{m:02}:{s:02} node-a slurmstepd[4112]: "),
    "syslog with priority": lambda n: clock(n, "<13>Mar  2 10:{m:02}:{s:02} node-a job: "),
    "syslog RFC 5424": lambda n: clock(n, "<13>1 2026-03-02T10:{m:02}:{s:02}.{u:06}Z node-a launcher 4112 - - "),
    "journalctl -o short-iso": lambda n: clock(n, "2026-03-02T10:{m:02}:{s:02}+0000 node-a launcher[4112]: "),
    "a logger": lambda n: clock(n, "2026-03-02 10:{m:02}:{s:02},123 [INFO] "),
    "a level": lambda n: "[INFO] ",
    "klog": lambda n: clock(n, "I0302 10:{m:02}:{s:02}.{u:06}    4112 launcher.go:57] "),
    "a time behind the tag": lambda n: clock(n, "[prterun-node-a-4112@1,0]<stdout>:[Mon Mar  2 10:{m:02}:{s:02} 2026]:"),
    "a date of the US": lambda n: clock(n, "03/02/2026 10:{m:02}:{s:02} "),
    "an indentation": lambda n: "    ",
    "a quotation": lambda n: "> ",
    "a word of somebody": lambda n: "launcher out> ",
    "colour": lambda n: "\x1b[0;32m",
}

NCCL_LOG = text.log(text.HEALTHY, debug=text.info("gpu-a1", "Using network IB") + text.info("gpu-a2", "Using network IB"))


def nccl(path: Path, content: str) -> dict[str, t.Any]:
    path.write_text(content, encoding="utf-8")
    return measure("nccl", [str(path)], {"exit_code": 0})


def labelled(content: str, *labels: Label) -> str:
    return "".join(f"{''.join(label(n) for label in labels)}{line}\n" for n, line in enumerate(content.splitlines()))


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("trimmed", [False, True], ids=["as printed", "blanks at the end trimmed"])
def test_a_label_changes_nothing_of_a_table(tmp_path: Path, name: str, trimmed: bool) -> None:
    """Other tools lose every row to a label they do not know and call the run healthy or empty."""
    content = labelled(NCCL_LOG, LABELS[name])
    if trimmed:
        content = "".join(f"{line.rstrip()}\n" for line in content.splitlines())
    plain, said = nccl(tmp_path / "plain.log", NCCL_LOG), nccl(tmp_path / "x.log", content)
    assert (said["verdict"], said["values"]) == (None, plain["values"])
    assert said["parsed"] == plain["parsed"]
    assert (said["transport"]["networks"], said["transport"]["hosts"]) == (["IB"], plain["transport"]["hosts"])


OUTER = ["kubectl --timestamps", "kubectl --prefix", "CRI", "stern", "docker compose", "syslog", "ts", "ts %F %T", "time in brackets",
         "colour", "pdsh", "an indentation"]  # fmt: skip
MIDDLE = ["Ray", "SkyPilot", "srun -l", "srun -l padded", "torchx", "a level", "clush by address", ""]
INNER = ["Open MPI 4 tag", "Open MPI 5 tag", "Open MPI 5 tag and time", "PRRTE", "Hydra", "torchrun", "Hydra with host", ""]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(OUTER), st.sampled_from(MIDDLE), st.sampled_from(INNER))
def test_any_stack_of_labels_changes_no_number(tmp_path_factory: pytest.TempPathFactory, outer: str, middle: str, inner: str) -> None:
    labels = [LABELS[name] for name in (outer, middle, inner) if name]
    said = nccl(tmp_path_factory.mktemp("log") / "x.log", labelled(NCCL_LOG, *labels))
    assert (said["verdict"], said["values"]["bus_bandwidth"], said["values"]["ranks"]) == (None, 379.37, 2)
    assert said["transport"]["networks"] == ["IB"]


WRAPPERS: dict[str, t.Callable[[str], dict[str, t.Any]]] = {
    "Docker": lambda line: {"log": f"{line}\n", "stream": "stdout", "time": "2026-03-02T10:31:07.123456789Z"},
    "Fluent Bit": lambda line: {"time": "2026-03-02T10:31:07.1+00:00", "stream": "stdout", "_p": "F", "log": line, "kubernetes": {}},
    "Fluentd": lambda line: {"message": line, "kubernetes": {"pod_name": "x"}, "@timestamp": "2026-03-02T10:31:07Z"},
    "a cloud": lambda line: {"textPayload": line, "timestamp": "2026-03-02T10:31:07.123Z", "severity": "INFO", "labels": {}},
    "journald": lambda line: {"MESSAGE": line, "__REALTIME_TIMESTAMP": "1772447467123456", "_SYSTEMD_UNIT": "x.service"},
    "a logger": lambda line: {"level": "info", "ts": "2026-03-02T10:31:07.123Z", "msg": line},
}


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("outer", ["", "[pod/collector-0/agent] ", "2026-03-02T10:31:08.5Z stdout F "])
@pytest.mark.parametrize("inner", ["", "[1,0]<stdout>:", " 0: "])
def test_a_line_in_json_is_the_line(tmp_path: Path, name: str, outer: str, inner: str) -> None:
    content = "".join(f"{outer}{json.dumps(WRAPPERS[name](inner + line))}\n" for line in NCCL_LOG.splitlines())
    said = nccl(tmp_path / "x.log", content)
    assert (said["verdict"], said["values"]["bus_bandwidth"], said["transport"]["networks"]) == (None, 379.37, ["IB"])


def test_docker_cuts_long_lines(tmp_path: Path) -> None:
    pieces = (line[at : at + 40] for line in NCCL_LOG.splitlines(keepends=True) for at in range(0, len(line), 40))
    content = "".join(json.dumps({"log": piece, "stream": "stdout", "time": "2026-03-02T10:31:07.1Z"}) + "\n" for piece in pieces)
    assert nccl(tmp_path / "x.log", content)["values"]["bus_bandwidth"] == 379.37


@pytest.mark.parametrize("name", sorted(LABELS))
def test_labels_begin_behind_other_text(tmp_path: Path, name: str) -> None:
    """The script that starts the launcher prints without labels."""
    words = "".join(f"Collecting package-{n}\nInstalling things ({n} of 60)\n" for n in range(60))
    said = nccl(tmp_path / "x.log", words + labelled(NCCL_LOG, LABELS[name]))
    assert (said["verdict"], said["values"]["bus_bandwidth"], said["parsed"]["head_lost"]) == (None, 379.37, False)


# --- text of programs ---

OTHER_LOGS = {
    "megatron": "".join(
        f" [2026-03-02 10:{n:02}:00] iteration {n:8d}/     100 | consumed samples: {n * 256:12d}"
        " | elapsed time per iteration (ms): 353.1 |\n"
        for n in range(1, 60)
    ),
    "timers": "".join(f"    forward-backward-{n} ...............: (33.01, 35.02)\n" for n in range(40)),
    "keys": "".join(f"bandwidth: {n}\nlatency_us: {n / 7:.2f}\n" for n in range(40)),
    "results": "".join(f"RESULT step={n} bandwidth={n}\n" for n in range(40)),
    "gpu-burn": "".join(
        f"{n}.0%  proc'd: {n} (60000 Gflop/s) - {n} (60000 Gflop/s)   errors: 0 - 0   temps: 41 C - 42 C\n" for n in range(40)
    ),
    "debug": "".join(text.info("gpu-a1", f"Channel {n:02d}/0 : 0[0] -> 1[0] via P2P/CUMEM") for n in range(40)),
    "failures": "gpu-a2: Test NCCL failure common.cu:303 'unhandled system error'\n .. gpu-a2 pid 1: Test failure common.cu:401\n" * 20,
    "one kind of failure": "gpu-a2: Test NCCL failure common.cu:303 'unhandled system error'\n" * 20,
    "document": json.dumps({"DCGM Diagnostic": {"test_categories": [{"category": "x", "tests": []}]}}, indent=1) + "\n",
    "progress": "".join(f"2026-03-02 10:{n:02}:00\tJob ID: 7\t# GPUs: 2\tSaved checkpoint\tIteration: {n}\t\n" for n in range(40)),
}


@pytest.mark.parametrize("name", OTHER_LOGS)
def test_text_of_programs_is_no_label(name: str) -> None:
    """What a program printed before its numbers tells what they are. Only an indentation that all lines have may go."""
    lines = OTHER_LOGS[name].splitlines()
    cleaned = [line.text for line in lines_of(OTHER_LOGS[name])]
    assert [line.strip() for line in cleaned if line] == [line.strip() for line in lines]


@pytest.mark.parametrize("name", OTHER_LOGS)
@pytest.mark.parametrize(
    "label", ["stern", "pdsh", "syslog", "Open MPI 5 tag and time", "SkyPilot", "ts", "docker compose", "srun -l padded"]
)
def test_labels_before_any_kind_of_log(name: str, label: str) -> None:
    cleaned = [line.text for line in lines_of(labelled(OTHER_LOGS[name], LABELS[label]))]
    assert [line.strip() for line in cleaned if line] == [line.strip() for line in OTHER_LOGS[name].splitlines()]


def test_labels_are_learnt_once_and_taken_off_every_line() -> None:
    labels = labels_of(f"node-a: # line {n}" for n in range(10))
    assert labels.clean("node-a: anything: at all").text == "anything: at all"
    assert labels.clean("node-b: 5").text == "5"
    assert labels.clean("no label here").text == "no label here"
