# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The network settings of one platform and GPU, with the reason of every value."""

from __future__ import annotations

import re
import typing as t
from collections import Counter
from collections.abc import Mapping, Sequence

from .._common.errors import InputError, unknown_value
from .gpus import expectation, gpu_named
from .merge import Explanation, Path, collect, merge
from .nics import count_to_request, detect_nic_resource

Settings = dict[str, t.Any]

# A pod that talks RDMA has to pin memory; Open MPI's launcher host lists carry full names.
BASE: dict[str, t.Any] = {"security": {"capabilities": ["IPC_LOCK"], "privileged": False}, "nic_resource": None, "compute_domain": False}

USER_OPTIONS = (
    "env",
    "nic_resource",
    "nics_per_node",
    "resources",
    "annotations",
    "volumes",
    "volume_mounts",
    "tolerations",
    "mca",
    "mpirun_args",
    "pre_command",
    "security",
    "image",
    "mpirun",
    "binary_dir",
    "compute_domain",
    "socket_interface",
    "hca",
    "gid_index",
    "rdma_device_access",
    "mnnvl",
    "gpus_per_node",
)
# Options that only steer the choice of rules.
_STEERING = frozenset(
    {"mnnvl", "gpus_per_node", "socket_interface", "hca", "gid_index", "rdma_device_access", "nic_resource", "nics_per_node"}
)

_QUALIFIED = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")


def resolve_network(
    platform: str | None,
    gpu_model: str | None,
    catalog: Mapping[str, t.Any],
    user_options: Mapping[str, t.Any] | None = None,
    *,
    nodes: Sequence[Mapping[str, t.Any]] = (),
    workload: str = "collective",
) -> tuple[Settings, list[Explanation]]:
    """Settings for pods on nodes of this platform and GPU model.

    platform: a name of the catalog, or None when nodes disagree (then only the base and the user's options apply).
    nodes: snapshot rows of the nodes to be tested, for `nic_resource: auto` and to check what the platform expects.
    user_options: see USER_OPTIONS; None values count as not given.

    Returns (settings, explain). settings: env [{name, value}], nic_resource, nics_per_node, resources {}, annotations {},
    volumes [], volume_mounts [], tolerations [], resource_claims [{name, device_class, count}], gpu_claim, init_containers [],
    mpirun_args [], pre_command [], security {capabilities, privileged}, compute_domain, transport, image, mpirun, binary_dir.
    explain: [{path, value, rule, overridden: [{rule, value}]}], where the search for a network card adds `note`.
    """
    options = _checked_options(user_options or {})
    if platform is not None and platform not in catalog["platforms"]:
        raise unknown_value("platform", platform, catalog["platforms"], "platform")
    usable = [node for node in nodes if node.get("target", True) and not node.get("findings")]
    facts = _facts(platform, gpu_model, catalog, options, usable, workload)
    rules = _rules(platform, catalog, facts, usable)
    layers: list[tuple[str, Mapping[str, t.Any]]] = [("base", BASE)]
    if not any(rule.get("transport") not in (None, "mnnvl") or "nic_resource" in rule for _name, rule in rules):
        # Nobody wrote down how this platform carries the traffic of this GPU: a pod that asks for no card would measure TCP.
        layers.append(("no network rule for this platform and GPU", {"nic_resource": "auto"}))
    layers += [*rules, ("user options", _from_user(options))]
    values, explain = merge(layers)
    _settle_nic(values, explain, options, facts, usable)
    return _settings(values), explain


def _checked_options(given: Mapping[str, t.Any]) -> dict[str, t.Any]:
    for key in given:
        if key not in USER_OPTIONS:
            raise unknown_value("network option", key, USER_OPTIONS)
    options = {key: value for key, value in given.items() if value is not None}
    access = options.get("rdma_device_access", "devicePlugin")
    if access not in ("devicePlugin", "hostPath"):
        raise unknown_value("rdma_device_access", access, ("devicePlugin", "hostPath"))
    name = options.get("nic_resource")
    if name not in (None, "", "auto", "none"):
        domain = str(name).partition("/")[0]
        reserved = domain.endswith(("kubernetes.io", "k8s.io"))
        if reserved or not _QUALIFIED.match(str(name)):
            raise InputError(
                f"{name!r} is not the name of an extended resource",
                place="nic_resource",
                hint="It looks like rdma/hca_shared_devices: domain, slash, at most 63 characters; kubernetes.io is reserved.",
            )
    return options


def _facts(
    platform: str | None,
    model: str | None,
    catalog: Mapping[str, t.Any],
    options: Mapping[str, t.Any],
    nodes: Sequence[Mapping[str, t.Any]],
    workload: str,
) -> dict[str, t.Any]:
    """What rules may ask for, and the expected number of network cards."""
    expected = expectation(catalog, platform, model)
    sizes = Counter(node["gpu"]["allocatable"] for node in nodes if node.get("gpu"))
    size = options.get("gpus_per_node") or (sizes.most_common(1)[0][0] if sizes else expected["gpus_per_node"])
    row = gpu_named(catalog, model) or {}
    return {
        "model": model,
        "mnnvl": options.get("mnnvl", row.get("mnnvl", False)),
        "gpus_per_node": size,
        "nics_per_node": expected["nics_per_node"],
        "workload": workload,
    }


