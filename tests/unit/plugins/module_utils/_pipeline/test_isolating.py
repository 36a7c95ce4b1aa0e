# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A search on an archive that holds only analyzed logs says so and names the archive; nobody gets a trace of it."""

from __future__ import annotations

import pathlib

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.files import write_json
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.isolating import isolation_turn


def test_an_archive_of_analyzed_logs_cannot_be_searched(tmp_path: pathlib.Path) -> None:
    category = {"id": "c01", "test": "logs/nccl", "test_scale": "diagnose", "groups": [{"name": "g001", "nodes": ["n1"]}]}
    for name, data in {"run": {"run_id": "r1"}, "plan": {"categories": [category]}, "snapshot": {"nodes": []}}.items():
        write_json(str(tmp_path / f"{name}.json"), data)
    with pytest.raises(InputError, match="logs that were analyzed") as raised:
        isolation_turn(RunDirectory(str(tmp_path)), category)
    assert raised.value.place == str(tmp_path)
