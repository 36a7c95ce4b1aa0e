# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A run of hours meets every failure an API server has; none of them may lose, double or misname anything."""

from __future__ import annotations

import io
import json
import pathlib
import time
import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.client import Client, Expired
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.retry import RetryPolicy
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError

from .conftest import Api
from .test_auth import kubeconfig

PODS = "/api/v1/namespaces/x/pods"
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"run": "r1"}}}


def status(code: int, reason: str, message: str = "") -> dict[str, t.Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message or reason}


def event(kind: str, thing: dict[str, t.Any]) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def test_rate_limit_waits_as_long_as_the_server_asks(api: Api) -> None:
    api.answers = [(429, status(429, "TooManyRequests"), {"Retry-After": "3"}), (200, POD)]
    assert api.client().get(f"{PODS}/p")["metadata"]["name"] == "p"
    assert len(api.pauses) == 1 and api.pauses[0] >= 3


def test_what_the_server_keeps_is_dated_by_its_own_clock(api: Api) -> None:
    """A control node an hour off would take live runs for dead, or dead ones for alive."""
    api.answers = [(200, POD, {"Date": "Mon, 02 Mar 2026 08:00:00 GMT"})]
    client = api.client()
    client.get(f"{PODS}/p")
    assert abs(client.now() - 1772438400) < 60 and abs(client.hurried().now() - 1772438400) < 60


def test_a_date_that_is_none_leaves_our_own_clock(api: Api) -> None:
    api.answers = [(200, POD, {"Date": "soon"})]
    client = api.client()
    client.get(f"{PODS}/p")
    assert abs(client.now() - time.time()) < 60


def test_absurd_retry_after_is_cut(api: Api) -> None:
    api.answers = [(429, status(429, "TooManyRequests"), {"Retry-After": "86400"}), (200, POD)]
    api.client().get(f"{PODS}/p")
    assert api.pauses[0] < 60


def test_retries_end(api: Api) -> None:
    api.answers = [(503, b"<html>Bad\nGateway</html>")]
    with pytest.raises(ClusterError) as caught:
        api.client(attempts=3).document("/api/v1/nodes")
    assert caught.value.status == 503 and "Bad Gateway" in caught.value.message
    assert len(api.requests) == 3 and len(api.pauses) == 2


def test_failing_webhook_is_retried_even_for_a_generated_name(api: Api) -> None:
    message = 'Internal error occurred: failed calling webhook "validator.trainjob.trainer.kubeflow.org": connection refused'
    api.answers = [(500, status(500, "InternalError", message)), (201, POD)]
    body = {"metadata": {"generateName": "p-"}}
    assert api.client().create(PODS, body)["metadata"]["name"] == "p"


def test_create_in_doubt_is_not_sent_twice_blindly(api: Api) -> None:
    api.answers = [(0, "reset"), (201, POD)]
    with pytest.raises(ClusterError) as caught:
        api.client().create(PODS, POD)
    assert caught.value.status is None and len(api.requests) == 1


def test_create_in_doubt_finds_its_own_object(api: Api) -> None:
    api.answers = [(0, "reset"), (409, status(409, "AlreadyExists")), (200, POD)]
    made = api.client().create(PODS, POD, is_ours=lambda found: found["metadata"]["labels"] == {"run": "r1"})
    assert made["metadata"]["name"] == "p"
    assert [request[0] for request in api.requests] == ["POST", "POST", "GET"]


def test_create_never_adopts_a_foreign_object(api: Api) -> None:
    api.answers = [(504, status(504, "Timeout")), (409, status(409, "AlreadyExists")), (200, POD)]
    with pytest.raises(ClusterError) as caught:
        api.client().create(PODS, POD, is_ours=lambda found: False)
    assert caught.value.api_reason == "AlreadyExists"


def test_existing_object_without_doubt_is_an_error_even_if_it_looks_like_ours(api: Api) -> None:
    api.answers = [(409, status(409, "AlreadyExists"))]
    with pytest.raises(ClusterError):
        api.client().create(PODS, POD, is_ours=lambda found: True)
    assert len(api.requests) == 1


def test_quota_update_collision_is_retried(api: Api) -> None:
    api.answers = [(409, status(409, "Conflict", 'Operation cannot be fulfilled on resourcequotas "q"')), (201, POD)]
    assert api.client().create(PODS, POD)["metadata"]["name"] == "p"


