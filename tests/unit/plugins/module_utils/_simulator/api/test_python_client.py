# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The clients people write against the API: the Python package, typed, dynamic and watching."""

from __future__ import annotations

import threading
import time
import typing as t

import pytest
from kubernetes import client, config, dynamic, watch
from kubernetes.client.rest import ApiException

from .conftest import Api
from .test_contract import job, pod

Object = dict[str, t.Any]


@pytest.fixture
def api_client(api: Api) -> t.Iterator[client.ApiClient]:
    with config.new_client_from_config(api.kubeconfig) as made:
        yield made


def test_typed_objects_round_trip(api: Api, api_client: client.ApiClient) -> None:
    core, batch = client.CoreV1Api(api_client), client.BatchV1Api(api_client)
    assert core.create_namespaced_pod(api.namespace, pod("a")).spec.restart_policy == "Always"
    made = batch.create_namespaced_job(api.namespace, job("j"))
    assert made.spec.selector.match_labels["batch.kubernetes.io/controller-uid"] == made.metadata.uid
    assert [item.metadata.name for item in core.list_namespaced_pod(api.namespace, label_selector="name=a").items] == ["a"]
    core.delete_namespaced_pod("a", api.namespace, grace_period_seconds=0)
    with pytest.raises(ApiException) as caught:
        core.read_namespaced_pod("a", api.namespace)
    assert caught.value.status == 404


def test_a_typed_watch_follows(api: Api, api_client: client.ApiClient) -> None:
    core = client.CoreV1Api(api_client)
    version = core.list_namespaced_pod(api.namespace).metadata.resource_version
    seen: list[str] = []

    def follow() -> None:
        stream = watch.Watch().stream(core.list_namespaced_pod, api.namespace, resource_version=version, timeout_seconds=2)
        seen.extend(event["type"] for event in stream)

    thread = threading.Thread(target=follow)
    thread.start()
    time.sleep(0.3)
    api.post(api.at("pods"), pod("a"))
    api.delete(api.at("pods", "a"))
    thread.join(10)
    assert seen == ["ADDED", "DELETED"]


def test_the_dynamic_client_discovers_kinds(api: Api, api_client: client.ApiClient) -> None:
    kinds = dynamic.DynamicClient(api_client)
    resource = kinds.resources.get(api_version="v1", kind="ConfigMap")
    resource.create(body={"metadata": {"name": "a"}, "data": {"k": "v"}}, namespace=api.namespace)
    assert resource.get(name="a", namespace=api.namespace).data.k == "v"
