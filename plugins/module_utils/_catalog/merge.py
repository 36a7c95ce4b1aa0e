# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Merging of settings by key, with a record of which rule set each value.

A fragment is split into paths: every env variable, volume, annotation … is a path of its own, so two rules only meet
where they speak of the same thing. Later layers beat earlier ones; null takes a value away.
"""

from __future__ import annotations

import copy
import typing as t
from collections.abc import Iterable, Mapping

from .._common.shapes import Explained

# Lists of named things: which key names them. Everything else that is a list is one value.
LIST_KEYS = {
    "env": ("name",),
    "volumes": ("name",),
    "volume_mounts": ("mountPath",),
    "tolerations": ("key", "operator", "effect"),
    "resource_claims": ("name",),
    "init_containers": ("name",),
}
MAPPINGS = frozenset({"env", "resources", "annotations", "annotations_per_nic", "mca", "security"})

Path = tuple[str, str]
Explanation = Explained


def flatten(fragment: Mapping[str, t.Any]) -> dict[Path, t.Any]:
    """The fragment as {(setting, key): value}; the key is "" for settings that are one value.

    env may be a mapping or a list of {name, value}.
    """
    flat: dict[Path, t.Any] = {}
    for setting, value in fragment.items():
        if setting in LIST_KEYS and isinstance(value, list):
            for item in value:
                key = "/".join(str(item.get(part, "")) for part in LIST_KEYS[setting])
                flat[(setting, key)] = item.get("value") if set(item) == {"name", "value"} else item
        elif setting in MAPPINGS and isinstance(value, Mapping):
            flat.update({(setting, str(key)): item for key, item in value.items()})
        else:
            flat[(setting, "")] = value
    return flat


def merge(layers: Iterable[tuple[str, Mapping[str, t.Any]]]) -> tuple[dict[Path, t.Any], list[Explanation]]:
    """Merges (rule, fragment) layers, weakest first.

    Returns the values that are left and, for every path, {path, value, rule, overridden: [{rule, value}]}, the strongest
    loser first.
    """
    history: dict[Path, list[tuple[str, t.Any]]] = {}
    for rule, fragment in layers:
        for path, value in flatten(fragment).items():
            history.setdefault(path, []).append((rule, value))
    values: dict[Path, t.Any] = {}
    explain: list[Explained] = []
    for path, settings in history.items():
        rule, value = settings[-1]
        if value is not None:
            values[path] = copy.deepcopy(value)
        overridden = [{"rule": loser, "value": lost} for loser, lost in reversed(settings[:-1])]
        explain.append({"path": spelled(path), "value": value, "rule": rule, "overridden": overridden})
    return values, explain


def spelled(path: Path) -> str:
    """The path as people read it: `env.NCCL_IB_HCA`, `nic_resource`."""
    return ".".join(part for part in path if part)


def collect(values: Mapping[Path, t.Any], setting: str) -> dict[str, t.Any]:
    """All keys of one setting, in the order in which they were first named."""
    return {key: value for (name, key), value in values.items() if name == setting}
