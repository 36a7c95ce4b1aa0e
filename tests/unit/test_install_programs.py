# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Continuous integration installs what tests need: a test is never skipped there because nobody noticed that a program is missing."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Writes down how it was called, and makes the program that a package is to bring, unless it is told to fail or to bring nothing.
APT_GET = """#!/bin/sh
echo "$DEBIAN_FRONTEND $*" >>"{folder}/calls"
case "$*" in *update*) exit 0 ;; *broken*) echo "E: it is broken" >&2; exit 100 ;; *empty*) exit 0 ;; esac
printf '#!/bin/sh\\n' >"{folder}/frobnicate"; chmod +x "{folder}/frobnicate"
"""
# sudo of somebody who is not root: takes away the environment, as the real one does.
SUDO = """#!/bin/sh
[ "$1" = -n ] && shift
exec env -u DEBIAN_FRONTEND "$@"
"""


def install(folder: pathlib.Path, *pairs: str) -> tuple[int, str, str]:
    """(exit status, output, calls of apt-get)"""
    for name, text in (("apt-get", APT_GET.format(folder=folder)), ("sudo", SUDO)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        [str(ROOT / ".ci" / "install_programs"), *pairs], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    calls = folder / "calls"
    return done.returncode, done.stdout + done.stderr, calls.read_text() if calls.exists() else ""


def test_nothing_is_asked_of_apt_when_every_program_is_there(tmp_path: pathlib.Path) -> None:
    assert install(tmp_path, "sh=dash", "cat=coreutils") == (0, "", "")


def test_only_what_is_missing_is_installed_and_without_a_question(tmp_path: pathlib.Path) -> None:
    status, output, calls = install(tmp_path, "sh=dash", "frobnicate=frobnicate-tools")
    assert (status, output) == (0, "Installing frobnicate-tools\n")
    last = calls.splitlines()[-1]
    assert last.startswith("noninteractive ") and last.endswith(" install -y --no-install-recommends frobnicate-tools")


@pytest.mark.parametrize(
    ("package", "said"), [("broken", "E: it is broken\nERROR: broken could not be installed"), ("empty", "there is no program frobnicate")]
)
def test_a_package_that_does_not_come_is_an_error_said_aloud(tmp_path: pathlib.Path, package: str, said: str) -> None:
    status, output, _calls = install(tmp_path, f"frobnicate={package}")
    assert status == 1
    assert said in output


def test_what_the_test_of_the_launch_script_asks_for_is_installed() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    installed = set(re.search(r"\.ci/install_programs (.*)", script)[1].split())
    test = (ROOT / "tests" / "end_to_end" / "test_real_launch.py").read_text()
    needed = set(re.findall(r'"(\w+)"', re.search(r"for name in \((.*?)\) if not", test)[1])) | {"mpirun"}
    assert needed == {pair.partition("=")[0] for pair in installed}
