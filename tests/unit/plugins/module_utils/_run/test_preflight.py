# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the API server says of our manifests before the first of them is created."""

from __future__ import annotations

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run import preflight

CATEGORY = {
    "short_id": "c01",
    "title": "c01 nccl-all-reduce intra-node",
    "groups": [{"name": "g001", "nodes": ["n0"]}],
    "template": {"namespace": "default"},
}


class Server:
    """Answers every create with the given error."""

    def __init__(self, status, api_reason):
        self.error = ClusterError("the server says no", status=status, api_reason=api_reason)
        self.asked = []

    def create(self, path, _manifest, *, dry_run):
        assert dry_run
        self.asked.append(path)
        raise self.error


@pytest.fixture(autouse=True)
def manifests(monkeypatch):
    monkeypatch.setattr(preflight, "attempt_objects", lambda *_given: {"job": {}, "service": {}})


def test_objects_that_a_killed_start_left_do_not_stop_its_resume():
    """They are removed by the engine; refusing here would leave them in the cluster and the run unfinished."""
    server = Server(409, "AlreadyExists")
    preflight.dry_run(server, "run", CATEGORY)
    assert len(server.asked) == 2


def test_any_other_refusal_is_told_with_the_object_and_its_place():
    with pytest.raises(ClusterError) as caught:
        preflight.dry_run(Server(403, "Forbidden"), "run", CATEGORY)
    assert "refuses the job of c01 nccl-all-reduce intra-node" in caught.value.message
    assert "namespace default" in caught.value.place
