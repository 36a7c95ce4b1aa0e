# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Pods in which others have put containers of their own, and pods that others made."""

from __future__ import annotations

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.projections import pod_facts


def pod(*containers, init=(), index="0", **metadata):
    return pod_facts(
        {
            "metadata": {"name": "p", "annotations": {"batch.kubernetes.io/job-completion-index": index}, **metadata},
            "status": {"phase": "Running", "containerStatuses": list(containers), "initContainerStatuses": list(init)},
        }
    )


def status(name, state):
    return {"name": name, "state": state, "restartCount": 0, "image": f"registry.example/{name}"}


RUNS, ENDED = {"running": {}}, {"terminated": {"exitCode": 0, "reason": "Completed"}}


def test_a_sidecar_that_ends_first_is_not_taken_for_the_launchers_success():
    facts = pod(status("injected-hook", ENDED), status("node", RUNS))
    assert (facts["running"], facts["terminated"]) == (True, None)


def test_a_sidecar_that_runs_on_does_not_hide_that_the_launcher_has_ended():
    facts = pod(status("istio-proxy", RUNS), status("node", {"terminated": {"exitCode": 3, "reason": "Error"}}))
    assert (facts["running"], facts["terminated"]["exit_code"]) == (False, 3)


def test_a_sidecar_whose_image_cannot_be_pulled_does_not_stop_a_test_that_runs():
    facts = pod(status("agent", {"waiting": {"reason": "ImagePullBackOff"}}), status("node", RUNS))
    assert facts["waiting"] is None


def test_an_init_container_that_keeps_ours_back_is_told():
    waits = status("node", {"waiting": {"reason": "PodInitializing"}})
    facts = pod(waits, init=[status("injected-init", {"waiting": {"reason": "ErrImagePull", "message": "no"}})])
    assert facts["waiting"]["reason"] == "ErrImagePull"
    failed = pod(waits, init=[status("injected-init", {"terminated": {"exitCode": 7, "reason": "Error"}})])
    assert failed["terminated"]["exit_code"] == 7


def test_a_native_sidecar_that_is_killed_at_the_end_is_no_failure_of_ours():
    killed = status("istio-proxy", {"terminated": {"exitCode": 137, "reason": "Error"}})
    assert pod(status("node", RUNS), init=[killed])["terminated"] is None
    assert pod(status("node", ENDED), init=[killed])["terminated"]["exit_code"] == 0


@pytest.mark.parametrize("index", ["x", "-1", "", "١", None])
def test_a_strange_index_is_none_and_ends_no_watch(index):
    assert pod(index=index)["index"] is None


def test_only_the_controller_is_the_owner():
    owners = [{"kind": "Job", "uid": "a"}, {"kind": "Job", "uid": "b", "controller": True}]
    assert pod(ownerReferences=owners)["owner"] == "b" and pod()["owner"] is None
