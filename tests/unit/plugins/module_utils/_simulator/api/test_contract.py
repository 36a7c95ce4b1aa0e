# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What clients of a Kubernetes API rely on, checked over HTTP: a simulator that differs would teach users the wrong cluster."""

from __future__ import annotations

import threading
import time
import typing as t
from pathlib import Path

import pytest
import requests

from .conftest import Api, Served

Object = dict[str, t.Any]
BATCH = "apis/batch/v1"


def pod(name: str, **spec: t.Any) -> Object:
    container = {"name": "c", "image": "example.com/i:1"}
    return {"metadata": {"name": name, "labels": {"app": "x", "name": name}}, "spec": {"containers": [container], **spec}}


def job(name: str, **spec: t.Any) -> Object:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "example.com/i:1"}]}}
    return {
        "metadata": {"name": name},
        "spec": {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": template, **spec},
    }


def node(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": labels}, "status": {"capacity": {"nvidia.com/gpu": 8}}}


@pytest.fixture
def nodes(api: Api) -> t.Iterator[list[str]]:
    """Four nodes in two zones."""
    names = [f"{api.namespace}-n{index}" for index in range(4)]
    for index, name in enumerate(names):
        api.post("/api/v1/nodes", node(name, zone=f"{api.namespace}-z{index % 2}", test=api.namespace))
    yield names
    for name in names:
        requests.delete(f"{api.url}/api/v1/nodes/{name}", timeout=10)


def eventually(check: t.Callable[[], bool], seconds: float = 30) -> bool:
    """Whether a check becomes true in time. A genuine controller that met an obstacle comes back after ten seconds or more."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if check():
            return True
        time.sleep(0.02)
    return False


def missing(api: Api, path: str) -> bool:
    return requests.get(api.url + path, timeout=10).status_code == 404


# --- objects --------------------------------------------------------------------------------------------------------------


def test_a_new_object_gets_its_identity(api: Api) -> None:
    made = api.post(api.at("configmaps"), {"metadata": {"name": "a"}, "data": {"k": "v"}}, 201)
    assert (made["kind"], made["apiVersion"]) == ("ConfigMap", "v1")
    assert made["metadata"]["uid"] and made["metadata"]["creationTimestamp"].endswith("Z")
    assert made["metadata"]["resourceVersion"].isdigit()
    assert api.get(api.at("configmaps", "a")) == made


def test_a_second_create_conflicts(api: Api) -> None:
    api.post(api.at("pods"), pod("a"))
    status = api.post(api.at("pods"), pod("a"), 409)
    assert (status["kind"], status["reason"], status["details"]["name"]) == ("Status", "AlreadyExists", "a")


def test_a_missing_object_is_named(api: Api) -> None:
    status = api.get(api.at("jobs", "nope", BATCH), 404)
    assert status["reason"] == "NotFound"
    assert status["details"] == {"kind": "jobs", "name": "nope", "group": "batch"}
    assert status["message"] == 'jobs.batch "nope" not found'


def test_a_missing_namespace_refuses_creates(api: Api) -> None:
    assert api.post("/api/v1/namespaces/no-such/pods", pod("a"), 404)["details"]["kind"] == "namespaces"


def test_generated_names_differ(api: Api) -> None:
    body = {**pod("x"), "metadata": {"generateName": "gen-"}}
    names = {api.post(api.at("pods"), body)["metadata"]["name"] for _index in range(5)}
    assert len(names) == 5 and all(name.startswith("gen-") and len(name) == 9 for name in names)


def test_items_of_built_in_lists_carry_no_kind(api: Api) -> None:
    api.post(api.at("configmaps"), {"metadata": {"name": "a"}})
    found = api.get(api.at("configmaps"))
    assert (found["kind"], found["apiVersion"]) == ("ConfigMapList", "v1")
    assert found["metadata"]["resourceVersion"].isdigit()
    assert all("kind" not in item for item in found["items"])


def test_pods_get_defaults_and_a_phase(api: Api) -> None:
    made = api.post(api.at("pods"), pod("a", nodeSelector={"x": "y"}))
    assert made["spec"]["restartPolicy"] == "Always"
    assert made["spec"]["serviceAccountName"] == "default"
    assert made["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert made["status"]["phase"] == "Pending"


def test_numbers_become_quantities(api: Api, nodes: list[str]) -> None:
    status = api.get(f"/api/v1/nodes/{nodes[0]}")["status"]
    assert status["capacity"]["nvidia.com/gpu"] == "8"
    assert status["allocatable"]["nvidia.com/gpu"] == "8"


def test_dry_run_stores_nothing(api: Api) -> None:
    assert api.post(api.at("pods") + "?dryRun=All", pod("dry"), 201)["metadata"]["uid"]
    api.get(api.at("pods", "dry"), 404)


def test_unknown_fields_are_dropped_with_a_warning_or_refused(api: Api) -> None:
    body = pod("a", bogus=1)
    assert "bogus" in api.post(api.at("pods") + "?fieldValidation=Strict", body, 400)["message"]
    answer = requests.post(api.url + api.at("pods"), json=body, timeout=10)
    assert answer.status_code == 201
    assert 'unknown field \\"spec.bogus\\"' in answer.headers["Warning"]
    assert "bogus" not in answer.json()["spec"]


def test_wrong_types_cannot_be_decoded(api: Api) -> None:
    assert api.post(api.at("pods"), pod("a", terminationGracePeriodSeconds="long"), 400)["reason"] == "BadRequest"
    broken = pod("a")
    broken["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "eight"}}
    api.post(api.at("pods"), broken, 400)


def test_bodies_of_another_kind_are_refused(api: Api) -> None:
    api.post(api.at("pods"), {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "a"}}, 400)
    api.post(api.at("pods"), pod("a"), 415, Content_Type="text/plain")
    api.post(api.at("pods"), pod("a"), 400, Content_Type="application/vnd.kubernetes.protobuf")


# --- selection ------------------------------------------------------------------------------------------------------------


def test_selectors_pick_what_they_say(api: Api, nodes: list[str]) -> None:
    def names(query: str) -> list[str]:
        return [item["metadata"]["name"] for item in api.get(f"/api/v1/nodes?{query}")["items"]]

    zone = f"{api.namespace}-z0"
    assert names(f"labelSelector=test={api.namespace},zone={zone}") == [nodes[0], nodes[2]]
    assert names(f"labelSelector=test={api.namespace},zone notin ({zone})") == [nodes[1], nodes[3]]
    assert names(f"labelSelector=test={api.namespace},!zone") == []
    assert names(f"fieldSelector=metadata.name={nodes[1]}") == [nodes[1]]
    assert api.get("/api/v1/nodes?labelSelector=a in b", 400)["reason"] == "BadRequest"
    assert "not supported" in api.get("/api/v1/nodes?fieldSelector=spec.podCIDR=x", 400)["message"]


def test_pages_cover_everything_once(api: Api) -> None:
    for index in range(5):
        api.post(api.at("configmaps"), {"metadata": {"name": f"c{index}"}})
    seen: list[str] = []
    token = ""
    pages = 0
    while True:
        found = api.get(api.at("configmaps") + "?limit=2" + (f"&continue={token}" if token else ""))
        seen += [item["metadata"]["name"] for item in found["items"]]
        pages += 1
        token = found["metadata"].get("continue", "")
        if not token:
            break
    assert pages == 3
    assert seen == ["c0", "c1", "c2", "c3", "c4", "kube-root-ca.crt"]


# --- updates --------------------------------------------------------------------------------------------------------------


def test_a_stale_update_conflicts(api: Api) -> None:
    first = api.post(api.at("configmaps"), {"metadata": {"name": "a"}})
    api.put(api.at("configmaps", "a"), {**first, "data": {"k": "1"}})
    assert api.put(api.at("configmaps", "a"), {**first, "data": {"k": "2"}}, 409)["reason"] == "Conflict"


def test_a_write_without_change_keeps_the_version(api: Api) -> None:
    first = api.post(api.at("configmaps"), {"metadata": {"name": "a", "labels": {"app": "x"}}})
    again = api.patch(api.at("configmaps", "a"), {"metadata": {"labels": {"app": "x"}}}, "strategic-merge-patch+json")
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_the_three_patches(api: Api) -> None:
    api.post(api.at("pods"), pod("a"))
    path = api.at("pods", "a")
    assert "app" not in api.patch(path, {"metadata": {"labels": {"app": None}}})["metadata"]["labels"]
    strategic = api.patch(path, {"spec": {"containers": [{"name": "c", "image": "i:2"}]}}, "strategic-merge-patch+json")
    assert [item["image"] for item in strategic["spec"]["containers"]] == ["i:2"]
    operations = [{"op": "test", "path": "/metadata/name", "value": "a"}, {"op": "add", "path": "/metadata/labels/j", "value": "1"}]
    assert api.patch(path, operations, "json-patch+json")["metadata"]["labels"]["j"] == "1"
    api.patch(path, [{"op": "test", "path": "/metadata/name", "value": "b"}], "json-patch+json", 422)
    api.patch(path, {}, "unknown+json", 415)


def test_status_is_written_through_its_own_path_only(api: Api) -> None:
    api.post(api.at("pods"), pod("a"))
    path = api.at("pods", "a")
    changed = api.patch(path + "/status", {"status": {"phase": "Running"}, "spec": {"activeDeadlineSeconds": 5}})
    assert changed["status"]["phase"] == "Running"
    assert "activeDeadlineSeconds" not in changed["spec"]
    assert api.patch(path, {"status": {"phase": "Failed"}})["status"]["phase"] == "Running"


def test_generation_counts_spec_changes(api: Api) -> None:
    path = api.at("jobs", "a", BATCH)
    assert api.post(api.at("jobs", api=BATCH), job("a", suspend=True))["metadata"]["generation"] == 1
    assert api.patch(path, {"metadata": {"labels": {"x": "y"}}})["metadata"]["generation"] == 1
    assert api.patch(path + "/status", {"status": {"active": 1}})["metadata"]["generation"] == 1
    assert api.patch(path, {"spec": {"suspend": False}})["metadata"]["generation"] == 2


def test_apply_shares_moves_and_refuses_fields(api: Api) -> None:
    path = api.at("configmaps", "a")

    def config(**data: str) -> Object:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}

    apply = "apply-patch+yaml"
    assert api.patch(path + "?fieldManager=one", config(a="1", z="9"), apply, 201)["data"] == {"a": "1", "z": "9"}
    assert api.patch(path + "?fieldManager=one", config(a="2"), apply)["data"] == {"a": "2"}
    status = api.patch(path + "?fieldManager=two", config(a="3"), apply, 409)
    assert status["details"]["causes"][0]["reason"] == "FieldManagerConflict"
    assert status["details"]["causes"][0]["field"] == ".data.a"
    forced = api.patch(path + "?fieldManager=two&force=true", config(a="3"), apply)
    assert forced["data"] == {"a": "3"}
    assert {entry["manager"] for entry in forced["metadata"]["managedFields"]} == {"two"}
    api.patch(path, config(a="4"), apply, 422)


# --- watches --------------------------------------------------------------------------------------------------------------


def in_background(call: t.Callable[[], None]) -> threading.Thread:
    def later() -> None:
        time.sleep(0.3)
        call()

    thread = threading.Thread(target=later)
    thread.start()
    return thread


def test_a_watch_replays_and_follows(api: Api) -> None:
    version = api.get(api.at("configmaps"))["metadata"]["resourceVersion"]
    api.post(api.at("configmaps"), {"metadata": {"name": "w"}})

    def change() -> None:
        api.patch(api.at("configmaps", "w"), {"data": {"a": "b"}})
        api.delete(api.at("configmaps", "w"))

    thread = in_background(change)
    query = f"?watch=True&fieldSelector=metadata.name=w&resourceVersion={version}&timeoutSeconds=1"
    events = api.watch(api.at("configmaps") + query)
    thread.join()
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions))
    assert events[0]["object"]["kind"] == "ConfigMap"


def test_leaving_a_selector_looks_like_a_delete(api: Api) -> None:
    version = api.get(api.at("configmaps"))["metadata"]["resourceVersion"]
    path = api.at("configmaps", "w")
    api.post(api.at("configmaps"), {"metadata": {"name": "w", "labels": {"in": "1"}}})
    api.patch(path, {"metadata": {"labels": {"in": "0"}}})
    api.patch(path, {"metadata": {"labels": {"in": "1"}}})
    events = api.watch(api.at("configmaps") + f"?watch=1&labelSelector=in=1&resourceVersion={version}&timeoutSeconds=1")
    assert [event["type"] for event in events] == ["ADDED", "DELETED", "ADDED"]


def test_a_watch_can_start_with_the_state(api: Api) -> None:
    query = "?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"
    events = api.watch(api.at("configmaps") + query)
    assert [event["type"] for event in events] == ["ADDED", "BOOKMARK"]
    assert events[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


@pytest.mark.simulator
def test_an_old_version_is_gone(tmp_path: Path) -> None:
    served = Served(history_limit=4)
    try:
        api = served.api(tmp_path)
        version = api.get("/api/v1/nodes")["metadata"]["resourceVersion"]
        for index in range(12):
            api.post("/api/v1/nodes", node(f"n{index}"))
        events = api.watch(f"/api/v1/nodes?watch=1&resourceVersion={version}&timeoutSeconds=1")
        assert [(event["type"], event["object"]["code"], event["object"]["reason"]) for event in events] == [("ERROR", 410, "Expired")]
        assert api.watch("/api/v1/nodes?watch=1&resourceVersion=1&timeoutSeconds=1")[0]["object"]["code"] == 410
    finally:
        served.stop()


# --- deleting -------------------------------------------------------------------------------------------------------------


def test_a_finalizer_delays_the_end(api: Api) -> None:
    api.post(api.at("configmaps"), {"metadata": {"name": "f", "finalizers": ["example.com/hold"]}})
    path = api.at("configmaps", "f")
    api.delete(path)
    assert api.get(path)["metadata"]["deletionTimestamp"]
    api.patch(path, [{"op": "remove", "path": "/metadata/finalizers"}], "json-patch+json")
    api.get(path, 404)


def bind(api: Api, name: str, to: str, code: int = 201) -> None:
    api.post(api.at("pods", name) + "/binding", {"metadata": {"name": name}, "target": {"kind": "Node", "name": to}}, code)


def test_a_running_pod_stays_for_its_node(api: Api, nodes: list[str]) -> None:
    api.post(api.at("pods"), pod("a"))
    bind(api, "a", nodes[0])
    bind(api, "a", nodes[1], 409)
    found = api.get(api.at("pods") + f"?fieldSelector=spec.nodeName={nodes[0]}")["items"]
    assert [item["metadata"]["name"] for item in found] == ["a"]
    api.delete(api.at("pods", "a"), {"gracePeriodSeconds": 30})
    leaving = api.get(api.at("pods", "a"))["metadata"]
    assert leaving["deletionTimestamp"] and leaving["deletionGracePeriodSeconds"] == 30
    wrong = {"gracePeriodSeconds": 0, "preconditions": {"uid": "other"}}
    assert api.delete(api.at("pods", "a"), wrong, 409)["reason"] == "Conflict"
    api.delete(api.at("pods", "a"), {"gracePeriodSeconds": 0, "preconditions": {"uid": leaving["uid"]}})
    api.get(api.at("pods", "a"), 404)


def test_a_bound_pod_carries_where_its_node_is(api: Api) -> None:
    name = f"{api.namespace}-placed"
    labels = {"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r", "topology.kubernetes.io/rack": "k"}
    api.post("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
    api.post(api.at("pods"), {**pod("a"), "metadata": {"name": "a", "labels": {"topology.kubernetes.io/zone": "own", "app": "x"}}})
    time.sleep(0.5)  # a genuine server's admission learns of a node a moment after it was created
    bind(api, "a", name)
    expected = {"app": "x", "topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r"}
    assert api.get(api.at("pods", "a"))["metadata"]["labels"] == expected
    requests.delete(f"{api.url}/api/v1/nodes/{name}", timeout=10)


def test_an_unbound_pod_goes_at_once(api: Api) -> None:
    api.post(api.at("pods"), pod("a"))
    api.delete(api.at("pods", "a"))
    api.get(api.at("pods", "a"), 404)


def test_an_eviction_is_a_graceful_delete(api: Api, nodes: list[str]) -> None:
    api.post(api.at("pods"), pod("a"))
    bind(api, "a", nodes[0])
    assert api.post(api.at("pods", "a") + "/eviction", {"metadata": {"name": "a"}}, 201)["status"] == "Success"
    assert api.get(api.at("pods", "a"))["metadata"]["deletionTimestamp"]


def test_a_collection_is_deleted_by_selector(api: Api) -> None:
    for name in ("a", "b", "c"):
        api.post(api.at("pods"), pod(name))
    api.delete(api.at("pods") + "?labelSelector=name in (a,b)")
    assert [item["metadata"]["name"] for item in api.get(api.at("pods"))["items"]] == ["c"]


def owned(name: str, owner: Object, **more: t.Any) -> Object:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {"metadata": {"name": name, "ownerReferences": [{**reference, **more}]}}


def test_dependents_follow_their_owner(api: Api) -> None:
    owner = api.post(api.at("configmaps"), {"metadata": {"name": "owner"}})
    middle = api.post(api.at("configmaps"), owned("middle", owner))
    api.post(api.at("secrets"), owned("leaf", middle))
    api.delete(api.at("configmaps", "owner"))
    assert eventually(lambda: missing(api, api.at("configmaps", "middle")) and missing(api, api.at("secrets", "leaf")))


def test_foreground_waits_for_blocking_dependents(api: Api) -> None:
    owner = api.post(api.at("configmaps"), {"metadata": {"name": "owner"}})
    child = owned("child", owner, blockOwnerDeletion=True)
    child["metadata"]["finalizers"] = ["example.com/hold"]
    api.post(api.at("configmaps"), child)
    api.delete(api.at("configmaps", "owner"), {"propagationPolicy": "Foreground"})
    assert eventually(lambda: "deletionTimestamp" in api.get(api.at("configmaps", "child"))["metadata"])
    assert api.get(api.at("configmaps", "owner"))["metadata"]["finalizers"] == ["foregroundDeletion"]
    api.patch(api.at("configmaps", "child"), {"metadata": {"finalizers": None}})
    assert eventually(lambda: missing(api, api.at("configmaps", "owner")))


def test_orphans_stay_without_their_owner(api: Api) -> None:
    owner = api.post(api.at("configmaps"), {"metadata": {"name": "owner"}})
    api.post(api.at("configmaps"), owned("child", owner))
    api.delete(api.at("configmaps", "owner"), {"propagationPolicy": "Orphan"})
    assert eventually(lambda: missing(api, api.at("configmaps", "owner")))
    assert "ownerReferences" not in api.get(api.at("configmaps", "child"))["metadata"]


def test_an_object_of_an_owner_that_never_was_is_collected(api: Api) -> None:
    ghost = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ghost", "uid": "00000000-0000-0000-0000-000000000000"}}
    api.post(api.at("configmaps"), owned("child", ghost))
    assert eventually(lambda: missing(api, api.at("configmaps", "child")))


def test_a_namespace_goes_with_its_content(api: Api) -> None:
    api.post(api.at("pods"), pod("a"))
    api.post(api.at("configmaps"), {"metadata": {"name": "held", "finalizers": ["example.com/hold"]}})
    path = f"/api/v1/namespaces/{api.namespace}"
    api.delete(path)
    assert api.get(path)["status"]["phase"] == "Terminating"
    refused = api.post(api.at("pods"), pod("late"), 403)
    assert refused["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    api.patch(api.at("configmaps", "held"), {"metadata": {"finalizers": None}})
    assert eventually(lambda: missing(api, path))


# --- admission and rules --------------------------------------------------------------------------------------------------


def test_a_namespace_comes_with_its_service_account(api: Api) -> None:
    assert api.get(api.at("serviceaccounts", "default"))["metadata"]["name"] == "default"
    assert "serviceaccount" in api.post(api.at("pods"), pod("a", serviceAccountName="nobody"), 403)["message"]


def test_priority_classes_must_exist(api: Api) -> None:
    assert "no PriorityClass" in api.post(api.at("pods"), pod("a", priorityClassName="urgent"), 403)["message"]
    assert api.post(api.at("pods"), pod("a", priorityClassName="system-node-critical"))["spec"]["priority"] == 2000001000


def test_quotas_limit_pods_and_gpus(api: Api) -> None:
    api.post(api.at("resourcequotas"), {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "3", "requests.nvidia.com/gpu": 8}}})

    def with_gpus(name: str, count: int) -> Object:
        body = pod(name)
        body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": count}}
        return body

    api.post(api.at("pods"), with_gpus("a", 8))
    message = api.post(api.at("pods"), with_gpus("b", 1), 403)["message"]
    assert "exceeded quota: q, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=8" in message
    used = {"pods": "1", "requests.nvidia.com/gpu": "8"}
    assert eventually(lambda: api.get(api.at("resourcequotas", "q")).get("status", {}).get("used") == used)


def test_a_job_gets_its_selector_and_keeps_its_template(api: Api) -> None:
    made = api.post(api.at("jobs", api=BATCH), job("a"))
    uid = made["metadata"]["uid"]
    assert made["spec"]["selector"]["matchLabels"] == {"batch.kubernetes.io/controller-uid": uid}
    assert made["spec"]["template"]["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "a"
    assert made["spec"]["backoffLimit"] == 6
    change = {"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}}
    assert "field is immutable" in api.patch(api.at("jobs", "a", BATCH), change, code=422)["message"]
    api.post(api.at("jobs", api=BATCH), job("s", suspend=True))
    assert api.patch(api.at("jobs", "s", BATCH), change)["spec"]["template"]["spec"]["nodeSelector"] == {"a": "b"}


def test_a_job_without_labels_gets_those_of_its_pods(api: Api) -> None:
    body = job("a")
    body["spec"]["template"]["metadata"] = {"labels": {"mine": "x"}}
    uid = api.post(api.at("jobs", api=BATCH), body)["metadata"]["uid"]
    own = {"controller-uid": uid, "job-name": "a", "batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": "a"}
    assert api.get(api.at("jobs", "a", BATCH))["metadata"]["labels"] == {"mine": "x", **own}
    api.post(api.at("jobs", api=BATCH), {**job("b"), "metadata": {"name": "b", "labels": {"app": "x"}}})
    assert api.get(api.at("jobs", "b", BATCH))["metadata"]["labels"] == {"app": "x"}


def test_pods_get_a_token_unless_they_decline(api: Api) -> None:
    spec = api.post(api.at("pods"), pod("a"))["spec"]
    (volume,) = spec["volumes"]
    assert volume["name"].startswith("kube-api-access-") and volume["projected"]["defaultMode"] == 420
    mount = {"name": volume["name"], "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    assert spec["containers"][0]["volumeMounts"] == [mount]
    assert "volumes" not in api.post(api.at("pods"), pod("b", automountServiceAccountToken=False))["spec"]


def test_a_job_whose_host_names_would_be_too_long_is_refused(api: Api) -> None:
    assert api.post(api.at("jobs", api=BATCH), job("x" * 61))["metadata"]["name"] == "x" * 61
    status = api.post(api.at("jobs", api=BATCH), job("y" * 61, completions=11, parallelism=11), 422)
    assert status["details"]["causes"][0]["field"] == "metadata.name"


def test_immutable_secrets_stay(api: Api) -> None:
    api.post(api.at("secrets"), {"metadata": {"name": "s"}, "immutable": True, "stringData": {"a": "b"}})
    assert api.get(api.at("secrets", "s"))["data"] == {"a": "Yg=="}
    api.patch(api.at("secrets", "s"), {"data": {"a": "Yw=="}}, code=422)
    api.post(api.at("secrets"), {"metadata": {"name": "t"}, "data": {"a": "not base64!"}}, 400)


# --- custom kinds ---------------------------------------------------------------------------------------------------------


def definition(group: str) -> Object:
    spec = {
        "type": "object",
        "required": ["replicas"],
        "properties": {
            "replicas": {"type": "integer", "minimum": 1},
            "mode": {"type": "string", "enum": ["A", "B"], "default": "A"},
            "size": {"x-kubernetes-int-or-string": True},
            "ref": {
                "type": "object",
                "properties": {"name": {"type": "string"}},
                "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "ref is immutable"}],
            },
        },
        "x-kubernetes-validations": [{"rule": "self.replicas <= 4 || self.mode == 'B'", "message": "too many replicas"}],
    }
    status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [{"name": "Mode", "type": "string", "jsonPath": ".spec.mode"}],
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}},
    }
    names = {"plural": "things", "kind": "Thing"}
    return {"metadata": {"name": f"things.{group}"}, "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}}


def thing(group: str, name: str, **spec: t.Any) -> Object:
    return {"apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": name}, "spec": {"replicas": 1, **spec}}


def test_custom_kinds_are_served_checked_and_removed(api: Api) -> None:
    group = f"{api.namespace}.example.com"
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    api.post(definitions, definition(group))

    def established() -> bool:
        rows = api.get(f"{definitions}/things.{group}").get("status", {}).get("conditions") or []
        return any(row["type"] == "Established" and row["status"] == "True" for row in rows)

    assert eventually(established)
    api_path = f"apis/{group}/v1"
    path = api.at("things", api=api_path)
    assert "Object 'Kind' is missing" in api.post(path, {"metadata": {"name": "a"}, "spec": {"replicas": 1}}, 400)["message"]
    new = api.post(path, thing(group, "a", ref={"name": "r"}, bogus=1))
    assert new["spec"] == {"replicas": 1, "mode": "A", "ref": {"name": "r"}}
    assert api.post(path, thing(group, "b", size="1Gi"))["spec"]["size"] == "1Gi"
    for wrong, field in (
        ({"replicas": 0}, "spec.replicas"),
        ({"mode": "C"}, "spec.mode"),
        ({"replicas": 5}, "spec"),
        ({"size": []}, "spec.size"),
    ):
        assert api.post(path, thing(group, "w", **wrong), 422)["details"]["causes"][0]["field"] == field
    assert "ref is immutable" in api.patch(path + "/a", {"spec": {"ref": {"name": "other"}}}, code=422)["message"]
    written = api.patch(path + "/a/status", {"status": {"any": 1}, "metadata": {"labels": {"x": "y"}}})
    assert written["status"] == {"any": 1} and "labels" not in written["metadata"]
    assert all(item["kind"] == "Thing" for item in api.get(path)["items"])
    table = api.get(path, Accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Mode"]
    api.delete(f"{definitions}/things.{group}")
    assert eventually(lambda: missing(api, path))


# --- forms, discovery, access ---------------------------------------------------------------------------------------------


def test_other_forms_of_a_list(api: Api, nodes: list[str]) -> None:
    partial = api.get("/api/v1/nodes", Accept="application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
    assert partial["kind"] == "PartialObjectMetadataList"
    assert all(set(item) == {"kind", "apiVersion", "metadata"} for item in partial["items"])
    table = api.get("/api/v1/nodes", Accept="application/json;as=Table;g=meta.k8s.io;v=v1")
    assert table["kind"] == "Table"
    assert {row["cells"][0] for row in table["rows"]} >= set(nodes)


@pytest.mark.simulator
def test_protobuf_is_refused_as_not_acceptable(api: Api) -> None:
    api.get("/api/v1/nodes", 406, Accept="application/vnd.kubernetes.protobuf")


def test_discovery_names_what_is_served(api: Api) -> None:
    core = api.get("/api/v1")
    assert core["groupVersion"] == "v1"
    assert {"pods", "pods/log", "pods/binding", "pods/eviction", "nodes/status"} <= {item["name"] for item in core["resources"]}
    assert {"apps", "batch", "apiextensions.k8s.io", "resource.k8s.io"} <= {item["name"] for item in api.get("/apis")["groups"]}
    document = api.get("/openapi/v3/apis/batch/v1")
    patch = document["paths"]["/apis/batch/v1/namespaces/{namespace}/jobs/{name}"]["patch"]
    assert patch["x-kubernetes-group-version-kind"] == {"group": "batch", "version": "v1", "kind": "Job"}
    assert "fieldValidation" in {item["name"] for item in patch["parameters"]}
    assert api.get("/version")["gitVersion"] == "v1.36.3"


def test_events_show_in_both_apis(api: Api) -> None:
    body = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": api.namespace},
        "reason": "R",
        "message": "m",
    }
    api.post(api.at("events"), body)
    found = api.get(api.at("events") + "?fieldSelector=involvedObject.name=p,reason=R")["items"]
    assert [item["message"] for item in found] == ["m"]
    view = api.get(api.at("events", "e", "apis/events.k8s.io/v1"))
    assert (view["note"], view["regarding"]["name"]) == ("m", "p")


@pytest.mark.simulator
def test_access_reviews_are_answered_whatever_the_encoding(api: Api) -> None:
    answer = requests.post(
        api.url + "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        data=b"k8s\x00\x01\x02",
        headers={"Content-Type": "application/vnd.kubernetes.protobuf"},
        timeout=10,
    )
    assert answer.json()["status"]["allowed"] is True


@pytest.mark.simulator
def test_a_wrong_token_is_refused(api: Api) -> None:
    assert api.get("/api/v1/nodes", 401, Authorization="Bearer wrong")["reason"] == "Unauthorized"
    api.get("/api/v1/nodes", 200, Authorization=f"Bearer {api.token}")


@pytest.mark.simulator
def test_the_audit_log_tells_who_wrote_what(tmp_path: Path) -> None:
    log = tmp_path / "audit"
    served = Served(audit_path=str(log))
    try:
        api = served.api(tmp_path)
        api.post("/api/v1/nodes", node("n"), User_Agent="tester/1")
        api.get("/api/v1/nodes/m", 404)
    finally:
        served.stop()
    lines = log.read_text().splitlines()
    assert lines[0] == '{"verb":"create","resource":"nodes","namespace":"","name":"n","user_agent":"tester/1","status":201}'
    assert '"verb":"get","resource":"nodes","namespace":"","name":"m"' in lines[1] and lines[1].endswith('"status":404}')


def test_compute_quotas_want_amounts(api: Api) -> None:
    api.post(api.at("resourcequotas"), {"metadata": {"name": "q"}, "spec": {"hard": {"limits.memory": "1Gi"}}})
    assert "must specify limits.memory for: c" in api.post(api.at("pods"), pod("a"), 403)["message"]


def secure(api: Api, **levels: str) -> None:
    labels = {f"pod-security.kubernetes.io/{mode}": level for mode, level in levels.items()}
    api.patch(f"/api/v1/namespaces/{api.namespace}", {"metadata": {"labels": labels}})


def test_baseline_namespaces_refuse_what_rdma_pods_often_want(api: Api) -> None:
    secure(api, enforce="baseline")
    api.post(api.at("pods"), pod("plain"))
    container = {"name": "c", "image": "i:1", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}, "privileged": True}}
    volumes = [{"name": "dev", "hostPath": {"path": "/dev/infiniband"}}]
    message = api.post(api.at("pods"), pod("a", containers=[container], volumes=volumes, hostNetwork=True), 403)["message"]
    assert 'violates PodSecurity "baseline:latest"' in message
    for part in ("hostNetwork=true", 'must not include "IPC_LOCK"', 'volume "dev"', "securityContext.privileged=true"):
        assert part in message


def test_restricted_namespaces_want_everything_set(api: Api) -> None:
    secure(api, enforce="restricted", warn="restricted")
    message = api.post(api.at("pods"), pod("a"), 403)["message"]
    for part in ("allowPrivilegeEscalation != false", 'capabilities.drop=["ALL"]', "runAsNonRoot != true", "seccompProfile"):
        assert part in message
    context = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    safe = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    api.post(api.at("pods"), pod("b", containers=[{"name": "c", "image": "i:1", "securityContext": context}], securityContext=safe))
    answer = requests.post(api.url + api.at("jobs", api=BATCH), json=job("j"), timeout=10)
    assert answer.status_code == 201 and "would violate PodSecurity" in answer.headers["Warning"]


def test_deleting_a_job_without_a_policy_leaves_its_pods(api: Api) -> None:
    for name, query, stays in (("kept", "", True), ("gone", "?propagationPolicy=Background", False)):
        owner = api.post(api.at("jobs", api=BATCH), job(name))
        child = pod(f"{name}-pod")
        child["metadata"] |= owned(f"{name}-pod", owner)["metadata"]
        api.post(api.at("pods"), child)
        answer = requests.delete(api.url + api.at("jobs", name, BATCH) + query, timeout=10)
        assert ("preserved by default" in answer.headers.get("Warning", "")) is stays
        assert eventually(lambda name=name: missing(api, api.at("jobs", name, BATCH)))
        if stays:
            assert "ownerReferences" not in api.get(api.at("pods", f"{name}-pod"))["metadata"]
        else:
            assert eventually(lambda name=name: missing(api, api.at("pods", f"{name}-pod")))


def test_pages_keep_the_version_of_the_first(api: Api) -> None:
    for name in ("a", "b"):
        api.post(api.at("configmaps"), {"metadata": {"name": name}})
    first = api.get(api.at("configmaps") + "?limit=1")["metadata"]
    api.post(api.at("configmaps"), {"metadata": {"name": "late"}})
    second = api.get(api.at("configmaps") + f"?limit=5&continue={first['continue']}")["metadata"]
    assert second["resourceVersion"] == first["resourceVersion"]
    api.get(api.at("configmaps") + "?continue=broken", 400)
