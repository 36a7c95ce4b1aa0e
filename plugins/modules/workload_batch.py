#!/usr/bin/python
# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin; the work is done on the controller by plugins/action/workload_batch.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: workload_batch
short_description: Run one workload per group of nodes and follow all of them to their clean end
version_added: 0.1.0
author:
  - The gpu_cluster.readiness authors (@gpu-cluster-readiness)
description:
  - Runs a planned category. Groups that share no node run at the same time, up to the bound of the certification.
  - Queued and unschedulable time does not count against an attempt. The deadline of the run always ends it.
  - Logs, journal and observation go to the archive of the run; the result is small.
  - Everything that was created is deleted again, also when the play is ended by a signal, and the cluster is read to prove it.
extends_documentation_fragment:
  - gpu_cluster.readiness._auth
  - gpu_cluster.readiness._attributes
  - gpu_cluster.readiness._attributes.actiongroup_k8s
attributes:
  check_mode:
    support: full
    description: Nothing is created.
  diff_mode:
    support: none
options:
  run_dir:
    description: Archive of the run, made by M(gpu_cluster.readiness.certification_plan).
    type: path
    required: true
  category:
    description: Id of the category in the plan.
    type: str
    required: true
  wave:
    description: Run the outstanding wave of the category's isolation, see M(gpu_cluster.readiness.isolation_step), instead of its groups.
    type: bool
    default: false
notes:
  - "Needs these verbs in the namespace of the workload: create, get, list, watch, patch, delete on jobs (batch);
    list, watch, delete on pods; get on pods/log; create, get, list, patch, delete on configmaps;
    create, get, list, delete on services, secrets; list on events."
  - "Needs these verbs in the cluster: get, list, watch on nodes. Never writes to a node."
"""

EXAMPLES = r"""
- name: Run a category
  gpu_cluster.readiness.workload_batch:
    run_dir: "{{ planned.run_dir }}"
    category: "{{ planned.categories[0].id }}"
"""

RETURN = r"""
observation:
  description: File in the archive that says what happened to every attempt.
  returned: success
  type: str
  sample: /home/sre/runs/20260302-080000-1a2b/observations/c02-nccl-all-reduce-intra-rack.json
outcomes:
  description: How the last attempt of each group ended, counted.
  returned: success
  type: dict
  sample: {succeeded: 63, failed: 1}
cancelled:
  description: Why the batch ended before all groups were tried, or an empty text.
  returned: success
  type: str
  sample: ""
cleanup:
  description: Whether a last read of the cluster found nothing of ours, and what was left otherwise.
  returned: success
  type: dict
  sample: {proven: true, left: [], message: ""}
finished_at:
  description: When the batch ended, in UTC.
  returned: success, not in check mode
  type: str
  sample: "2026-03-02T08:41:07Z"
groups:
  description: Number of groups that would be run.
  returned: in check mode
  type: int
  sample: 4
"""
