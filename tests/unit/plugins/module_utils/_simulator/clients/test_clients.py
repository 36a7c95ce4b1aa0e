# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The clients together with the API server. Each test is something a rehearsal must show as a real cluster shows it."""

from __future__ import annotations

import asyncio

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api.server import ApiServer
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.clients.api import ApiError, resource_path
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.clients.images import image_name_problem
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware.seam import (
    LogLine,
    LogPolicy,
    NodeChange,
    Outcome,
    Rejection,
    StartProblem,
)

from .cluster import Model, a_job, a_pod, conditions, in_cluster, pod_spec, running, terminated

JOBS = "batch/v1/jobs"


def exits(code, **more):
    return lambda _pod, _container, _peers: Outcome([LogLine(0.5, "working")], exit_code=code, duration_s=1.0, **more)


def serves(_pod, _container, _peers):
    return Outcome([LogLine(0.0, "listening")], duration_s=None)


def phase_is(*phases):
    return lambda pod: pod["status"]["phase"] in phases


def waits_for(reason):
    def test(pod):
        rows = pod["status"].get("containerStatuses") or [{}]
        return rows[0].get("state", {}).get("waiting", {}).get("reason") == reason

    return test


def test_an_indexed_job_runs_to_its_end(tmp_path):
    async def scenario(cluster):
        await cluster.create(JOBS, a_job("j", 2))
        job = await cluster.finished_job("j")
        assert conditions(job) == [("SuccessCriteriaMet", "CompletionsReached"), ("Complete", "CompletionsReached")]
        assert (job["status"]["succeeded"], job["status"]["completedIndexes"]) == (2, "0,1")
        assert job["status"]["completionTime"]
        pods = await cluster.pods(**{"batch.kubernetes.io/job-name": "j"})
        assert sorted(pod["spec"]["nodeName"] for pod in pods) == ["n0", "n1"]
        for index, pod in enumerate(pods):
            assert pod["metadata"]["name"].startswith(f"j-{index}-")
            assert pod["spec"]["hostname"] == f"j-{index}"
            assert pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == str(index)
            assert "finalizers" not in pod["metadata"]
            assert await cluster.log(pod["metadata"]["name"]) == (200, f"{pod['metadata']['name']} on {pod['spec']['nodeName']}\n")
        assert await cluster.event("Completed") == "Job completed"

    in_cluster(tmp_path, Model(), scenario)


def launcher(pod, container, peers):
    """Index 0 waits for its peers and reports them; the others serve until they are stopped."""
    if pod.job_completion_index != 0:
        return serves(pod, container, peers)

    def lines():
        now = 0.0
        while peers(f"{pod.host_name[:-1]}1.{pod.subdomain}") is None:
            now += 0.1
            yield LogLine(now, None)
        peer = peers(f"{pod.host_name[:-1]}1.{pod.subdomain}.default.svc.cluster.local")
        yield LogLine(now, f"{container.env['JOB_COMPLETION_INDEX']} met {peer.host_name} on {peer.node}")

    return Outcome(lines())


def test_a_launcher_meets_its_workers_and_ends_the_job(tmp_path):
    async def scenario(cluster):
        service = {"metadata": {"name": "svc"}, "spec": {"clusterIP": "None", "selector": {"batch.kubernetes.io/job-name": "mpi"}}}
        await cluster.create("services", service)
        policy = {"rules": [{"succeededIndexes": "0"}]}
        await cluster.create(JOBS, a_job("mpi", 2, pod_spec(subdomain="svc"), successPolicy=policy))
        job = await cluster.finished_job("mpi")
        assert conditions(job) == [("SuccessCriteriaMet", "SuccessPolicy"), ("Complete", "SuccessPolicy")]
        assert job["status"]["completedIndexes"] == "0"
        (pod,) = [pod for pod in await cluster.pods() if pod["metadata"]["name"].startswith("mpi-0-")]
        other = "n1" if pod["spec"]["nodeName"] == "n0" else "n0"
        assert await cluster.log(pod["metadata"]["name"]) == (200, f"0 met mpi-1 on {other}\n")

    in_cluster(tmp_path, Model(workload=launcher), scenario)


