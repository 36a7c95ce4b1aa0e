# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A certification without Ansible: the lines of docs/architecture.md, run as they stand."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = {"racks": 1, "nodes_per_rack": 2}


def test_the_documented_lines_certify_a_cluster(start_cluster, tmp_path):
    cluster = start_cluster(**SMALL)
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/architecture.md").read_text(encoding="utf-8"), re.DOTALL)
    given = {"import_root": "", "kubeconfig": str(cluster.kubeconfig), "catalog": str(ROOT / "catalog"), "runs_dir": str(tmp_path / "runs")}
    script = "".join(f"{name} = {value!r}\n" for name, value in given.items()) + lines
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    verdict, path = done.stdout.splitlines()[-1].split(" ", 1)
    assert verdict == "passed"
    with open(path, encoding="utf-8") as handle:
        assert {node["verdict"] for node in json.load(handle)["nodes"]} == {"passed"}