def test_exhausted_quota_is_said_at_once(api: Api) -> None:
    api.answers = [(403, status(403, "Forbidden", 'pods "p" is forbidden: exceeded quota: gpus'))]
    with pytest.raises(ClusterError) as caught:
        api.client().create(PODS, POD)
    assert "exceeded quota" in caught.value.message and "ResourceQuota" in caught.value.hint and len(api.requests) == 1


def test_create_asks_for_strict_validation_and_dry_run(api: Api) -> None:
    api.answers = [(201, POD)]
    api.client().create(PODS, POD, dry_run=True)
    assert "dryRun=All" in api.requests[0][1] and "fieldValidation=Strict" in api.requests[0][1]


def test_connection_reset_of_a_read_is_retried(api: Api) -> None:
    api.answers = [(0, "reset"), (200, POD)]
    assert api.client().get(f"{PODS}/p") == POD


def test_answer_cut_short_is_no_answer(api: Api) -> None:
    api.answers = [(200, b'{"kind": "Pod"', {"Content-Length": "500"}), (200, POD)]
    assert api.client().get(f"{PODS}/p") == POD


def test_forbidden_says_what_to_allow(api: Api) -> None:
    api.answers = [(403, status(403, "Forbidden", 'jobs.batch is forbidden: User "u" cannot create'))]
    with pytest.raises(ClusterError) as caught:
        api.client().create("/apis/batch/v1/namespaces/gpu/jobs", {"metadata": {"name": "j"}})
    assert caught.value.hint == "Allow our user to create jobs.batch in namespace gpu."
    assert caught.value.status == 403 and caught.value.place == "POST /apis/batch/v1/namespaces/gpu/jobs"


def test_unauthorized_says_log_in(api: Api) -> None:
    api.answers = [(401, status(401, "Unauthorized"))]
    with pytest.raises(ClusterError) as caught:
        api.client().version()
    assert "log in again" in caught.value.hint and len(api.requests) == 1


def test_unauthorized_for_good_is_an_error_on_the_last_try_too(api: Api, tmp_path: pathlib.Path) -> None:
    """With credentials that can be read again, 401 on the last try ended in an assertion of ours."""
    path = tmp_path / "config"
    path.write_text(json.dumps(kubeconfig(api.url, "expired")))
    for attempts in (1, 2, 4):
        api.answers = [(503, b"away")] * (attempts - 1) + [(401, status(401, "Unauthorized"))]
        with pytest.raises(ClusterError, match="the API server answered 401: Unauthorized"):
            api.client(host=None, api_key=None, kubeconfig=str(path), attempts=attempts).version()


def test_unreachable_server_names_it_and_keeps_the_secret(api: Api) -> None:
    with pytest.raises(ClusterError) as caught:
        api.client(host="http://user:pa55word@127.0.0.1:9", attempts=2).version()
    text = caught.value.render()
    assert "127.0.0.1:9" in text and "network" in text
    assert "s3cr3t" not in text and "pa55word" not in text


def test_silent_server_times_out(api: Api) -> None:
    api.answers = [(200, b"{", {"Content-Length": "100"})]
    with pytest.raises(ClusterError):
        api.client(read_timeout_s=0.2, attempts=2).version()


def test_login_and_impersonation_headers(api: Api) -> None:
    api.answers = [(200, {})]
    api.client(impersonate_user="auditor", impersonate_groups=["a", "b"]).version()
    headers = api.requests[0][2]
    assert headers["Authorization"] == "Bearer s3cr3t-token"
    assert headers["Impersonate-User"] == "auditor" and headers.get_all("Impersonate-Group") == ["a", "b"]


def page(names: list[str], token: str = "") -> dict[str, t.Any]:
    return {"metadata": {"resourceVersion": "7", "continue": token}, "items": [{"metadata": {"uid": name, "name": name}} for name in names]}


def test_list_reads_all_pages(api: Api) -> None:
    api.answers = [(200, page(["a", "b"], "t1")), (200, page(["c"]))]
    found = api.client().list_result("/api/v1/nodes", limit=2, project=lambda item: item["metadata"]["uid"])
    assert found.items == ["a", "b", "c"] and found.resource_version == "7"
    assert "limit=2" in api.requests[0][1] and "continue=t1" in api.requests[1][1]


def test_list_whose_continuation_expired_has_each_item_once(api: Api) -> None:
    api.answers = [(200, page(["a", "b"], "t1")), (410, status(410, "Expired")), (200, page(["a", "b", "c", "d"]))]
    names = [item["metadata"]["uid"] for item in api.client().list("/api/v1/nodes")]
    assert names == ["a", "b", "c", "d"]