def test_without_its_service_a_host_name_leads_nowhere(tmp_path):
    seen = []

    def asks(pod, _container, peers):
        seen.append((peers(pod.host_name) is not None, peers("p.svc")))
        return Outcome(())

    async def scenario(cluster):
        await cluster.create("pods", a_pod("p", hostname="p", subdomain="svc"))
        await cluster.pod_with("p", phase_is("Succeeded"))
        assert seen == [(True, None)]

    in_cluster(tmp_path, Model(workload=asks), scenario)


def test_a_crash_fails_the_job_and_shows_why(tmp_path):
    async def scenario(cluster):
        spec = pod_spec(container={"terminationMessagePolicy": "FallbackToLogsOnError"})
        await cluster.create(JOBS, a_job("j", 1, spec, backoffLimit=0))
        job = await cluster.finished_job("j")
        assert conditions(job) == [("FailureTarget", "BackoffLimitExceeded"), ("Failed", "BackoffLimitExceeded")]
        assert job["status"]["failed"] == 1
        (pod,) = await cluster.pods()
        ended = terminated(pod)
        assert (ended["exitCode"], ended["reason"], ended["message"]) == (137, "OOMKilled", "working\n")
        assert await cluster.event("BackoffLimitExceeded") == "Job has reached the specified backoff limit"

    in_cluster(tmp_path, Model(workload=exits(137, reason="OOMKilled")), scenario)


def test_a_failed_pod_is_replaced_until_the_limit(tmp_path):
    async def scenario(cluster):
        await cluster.create(JOBS, a_job("j", 1, backoffLimit=2))
        job = await cluster.finished_job("j")
        assert job["status"]["failed"] == 3
        assert len(await cluster.pods()) == 3

    in_cluster(tmp_path, Model(workload=exits(1)), scenario)


def test_an_image_that_cannot_be_pulled(tmp_path):
    def start(_pod, _container):
        return StartProblem("ErrImagePull", "tests:1: not found")

    async def scenario(cluster):
        await cluster.create("pods", a_pod("p"))
        pod = await cluster.pod_with("p", waits_for("ImagePullBackOff"))
        assert pod["status"]["phase"] == "Pending"
        assert 'Failed to pull image "tests:1": tests:1: not found' in await cluster.until(lambda: cluster.events("Failed"))
        status, text = await cluster.log("p")
        assert status == 400
        assert "is waiting to start" in text
        await cluster.api.delete(resource_path("pods", "default", "p"))
        await cluster.until(lambda: gone(cluster, "p"))

    in_cluster(tmp_path, Model(start=start), scenario)


def test_a_name_that_is_no_image_never_starts(tmp_path):
    """The API server takes any text; a typo must not look like a test that ran."""

    async def scenario(cluster):
        pod = a_pod("p")
        pod["spec"]["containers"][0]["image"] = "Registry.example/NCCL tests:1"
        await cluster.create("pods", pod)
        await cluster.pod_with("p", waits_for("InvalidImageName"))
        assert any("couldn't parse image name" in message for message in await cluster.until(lambda: cluster.events("InspectFailed")))

    in_cluster(tmp_path, Model(), scenario)


@pytest.mark.parametrize(
    "image, valid",
    [
        ("tests", True),
        ("nvcr.io/nvidia/pytorch:25.06-py3", True),
        ("Registry.example:5000/a/b_c/d__e:V1.0_x", True),
        ("[fd00::1]:5000/tests", True),
        ("registry.example/t@sha256:" + "0" * 64, True),
        ("tests:", False),
        ("UPPER", False),
        ("a b", False),
        ("", False),
    ],
)
def test_names_of_images(image, valid):
    assert (image_name_problem(image) is None) == valid


async def gone(cluster, name):
    try:
        await cluster.get("pods", name)
    except ApiError as exc:
        return exc.status == 404
    return False


