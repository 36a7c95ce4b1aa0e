# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A machine dies under test. What the watches tell of it comes in any order; the verdict is the same in each.

The engine runs on a clock of the test; pods, the Job and the node say what they would say, each at its own time.
"""

from __future__ import annotations

import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.criteria import compile_criteria, evaluate_all
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.groups import judge_group
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measurement
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run import engine as engine_module
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run import last_look as last_look_module
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run import records as records_module
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.engine import Engine
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.fitness import Eyes
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.last_look import LastLook
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.messages import Batch, Step, Taken
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.projections import job_facts, node_facts, pod_facts
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.steps import Collected, Now

MEMBERS = ["n0", "n1", "n2"]
GROUP = {"name": "g001", "nodes": MEMBERS, "domain": None, "expected_transport": None}
CRITERIA = compile_criteria(["measured.bus_bandwidth >= 400"], {}, {"bus_bandwidth": "number"})
BOUNDS = {"max_concurrent": 1, "retries": 1, "start_grace_s": 10, "attempt_timeout_s": 600, "queue_timeout_s": 900, "node_grace_s": 40}
TEST_S = 30  # that an undisturbed test takes
LONGEST_S = 2000
MARK = "taint karpenter.sh/disrupted:NoSchedule"


class Rehearsal:
    """One group on three of six nodes. dead: the machine that dies when the test has begun; then: what is told of it, and when."""

    def __init__(self, folder, dead, then, *, announced=False, told_of_start=True):
        self.now, self.dead, self.then = 1000.0, dead, sorted(then.items(), key=lambda item: item[1])
        self.announced, self.told_of_start = announced, told_of_start
        clock = types.SimpleNamespace(monotonic=lambda: self.now, time=lambda: 1.7e9 + self.now, sleep=lambda _s: None)
        for module in (engine_module, records_module, last_look_module):
            module.time = clock
        batch = Batch("run", str(folder), "c01", "c01", {"namespace": "default", "env": [], "framework": "mpi"}, [GROUP], BOUNDS, 4e9)
        self.engine = Engine(types.SimpleNamespace(), batch, eyes=Eyes(departure=lambda facts: facts["metadata"]["labels"].get("mark")))
        self.engine._workers.submit = self.submit
        self.engine._synced.add("node")
        self.due: list = []
        for index in range(6):
            self.engine._on_node("ADDED", self.node(f"n{index}"))

    def node(self, name, ready="True"):
        labels = {"mark": MARK} if self.announced and name == self.dead and ready != "True" else {}
        status = {"conditions": [{"type": "Ready", "status": ready}], "nodeInfo": {"bootID": "first"}}
        return node_facts({"metadata": {"name": name, "uid": name, "labels": labels}, "status": status})

    def pod(self, attempt, index, state, phase="Running"):
        meta = {
            "name": f"{attempt.name}-{index}",
            "uid": f"{attempt.name}-{index}",
            "labels": {"batch.kubernetes.io/job-name": attempt.name},
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
            "ownerReferences": [{"kind": "Job", "uid": attempt.name, "controller": True}],
        }
        status = {"phase": phase, "containerStatuses": [{"name": "node", "state": state}]}
        return pod_facts({"metadata": meta, "spec": {"nodeName": attempt.nodes[index]}, "status": status})

    def submit(self, attempt, step, work):
        """Steps succeed at once; a pod on the dead machine neither starts nor goes."""
        nodes = [node for name in attempt.nodes if (node := self.engine._contact.nodes.get(name))]
        result = {Step.COLLECT: Collected(), Step.ASK_NOW: Now([], nodes)}.get(step, attempt.name)
        attempt.under_way.add(step)
        self.after(0, lambda: self.engine._on_taken(Taken(step, attempt.name, result=result)))
        if step is Step.CREATE:
            self.after(1, lambda: self.start(attempt))
        if step is Step.REMOVE:
            self.after(1, lambda: self.leave(attempt))

    def after(self, seconds, what):
        self.due.append((self.now + seconds, what))

    def start(self, attempt):
        first = attempt.number == 1
        for index, name in enumerate(attempt.nodes):
            runs = name != self.dead or (first and self.told_of_start)
            state = {"running": {}} if runs else {"waiting": {"reason": "ContainerCreating"}}
            self.engine._on_pod("ADDED", self.pod(attempt, index, state, "Running" if runs else "Pending"))
        if first:
            for what, at in self.then:
                self.after(1 + at, lambda what=what: getattr(self, what)(attempt))
        elif self.dead not in attempt.nodes:
            self.after(TEST_S, lambda: self.engine._on_pod("MODIFIED", self.pod(attempt, 0, {"terminated": {"exitCode": 0}}, "Succeeded")))

    def leave(self, attempt):
        for pod in list(attempt.pods.values()):
            if pod["node"] != self.dead:
                self.engine._on_pod("DELETED", {key: value for key, value in pod.items() if key != "gone"})

    # What is told of the death

    def launcher_ends(self, attempt):
        self.engine._on_pod("MODIFIED", self.pod(attempt, 0, {"terminated": {"exitCode": 255, "reason": "Error"}}, "Failed"))

    def pod_fails(self, attempt):
        self.engine._on_pod("MODIFIED", self.pod(attempt, MEMBERS.index(self.dead), {"running": {}}, "Failed"))

    def job_fails(self, attempt):
        status = {"conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "pod failed"}]}
        self.engine._on_job("MODIFIED", job_facts({"metadata": {"name": attempt.name, "uid": attempt.name}, "spec": {}, "status": status}))

    def node_is_missed(self, _attempt):
        self.engine._on_node("MODIFIED", self.node(self.dead, "Unknown"))

    def play(self):
        """The group judged, when all is over."""
        engine = self.engine
        while engine._groups.waiting or engine._live or self.due:
            assert self.now < LONGEST_S, "the batch does not come to its end"
            self.due.sort(key=lambda item: item[0])
            while self.due and self.due[0][0] <= self.now:
                self.due.pop(0)[1]()
            engine._check_ending()
            engine._admit()
            for attempt in list(engine._live.values()):
                engine._advance(attempt, self.now)
            self.now += 1
        records = engine._groups.records["g001"]
        look = LastLook(None, None, engine._contact, engine._health, engine._fitness, print, 0)
        seen = {name: look._state(name) for name in MEMBERS}
        good = records[-1]["outcome"] == "succeeded"
        measured = measurement("nccl", None, "", complete=True, values={"bus_bandwidth": 450.0}) if good else None
        results = evaluate_all(CRITERIA, measured["values"]) if measured else []
        return judge_group(GROUP, {"name": "g001", "nodes": MEMBERS, "attempts": records}, measured, results, last_look=seen)


@pytest.fixture(autouse=True)
def clocks():
    """Puts the modules' own clocks back."""
    modules = (engine_module, records_module, last_look_module)
    kept = [module.time for module in modules]
    yield
    for module, clock in zip(modules, kept, strict=True):
        module.time = clock


