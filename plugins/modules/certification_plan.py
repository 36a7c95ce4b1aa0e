#!/usr/bin/python
# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin; the work is done on the controller by plugins/action/certification_plan.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: certification_plan
short_description: Check a certification and plan it on a cluster
version_added: 0.1.0
author:
  - The gpu_cluster.readiness authors (@gpu-cluster-readiness)
description:
  - Checks the request first. Unknown keys, tests, options and criteria that do not compile are told before anything is created.
  - With a O(snapshot) it plans groups of nodes, resolves the workload of each category once, and opens the archive of the run.
  - From then on the run belongs to the play. Its directory is locked until the report is written or the play ends, however it ends.
extends_documentation_fragment:
  - gpu_cluster.readiness._auth
  - gpu_cluster.readiness._attributes
  - gpu_cluster.readiness._attributes.actiongroup_k8s
attributes:
  check_mode:
    support: full
    description: The plan is made and returned in RV(plan); no archive is opened.
  diff_mode:
    support: none
options:
  certification:
    description:
      - The request, as documented in C(docs/certification.md) of the collection.
      - Exactly one of O(certification) and O(resume) is needed.
    type: dict
  resume:
    description:
      - Archive of an interrupted run. Its plan is taken up again, and what is finished is not run again.
      - The run gets its whole time once more.
      - Refused, before anything is changed, when the run is still going on, or the cluster is not the one that it was planned on. When a
        process on another host holds it, that is watched for 90 seconds at most.
    type: path
  snapshot:
    description:
      - The cluster as M(gpu_cluster.readiness.gpu_cluster_info) returned it.
      - Without it only O(certification) is checked.
    type: dict
  runs_dir:
    description: Directory under which the archive of each run is made.
    type: path
    default: runs
  run_id:
    description:
      - Name of the run, part of the names of its objects. Lower-case letters, digits and hyphens, at most 32.
      - Made from the time when left out.
      - One under which another process runs a run in the namespaces of the workloads is refused, and no archive is made. Where the cluster
        cannot be asked here, M(gpu_cluster.readiness.cluster_preflight) refuses it.
    type: str
  catalog_dirs:
    description: Further catalog directories, searched before the shipped one.
    type: list
    elements: path
    default: []
notes:
  - "Only O(resume) and O(run_id) ask the cluster. That needs these verbs: list on nodes; list on configmaps in the namespaces of the
    workloads. Uses this, where it may: get on namespaces."
seealso:
  - module: gpu_cluster.readiness.workload_batch
"""

EXAMPLES = r"""
- name: Plan a certification
  gpu_cluster.readiness.certification_plan:
    certification:
      categories:
        - test: communication/nccl-all-reduce
          test_scale: intra-node
          criteria: ["measured.bus_bandwidth >= 400"]
    snapshot: "{{ cluster.snapshot }}"
  register: planned
"""

RETURN = r"""
run_id:
  description: Name of the run.
  returned: with a snapshot or O(resume)
  type: str
  sample: 20260302-080000-1a2b
run_dir:
  description: Its archive.
  returned: with a snapshot or O(resume)
  type: str
  sample: /home/sre/runs/20260302-080000-1a2b
categories:
  description: What will be run, one item per category and GPU model.
  returned: with a snapshot or O(resume)
  type: list
  elements: dict
  sample:
    - id: c01-nccl-all-reduce-intra-node
      title: c01 nccl-all-reduce intra-node
      groups: 64
      nodes: 64
      test_scale: intra-node
      repeat: 1
      k_of_n: null
      isolate: auto
cost:
  description: Groups, runs of groups with their repeats, nodes, and the GPU hours if each of these runs goes into its timeout once.
  returned: with a snapshot or O(resume)
  type: dict
  sample: {groups: 64, runs: 64, nodes: 64, gpu_hours_max: 512.0}
plan:
  description: The whole plan, which otherwise is in the archive.
  returned: in check mode, with a snapshot
  type: dict
certification:
  description: The request with every default filled in.
  returned: without a snapshot
  type: dict
"""
