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


class Admission:
    """Accepts Jobs, and answers every pod with an error, if there is one."""

    def __init__(self, error=None, *, may_create_pods=True):
        self.error, self.may, self.made = error, may_create_pods, []
        self.warnings = ('would violate PodSecurity "restricted:latest": unrestricted capabilities',)

    def can_i(self, verb, resource, *_where):
        return self.may or (verb, resource) != ("create", "pods")

    def create(self, path, manifest, *, dry_run):
        assert dry_run
        self.made.append((path.rsplit("/", 1)[1], manifest))
        if path.endswith("/pods") and self.error:
            raise self.error
        return manifest


@pytest.fixture
def job(monkeypatch):
    template = {"metadata": {"labels": {"run": "r"}}, "spec": {"containers": [{"name": "node"}]}}
    made = {"job": {"metadata": {"name": "readiness-run-c01-g001-1"}, "spec": {"template": template}}}
    monkeypatch.setattr(preflight, "attempt_objects", lambda *_given: made)
    return made["job"]


def refusal(message, status=403):
    return ClusterError(message, status=status, api_reason="Forbidden")


def test_a_pod_as_its_job_would_make_it_is_examined_before_anything_exists(job):
    """Pod security looks at pods: four Jobs were created and waited for before it was told."""
    server = Admission(refusal('pods "x" is forbidden: violates PodSecurity "restricted:latest"'))
    with pytest.raises(ClusterError, match='refuses the pods of c01 .*violates PodSecurity "restricted:latest"'):
        preflight.check(server, "run", [{**CATEGORY, "id": "c01"}])
    kind, pod = server.made[-1]
    assert (kind, pod["kind"], pod["spec"]) == ("pods", "Pod", job["spec"]["template"]["spec"])
    assert pod["metadata"] == {"labels": {"run": "r"}, "name": "readiness-run-c01-g001-1-0-00000", "namespace": "default"}


@pytest.mark.parametrize("words", ["pods is forbidden: exceeded quota: gpus", "admission webhook w does not support dry run"])
def test_what_may_mend_itself_until_the_test_begins_is_a_note(job, words):
    notes = preflight.check(Admission(refusal(words)), "run", [{**CATEGORY, "id": "c01"}])["notes"]
    assert any(words in note for note in notes)


def test_what_the_server_warns_of_is_told_and_what_we_may_not_try_too(job):
    server = Admission(may_create_pods=False)
    notes = preflight.check(server, "run", [{**CATEGORY, "id": "c01"}])["notes"]
    assert len(notes) == 2 and "may not create pods" in notes[0] and notes[1] == server.warnings[0]
    assert [kind for kind, _manifest in server.made] == ["jobs"]
