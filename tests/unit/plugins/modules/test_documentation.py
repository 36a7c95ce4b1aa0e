# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pages of modules and filters: what an administrator grants and what a play author reads off them is what the code does."""

from __future__ import annotations

import importlib
import pathlib
import re
import typing as t

import pytest
import yaml

from ansible_collections.gpu_cluster.readiness.plugins import modules
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster import kinds

PLUGINS = pathlib.Path(kinds.__file__).resolve().parents[2]
ROOT = PLUGINS.parent
AUTHOR = "The gpu_cluster.readiness authors (@gpu-cluster-readiness)"
# "create, get on configmaps, secrets" and "get on pods/log" and "list on jobs (batch)"
GRANT = re.compile(r"\b((?:[a-z]+, )*[a-z]+) on ((?:[a-z/]+, )*[a-z/]+)(?:\s+\(([a-z0-9.]+)\))?")
VERBS = {"create", "get", "list", "watch", "patch", "update", "delete", "deletecollection"}
Permission = tuple[str, str, str, str]


def module_names() -> list[str]:
    return sorted(path.stem for path in (PLUGINS / "modules").glob("[a-z]*.py"))


def page(name: str) -> dict[str, t.Any]:
    """DOCUMENTATION of a module, and its RETURN under the key return."""
    module = importlib.import_module(f"{modules.__name__}.{name}")
    return {**yaml.safe_load(module.DOCUMENTATION), "return": yaml.safe_load(module.RETURN)}


def reads_the_cluster() -> list[str]:
    return [name for name in module_names() if "gpu_cluster.readiness._auth" in page(name)["extends_documentation_fragment"]]


def granted(name: str) -> set[Permission]:
    """The permissions that the notes of a module name, as (verb, resource, group, subresource)."""
    found = set()
    for verbs, resources, group in GRANT.findall(" ".join(page(name).get("notes", []))):
        if not set(verbs.split(", ")) <= VERBS:
            continue
        for item in resources.split(", "):
            resource, _slash, subresource = item.partition("/")
            found |= {(verb, resource, group, subresource) for verb in verbs.split(", ")}
    return found


def permissions(*wanted: kinds.Kind, verbs: t.Collection[str] = ()) -> set[Permission]:
    """What the table of kinds says of these, or only these verbs of it."""
    return {(verb, kind.plural, kind.group, kind.subresource) for kind in wanted for verb in verbs or kind.verbs}


def needed() -> dict[str, set[Permission]]:
    run = permissions(*kinds.NAMESPACED, *kinds.CLUSTER)
    resume = permissions(kinds.NODE, kinds.CONFIG_MAP, verbs=["list"]) | permissions(kinds.NAMESPACE)
    return {
        "certification_plan": resume,
        "gpu_cluster_info": permissions(kinds.NODE, verbs=["list"]) | permissions(*kinds.OPTIONAL),
        "cluster_preflight": run | permissions(kinds.POD_EXAMINED, kinds.NAMESPACE),
        "workload_batch": run,
        "run_cleanup": permissions(*kinds.OWNED, verbs=["list", "delete"]),
    }


@pytest.mark.parametrize("name", reads_the_cluster())
def test_an_administrator_finds_every_verb_that_a_module_needs_and_none_that_it_does_not(name: str) -> None:
    assert granted(name) == needed()[name]


def test_module_defaults_of_the_group_k8s_reach_every_module_that_logs_in_and_no_other() -> None:
    groups = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text(encoding="utf-8"))["action_groups"]
    assert groups == {"k8s": reads_the_cluster()}
    with_note = [name for name in module_names() if "gpu_cluster.readiness._attributes.actiongroup_k8s" in fragments(name)]
    assert with_note == groups["k8s"]


def fragments(name: str) -> list[str]:
    return page(name)["extends_documentation_fragment"]


def test_every_module_has_the_shared_attributes() -> None:
    assert [name for name in module_names() if "gpu_cluster.readiness._attributes" not in fragments(name)] == []


def test_one_handle_answers_for_everything() -> None:
    sidecars = [yaml.safe_load(path.read_text(encoding="utf-8"))["DOCUMENTATION"] for path in (PLUGINS / "filter").glob("*.yml")]
    assert sidecars
    assert {tuple(item["author"]) for item in [*sidecars, *map(page, module_names())]} == {(AUTHOR,)}


def without_sample(returned: t.Mapping[str, t.Any], place: str) -> list[str]:
    """Paths of values that a reader cannot picture: no sample, and not taken apart further."""
    found = []
    for key, value in returned.items():
        if "contains" in value:
            found += without_sample(value["contains"], f"{place}.{key}")
        elif "sample" not in value and value["type"] != "dict" and value.get("elements") != "dict":
            found.append(f"{place}.{key}")
    return found


def test_every_returned_value_is_shown_by_a_sample() -> None:
    assert [path for name in module_names() for path in without_sample(page(name)["return"], name)] == []