def verdicts(judged):
    return {node: member["verdict"] for node, member in judged["members"].items()}


# Seconds after the death. Others of the group may notice at once or by their own timeouts; a cluster within some 50 s, a patient one later.
worker_dies = st.fixed_dictionaries(
    {"launcher_ends": st.integers(0, 120), "node_is_missed": st.integers(0, 100)},
    optional={"pod_fails": st.integers(0, 120), "job_fails": st.integers(0, 120)},
)
launcher_dies = st.fixed_dictionaries({"node_is_missed": st.integers(0, 100)}, optional={"pod_fails": st.integers(0, 120)})


@settings(max_examples=150, deadline=None)
@given(then=worker_dies)
def test_a_worker_that_dies_is_lost_and_the_others_pass_in_whatever_order_it_is_told(tmp_path_factory, then):
    judged = Rehearsal(tmp_path_factory.mktemp("run"), "n1", then).play()
    assert verdicts(judged) == {"n0": "passed", "n1": "failed", "n2": "passed"}, judged["attempts"]
    assert judged["members"]["n1"]["findings"][0]["reason"] == "NodeLost"


@settings(max_examples=60, deadline=None)
@given(then=launcher_dies)
def test_the_launchers_machine_that_dies_is_lost_and_the_others_pass(tmp_path_factory, then):
    judged = Rehearsal(tmp_path_factory.mktemp("run"), "n0", then).play()
    assert verdicts(judged) == {"n0": "failed", "n1": "passed", "n2": "passed"}, judged["attempts"]
    assert judged["members"]["n0"]["findings"][0]["reason"] == "NodeLost"


@settings(max_examples=60, deadline=None)
@given(then=worker_dies)
def test_a_machine_that_was_announced_to_go_is_condemned_in_no_order(tmp_path_factory, then):
    judged = Rehearsal(tmp_path_factory.mktemp("run"), "n1", then, announced=True).play()
    assert verdicts(judged) == {"n0": "passed", "n1": "untested", "n2": "passed"}, judged["attempts"]
    assert judged["members"]["n1"]["findings"][0]["reason"] == "NodeUnavailable"


@settings(max_examples=100, deadline=None)
@given(missed=st.integers(0, 100), ends=st.integers(-60, 35))
def test_a_worker_that_dies_before_its_kubelet_told_of_the_start_is_lost_if_the_test_ended_by_it(tmp_path_factory, missed, ends):
    """It died in the second in which it began: what its launcher says shows that the test ran, whoever is heard first."""
    then = {"node_is_missed": missed, "launcher_ends": max(0, missed + ends)}
    judged = Rehearsal(tmp_path_factory.mktemp("run"), "n1", then, told_of_start=False).play()
    assert verdicts(judged) == {"n0": "passed", "n1": "failed", "n2": "passed"}, judged["attempts"]


def test_a_worker_that_dies_before_anything_ran_on_it_is_not_there(tmp_path):
    judged = Rehearsal(tmp_path, "n1", {"node_is_missed": 10}, told_of_start=False).play()
    assert verdicts(judged) == {"n0": "passed", "n1": "untested", "n2": "passed"}, judged["attempts"]