def test_a_start_problem_that_passes(tmp_path):
    def start(_pod, _container):
        return StartProblem("ContainerCreating", "network is not ready", event_reason="FailedCreatePodSandBox", lasts_s=20.0)

    async def scenario(cluster):
        await cluster.create("pods", a_pod("p"))
        await cluster.pod_with("p", phase_is("Succeeded"))
        assert await cluster.event("FailedCreatePodSandBox") == "network is not ready"

    in_cluster(tmp_path, Model(start=start), scenario)


def test_a_pod_that_its_node_refuses(tmp_path):
    async def scenario(cluster):
        await cluster.create("pods", a_pod("p"))
        pod = await cluster.pod_with("p", phase_is("Failed"))
        assert (pod["status"]["reason"], pod["status"]["message"]) == ("UnexpectedAdmissionError", "no devices")

    in_cluster(tmp_path, Model(admission=lambda _pod: Rejection("UnexpectedAdmissionError", "no devices")), scenario)


def test_a_node_cannot_be_overbooked_by_name(tmp_path):
    async def scenario(cluster):
        await cluster.create("pods", a_pod("first", nodeName="n0"))
        await cluster.pod_with("first", phase_is("Running"))
        await cluster.create("pods", a_pod("second", nodeName="n0"))
        pod = await cluster.pod_with("second", phase_is("Failed"))
        assert pod["status"]["reason"] == "UnexpectedAdmissionError"
        assert "Requested: 8, Available: 0" in pod["status"]["message"]

    in_cluster(tmp_path, Model(workload=serves), scenario)


def pinned(*names):
    field = {"key": "metadata.name", "operator": "In", "values": list(names)}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def test_the_scheduler_says_why_nothing_fits(tmp_path):
    async def scenario(cluster):
        await cluster.create("pods", a_pod("holder", affinity=pinned("n1")))
        await cluster.pod_with("holder", phase_is("Running"))
        await cluster.create("pods", a_pod("waiting", affinity=pinned("n1")))
        pod = await cluster.pod_with("waiting", lambda pod: pod["status"].get("conditions"))
        (row,) = pod["status"]["conditions"]
        assert (row["type"], row["status"], row["reason"]) == ("PodScheduled", "False", "Unschedulable")
        assert row["message"] == (
            "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]. "
            "no new claims to deallocate, preemption: 0/3 nodes are available: "
            "1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."
        )
        assert await cluster.event("FailedScheduling") == row["message"]
        await cluster.api.delete(resource_path("pods", "default", "holder"))
        placed = await cluster.pod_with("waiting", phase_is("Running"))
        assert placed["spec"]["nodeName"] == "n1"

    in_cluster(tmp_path, Model(nodes=3, workload=serves), scenario)


def test_cordons_taints_and_selectors_keep_pods_away(tmp_path):
    async def scenario(cluster):
        await cluster.api.patch("/api/v1/nodes/n0", {"spec": {"unschedulable": True}})
        taints = [{"key": "broken", "value": "yes", "effect": "NoSchedule"}]
        await cluster.api.patch("/api/v1/nodes/n1", {"spec": {"taints": taints}}, "merge")
        await asyncio.sleep(0.2)
        await cluster.create("pods", a_pod("p", nodeSelector={"rack": "r0"}))
        pod = await cluster.pod_with("p", lambda pod: pod["status"].get("conditions"))
        message = pod["status"]["conditions"][0]["message"]
        assert message.startswith("0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable.")
        await cluster.api.patch("/api/v1/nodes/n1", {"spec": {"taints": None}}, "merge")
        placed = await cluster.pod_with("p", phase_is("Succeeded"))
        assert placed["spec"]["nodeName"] == "n1"

    in_cluster(tmp_path, Model(), scenario)


def test_pods_that_avoid_each_other_share_no_node(tmp_path):
    async def scenario(cluster):
        term = {"labelSelector": {"matchLabels": {"batch.kubernetes.io/job-name": "j"}}, "topologyKey": "kubernetes.io/hostname"}
        spec = pod_spec(gpus=1, affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})
        await cluster.create(JOBS, a_job("j", 4, spec))

        async def placed():
            pods = await cluster.pods()
            return pods if sum("nodeName" in pod["spec"] for pod in pods) == 3 and len(pods) == 4 else None

        pods = await cluster.until(placed)
        assert {pod["spec"].get("nodeName") for pod in pods} == {"n0", "n1", "n2", None}

    in_cluster(tmp_path, Model(nodes=3, workload=serves), scenario)


