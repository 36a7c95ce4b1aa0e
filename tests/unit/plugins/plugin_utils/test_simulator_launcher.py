# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starting and stopping must be idempotent, say why it failed, and never touch a process or file of somebody else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError, InputError
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils import _simulator_launcher as module
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._simulator_launcher import PACKAGE, Launcher, is_ours

SMALL = {"racks": 1, "nodes_per_rack": 2}


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(str(tmp_path / "kubeconfig"))
    yield made
    made.stop()


def test_a_cluster_is_started_once_and_stopped_once(launcher: Launcher) -> None:
    running, started = launcher.start(SMALL)
    assert started and running.nodes == 2
    server = json.loads(launcher.kubeconfig.read_text(encoding="utf-8"))["clusters"][0]["cluster"]["server"]
    with urllib.request.urlopen(f"{server}/api/v1/nodes", timeout=10) as answer:
        assert len(json.load(answer)["items"]) == 2
    assert launcher.start(SMALL) == (running, False)
    assert not launcher.wants_start(SMALL)
    replaced, started_again = launcher.start({"racks": 1, "nodes_per_rack": 3})
    assert started_again and replaced.nodes == 3 and not is_ours(running.pid, running.token)
    assert launcher.stop() is True
    assert not is_ours(replaced.pid, replaced.token)
    assert not launcher.kubeconfig.exists() and not launcher.state_file.exists()
    assert launcher.stop() is False


def test_a_broken_definition_starts_nothing(launcher: Launcher) -> None:
    with pytest.raises(InputError, match="unknown key"):
        launcher.start({"rack": 1})
    assert not launcher.log_file.exists()


def test_a_failed_start_shows_the_end_of_the_log(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACKAGE", "no_such_package")
    with pytest.raises(ClusterError) as caught:
        launcher.start(SMALL)
    assert "exit code 1" in caught.value.message and "no_such_package" in caught.value.message


def test_a_foreign_kubeconfig_is_neither_overwritten_nor_removed(launcher: Launcher) -> None:
    launcher.kubeconfig.write_text("apiVersion: v1\nkind: Config\n", encoding="utf-8")
    with pytest.raises(InputError, match="not the kubeconfig of a simulated cluster"):
        launcher.start(SMALL)
    assert launcher.stop() is False
    assert launcher.kubeconfig.exists()


def test_a_foreign_process_is_never_stopped(launcher: Launcher) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        try:
            state = {"pid": other.pid, "token": "f" * 32, "kubeconfig": str(launcher.kubeconfig), "nodes": 1, "digest": "x"}
            launcher.state_file.write_text(json.dumps(state), encoding="utf-8")
            assert launcher.running() is None
            assert launcher.stop() is False
            assert other.poll() is None
        finally:
            other.kill()


def test_the_program_stops_with_its_lifeline_and_cleans_up(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kc"
    definition = tmp_path / "small.json"
    definition.write_text(json.dumps(SMALL), encoding="utf-8")
    command = [sys.executable, "-m", PACKAGE, "--definition", str(definition), "--kubeconfig", str(kubeconfig), "--lifeline"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == f"KUBECONFIG={kubeconfig}\n"
        assert kubeconfig.exists() and (kubeconfig.stat().st_mode & 0o077) == 0
        process.stdin.close()
        assert process.wait(timeout=20) == 0
    assert not kubeconfig.exists()


@pytest.mark.parametrize(("text", "code", "words"), [("rack: 1", 2, "Did you mean 'racks'"), ("racks: 2", 0, "is valid: 32 GPU nodes")])
def test_a_definition_can_be_checked_alone(tmp_path: Path, text: str, code: int, words: str) -> None:
    path = tmp_path / "d.yml"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", PACKAGE, "--definition", str(path), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_ours_without_a_token() -> None:
    assert not is_ours(os.getpid(), "")
    assert not is_ours(1, "init")
