#!/usr/bin/python
# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: simulated_cluster
short_description: Start or stop a simulated GPU cluster
version_added: "0.1.0"
author:
  - The gpu_cluster.readiness authors (@gpu-cluster-readiness)
description:
  - Starts a small Kubernetes API server with simulated GPU nodes as a process of its own on the control node, or stops it.
  - Nodes, links and planted faults come from a definition. Workloads on it print what the real programs print.
  - The process outlives the play. It is stopped with O(state=stopped) and the same O(kubeconfig), and only that process ever is.
extends_documentation_fragment:
  - gpu_cluster.readiness._attributes
attributes:
  check_mode:
    support: full
    description: Says whether the cluster would be started, replaced or stopped.
  diff_mode:
    support: none
options:
  state:
    description:
      - V(started) makes sure that a cluster of this definition runs. A cluster of another definition is replaced.
      - V(stopped) stops it and removes its files, except the log.
    type: str
    choices: [started, stopped]
    default: started
  definition:
    description:
      - The cluster, as data, as the path of a YAML or JSON file, or as the name of a built-in definition (V(healthy), V(planted_faults)).
      - Without it the cluster has 64 healthy nodes with eight H100 each.
      - See C(docs/simulation.md) for every key.
    type: raw
  kubeconfig:
    description: Path of the kubeconfig to write. State and log of the cluster lie beside it.
    type: path
    required: true
  timeout_s:
    description: Seconds to wait until the cluster is ready.
    type: float
    default: 120
requirements:
  - aiohttp, orjson, jsonschema-rs and kubernetes-validate on the control node
"""

EXAMPLES = r"""
- name: Start a cluster with one slow NIC
  gpu_cluster.readiness.simulated_cluster:
    kubeconfig: /tmp/simulated/kubeconfig
    definition:
      seed: 7
      racks: 2
      faults:
        - {kind: nic_slow, node: gpu-r1-n03, factor: 0.5}
  register: simulated

- name: Stop it
  gpu_cluster.readiness.simulated_cluster:
    kubeconfig: "{{ simulated.kubeconfig }}"
    state: stopped
"""

RETURN = r"""
kubeconfig:
  description: Absolute path of the kubeconfig.
  returned: always
  type: str
  sample: /tmp/simulated/kubeconfig
started:
  description: Whether the cluster was started by this task.
  returned: always
  type: bool
  sample: true
pid:
  description: Process id of the cluster.
  returned: when started or already running
  type: int
  sample: 41733
nodes:
  description: Number of nodes of the cluster.
  returned: when started or already running
  type: int
  sample: 64
log:
  description: Path of the cluster's log.
  returned: when started or already running
  type: str
  sample: /tmp/simulated/kubeconfig.log
"""
