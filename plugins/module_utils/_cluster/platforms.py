# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Which platform a node stands on, by the rules of the catalog, with the evidence."""

from __future__ import annotations

import typing as t
from collections import Counter
from collections.abc import Mapping, Sequence

from .._common.words import counted


def detect_platform(raw: Mapping[str, t.Any], catalog: Mapping[str, t.Any]) -> tuple[str | None, str]:
    """(platform, evidence) of one raw Node; (None, …) when no rule knows it. Higher priority is asked first."""
    platforms = sorted(catalog["platforms"].values(), key=lambda platform: (-platform["priority"], platform["name"]))
    for platform in platforms:
        for rule in platform["detect"]:
            evidence = _matches(raw, rule)
            if evidence is not None:
                return platform["name"], evidence
    return None, "no rule of the catalog fits"


def summarize(seen: Sequence[tuple[str | None, str]]) -> dict[str, t.Any]:
    """{name, evidence[]} for all nodes; the name is None when they disagree or there are none."""
    names = {name for name, _rest in seen}
    evidence = [f"{counted(count, 'node')}: {name or 'unknown'}, {why}" for (name, why), count in Counter(seen).most_common()]
    return {"name": names.pop() if len(names) == 1 else None, "evidence": evidence}


def _matches(raw: Mapping[str, t.Any], rule: Mapping[str, t.Any]) -> str | None:
    """The evidence when every condition of the rule holds, else None."""
    labels = raw.get("metadata", {}).get("labels") or {}
    provider_id = raw.get("spec", {}).get("providerID") or ""
    evidence = []
    for key, wanted in rule.items():
        if key == "always":
            evidence.append(_of_last_resort(provider_id))
        elif key == "provider_id_prefix":
            evidence.append(f"spec.providerID begins with {wanted}" if provider_id.startswith(wanted) else "")
        elif key == "provider_id_empty":
            evidence.append("spec.providerID is empty" if (not provider_id) == wanted else "")
        elif key == "label":
            evidence.append(f"label {wanted}" if wanted in labels else "")
        elif key == "label_equals":
            evidence += [f"label {label}={value}" if labels.get(label) == value else "" for label, value in wanted.items()]
        elif key == "label_contains":
            evidence += [f"label {label} contains {value!r}" if value in labels.get(label, "") else "" for label, value in wanted.items()]
        elif key == "allocatable":
            evidence.append(f"offers {wanted}" if wanted in (raw.get("status", {}).get("allocatable") or {}) else "")
    return ", ".join(evidence) if evidence and all(evidence) else None


def _of_last_resort(provider_id: str) -> str:
    if not provider_id:
        return "without spec.providerID"
    scheme = provider_id.partition("://")[0] if "://" in provider_id else provider_id.partition(".")[0]
    return f"spec.providerID of kind {scheme!r}, which no other rule knows"
