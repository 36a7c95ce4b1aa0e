# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever a user of kubernetes.core or AWX has set must work here, and no secret may be printed."""

from __future__ import annotations

import json
import pathlib
import time
import typing as t

import pytest
import yaml

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster import auth
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.auth import resolve_options, without_credentials
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.client import Client
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError, InputError

from .conftest import Api


def kubeconfig(url: str, token: str = "from-file") -> dict[str, t.Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "contexts": [{"name": name, "context": {"cluster": "c", "user": name}} for name in ("one", "two")],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "one", "user": {"token": token}}, {"name": "two", "user": {"token": "of-two"}}],
    }


def authorization(api: Api, **options: t.Any) -> str:
    api.answers = [(200, {})]
    Client.from_options(options).version()
    return api.requests[-1][2]["Authorization"]


def test_kubeconfig_as_dictionary_and_as_path(api: Api, tmp_path: pathlib.Path) -> None:
    assert authorization(api, kubeconfig=kubeconfig(api.url)) == "Bearer from-file"
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(kubeconfig(api.url)))
    assert authorization(api, kubeconfig=str(path), context="two") == "Bearer of-two"


def test_options_beat_the_kubeconfig(api: Api) -> None:
    assert authorization(api, kubeconfig=kubeconfig("http://127.0.0.1:9"), host=api.url, api_key="mine") == "Bearer mine"


def test_environment_of_the_awx_credential(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K8S_AUTH_HOST", api.url)
    monkeypatch.setenv("K8S_AUTH_API_KEY", "awx")
    monkeypatch.setenv("K8S_AUTH_VERIFY_SSL", "False")
    assert authorization(api) == "Bearer awx"


def test_both_spellings_of_the_ca_variable() -> None:
    assert resolve_options({}, {"K8S_AUTH_SSL_CA_CERT": "/a"})["ca_cert"] == "/a"
    assert resolve_options({}, {"K8S_AUTH_CA_CERT": "/b"})["ca_cert"] == "/b"
    assert resolve_options({"ca_cert": "/c"}, {"K8S_AUTH_CA_CERT": "/b"})["ca_cert"] == "/c"


def test_bad_boolean_is_named() -> None:
    with pytest.raises(InputError, match="maybe"):
        resolve_options({"validate_certs": "maybe"}, {})


def test_basic_login(api: Api) -> None:
    assert authorization(api, host=api.url, username="u", password="p") == "Basic dTpw"


def test_token_rotated_on_disk_is_read_again(api: Api, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(kubeconfig(api.url, "old")))
    client = Client.from_options({"kubeconfig": str(path)})
    path.write_text(yaml.safe_dump(kubeconfig(api.url, "new")))
    api.answers = [(401, {"message": "Unauthorized"}), (200, {"major": "1"})]
    assert client.version() == {"major": "1"}
    assert [request[2]["Authorization"] for request in api.requests] == ["Bearer old", "Bearer new"]


def test_missing_file_and_missing_context_are_named(api: Api, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        Client.from_options({"kubeconfig": str(tmp_path / "nowhere")})
    with pytest.raises(InputError, match="three"):
        Client.from_options({"kubeconfig": kubeconfig(api.url), "context": "three"})


def test_broken_kubeconfig_gives_the_line_and_not_its_text(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config"
    path.write_text("apiVersion: v1\nusers:\n- token: 's3cr3t\n")
    with pytest.raises(InputError) as caught:
        Client.from_options({"kubeconfig": str(path)})
    assert str(path) in caught.value.render() and "s3cr3t" not in caught.value.render()


def test_host_without_login_or_file_is_used_as_it_is(api: Api) -> None:
    api.answers = [(200, {"major": "1"})]
    assert Client.from_options({"host": api.url + "/"}).version() == {"major": "1"}
    assert api.requests[0][1] == "/version" and "Authorization" not in api.requests[0][2]


def test_credentials_are_cut_out_of_messages() -> None:
    assert without_credentials("http://u:p@proxy:3128 Bearer abc.def refused") == "http://proxy:3128 Bearer *** refused"


def with_plugin(api: Api, tmp_path: pathlib.Path, then: str) -> Client:
    """A client whose exec plugin logs in for a moment, and does something else when it is asked again."""
    status = {"token": "short-lived", "expirationTimestamp": "2020-01-01T00:00:00Z"}
    credential = json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status})
    plugin = tmp_path / "plugin"
    plugin.write_text(f"test -e {tmp_path}/again && {then}\ntouch {tmp_path}/again\necho '{credential}'\n")
    config = kubeconfig(api.url)
    run = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": [str(plugin)], "interactiveMode": "Never"}
    config["users"][0]["user"] = {"exec": run}
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    return Client.from_options({"kubeconfig": str(path)})


def test_an_exec_plugin_that_hangs_does_not_hold_the_run(api: Api, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may ask somebody for a code; all threads waited behind its lock, also those that were to end the run."""
    client = with_plugin(api, tmp_path, "exec sleep 20")
    monkeypatch.setattr(auth, "LOGIN_S", 0.5)
    begun = time.monotonic()
    with pytest.raises(ClusterError, match="did not come to its end") as caught:
        client.version()
    assert time.monotonic() - begun < 15 and "exec plugin" in caught.value.hint and not api.requests


def test_a_login_that_cannot_be_read_again_is_an_error_of_the_cluster(api: Api, tmp_path: pathlib.Path) -> None:
    """Any other kind of error would be called a defect of the collection, and end the batch with everything that ran."""
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(kubeconfig(api.url, "old")))
    client = Client.from_options({"kubeconfig": str(path)})
    path.write_text("users: [s3cr3t\n")
    api.answers = [(401, {"message": "Unauthorized"})]
    with pytest.raises(ClusterError, match="the login could not be renewed") as caught:
        client.version()
    assert "s3cr3t" not in caught.value.render()
