# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A mistake in the request is told with its place before it costs a GPU minute."""

from __future__ import annotations

import pathlib

import pytest
import yaml

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan.spec import parse_spec

GOOD = {"test": "communication/nccl-all-reduce", "test_scale": "intra-node"}


def test_the_smallest_request_gets_every_default():
    spec = parse_spec({"categories": [GOOD]})
    assert spec["bounds"]["max_concurrent"] == 32
    assert spec["categories"][0]["isolate"] == "auto"
    assert spec["target"]["include_cordoned"] is False


def test_a_category_overrides_what_is_shared():
    spec = parse_spec(
        {
            "criteria": "measured.bus_bandwidth >= 300",
            "options": {"max_bytes": "8G", "iterations": 20},
            "categories": [GOOD, {**GOOD, "criteria": [], "options": {"iterations": 5}}],
        }
    )
    first, second = spec["categories"]
    assert first["criteria"] == ["measured.bus_bandwidth >= 300"]
    assert second["criteria"] == []
    assert second["options"] == {"max_bytes": "8G", "iterations": 5}


@pytest.mark.parametrize(
    "raw, place, words",
    [
        ({}, "certification.categories", "nothing to test"),
        ({"categories": []}, "certification.categories", "nothing to test"),
        ({"categorys": [GOOD]}, "certification", "categories"),
        ("text", "certification", "a mapping"),
        ({"categories": "intra-node"}, "certification.categories", "a list"),
        ({"categories": [{**GOOD, "test_scale": "intra-rak"}]}, "certification.categories[0].test_scale", "intra-rack"),
        ({"categories": [{"test_scale": "intra-node"}]}, "certification.categories[0].test", "empty"),
        ({"categories": [{**GOOD, "criteria": [""]}]}, "certification.categories[0].criteria[0]", "empty"),
        ({"categories": [GOOD], "bounds": {"deadline_s": 0}}, "certification.bounds.deadline_s", "at least 1"),
        ({"categories": [GOOD], "bounds": {"deadline_s": "soon"}}, "certification.bounds.deadline_s", "whole number"),
        ({"categories": [GOOD], "bounds": {"retries": True}}, "certification.bounds.retries", "whole number"),
        ({"categories": [GOOD], "target": {"match_expressions": [{"key": "a", "operator": "in"}]}},
         "certification.target.match_expressions[0].operator", "In"),
        ({"categories": [GOOD], "target": {"match_expressions": [{"key": "a", "operator": "In"}]}},
         "certification.target.match_expressions[0].values", "needs values"),
        ({"categories": [GOOD], "topology_key": "not a key"}, "certification.topology_key", "not valid"),
        ({"categories": [GOOD], "workload": {"env": [{"name": "HF_TOKEN"}]}}, "certification.workload.env[0].name", "archive"),
        ({"categories": [GOOD], "workload": {"env": [{"name": "A B"}]}}, "certification.workload.env[0].name", "not valid"),
        ({"categories": [GOOD], "workload": {"gpus_per_node": 0}}, "certification.workload.gpus_per_node", "at least 1"),
        ({"categories": [{**GOOD, "group_size": 2}]}, "certification.categories[0].group_size", "full-scale"),
        ({"categories": [{**GOOD, "test_scale": "diagnose", "group_size": 2}]}, "certification.categories[0].group_size", "intra-rack"),
        ({"categories": [{**GOOD, "test_scale": "intra-rack", "group_size": 0}]}, "certification.categories[0].group_size", "at least 1"),
        ({"categories": [{**GOOD, "repeat": 0}]}, "certification.categories[0].repeat", "0 is out of range: at least 1 and at most 100"),
        ({"categories": [GOOD, {**GOOD, "repeat": 101}]}, "certification.categories[1].repeat", "101 is out of range"),
        ({"categories": [{**GOOD, "repeat": "often"}]}, "certification.categories[0].repeat", "whole number"),
        ({"categories": [{**GOOD, "repeat": 3, "k_of_n": 4}]}, "certification.categories[0].k_of_n",
         "4 is out of range: at least 1 and at most 3"),
        ({"categories": [{**GOOD, "repeat": 3, "k_of_n": 0}]}, "certification.categories[0].k_of_n", "at most 3"),
        ({"categories": [{**GOOD, "k_of_n": 1}]}, "certification.categories[0].k_of_n", "k_of_n needs repeat"),
        ({"categories": [{**GOOD, "test_scale": "diagnose", "repeat": 2}]}, "certification.categories[0].repeat", "diagnose"),
        ({"categories": [{**GOOD, "left_over": "pair"}]}, "certification.categories[0].left_over", "pair_with_known_good"),
        ({"categories": [GOOD], "workload": {"labels": {"gpu-cluster.readiness/run": "x"}}},
         "certification.workload.labels.gpu-cluster.readiness/run", "another name"),
        ({"categories": [GOOD], "workload": {"files": {"hostfile": "x"}}}, "certification.workload.files.hostfile", "another name"),
        ({"categories": [GOOD], "workload": {"files": {"a/b": "x"}}}, "certification.workload.files", "not valid"),
        ({"categories": [GOOD], "workload": {"files": {"big": "x" * 1_000_000}}}, "certification.workload.files", "ConfigMap"),
        ({"categories": [GOOD], "workload": {"resources": {"limits": {"memory": "lots"}}}},
         "certification.workload.resources.limits.memory", "quantity"),
        ({"categories": [GOOD], "workload": {"resources": {"limits": {"nvidia.com/gpu": 4}}}},
         "certification.workload.resources.limits.nvidia.com/gpu", "gpus_per_node"),
        ({"categories": [GOOD], "workload": {"resources": {"limit": {}}}}, "certification.workload.resources", "limits"),
        ({"categories": [GOOD], "workload": {"volumes": [{"name": "dshm"}]}}, "certification.workload.volumes[0].name", "another name"),
        ({"categories": [GOOD], "workload": {"sidecars": [{"name": "node"}]}}, "certification.workload.sidecars[0].name", "another name"),
        ({"categories": [GOOD], "workload": {"init_containers": ["x"]}}, "certification.workload.init_containers[0]", "a mapping"),
    ],
)  # fmt: skip
def test_bad_input_names_place_and_remedy(raw, place, words):
    with pytest.raises(InputError) as caught:
        parse_spec(raw)
    assert caught.value.place == place
    assert words in caught.value.render()


def test_survey_answers_arrive_as_texts():
    spec = parse_spec({"categories": [GOOD], "bounds": {"deadline_s": "600"}, "allow_no_criteria": "true"})
    assert spec["bounds"]["deadline_s"] == 600
    assert spec["allow_no_criteria"] is True


def test_every_key_of_the_documented_request_is_accepted():
    """The page is what people copy from: a key that it names and the program refuses costs them their evening."""
    page = pathlib.Path(__file__).resolve().parents[5] / "docs" / "certification.md"
    example = yaml.safe_load(page.read_text().split("```yaml\n")[1].split("```")[0])
    spec = parse_spec(example["certification"])
    assert spec["isolation"]["budget"]["waves"] == 60 and spec["isolation"]["min_group_size"] == 2