def test_watch_yields_events_split_anywhere(api: Api) -> None:
    text = event("ADDED", POD) + event("BOOKMARK", {"metadata": {"resourceVersion": "9"}}) + event("DELETED", POD)
    api.answers = [(200, [text[:10], text[10:75], text[75:]])]
    kinds = [kind for kind, _rest in api.client().watch(PODS, resource_version="1", timeout_s=5)]
    assert kinds == ["ADDED", "BOOKMARK", "DELETED"]
    assert "watch=true" in api.requests[0][1] and "allowWatchBookmarks=true" in api.requests[0][1]


@pytest.mark.parametrize(
    "answer",
    [(410, status(410, "Expired")), (200, [event("ADDED", POD), event("ERROR", status(410, "Expired"))])],
    ids=["status", "event"],
)
def test_watch_too_old_asks_to_list_again(api: Api, answer: t.Any) -> None:
    api.answers = [answer]
    with pytest.raises(Expired):
        for _event in api.client().watch(PODS, resource_version="1"):
            pass


def test_watch_error_that_is_not_expiry_is_raised(api: Api) -> None:
    api.answers = [(200, [event("ERROR", status(500, "InternalError", "etcd event received with PrevKv=nil"))])]
    with pytest.raises(ClusterError, match="PrevKv") as caught:
        for _event in api.client().watch(PODS, resource_version="1"):
            pass
    assert not isinstance(caught.value, Expired)


def test_broken_watch_ends_quietly_with_what_it_had(api: Api) -> None:
    api.answers = [(200, [event("ADDED", POD), b'{"type": "MODI', "cut"])]
    assert [kind for kind, _rest in api.client().watch(PODS, resource_version="1")] == ["ADDED"]


def test_a_watch_that_hangs_is_given_up_after_its_silence_and_not_at_its_own_end(api: Api) -> None:
    """For four minutes no pod was seen, and the run said that none existed."""
    api.answers = [(200, b"{", {"Content-Length": "100"})]
    began = time.monotonic()
    assert list(api.client(attempts=1).watch(PODS, resource_version="1", timeout_s=240, silence_s=0.2)) == []
    assert time.monotonic() - began < 10


def test_log_keeps_every_byte(api: Api) -> None:
    log = b"caf\xe9 \xff\x00\r\n" * 20000
    api.answers = [(200, [log[:70000], log[70000:]])]
    into = io.BytesIO()
    assert api.client().read_log("x", "p", into=into, container="node", tail_lines=5, previous=True) == len(log)
    assert into.getvalue() == log
    assert "container=node&previous=true&tailLines=5" in api.requests[0][1]


def test_log_broken_off_is_read_again_from_the_start(api: Api) -> None:
    api.answers = [(200, [b"half of ", "cut"]), (200, [b"the whole log"])]
    into = io.BytesIO(b"before ")
    into.seek(7)
    assert api.client().read_log("x", "p", into=into) == 13
    assert into.getvalue() == b"before the whole log"


def test_log_that_always_breaks_is_an_error_and_leaves_no_half(api: Api) -> None:
    api.answers = [(200, [b"half", "cut"])]
    into = io.BytesIO()
    with pytest.raises(ClusterError):
        api.client(attempts=2).read_log("x", "p", into=into)
    assert into.getvalue() == b""


def test_delete_of_nothing_is_none_and_uid_is_a_precondition(api: Api) -> None:
    api.answers = [(404, status(404, "NotFound"))]
    assert api.client().delete(f"{PODS}/p", uid="u-1", grace_period_s=0) is None
    body = api.requests[0][3]
    assert body["preconditions"] == {"uid": "u-1"} and body["gracePeriodSeconds"] == 0 and body["propagationPolicy"] == "Background"


def test_patch_kinds(api: Api) -> None:
    api.answers = [(200, POD)]
    api.client().patch(f"{PODS}/p", [{"op": "remove", "path": "/x"}], kind="json")
    api.client().patch(f"{PODS}/p", {"x": None})
    assert [request[2]["Content-Type"] for request in api.requests] == ["application/json-patch+json", "application/merge-patch+json"]


def test_can_i_and_groups(api: Api) -> None:
    api.by_path["/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"] = (201, {"status": {"allowed": True}})
    api.by_path["/apis"] = (200, {"groups": [{"name": "batch"}, {"name": "trainer.kubeflow.org"}]})
    client = api.client()
    assert client.can_i("create", "jobs", group="batch", namespace="x") is True
    assert api.requests[0][3]["spec"]["resourceAttributes"] == {"verb": "create", "resource": "jobs", "group": "batch", "namespace": "x"}
    assert client.groups() == {"batch", "trainer.kubeflow.org"}


