# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From a product label to a row of the GPU table, and what a node of it should carry on a platform."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping

_SHARED = re.compile(r"-(SHARED|MIG-.*)$")


def plain_product(product: str) -> str:
    """The part of a label that names the product: upper case, without vendor, sharing and MIG additions.

    `NVIDIA-H100-80GB-HBM3-SHARED` and `NVIDIA H100 80GB HBM3` both give `H100-80GB-HBM3`.
    """
    text = re.sub(r"\s+", "-", product.strip()).upper()
    for vendor in ("NVIDIA-", "TESLA-"):
        text = text.removeprefix(vendor)
    return _SHARED.sub("", text)


def find_gpu(catalog: Mapping[str, t.Any], product: str | None, memory_mib: int | None = None) -> dict[str, t.Any] | None:
    """The table's row for a product label, or None when the product is unknown."""
    if not product:
        return None
    text = plain_product(product)
    for row in catalog["gpus"]:
        if any(_by_memory(item, text, memory_mib) for item in row["products_by_memory"]):
            return t.cast(dict[str, t.Any], row)
    for row in catalog["gpus"]:
        if any(re.fullmatch(pattern, text, re.IGNORECASE) for pattern in row["products"]):
            return t.cast(dict[str, t.Any], row)
    return None


def gpu_named(catalog: Mapping[str, t.Any], model: str | None) -> dict[str, t.Any] | None:
    """The table's row of that name, or None."""
    return next((row for row in catalog["gpus"] if row["name"] == model), None)


def expectation(catalog: Mapping[str, t.Any], platform: str | None, model: str | None) -> dict[str, t.Any]:
    """{gpus_per_node, nics_per_node, other_shapes} of a model on a platform; values are None (or []) when unknown."""
    row = gpu_named(catalog, model) or {}
    exceptions = catalog["platforms"].get(platform or "", {}).get("gpus", {}).get(model or "", {})
    return {
        "gpus_per_node": exceptions.get("gpus_per_node", row.get("gpus_per_node")),
        "nics_per_node": exceptions.get("nics_per_node", row.get("nics_per_node")),
        "other_shapes": list(exceptions.get("other_shapes", row.get("other_shapes", []))),
    }


def _by_memory(item: Mapping[str, t.Any], text: str, memory_mib: int | None) -> bool:
    if memory_mib is None or not re.fullmatch(item["product"], text, re.IGNORECASE):
        return False
    low, high = item.get("min_mib"), item.get("max_mib")
    return (low is None or memory_mib >= low) and (high is None or memory_mib <= high)