def _rules(
    platform: str | None, catalog: Mapping[str, t.Any], facts: Mapping[str, t.Any], nodes: Sequence[Mapping[str, t.Any]]
) -> list[tuple[str, Mapping[str, t.Any]]]:
    """The platform's rules that apply, the least specific first; equally specific ones in the order of the file."""
    rules = catalog["platforms"].get(platform or "", {}).get("network", [])
    fitting = [rule for rule in rules if _applies(rule.get("when") or {}, facts, nodes)]
    fitting.sort(key=lambda rule: len(rule.get("when") or {}))
    return [(f"{platform}/{rule['name']}", {key: value for key, value in rule.items() if key not in ("name", "when")}) for rule in fitting]


def _applies(when: Mapping[str, t.Any], facts: Mapping[str, t.Any], nodes: Sequence[Mapping[str, t.Any]]) -> bool:
    tests: dict[str, t.Callable[[t.Any], bool]] = {
        "gpus": lambda wanted: facts["model"] in wanted,
        "not_gpus": lambda wanted: facts["model"] not in wanted,
        "mnnvl": lambda wanted: bool(facts["mnnvl"]) == wanted,
        "gpus_per_node": lambda wanted: facts["gpus_per_node"] in wanted,
        "workload": lambda wanted: facts["workload"] == wanted,
        "allocatable": lambda wanted: bool(nodes) and all(node.get("nics", {}).get(wanted) for node in nodes),
        "not_allocatable": lambda wanted: not any(node.get("nics", {}).get(wanted) for node in nodes),
    }
    return all(bool(tests[key](wanted)) for key, wanted in when.items())