def test_spread_and_affinity_follow_the_topology(tmp_path):
    """Two domains of two nodes: spread pods take both domains evenly; a pod that wants company goes to its friend's domain."""

    async def scenario(cluster):
        for number in range(4):
            await cluster.api.patch(f"/api/v1/nodes/n{number}", {"metadata": {"labels": {"domain": f"d{number // 2}"}}})
        await asyncio.sleep(0.3)
        selector = {"matchLabels": {"batch.kubernetes.io/job-name": "spread"}}
        rule = {"maxSkew": 1, "topologyKey": "domain", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
        await cluster.create(JOBS, a_job("spread", 2, pod_spec(gpus=1, topologySpreadConstraints=[rule])))
        term = {"labelSelector": {"matchLabels": {"batch.kubernetes.io/job-name": "friend"}}, "topologyKey": "domain"}
        await cluster.create(JOBS, a_job("friend", 1, pod_spec(gpus=1, nodeSelector={"domain": "d1"})))
        together = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        await cluster.create(JOBS, a_job("company", 1, pod_spec(gpus=1, affinity=together)))

        async def all_placed():
            pods = await cluster.pods()
            return {pod["metadata"]["name"].rsplit("-", 1)[0]: pod["spec"].get("nodeName") for pod in pods} if len(pods) == 4 else None

        async def settled():
            found = await all_placed()
            return found if found and all(found.values()) else None

        found = await cluster.until(settled)
        assert {found["spread-0"] in ("n0", "n1"), found["spread-1"] in ("n0", "n1")} == {True, False}
        assert found["company-0"] in ("n2", "n3")

    in_cluster(tmp_path, Model(nodes=4, workload=serves), scenario)


def test_a_job_without_indexes_counts_its_pods(tmp_path):
    async def scenario(cluster):
        job = a_job("j", 3, parallelism=2)
        del job["spec"]["completionMode"]
        await cluster.create(JOBS, job)
        done = await cluster.finished_job("j")
        assert conditions(done)[-1] == ("Complete", "CompletionsReached")
        assert done["status"]["succeeded"] == 3
        assert "active" not in done["status"]
        pods = await cluster.pods()
        assert len(pods) == 3
        assert all("hostname" not in pod["spec"] for pod in pods)

    in_cluster(tmp_path, Model(), scenario)


def test_a_lost_node(tmp_path):
    """The lease stops; the node turns Unknown and tainted; its log is unreachable; its pod is evicted, not finished."""

    async def scenario(cluster):
        await cluster.create("pods", a_pod("p", affinity=pinned("n0")))
        await cluster.pod_with("p", phase_is("Running"))

        async def lost():
            node = await cluster.api.get("/api/v1/nodes/n0")
            (row,) = [row for row in node["status"]["conditions"] if row["type"] == "Ready"]
            taints = node["spec"].get("taints") or []
            return node if row["status"] == "Unknown" and len(taints) == 2 else None

        node = await cluster.until(lost)
        assert {taint["key"] for taint in node["spec"]["taints"]} == {"node.kubernetes.io/unreachable"}
        status, text = await cluster.log("p")
        assert status == 500
        assert "containerLogs" in text
        other = await cluster.api.get("/api/v1/nodes/n1")
        assert not other["spec"].get("taints")
        pod = await cluster.pod_with("p", lambda pod: pod["metadata"].get("deletionTimestamp"))
        rows = {row["type"]: row for row in pod["status"]["conditions"]}
        assert rows["DisruptionTarget"]["reason"] == "DeletionByTaintManager"
        assert pod["status"]["phase"] == "Running"

    change = NodeChange("n0", after_s=30.0, lost=True)
    in_cluster(tmp_path, Model(workload=serves, changes=[change]), scenario, lease_interval_s=0.2)


def test_a_node_that_comes_back_has_lost_its_pods(tmp_path):
    async def scenario(cluster):
        await cluster.create("pods", a_pod("p", affinity=pinned("n0")))
        await asyncio.sleep(0.4)
        await cluster.create("pods", a_pod("late", nodeName="n0", gpus=0))
        await cluster.api.delete(resource_path("pods", "default", "late"))
        pod = await cluster.pod_with("p", phase_is("Failed"))
        assert terminated(pod)["reason"] == "ContainerStatusUnknown"
        await cluster.until(lambda: gone(cluster, "late"))

    changes = [NodeChange("n0", after_s=30.0, lost=True), NodeChange("n0", after_s=100.0, lost=False)]
    in_cluster(tmp_path, Model(workload=serves, changes=changes), scenario)


def test_a_kubelet_that_was_given_up_by_mistake_says_that_it_lives(tmp_path):
    """A machine that is short of CPU time renews a lease too late: the node was lost for good, and every test after it."""

    async def scenario(cluster):
        async def ready():
            node = await cluster.api.get("/api/v1/nodes/n0")
            rows = {row["type"]: row["status"] for row in node["status"]["conditions"]}
            return rows["Ready"] == "True" and not node["spec"].get("taints")

        await cluster.until(ready)
        row = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}
        await cluster.api.patch("/api/v1/nodes/n0/status", {"status": {"conditions": [row]}})
        assert not await ready()
        await cluster.until(ready)

    in_cluster(tmp_path, Model(), scenario)


