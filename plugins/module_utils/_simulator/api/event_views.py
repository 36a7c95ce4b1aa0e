# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""events.k8s.io/v1 as a view of the core events: the two APIs show the same objects with different field names."""

from __future__ import annotations

from .objects import Object

# events.k8s.io name -> core name
_NAMES = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_BACK = {core: view for view, core in _NAMES.items()}


def to_core(obj: Object) -> Object:
    """An events.k8s.io object as the core object that is stored."""
    return {_NAMES.get(key, key): value for key, value in obj.items()}


def from_core(obj: Object) -> Object:
    """A stored core event as events.k8s.io shows it."""
    return {_BACK.get(key, key): value for key, value in obj.items()}
