# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The collection as `ansible-galaxy` builds and installs it works without the checkout, carries its licences and nothing superfluous."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tarfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(sys.executable).parent
MAX_BYTES = 1_500_000

pytestmark = [pytest.mark.end_to_end, pytest.mark.simulator]


def run(directory: pathlib.Path, program: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [str(PROGRAMS / program), *arguments],
        cwd=directory,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(directory / "home"), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The tarball of the checkout."""
    directory = tmp_path_factory.mktemp("artifact")
    run(directory, "ansible-galaxy", "collection", "build", str(ROOT), "--output-path", str(directory))
    return next(directory.glob("gpu_cluster-readiness-*.tar.gz"))


def test_the_artifact_holds_the_licences_and_no_file_that_only_a_checkout_needs(artifact: pathlib.Path) -> None:
    with tarfile.open(artifact) as tar:
        names = set(tar.getnames())
        galaxy = json.loads(tar.extractfile("MANIFEST.json").read())["collection_info"]
    assert {f"LICENSES/{name}.txt" for name in galaxy["license"]} <= names
    assert {"LICENSE", "COPYING", "REUSE.toml", "README.md", "CHANGELOG.md", "meta/runtime.yml", "catalog/gpus.yml"} <= names
    unwanted = (".ci", ".git", ".venv", ".build", "runs", "tests/vectors", "tests/control_plane/go.sum")
    assert sorted(name for name in names if name.startswith(unwanted)) == []
    assert not [name for name in names if name.endswith((".pyc", ".tar.gz"))]
    assert artifact.stat().st_size < MAX_BYTES


def test_who_installs_it_certifies_with_nothing_else_at_hand(artifact, start_cluster, tmp_path):
    path = tmp_path / "collections"
    # The environment of the tests knows the checkout as installed, hence --force.
    run(tmp_path, "ansible-galaxy", "collection", "install", str(artifact), "--offline", "--force", "-p", str(path))
    request = {"categories": [{"test": "communication/nccl-all-reduce", "test_scale": "intra-node"}], "allow_no_criteria": True}
    given = {"certification": request, "readiness_kubeconfig": str(start_cluster(racks=1, nodes_per_rack=1).kubeconfig), "run_id": "r1"}
    arguments = ["gpu_cluster.readiness.certify", "-vv", "-e", json.dumps(given)]
    output = run(tmp_path, "ansible-playbook", *arguments, ANSIBLE_COLLECTIONS_PATH=str(path))
    assert f"{path}/ansible_collections/gpu_cluster/readiness/roles/report/tasks/main.yml" in output
    assert "CLUSTER READINESS: PASSED" in output
    assert (tmp_path / "runs" / "r1" / "report.json").exists()
