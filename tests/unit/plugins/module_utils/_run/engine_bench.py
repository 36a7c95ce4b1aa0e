# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""An engine without a cluster, and what watches and kubelets would tell it."""

from __future__ import annotations

import types

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.engine import Engine
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.messages import Batch, Taken
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.projections import node_facts, pod_facts

GROUP = {"name": "g001", "nodes": ["n0", "n1"]}


def engine(tmp_path, **options):
    batch = Batch(
        run_id="run",
        run_dir=str(tmp_path),
        category="c01",
        title="c01",
        template={"framework": "mpi", "namespace": "default", "env": []},
        groups=[GROUP],
        bounds={"max_concurrent": 1, "retries": 1, "start_grace_s": 10, "attempt_timeout_s": 100},
        deadline_at=2e9,
    )
    client = types.SimpleNamespace()
    client.hurried = lambda: client
    made = Engine(client, batch, **options)
    made._workers.submit = lambda *_work: None
    made._synced.add("node")
    for name in GROUP["nodes"]:
        made._on_node("ADDED", node(name))
    return made


def take_at_once(made):
    """Steps are taken in this thread, and their results seen."""

    def submit(attempt, step, work):
        made._on_taken(Taken(step, attempt.name, result=work()))

    made._workers.submit = submit


def only_attempt(made):
    attempts = list(made._live.values())
    assert len(attempts) == 1
    return attempts[0]


def node(name, ready="True", *, uid=None, boot=None, gpus=None, cordoned=False):
    status = {"conditions": [{"type": "Ready", "status": ready}], "nodeInfo": {"bootID": boot}}
    if gpus is not None:
        status["allocatable"] = {"nvidia.com/gpu": str(gpus)}
    return node_facts({"metadata": {"name": name, "uid": uid}, "spec": {"unschedulable": cordoned}, "status": status})


def pod_of(attempt, owner, index=0, node="n0", code=None):
    state = {"running": {}} if code is None else {"terminated": {"exitCode": code, "reason": "x"}}
    return pod_facts(
        {
            "metadata": {
                "name": f"{attempt.name}-{index}-{owner}",
                "uid": f"uid-{index}-{owner}",
                "labels": {"batch.kubernetes.io/job-name": attempt.name},
                "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
                "ownerReferences": [{"kind": "Job", "name": attempt.name, "uid": owner, "controller": True}],
            },
            "spec": {"nodeName": node},
            "status": {"phase": "Running", "containerStatuses": [{"name": "node", "state": state}]},
        }
    )