def _from_user(options: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The user's options as a fragment; the short forms become what they stand for, the explicit env wins over them."""
    fragment: dict[str, t.Any] = {key: value for key, value in options.items() if key not in _STEERING}
    short: dict[str, t.Any] = {}
    mca: dict[str, t.Any] = {}
    if "socket_interface" in options:
        short["NCCL_SOCKET_IFNAME"] = str(options["socket_interface"])
        mca = {"btl_tcp_if_include": str(options["socket_interface"]), "oob_tcp_if_include": str(options["socket_interface"])}
    if "hca" in options:
        short["NCCL_IB_HCA"] = str(options["hca"])
    if "gid_index" in options:
        short["NCCL_IB_GID_INDEX"] = str(options["gid_index"])
    if short:
        fragment["env"] = {**short, **_as_mapping(options.get("env") or {})}
    if mca:
        fragment["mca"] = {**mca, **(options.get("mca") or {})}
    if options.get("rdma_device_access") == "hostPath":
        fragment["security"] = {**(options.get("security") or {}), "privileged": True}
        volume = {"name": "infiniband", "hostPath": {"path": "/dev/infiniband", "type": "Directory"}}
        fragment["volumes"] = [volume, *(options.get("volumes") or [])]
        fragment["volume_mounts"] = [{"name": "infiniband", "mountPath": "/dev/infiniband"}, *(options.get("volume_mounts") or [])]
    if "nic_resource" in options:
        fragment["nic_resource"] = None if options["nic_resource"] in ("", "none") else options["nic_resource"]
    if "nics_per_node" in options:
        fragment["nics_per_node"] = options["nics_per_node"]
    return fragment


def _as_mapping(env: t.Any) -> dict[str, t.Any]:
    return dict(env) if isinstance(env, Mapping) else {item["name"]: item.get("value") for item in env}


def _settle_nic(
    values: dict[Path, t.Any],
    explain: list[Explanation],
    options: Mapping[str, t.Any],
    facts: Mapping[str, t.Any],
    nodes: Sequence[Mapping[str, t.Any]],
) -> None:
    """Turns nic_resource and nics_per_node into what a pod can really get, and says why."""
    resource = values.get(("nic_resource", ""))
    asked = options.get("nics_per_node")
    wanted = asked if asked is not None else values.get(("nics_per_node", ""), facts["nics_per_node"])
    by_user = "nic_resource" in options and resource not in (None, "auto")
    note, rule = "", ""
    count: int | None = wanted
    if wanted == 0 and asked is None and _have_cards(nodes, resource):
        wanted = None  # the usual server has no card, these have
    if wanted == 0:
        resource, count, rule, note = None, 0, "nics_per_node", "no network card is to be requested"
        if asked is None and values.get(("transport", "")) not in (None, "mnnvl", "tcp"):
            _set(values, explain, "transport", None, "nics_per_node", "these servers have no network card that could carry it")
    elif resource == "auto":
        resource, count, note = detect_nic_resource(nodes, wanted, strict=asked is not None)
        rule = "detected"
    elif resource and nodes and not by_user:
        named = resource
        resource, count, rule, note = _verified(named, wanted, asked is not None, nodes)
        if resource not in (None, named) and values.get(("transport", "")) not in (None, "mnnvl"):
            # Other cards than the platform usually has: its transport (EFA, say) is not theirs. That they speak RDMA is.
            _set(values, explain, "transport", None, "detected", f"the nodes offer {resource} instead of {named}")
    elif resource and wanted is None:
        offered = min((node.get("nics", {}).get(resource, 0) for node in nodes), default=0)
        count, rule, note = count_to_request(max(offered, 1), None), "offered", f"nodes offer {offered} at least"
    per_claim = any(claim.get("per_nic") for claim in collect(values, "resource_claims").values())
    if resource is None and not per_claim:
        count = 0
    for name, value in (("nic_resource", resource), ("nics_per_node", count)):
        _set(values, explain, name, value, rule, note)


def _have_cards(nodes: Sequence[Mapping[str, t.Any]], resource: str | None) -> bool:
    """Whether all nodes offer the named resource, or one that a search would find."""
    named = bool(nodes) and all(node.get("nics", {}).get(resource) for node in nodes)
    return named or (resource is not None and detect_nic_resource(nodes, None)[0] is not None)


def _verified(
    resource: str, wanted: int | None, strict: bool, nodes: Sequence[Mapping[str, t.Any]]
) -> tuple[str | None, int | None, str, str]:
    """The platform's resource against what the nodes offer: (resource, count, rule, note)."""
    counts = [node.get("nics", {}).get(resource, 0) for node in nodes]
    if not any(counts):
        found, count, note = detect_nic_resource(nodes, wanted, strict=strict)
        return found, count, "detected", f"no node offers {resource}; {note}"
    least = min(counts)
    if least == max(counts) and not strict and (wanted is None or least < wanted):
        return (
            resource,
            count_to_request(least, wanted),
            "offered",
            f"all nodes offer {least}" + (f", the table says {wanted}" if wanted else ""),
        )
    if wanted and least < wanted:
        return resource, wanted, "", f"at least one node offers only {least} of {wanted}"
    return resource, wanted or count_to_request(least, None), "", ""


def _set(values: dict[Path, t.Any], explain: list[Explanation], name: str, value: t.Any, rule: str, note: str) -> None:
    """Puts a settled value in, keeping what it was before as overridden."""
    before = values.get((name, ""))
    values[(name, "")] = value
    entry = next((item for item in explain if item["path"] == name), None)
    if entry is None:
        entry = {"path": name, "value": before, "rule": "gpu table", "overridden": []}
        explain.append(entry)
    if entry["value"] != value and rule:
        if entry["value"] is not None:
            entry["overridden"].insert(0, {"rule": entry["rule"], "value": entry["value"]})
        entry["rule"] = rule
    entry["value"] = value
    if note:
        entry["note"] = note


def _settings(values: dict[Path, t.Any]) -> Settings:
    """The settings in the shape that workloads take."""
    nics = values.get(("nics_per_node", "")) or 0
    annotations = dict(collect(values, "annotations"))
    for key, value in collect(values, "annotations_per_nic").items():
        if nics:
            annotations[key] = ",".join([str(value)] * nics)
    claims = [
        {"name": claim["name"], "device_class": claim["device_class"], "count": nics if claim.get("per_nic") else claim.get("count") or 1}
        for claim in collect(values, "resource_claims").values()
    ]
    mca = [part for key, value in collect(values, "mca").items() for part in ("--mca", key, str(value))]
    return {
        "env": [item if isinstance(item, dict) else {"name": name, "value": str(item)} for name, item in collect(values, "env").items()],
        "nic_resource": values.get(("nic_resource", "")),
        "nics_per_node": nics,
        "resources": collect(values, "resources"),
        "annotations": annotations,
        "volumes": list(collect(values, "volumes").values()),
        "volume_mounts": list(collect(values, "volume_mounts").values()),
        "tolerations": list(collect(values, "tolerations").values()),
        "resource_claims": [claim for claim in claims if claim["count"]],
        "gpu_claim": values.get(("gpu_claim", "")),
        "init_containers": list(collect(values, "init_containers").values()),
        "mpirun_args": mca + list(values.get(("mpirun_args", ""), [])),
        "pre_command": list(values.get(("pre_command", ""), [])),
        "security": collect(values, "security"),
        "compute_domain": bool(values.get(("compute_domain", ""))),
        "transport": values.get(("transport", "")),
        "image": values.get(("image", "")),
        "mpirun": values.get(("mpirun", "")),
        "binary_dir": values.get(("binary_dir", "")),
    }