def test_a_node_turns_unhealthy(tmp_path):
    async def scenario(cluster):
        async def unhealthy():
            node = await cluster.api.get("/api/v1/nodes/n1")
            return [row for row in node["status"]["conditions"] if row["type"] == "GpuHealthy"]

        (row,) = await cluster.until(unhealthy)
        assert (row["status"], row["reason"]) == ("False", "Xid79")
        assert row["lastTransitionTime"]

    condition = {"type": "GpuHealthy", "status": "False", "reason": "Xid79", "message": "GPU has fallen off the bus"}
    change = NodeChange("n1", since="registration", status_patch={"status": {"conditions": [condition]}})
    in_cluster(tmp_path, Model(changes=[change]), scenario)


def test_a_pod_waits_for_its_configuration(tmp_path):
    def shows(_pod, container, _peers):
        return Outcome([LogLine(0, container.files["/etc/mpi/hostfile"]), LogLine(0, " ".join(container.args))])

    async def scenario(cluster):
        volume = {"name": "hosts", "configMap": {"name": "hosts"}}
        container = {
            "args": ["$(NODE)", "$(KEY)", "$(NOBODY)"],
            "env": [
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}},
            ],
            "volumeMounts": [{"name": "hosts", "mountPath": "/etc/mpi"}],
        }
        await cluster.create("pods", a_pod("p", container=container, volumes=[volume], nodeSelector={"kubernetes.io/hostname": "n1"}))
        words = await cluster.event("FailedMount")
        assert words == 'MountVolume.SetUp failed for volume "hosts" : configmap "hosts" not found'
        await cluster.create("configmaps", {"metadata": {"name": "hosts"}, "data": {"hostfile": "a slots=8"}})
        pod = await cluster.pod_with("p", waits_for("CreateContainerConfigError"))
        assert pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"] == 'secret "keys" not found'
        await cluster.create("secrets", {"metadata": {"name": "keys"}, "stringData": {"k": "v"}})
        await cluster.pod_with("p", phase_is("Succeeded"))
        assert (await cluster.log("p"))[1] == "a slots=8\nn1 v $(NOBODY)\n"

    in_cluster(tmp_path, Model(workload=shows), scenario)


