# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What takes two clusters. A genuine control plane is one for all tests, so this is not collected there."""

from __future__ import annotations

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.manifest import verify_manifest


def test_a_run_is_not_taken_up_against_another_cluster(start_cluster):
    first, other = start_cluster(racks=1, nodes_per_rack=2), start_cluster(racks=1, nodes_per_rack=2)
    result = first.certify(("intra-node", ["measured.bus_bandwidth >= 400"]))
    assert result.status == 0, result.output
    before = {path: path.read_bytes() for path in result.run_dir.rglob("*") if path.is_file()}
    elsewhere = other.play("certify", {"resume_run_dir": str(result.run_dir)})
    assert elsewhere.status != 0 and "another cluster" in elsewhere.output, elsewhere.output
    assert other.objects_of_ours() == []
    after = {path: path.read_bytes() for path in result.run_dir.rglob("*") if path.is_file()}
    assert after == before and verify_manifest(result.run_dir) == [], "the archive is what it was, and still sealed"
