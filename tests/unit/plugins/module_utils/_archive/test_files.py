# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The archive: whole files, true checksums, no secret."""

from __future__ import annotations

import json
import subprocess

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive import files as archive
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive import manifest
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError


def test_json_is_written_whole_and_without_traces(tmp_path):
    path = tmp_path / "sub" / "a.json"
    archive.write_json(path, {"b": float("nan"), "a": [1, 2.5, "ü"]})
    assert path.read_text(encoding="utf-8") == '{\n  "a": [\n    1,\n    2.5,\n    "ü"\n  ],\n  "b": null\n}\n'
    assert [item.name for item in path.parent.iterdir()] == ["a.json"]


def test_a_failed_write_keeps_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    archive.write_json(path, {"old": True})

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        archive.write_json(path, {"new": True})
    assert json.loads(path.read_text(encoding="utf-8")) == {"old": True}
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


def test_every_change_is_found(tmp_path):
    for name in ("a.json", "logs/x.log", "logs/y.log"):
        archive.write_text(tmp_path / name, name)
    manifest.write_manifest(tmp_path)
    assert manifest.verify_manifest(tmp_path) == []
    assert subprocess.run(["sha256sum", "--quiet", "-c", manifest.MANIFEST], cwd=tmp_path, check=False).returncode == 0
    (tmp_path / "a.json").write_text("changed", encoding="utf-8")
    (tmp_path / "logs/x.log").unlink()
    (tmp_path / "new").write_text("", encoding="utf-8")
    assert manifest.verify_manifest(tmp_path) == ["logs/x.log: missing", "new: not in the manifest", "a.json: changed"]


def test_an_absent_or_broken_manifest_is_a_problem(tmp_path):
    assert "cannot be read" in manifest.verify_manifest(tmp_path)[0]
    (tmp_path / manifest.MANIFEST).write_text(f"{'0' * 64}  ../../etc/passwd\nnonsense\n", encoding="utf-8")
    assert manifest.verify_manifest(tmp_path) == [f"{manifest.MANIFEST} line {number}: not a checksum and a file name" for number in (1, 2)]


def test_latest_follows_the_newest_run(tmp_path):
    for name in ("r1", "r2"):
        (tmp_path / name).mkdir()
        manifest.point_latest(tmp_path / name)
    assert (tmp_path / "latest").readlink().as_posix() == "r2"


def test_latest_without_links_is_a_text(tmp_path, monkeypatch):
    (tmp_path / "r1").mkdir()

    def refuse(_self, _target):
        raise OSError(95, "not supported")

    monkeypatch.setattr(manifest.Path, "symlink_to", refuse)
    manifest.point_latest(tmp_path / "r1")
    assert (tmp_path / "latest").read_text(encoding="utf-8") == "r1\n"


@pytest.mark.parametrize(
    "secret",
    [
        {"token": "abc"},
        {"users": [{"user": {"client-key-data": "QUJD", "client-certificate-data": "QUJD"}}]},
        {"password": "x"},
        {"api_key": "x"},
        {"idToken": "x"},
        "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\nabc",
        "Authorization: Bearer abcdefghijkl",
        "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.sig",
        "https://user:abc@registry.local/x",
        "users:\n- user:\n    token: abc\n",
    ],
)
def test_secrets_stay_out(secret):
    text = archive.dump({"x": secret})
    assert archive.REMOVED in text
    assert "abc" not in text and "QUJD" not in text and "eyJ" not in text


@pytest.mark.parametrize(
    "harmless", [{"tokens_per_s": 3, "node": "n1", "key": "topology.key", "token": None}, "a token of trust", "k=v", {"secretName": "x"}]
)
def test_what_is_no_secret_stays(harmless):
    assert archive.redact(harmless) == harmless


def test_unreadable_json_names_its_file(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        archive.read_json(tmp_path / "no.json")
    (tmp_path / "bad.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="is not JSON"):
        archive.read_json(tmp_path / "bad.json")