def test_containers_restart_by_policy_and_keep_the_log_before(tmp_path):
    def second_try(_pod, container, _peers):
        return Outcome([LogLine(0, f"run {container.restart_count}")], exit_code=0 if container.restart_count == 2 else 3)

    async def scenario(cluster):
        await cluster.create("pods", a_pod("p", restartPolicy="OnFailure"))
        pod = await cluster.pod_with("p", phase_is("Succeeded"))
        (row,) = pod["status"]["containerStatuses"]
        assert row["restartCount"] == 2
        assert row["lastState"]["terminated"]["exitCode"] == 3
        assert (await cluster.log("p"))[1] == "run 2\n"
        assert (await cluster.log("p", previous="true"))[1] == "run 1\n"

    in_cluster(tmp_path, Model(workload=second_try), scenario)


def test_init_containers_run_first_and_can_fail_the_pod(tmp_path):
    ran = []

    def notes(_pod, container, _peers):
        ran.append(container.name)
        return Outcome((), exit_code=1 if container.name == "second" else 0)

    async def scenario(cluster):
        inits = [{"name": "first", "image": "i"}, {"name": "second", "image": "i"}]
        await cluster.create("pods", a_pod("p", initContainers=inits))
        pod = await cluster.pod_with("p", phase_is("Failed"))
        assert ran == ["first", "second"]
        assert waits_for("PodInitializing")(pod)
        assert ("Initialized", "False") in [(row["type"], row["status"]) for row in pod["status"]["conditions"]]

    in_cluster(tmp_path, Model(workload=notes), scenario)


def test_a_sidecar_ends_with_the_pod(tmp_path):
    def work(_pod, container, _peers):
        return Outcome((), duration_s=None if container.name == "helper" else 10.0)

    async def scenario(cluster):
        await cluster.create("pods", a_pod("p", initContainers=[{"name": "helper", "image": "i", "restartPolicy": "Always"}]))
        pod = await cluster.pod_with("p", phase_is("Succeeded", "Failed"))
        assert pod["status"]["phase"] == "Succeeded"
        assert pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 143

    in_cluster(tmp_path, Model(workload=work), scenario)


def test_deleting_a_running_pod_stops_it(tmp_path):
    async def scenario(cluster):
        await cluster.create("pods", a_pod("p"))
        await cluster.pod_with("p", phase_is("Running"))
        await cluster.api.delete(resource_path("pods", "default", "p"))
        await cluster.until(lambda: gone(cluster, "p"), patience_s=3)
        assert await cluster.event("Killing") == "Stopping container main"

    in_cluster(tmp_path, Model(workload=serves), scenario)


def test_deadlines_of_jobs_and_pods(tmp_path):
    async def scenario(cluster):
        await cluster.create(JOBS, a_job("j", 1, activeDeadlineSeconds=1))
        await cluster.create("pods", a_pod("p", activeDeadlineSeconds=1))
        job = await cluster.finished_job("j")
        assert conditions(job)[-1] == ("Failed", "DeadlineExceeded")
        assert job["status"]["failed"] == 1
        pod = await cluster.pod_with("p", phase_is("Failed"))
        assert pod["status"]["reason"] == "DeadlineExceeded"

    in_cluster(tmp_path, Model(workload=serves), scenario)


def test_an_evicted_pod_can_be_ignored_by_its_job(tmp_path):
    def evicted_once(_pod, _container, _peers):
        first = not evictions
        evictions.append(1)
        return Outcome((), evicted="The node was low on resource: memory." if first else "")

    evictions: list[int] = []

    async def scenario(cluster):
        rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
        await cluster.create(JOBS, a_job("j", 1, backoffLimit=0, podFailurePolicy={"rules": rules}))
        job = await cluster.finished_job("j")
        assert conditions(job)[-1][0] == "Complete"
        reasons = [pod["status"].get("reason") for pod in await cluster.pods()]
        assert sorted(map(str, reasons)) == ["Evicted", "None"]

    in_cluster(tmp_path, Model(workload=evicted_once), scenario)


def test_a_suspended_job_has_no_pods_until_it_is_resumed(tmp_path):
    async def scenario(cluster):
        await cluster.create(JOBS, a_job("j", 1, suspend=True))

        async def suspended():
            job = await cluster.get(JOBS, "j")
            return conditions(job) == [("Suspended", "JobSuspended")] if job["status"].get("conditions") else False

        await cluster.until(suspended)
        assert await cluster.pods() == []
        await cluster.api.patch(resource_path(JOBS, "default", "j"), {"spec": {"suspend": False}})
        assert conditions(await cluster.finished_job("j"))[-1][0] == "Complete"

    in_cluster(tmp_path, Model(), scenario)


