#!/usr/bin/python
# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin; the work is done on the controller by plugins/action/run_cleanup.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_cleanup
short_description: Remove what a run left in the cluster, and prove it
version_added: 0.1.0
author:
  - The gpu_cluster.readiness authors (@gpu-cluster-readiness)
description:
  - Deletes objects that carry the label of a run of this collection, and reads the cluster until none is left. Touches nothing else.
  - Needed only when a control node died. A play that is ended in any other way cleans up after itself.
  - A run that is still going on is not touched, unless O(force) says so. It is alive when its process is, on this host, or, on another,
    when its last heartbeat is less than 90 seconds old by the API server's clock.
extends_documentation_fragment:
  - gpu_cluster.readiness._auth
  - gpu_cluster.readiness._attributes
  - gpu_cluster.readiness._attributes.actiongroup_k8s
attributes:
  check_mode:
    support: full
    description: What would be removed is returned.
  diff_mode:
    support: none
options:
  run_id:
    description:
      - Id of the run.
      - Without it every run is cleaned up whose announced end has passed and which is not alive.
    type: str
  namespace:
    description: Namespace of the workloads.
    type: str
    default: default
  force:
    description:
      - Remove the objects of O(run_id) also when that run is going on. It then ends by itself.
      - Without it such a run is refused with its user, host, process and last heartbeat.
    type: bool
    default: false
  wait_timeout:
    description: Seconds to wait until everything is gone.
    type: int
    default: 180
notes:
  - "Needs these verbs in the namespace of the workloads: list, delete on jobs (batch);
    list, delete on services, secrets, configmaps, pods."
  - In check mode C(list) is enough. Nodes are neither read nor written.
seealso:
  - module: gpu_cluster.readiness.workload_batch
"""

EXAMPLES = r"""
- name: Remove what a dead run left
  gpu_cluster.readiness.run_cleanup:
    run_id: 20260302-080000-1a2b
"""

RETURN = r"""
runs:
  description: Ids of the runs that were cleaned up.
  returned: success
  type: list
  elements: str
  sample: [20260302-080000-1a2b]
removed:
  description: The objects, as kind/name.
  returned: success
  type: list
  elements: str
  sample: [job/readiness-20260302-080000-1a2b-c02-g001-1, configmap/readiness-20260302-080000-1a2b-c02]
proven:
  description: Whether a last read found nothing of them.
  returned: success
  type: bool
  sample: true
"""