def test_answer_that_is_not_json_is_named(api: Api) -> None:
    api.answers = [(200, b"<html>login page</html>")]
    with pytest.raises(ClusterError, match="no JSON object"):
        api.client().version()


def allowed(answer: bool) -> dict[str, t.Any]:
    return {"kind": "SelfSubjectAccessReview", "status": {"allowed": answer}}


ASKED: dict[str, tuple[t.Callable[[t.Any], t.Any], t.Any]] = {
    "list": (lambda client: client.list_result(PODS).items, page(["a"])),
    "get": (lambda client: client.get(f"{PODS}/p"), POD),
    "groups": (lambda client: client.groups(), {"groups": [{"name": "batch"}]}),
    "may I": (lambda client: client.can_i("list", "pods"), allowed(True)),
    "create ours": (lambda client: client.create(PODS, POD, is_ours=lambda found: True), POD),
    "try to create": (lambda client: client.create(PODS, POD, dry_run=True), POD),
    "patch": (lambda client: client.patch(f"{PODS}/p", {"spec": {}}), POD),
    "delete": (lambda client: client.delete(f"{PODS}/p"), {"kind": "Status"}),
}
# What a proxy, a portal or half an answer looks like.
NO_ANSWERS = {"page": b"<html>login</html>", "half": b'{"kind": "Pod", "meta', "nothing": b"", "null": b"null", "array": b"[]"}
OTHER_SHAPES = {"empty": b"{}", "wrong types": b'{"kind": 7, "metadata": "x", "items": {"a": 1}, "status": [1], "groups": "x"}'}


@pytest.mark.parametrize("nonsense", [*NO_ANSWERS, *OTHER_SHAPES])
@pytest.mark.parametrize("asked", ASKED)
def test_an_answer_of_another_shape_is_none_and_is_asked_for_again(api: Api, asked: str, nonsense: str) -> None:
    """One page of a load balancer sank a healthy cluster; an object without its fields was called a defect of ours."""
    ask, good = ASKED[asked]
    api.answers = [(200, {**NO_ANSWERS, **OTHER_SHAPES}[nonsense]), (200, good)]
    assert ask(api.client()) and len(api.requests) == 2


@pytest.mark.parametrize("asked", ASKED)
def test_an_answer_that_stays_of_another_shape_is_told_with_its_place(api: Api, asked: str) -> None:
    api.answers = [(200, {"kind": "Page"})]
    with pytest.raises(ClusterError, match=r"the answer of http://127\.0\.0\.1:\d+ is no (list|object|document|access|answer)") as caught:
        ASKED[asked][0](api.client(attempts=2))
    assert caught.value.place.split()[0] in ("GET", "POST", "PATCH", "DELETE") and len(api.requests) == 2


def test_a_list_with_an_item_that_is_no_object_is_none(api: Api) -> None:
    api.answers = [(200, {"metadata": {}, "items": [POD, None]}), (200, {"metadata": {}, "items": [POD]})]
    assert api.client().list_result(PODS).items == [POD]


def test_a_create_that_was_answered_with_a_page_is_not_sent_twice_blindly(api: Api) -> None:
    api.answers = [(200, b"<html>")]
    with pytest.raises(ClusterError):
        api.client().create(PODS, POD)
    assert len(api.requests) == 1


def test_a_create_whose_answer_was_a_page_finds_its_own_object(api: Api) -> None:
    api.answers = [(200, b"<html>"), (409, status(409, "AlreadyExists")), (200, POD)]
    assert api.client().create(PODS, POD, is_ours=lambda found: True) == POD


class Time:
    """Passes only while somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_patient_client_asks_for_as_long_as_it_was_told_and_no_longer(api: Api) -> None:
    clock = Time()
    retry = RetryPolicy(clock=clock, sleep=clock.sleep, random=lambda: 1.0)
    client = Client.from_options({"host": api.url, "api_key": "x"}, retry=retry).patient(300)
    api.answers = [(503, b"away")]
    with pytest.raises(ClusterError):
        client.get(f"{PODS}/p")
    assert 290 <= clock.now <= 310 and len(api.requests) > 30


def test_a_server_that_hangs_does_not_cost_seven_time_outs() -> None:
    clock = Time()
    tries = RetryPolicy(clock=clock, sleep=clock.sleep).tries()
    made = 1
    while tries.are_left:
        clock.sleep(60)
        tries.pause()
        made += 1
    assert made <= 3