def test_a_finished_job_expires(tmp_path):
    async def scenario(cluster):
        await cluster.create(JOBS, a_job("j", 1, ttlSecondsAfterFinished=0))

        async def nothing_left():
            jobs, _version = await cluster.api.list(resource_path(JOBS, "default"))
            return not jobs and not await cluster.pods()

        await cluster.until(nothing_left)

    in_cluster(tmp_path, Model(), scenario)


def test_deleting_a_running_job_leaves_nothing(tmp_path):
    async def scenario(cluster):
        await cluster.create(JOBS, a_job("j", 3))  # one of them finds no node

        async def two_run():
            return sum(pod["status"]["phase"] == "Running" for pod in await cluster.pods()) == 2

        await cluster.until(two_run)
        await cluster.api.delete(resource_path(JOBS, "default", "j"), propagation="Background")

        async def empty():
            return not await cluster.pods()

        await cluster.until(empty, patience_s=5)

    in_cluster(tmp_path, Model(workload=serves), scenario)


def test_an_hour_of_log_in_a_second(tmp_path):
    def an_hour(_pod, _container, _peers):
        return Outcome(LogLine(60.0 * minute, f"minute {minute}") for minute in range(61))

    async def scenario(cluster):
        await cluster.create("pods", a_pod("p"))
        await cluster.pod_with("p", phase_is("Running"))
        status, text = await cluster.log("p", follow="true", timestamps="true")
        assert status == 200
        lines = text.splitlines()
        assert len(lines) == 61
        first, last = (line.split("T")[1].split(".")[0] for line in (lines[0], lines[-1]))
        assert first[3:] == last[3:]  # the same minute and second of the next hour
        pod = await cluster.pod_with("p", phase_is("Succeeded"))
        assert pod["status"]["phase"] == "Succeeded"

    in_cluster(tmp_path, Model(workload=an_hour, time_scale=2400.0), scenario)


def test_a_small_log_file_loses_its_head(tmp_path):
    def talks(_pod, _container, _peers):
        return Outcome([LogLine(number, f"line {number}") for number in range(100)])

    async def scenario(cluster):
        await cluster.create("pods", a_pod("p"))
        await cluster.pod_with("p", phase_is("Succeeded"))
        text = (await cluster.log("p"))[1]
        assert text.endswith("line 99\n")
        assert "line 0\n" not in text

    in_cluster(tmp_path, Model(workload=talks, log_policy=lambda _pod, _container: LogPolicy(max_bytes=1000)), scenario)


def test_a_fault_of_the_model_is_not_a_success(tmp_path):
    def broken(_pod, _container, _peers):
        raise RuntimeError("oops")

    async def scenario(cluster):
        await cluster.create("pods", a_pod("p"))
        pod = await cluster.pod_with("p", phase_is("Failed", "Succeeded"))
        assert pod["status"]["phase"] == "Failed"
        assert "oops" in (await cluster.log("p"))[1]

    in_cluster(tmp_path, Model(workload=broken), scenario)


def test_clients_that_are_started_anew_take_up_their_work(tmp_path):
    async def scenario():
        server = ApiServer()
        await server.start()
        async with running(tmp_path, Model(workload=serves), server=server) as cluster:
            await cluster.create("pods", a_pod("p"))
            await cluster.pod_with("p", phase_is("Running"))
        async with running(tmp_path, Model(), server=server) as cluster:
            pod = await cluster.pod_with("p", phase_is("Failed"))
            assert terminated(pod)["reason"] == "ContainerStatusUnknown"
            await cluster.create(JOBS, a_job("j", 2))
            job = await cluster.finished_job("j")
            assert job["status"]["succeeded"] == 2
            assert len(await cluster.pods(**{"batch.kubernetes.io/job-name": "j"})) == 2
        await server.stop()

    asyncio.run(asyncio.wait_for(scenario(), 60))
