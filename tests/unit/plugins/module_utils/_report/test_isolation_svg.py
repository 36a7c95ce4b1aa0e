# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The picture of a search: well-formed, self-contained, and it shows who is at fault."""

from __future__ import annotations

import random
from typing import Any
from xml.etree import ElementTree

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._isolate import explain, planner
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._report.isolation_svg import draw
from ansible_collections.gpu_cluster.readiness.tests.benchmarks.isolation_campaign import run_session
from ansible_collections.gpu_cluster.readiness.tests.benchmarks.isolation_worlds import World, plant

SVG = "{http://www.w3.org/2000/svg}"


def conclusion(count: int, *kinds: str) -> dict[str, Any]:
    world = World(count, 16, plant(kinds, count, 16, random.Random(4)), 0.02, 1)
    search = run_session(world).search
    return {**explain.conclude(search), **planner.history(search)}


@pytest.mark.parametrize(
    ("count", "kinds"), [(64, ("nic", "node")), (64, ("crosspair", "uplink")), (512, ("node", "pair")), (1, ()), (16, ())]
)
def test_picture_shows_every_test_and_the_culprits(count: int, kinds: tuple[str, ...]) -> None:
    data = conclusion(count, *kinds)
    text = draw(data, "A <title> & more")
    root = ElementTree.fromstring(text)
    shown = [element.text or "" for element in root.iter(f"{SVG}title")]
    for test in data["tests"]:
        assert any(line.startswith(f"{test['id']}:") for line in shown)
    words = " ".join(element.text or "" for element in root.iter(f"{SVG}text"))
    assert "A <title> & more" in words and data["verdict"] in words
    for suspect in data["suspects"]:
        assert suspect["component"]["name"] in words and suspect["class"] in words
    assert "href" not in text and "<script" not in text and "url(" not in text


def test_everything_is_inside_the_frame() -> None:
    data = conclusion(512, "node", "uplink", "pair")
    root = ElementTree.fromstring(draw(data))
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    for element in [*root.iter(f"{SVG}rect"), *root.iter(f"{SVG}text")]:
        assert 0 <= float(element.get("x", "0")) <= width and 0 <= float(element.get("y", "0")) <= height
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.get("x", "0")) + float(rect.get("width", "0")) <= width + 1


def test_thousands_of_nodes_stay_readable() -> None:
    """Domains in which nothing failed shrink to lines, so that the others keep their room."""
    text = draw(conclusion(4096, "node", "nic"))
    root = ElementTree.fromstring(text)
    assert float(root.get("width", "0")) < 2000 and len(text) < 500_000
    assert "252 domains in which nothing failed" in text  # of 256: two with a fault, two whose good nodes met the faulty ones
