#!/usr/bin/python
# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin; the work is done on the controller by plugins/action/cluster_preflight.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_preflight
short_description: Check permissions and let the API server examine what a run will create
version_added: 0.1.0
author:
  - The gpu_cluster.readiness authors (@gpu-cluster-readiness)
description:
  - Asks the API server whether our user may do what the run does, and nothing else.
  - Sends the objects of each category as a server-side dry run, so that names, quotas, admission and fields are examined.
  - Lets the API server examine a pod as well, where our user may create pods; pod security and most policies look at pods, not at Jobs.
  - Compares the cluster with the one that the run was planned on, and fails when it is another.
  - Fails when another process runs a run of this id in one of the namespaces, and says whose it is.
  - Removes objects of earlier runs of this collection whose announced end has passed, because their control node died. One that is still
    alive is never touched; times are compared by the API server's clock.
extends_documentation_fragment:
  - gpu_cluster.readiness._auth
  - gpu_cluster.readiness._attributes
  - gpu_cluster.readiness._attributes.actiongroup_k8s
attributes:
  check_mode:
    support: full
    description: Leftovers are named, not removed.
  diff_mode:
    support: none
options:
  run_dir:
    description:
      - Archive of the run, made by M(gpu_cluster.readiness.certification_plan).
      - Exactly one of O(run_dir) and O(plan) is needed.
    type: path
  plan:
    description: A plan as M(gpu_cluster.readiness.certification_plan) returns it in check mode.
    type: dict
notes:
  - "Needs these verbs in the namespaces of the workloads, because the run will need them: create, get, list, watch, patch, delete on jobs
    (batch); create, get, list, patch, delete on configmaps; create, get, list, delete on services, secrets; list, watch, delete on pods;
    get on pods/log; list on events. One that is missing is named, and the run ends here."
  - "Uses these, where it may: create on pods for the dry run of a pod; get on namespaces to know the cluster again."
  - "Needs these verbs in the cluster: get, list, watch on nodes."
  - To ask for them takes C(create) on C(selfsubjectaccessreviews.authorization.k8s.io), which every authenticated user has by default.
seealso:
  - module: gpu_cluster.readiness.workload_batch
"""

EXAMPLES = r"""
- name: Examine a plan
  gpu_cluster.readiness.cluster_preflight:
    run_dir: "{{ planned.run_dir }}"
"""

RETURN = r"""
namespaces:
  description: Namespaces of the workloads.
  returned: success
  type: list
  elements: str
  sample: [default]
examined:
  description: Ids of the categories whose objects the API server accepted.
  returned: success
  type: list
  elements: str
  sample: [c01-nccl-all-reduce-intra-node, c02-nccl-all-reduce-intra-rack]
notes:
  description: What the API server warned of, and what could not be examined.
  returned: success
  type: list
  elements: str
  sample: ['would violate PodSecurity "restricted:latest": unrestricted capabilities']
swept:
  description: Ids of dead runs whose leftovers were removed.
  returned: success
  type: list
  elements: str
  sample: [20260301-220000-9f3c]
"""
