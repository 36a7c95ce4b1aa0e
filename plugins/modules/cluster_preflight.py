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
  - Removes objects of earlier runs of this collection whose announced end has passed, because their control node died.
extends_documentation_fragment:
  - gpu_cluster.readiness._auth
  - gpu_cluster.readiness._attributes
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
swept:
  description: Ids of dead runs whose leftovers were removed.
  returned: success
  type: list
  elements: str
"""
