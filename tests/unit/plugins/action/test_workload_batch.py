# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node that falls ill under test must not pass because its monitor uses another word than our default expression."""

from __future__ import annotations

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.action.workload_batch import sick
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import load_catalog, shipped_catalog_dir
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.health import compile_health
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.projections import node_facts

CONDITIONS = load_catalog([shipped_catalog_dir()])["health_conditions"]


def node(**condition):
    ready = {"type": "Ready", "status": "True"}
    return node_facts({"metadata": {"name": "n0"}, "status": {"conditions": [ready, *([condition] if condition else [])]}})


@pytest.mark.parametrize("kind", ["GpuXidError", "SysLogsXIDError", "GpuNvlinkWatch"])
def test_hardware_conditions_of_monitors_condemn_a_node_under_test(kind):
    told = sick(compile_health(), CONDITIONS, node(type=kind, status="True", reason="Xid79", message="fell off the bus"))
    assert kind in told["message"] and "fell off the bus" in told["message"] and told["evidence"]


def test_other_conditions_and_healthy_ones_do_not():
    check = compile_health()
    assert sick(check, CONDITIONS, node()) is None
    assert sick(check, CONDITIONS, node(type="GpuXidError", status="False")) is None
    assert sick(check, CONDITIONS, node(type="FrequentKubeletRestart", status="True")) is None
