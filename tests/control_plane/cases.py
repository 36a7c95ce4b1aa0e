# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Small jobs whose course on a genuine control plane is recorded (facts.py): plain Jobs, JobSets, TrainJobs."""

from __future__ import annotations

import typing as t

Object = dict[str, t.Any]
SPACE = "namespaces/default"
JOBSET, TRAINER = "jobset.x-k8s.io/v1alpha2", "trainer.kubeflow.org/v1alpha1"
JOBS, JOBSETS, TRAINJOBS = f"apis/batch/v1/{SPACE}/jobs", f"apis/{JOBSET}/{SPACE}/jobsets", f"apis/{TRAINER}/{SPACE}/trainjobs"


class Case(t.NamedTuple):
    """An object to create, and the condition (its type, or the reason of a false one) that ends the recording."""

    collection: str
    body: Object
    end: str


def _job(name: str, script: str, **spec: t.Any) -> Case:
    end = spec.pop("end", "Complete")
    pod = {**_pods(script)["spec"], **spec.pop("pod", {})}
    whole = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 0, "template": {"spec": pod}, **spec}
    return Case(JOBS, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": whole}, end)


def _pods(script: str) -> Object:
    container = {"name": "node", "image": "example.com/tests:1", "command": ["/bin/sh", "-c", script]}
    return {"spec": {"restartPolicy": "Never", "containers": [container]}}


def _jobset(name: str, script: str) -> Object:
    job = {"spec": {"parallelism": 2, "completions": 2, "backoffLimit": 0, "template": _pods(script)}}
    return {
        "apiVersion": JOBSET,
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [{"name": "workers", "template": job}]},
    }


def _trainjob(name: str, runtime: str, trainer: Object) -> Object:
    return {
        "apiVersion": TRAINER,
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"runtimeRef": {"name": runtime}, "trainer": {"image": "example.com/tests:1", **trainer}},
    }


def _shell(script: str) -> Object:
    return {"command": ["/bin/sh", "-c", script], "numNodes": 2}


_MPIRUN = ["mpirun", "--allow-run-as-root", "-np", "16", "-N", "8", "all_reduce_perf_mpi", "-b", "1G", "-e", "1G", "-g", "1"]
_GPUS = {"requests": {"nvidia.com/gpu": 8}, "limits": {"nvidia.com/gpu": 8}}
_FIRST_ENDS = "sleep ${JOB_COMPLETION_INDEX}003600"  # a second of these nodes for index 0, five minutes for index 1
_FAILS_AT_ONCE = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}]}
PLAIN_JOBS = {
    "job-complete": _job("job-complete", "echo done"),
    "job-failed": _job("job-failed", "exit 3", completions=1, parallelism=1, end="Failed"),
    "job-retried": _job("job-retried", "exit 3", completions=1, parallelism=1, backoffLimit=1, end="Failed"),
    "job-suspended": _job("job-suspended", "echo done", suspend=True, end="Suspended"),
    "job-success-policy": _job("job-success-policy", _FIRST_ENDS, successPolicy={"rules": [{"succeededIndexes": "0"}]}),
    "job-deadline": _job("job-deadline", "sleep 1000000", activeDeadlineSeconds=2, end="Failed"),
    "job-unschedulable": _job("job-unschedulable", "echo done", pod={"nodeSelector": {"example.com/none": "x"}}, end="Unschedulable"),
    "job-pod-failure-policy": _job(
        "job-pod-failure-policy", "exit 3", completions=1, parallelism=1, podFailurePolicy=_FAILS_AT_ONCE, end="Failed"
    ),
    "job-failed-indexes": _job("job-failed-indexes", "exit 3", backoffLimit=None, backoffLimitPerIndex=0, end="Failed"),
}
OF_OTHER_CONTROLLERS = {
    "jobset-complete": Case(JOBSETS, _jobset("jobset-complete", "echo done"), "Completed"),
    "jobset-failed": Case(JOBSETS, _jobset("jobset-failed", "exit 3"), "Failed"),
    "trainjob-torch": Case(TRAINJOBS, _trainjob("trainjob-torch", "torch-distributed", _shell("echo done")), "Complete"),
    "trainjob-failed": Case(TRAINJOBS, _trainjob("trainjob-failed", "torch-distributed", _shell("exit 3")), "Failed"),
    "trainjob-mpi": Case(
        TRAINJOBS,
        _trainjob(
            "trainjob-mpi", "deepspeed-distributed", {"command": _MPIRUN, "numNodes": 2, "numProcPerNode": 8, "resourcesPerNode": _GPUS}
        ),
        "Complete",
    ),
}
