# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The certification spec: what a user asks for, checked and completed with defaults.

Shape: docs/data_shapes.md, section spec. Nothing here touches the cluster, so every mistake is told before it costs anything.
"""

from __future__ import annotations

import copy
import re
import typing as t

from .._catalog.schemas import TEST_SCALES
from .._common.checks import boolean, integer, known_keys, list_of, of_type, one_of, string
from .._common.errors import InputError
from .._common.shapes import CategoryRequest, Expression, IsolationOptions, Request, Target
from .._workload import names

MAX_REPEAT = 100
LEFT_OVER = ("own_group", "untested", "pair_with_known_good")
SECRET_NAME = re.compile(r"passw|token|secret|api_?key|credential|private_?key", re.IGNORECASE)
LABEL_KEY = r"([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"

SPEC_KEYS = (
    "name",
    "target",
    "topology_key",
    "categories",
    "options",
    "criteria",
    "thresholds",
    "allow_no_criteria",
    "bounds",
    "workload",
    "isolate",
    "isolation",
    "node_health",
)
CATEGORY_KEYS = (
    "test",
    "test_scale",
    "group_size",
    "left_over",
    "repeat",
    "k_of_n",
    "options",
    "criteria",
    "thresholds",
    "isolate",
    "workload",
    "expect_transport",
    "again",
)
_TEXTS = (
    "namespace",
    "image",
    "service_account",
    "nic_resource",
    "socket_interface",
    "hca",
    "rdma_device_access",
    "priority_class",
    "scheduler_name",
)
# Options of the network settings, handed on as they are; _catalog.resolve checks them.
NETWORK_KEYS = ("nic_resource", "nics_per_node", "socket_interface", "hca", "gid_index", "rdma_device_access")
WORKLOAD_KEYS = (
    "namespace",
    "image",
    "image_registries",
    "image_pull_secrets",
    "env",
    "service_account",
    "tolerations",
    "ssh_port",
    "gpus_per_node",
    "volumes",
    "volume_mounts",
    "init_containers",
    "sidecars",
    "files",
    "resources",
    "labels",
    "annotations",
    "priority_class",
    "scheduler_name",
    *NETWORK_KEYS,
)
MAX_FILES_BYTES = 900_000  # a ConfigMap holds 1 MiB
ISOLATION_KEYS = ("min_group_size", "soak", "budget")
BUDGET_KEYS = ("waves", "tests", "node_minutes")
TARGET_KEYS = ("node_selector", "match_expressions", "node_names", "include_cordoned", "gpu")


class _Repeats(t.TypedDict):
    repeat: int
    k_of_n: int | None


# One place for every bound: (default, minimum). Seconds where the name says so.
BOUNDS: dict[str, tuple[int | None, int]] = {
    "max_concurrent": (32, 1),  # groups in flight; a first run on a big cluster must not start everything at once
    "max_nodes": (None, 1),
    "deadline_s": (14400, 1),
    "attempt_timeout_s": (None, 1),  # None: the test's own
    "queue_timeout_s": (900, 1),
    "start_grace_s": (30, 0),  # how long an image pull or a device refusal may last before it is the reason
    "api_outage_s": (300, 1),  # how long the API server may be away before that ends the run
    "node_grace_s": (40, 0),  # how long a node may be silent before it counts as lost
    "retries": (1, 0),
}


def default_bounds() -> dict[str, int | None]:
    """The bounds of a spec that names none."""
    return {name: default for name, (default, _minimum) in BOUNDS.items()}


def parse_spec(raw: t.Any, place: str = "certification") -> Request:
    """The request with every key present (docs/data_shapes.md). Raises InputError naming the key path."""
    spec = known_keys(raw, SPEC_KEYS, place)
    shared_options = of_type(spec.get("options") or {}, dict, f"{place}.options")
    shared_criteria = _expressions(spec.get("criteria") or [], f"{place}.criteria")
    shared_thresholds = _thresholds(spec.get("thresholds") or {}, f"{place}.thresholds")
    shared_workload = _workload(spec.get("workload") or {}, f"{place}.workload")
    isolate = one_of(spec.get("isolate", "auto"), ("auto", "never"), "value", f"{place}.isolate")
    categories = of_type(spec.get("categories"), list, f"{place}.categories") if "categories" in spec else []
    if not categories:
        raise InputError(
            "no categories: there is nothing to test", place=f"{place}.categories",
            hint="List at least one, for example {test: communication/nccl-all-reduce, test_scale: intra-node}",
        )  # fmt: skip
    parsed: list[CategoryRequest] = []
    for index, entry in enumerate(categories):
        where = f"{place}.categories[{index}]"
        category = known_keys(entry, CATEGORY_KEYS, where)
        parsed.append(
            {
                "test": string(category.get("test", ""), f"{where}.test"),
                "test_scale": one_of(category.get("test_scale", "full-scale"), TEST_SCALES, "test scale", f"{where}.test_scale"),
                "group_size": _group_size(category, where),
                "left_over": one_of(category.get("left_over", LEFT_OVER[0]), LEFT_OVER, "policy", f"{where}.left_over"),
                **_repeats(category, where),
                "options": {**copy.deepcopy(shared_options), **of_type(category.get("options") or {}, dict, f"{where}.options")},
                "criteria": _expressions(category.get("criteria", shared_criteria), f"{where}.criteria"),
                "thresholds": _thresholds(category.get("thresholds", shared_thresholds), f"{where}.thresholds"),
                # Where nobody named a criterion the catalog's floors apply; an explicit empty list asks for none.
                "floors": not any(key in source for key in ("criteria", "thresholds") for source in (spec, category)),
                "isolate": one_of(category.get("isolate", isolate), ("auto", "never"), "value", f"{where}.isolate"),
                "expect_transport": category.get("expect_transport"),
                "again": None if category.get("again") is None else boolean(category["again"], f"{where}.again"),
                "workload": {**shared_workload, **_workload(category.get("workload") or {}, f"{where}.workload")},
            }
        )
    topology_key = spec.get("topology_key")
    if topology_key is not None:
        string(
            topology_key,
            f"{place}.topology_key",
            pattern=LABEL_KEY,
            hint="It must be a node label key, such as topology.kubernetes.io/rack",
        )
    health = spec.get("node_health")
    return {
        "name": string(spec.get("name", "certification"), f"{place}.name"),
        "target": _target(spec.get("target") or {}, f"{place}.target"),
        "topology_key": topology_key,
        "categories": parsed,
        "allow_no_criteria": boolean(spec.get("allow_no_criteria", False), f"{place}.allow_no_criteria"),
        "bounds": _bounds(spec.get("bounds") or {}, f"{place}.bounds"),
        "isolation": _isolation(spec.get("isolation") or {}, f"{place}.isolation"),
        "node_health": None if health is None else string(health, f"{place}.node_health"),
    }


def _group_size(category: t.Mapping[str, t.Any], place: str) -> int | None:
    if category.get("group_size") is None:
        return None
    size = integer(category["group_size"], f"{place}.group_size", minimum=1)
    scale = category.get("test_scale", "full-scale")
    if scale == "diagnose" or (scale == "intra-node" and size != 1):
        raise InputError(
            f"groups of {size} nodes and the test scale {scale} exclude each other",
            place=f"{place}.group_size",
            hint="Use it with intra-rack (within each rack) or full-scale (over all nodes)",
        )
    return size


def _repeats(category: t.Mapping[str, t.Any], place: str) -> _Repeats:
    repeat = 1 if category.get("repeat") is None else integer(category["repeat"], f"{place}.repeat", minimum=1, maximum=MAX_REPEAT)
    if repeat > 1 and category.get("test_scale") == "diagnose":
        raise InputError(
            f"{repeat} repeats and the test scale diagnose exclude each other",
            place=f"{place}.repeat",
            hint="Its search repeats what it must know for sure; use repeat with the other test scales",
        )
    if category.get("k_of_n") is None:
        return {"repeat": repeat, "k_of_n": None}
    if repeat == 1:
        raise InputError("k_of_n needs repeat", place=f"{place}.k_of_n", hint=f"Set {place}.repeat to a number from 2 to {MAX_REPEAT}")
    return {"repeat": repeat, "k_of_n": integer(category["k_of_n"], f"{place}.k_of_n", minimum=1, maximum=repeat)}


def _expressions(value: t.Any, place: str) -> list[str]:
    if isinstance(value, str):
        value = [value]
    return list_of(value, place, string)


def _thresholds(value: t.Any, place: str) -> dict[str, str]:
    mapping = of_type(value, dict, place)
    return {str(key): string(item, f"{place}.{key}") for key, item in mapping.items()}


def _target(raw: t.Any, place: str) -> Target:
    target = known_keys(raw, TARGET_KEYS, place)
    selector = of_type(target.get("node_selector") or {}, dict, f"{place}.node_selector")
    expressions: list[Expression] = []
    for index, item in enumerate(of_type(target.get("match_expressions") or [], list, f"{place}.match_expressions")):
        where = f"{place}.match_expressions[{index}]"
        entry = known_keys(item, ("key", "operator", "values"), where)
        operator = one_of(entry.get("operator"), ("In", "NotIn", "Exists", "DoesNotExist"), "operator", f"{where}.operator")
        values = list_of(entry.get("values") or [], f"{where}.values", lambda value, spot: of_type(value, str, spot))
        if operator in ("In", "NotIn") and not values:
            raise InputError(f"operator {operator} needs values", place=f"{where}.values")
        expressions.append({"key": string(entry.get("key", ""), f"{where}.key"), "operator": operator, "values": values})
    gpu = target.get("gpu")
    return {
        "node_selector": {str(key): of_type(value, str, f"{place}.node_selector.{key}") for key, value in selector.items()},
        "match_expressions": expressions,
        "node_names": list_of(target.get("node_names") or [], f"{place}.node_names", string),
        "include_cordoned": boolean(target.get("include_cordoned", False), f"{place}.include_cordoned"),
        "gpu": None if gpu is None else string(gpu, f"{place}.gpu"),
    }


def _workload(raw: t.Any, place: str) -> dict[str, t.Any]:
    """How pods are made: only the keys that were given, so that a category overrides just what it names."""
    given = known_keys(raw, WORKLOAD_KEYS, place)
    result: dict[str, t.Any] = {}
    for key, value in given.items():
        where = f"{place}.{key}"
        if value is None:
            continue  # as if it had not been written: the default, which is found out
        if key in _TEXTS:
            result[key] = string(value, where)
        elif key in ("ssh_port", "gpus_per_node"):
            result[key] = integer(value, where, minimum=1, maximum=65535)
        elif key in ("nics_per_node", "gid_index"):
            result[key] = integer(value, where)
        elif key == "image_registries":
            result[key] = {str(name): string(host, f"{where}.{name}") for name, host in of_type(value, dict, where).items()}
        elif key == "image_pull_secrets":
            result[key] = list_of(value, where, string)
        elif key == "env":
            result[key] = list_of(value, where, _env_item)
        elif key in ("labels", "annotations", "files"):
            result[key] = _texts(value, where, key)
        elif key == "resources":
            result[key] = _resources(value, where)
        elif key in ("volumes", "init_containers", "sidecars"):
            result[key] = list_of(value, where, _named)
        else:
            result[key] = list_of(value, where, lambda item, spot: of_type(item, dict, spot))
    return result


def _texts(value: t.Any, place: str, kind: str) -> dict[str, str]:
    """Labels, annotations or files: names with texts, none of ours among them."""
    result = {str(name): str(text) for name, text in of_type(value, dict, place).items()}
    for name in result:
        if kind == "labels" and name.startswith(names.OUR_LABELS):
            raise InputError(f"the label {name} is set by the run or by Kubernetes", place=f"{place}.{name}", hint="Choose another name")
        if kind == "files":
            string(name, place, pattern=r"[A-Za-z0-9._-]{1,253}", hint="The name of a file: letters, digits, '.', '_' and '-'")
            if name == "hostfile":
                raise InputError("the file hostfile is written by the run", place=f"{place}.{name}", hint="Choose another name")
    if kind == "files" and sum(len(text.encode()) for text in result.values()) > MAX_FILES_BYTES:
        raise InputError(
            f"the files have more than {MAX_FILES_BYTES} bytes together", place=place, hint="Mount a ConfigMap or volume of your own"
        )
    return result


def _resources(value: t.Any, place: str) -> dict[str, dict[str, str]]:
    """{limits, requests} of cpu, memory, hugepages and the like; GPUs and network cards are counted elsewhere."""
    given = known_keys(value, ("limits", "requests"), place)
    result: dict[str, dict[str, str]] = {}
    for part, amounts in given.items():
        result[part] = {}
        for name, amount in of_type(amounts or {}, dict, f"{place}.{part}").items():
            where = f"{place}.{part}.{name}"
            if name == "nvidia.com/gpu":
                raise InputError("GPUs are asked for by workload.gpus_per_node", place=where)
            result[part][str(name)] = string(
                str(amount), where, pattern=r"\d+(\.\d+)?(m|[kMGTPE]i?)?", hint="A quantity of Kubernetes, such as 64, 500m or 800Gi"
            )
    return result


def _named(raw: t.Any, place: str) -> dict[str, t.Any]:
    """A volume or container as Kubernetes takes it; its name is not one of ours."""
    item: dict[str, t.Any] = of_type(raw, dict, place)
    name = string(item.get("name", ""), f"{place}.name")
    if name in (*names.OUR_VOLUMES, names.CONTAINER):
        raise InputError(f"{name} is a name of the run's own", place=f"{place}.name", hint="Choose another name")
    return item


def _env_item(raw: t.Any, place: str) -> dict[str, str]:
    item = known_keys(raw, ("name", "value"), place)
    name = string(
        item.get("name", ""), f"{place}.name", pattern=r"[A-Za-z_][A-Za-z0-9_.-]*", hint="It must be the name of an environment variable"
    )
    if SECRET_NAME.search(name):
        raise InputError(
            f"{name} looks like a secret, and the environment of a workload is kept in the archive of the run",
            place=f"{place}.name",
            hint="Put it into the image or give pods a service account that may read it",
        )
    return {"name": name, "value": str(item.get("value", ""))}


def _bounds(raw: t.Any, place: str) -> dict[str, int | None]:
    given = known_keys(raw, BOUNDS, place)
    result = default_bounds()
    for name, value in given.items():
        default, minimum = BOUNDS[name]
        if value is None and default is None:
            continue
        result[name] = integer(value, f"{place}.{name}", minimum=minimum)
    return result


def _isolation(raw: t.Any, place: str) -> IsolationOptions:
    """How far a search for the component at fault may go."""
    given = known_keys(raw, ISOLATION_KEYS, place)
    budget = known_keys(given.get("budget") or {}, BUDGET_KEYS, f"{place}.budget")
    return {
        "min_group_size": integer(given.get("min_group_size", 2), f"{place}.min_group_size", minimum=1),
        "soak": boolean(given.get("soak", False), f"{place}.soak"),
        "budget": {key: integer(value, f"{place}.budget.{key}", minimum=1) for key, value in budget.items() if value is not None},
    }
