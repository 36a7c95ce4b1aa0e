#!/usr/bin/python
# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin; the work is done on the controller by plugins/action/gpu_cluster_info.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_cluster_info
short_description: Read the GPU nodes, platform and capabilities of a Kubernetes cluster
version_added: "0.1.0"
author:
  - The gpu_cluster.readiness authors (@gpu-cluster-readiness)
description:
  - Reads the cluster once and returns a snapshot, from which certifications are planned.
  - Every node that looks like a GPU node is in it, by label or by resource. One that cannot be tested says why.
  - Nodes that miss GPUs or network cards, or carry a condition that condemns their hardware, have findings before any test.
  - Changes nothing in the cluster.
extends_documentation_fragment:
  - gpu_cluster.readiness._auth
  - gpu_cluster.readiness._attributes
  - gpu_cluster.readiness._attributes.actiongroup_k8s
  - gpu_cluster.readiness._attributes.info_module
options:
  target:
    description:
      - The nodes that are meant. Nodes that are not stay in the snapshot, excluded with the reason.
      - Without it every healthy GPU node is meant.
    type: dict
    suboptions:
      node_selector:
        description: Labels and the values they must have.
        type: dict
      match_expressions:
        description: Expressions with C(key), C(operator) (C(In), C(NotIn), C(Exists), C(DoesNotExist), C(Gt), C(Lt)) and C(values).
        type: list
        elements: dict
      node_names:
        description: Names of nodes. A name that no GPU node has is an error.
        type: list
        elements: str
      include_cordoned:
        description: Whether cordoned nodes are tested as well.
        type: bool
        default: false
      gpu:
        description: Model, such as V(h100), or product label of the GPUs.
        type: str
  tolerations:
    description:
      - Tolerations of the pods to come. Nodes with another taint are excluded.
      - Without it pods are taken to tolerate every taint.
    type: list
    elements: dict
  platform:
    description: Name of the platform, when detection is not wanted.
    type: str
  rack_label:
    description: Node label that names the rack or leaf switch. Without it usual labels are tried.
    type: str
  expected_gpus:
    description: GPUs that every node should have, above the GPU table and the majority of each pool.
    type: int
  keep_labels:
    description:
      - Labels to keep in the snapshot although they are dropped to keep it small, such as those of node feature discovery.
      - An item that ends in a slash or a dot is a prefix.
    type: list
    elements: str
    default: []
  catalog_dirs:
    description: Directories with catalog files of your own; the first one is the strongest, all are stronger than the shipped catalog.
    type: list
    elements: path
    default: []
notes:
  - "Needs these verbs in the cluster: list on nodes."
  - "Uses these, where it may: list on services finds the DCGM host engine; list on resourceslices (resource.k8s.io) finds GPUs that only
    DRA knows; get on namespaces reads the UID of kube-system, by which a resumed run knows its cluster.
    Without them the snapshot has a note instead."
seealso:
  - module: gpu_cluster.readiness.certification_plan
"""

EXAMPLES = r"""
- name: Read the cluster of the current context
  gpu_cluster.readiness.gpu_cluster_info:
  register: cluster

- name: Say what was found
  ansible.builtin.debug:
    msg: "{{ cluster.summary.text }}"

- name: Read H100 nodes of one rack, cordoned ones included
  gpu_cluster.readiness.gpu_cluster_info:
    kubeconfig: ~/.kube/config
    context: production
    rack_label: example.com/leaf-switch
    target:
      gpu: h100
      include_cordoned: true
      node_selector:
        example.com/leaf-switch: leaf-07
"""

RETURN = r"""
snapshot:
  description: The cluster as read; the shape is described in docs/data_shapes.md.
  returned: success
  type: dict
  contains:
    taken_at:
      description: When, in UTC.
      type: str
      returned: success
      sample: "2026-03-02T08:00:00Z"
    server:
      description: Version and address of the API server.
      type: dict
      returned: success
      sample: {host: "https://10.0.0.1:6443", version: v1.34.2}
    platform:
      description: Name of the platform, or null when nodes disagree, with the evidence.
      type: dict
      returned: success
      sample: {name: onprem, evidence: ["64 nodes: onprem, without spec.providerID"]}
    capabilities:
      description: What the cluster offers (Trainer, JobSet, DRA, schedulers, DCGM host engine, Kueue …).
      type: dict
      returned: success
      sample:
        trainer: null
        jobset: null
        dra: true
        compute_domains: false
        schedulers: []
        kueue: false
        dcgm_service: null
        success_policy: true
    topology:
      description: The labels that rack and block were read from.
      type: dict
      returned: success
      sample: {rack: topology.kubernetes.io/rack, block: null}
    gpus:
      description: Pools, one row per product and size.
      type: list
      elements: dict
      returned: success
      sample: [{product: NVIDIA-H100-80GB-HBM3, model: h100, gpus_per_node: 8, nodes: 64}]
    nodes:
      description: Every GPU-looking node, sorted by name.
      type: list
      elements: dict
      returned: success
    notes:
      description: What could not be read, and guesses that a person should know of.
      type: list
      elements: str
      returned: success
      sample: ["several GPU products: each pool is tested by itself; choose one with target.gpu"]
summary:
  description: The snapshot in short.
  returned: success
  type: dict
  contains:
    text:
      description: Lines for people.
      type: list
      elements: str
      returned: success
      sample:
        - Kubernetes v1.34.2 at https://10.0.0.1:6443
        - "Platform onprem (64 nodes: onprem, without spec.providerID)"
        - 64 nodes with 8 x NVIDIA-H100-80GB-HBM3 (h100)
        - 61 of 64 GPU nodes to be tested, 1 of them with findings already
    nodes:
      description: Number of GPU-looking nodes.
      type: int
      returned: success
      sample: 64
    targets:
      description: Number of nodes that are to be tested.
      type: int
      returned: success
      sample: 61
    failed:
      description: Names of targets that have findings already.
      type: list
      elements: str
      returned: success
      sample: [gpu-r3-n14]
    excluded:
      description: Number of nodes per reason of exclusion.
      type: dict
      returned: success
      sample: {NotReady: 1, Cordoned: 2}
    platform:
      description: Name of the platform.
      type: str
      returned: success
      sample: onprem
"""
