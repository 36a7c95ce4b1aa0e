#!/usr/bin/python
# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin; the work is done on the controller by plugins/action/category_judge.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: category_judge
short_description: Measure the logs of a category and judge it
version_added: 0.1.0
author:
  - The gpu_cluster.readiness authors (@gpu-cluster-readiness)
description:
  - Reads plan, observation and logs from the archive of a run, measures each group, evaluates the criteria and gives the verdicts.
  - Needs no cluster, so a category can be judged again at any time.
extends_documentation_fragment:
  - gpu_cluster.readiness._attributes
attributes:
  check_mode:
    support: full
    description: The verdict is returned but not written to the archive.
  diff_mode:
    support: none
options:
  run_dir:
    description: Archive of the run.
    type: path
    required: true
  category:
    description: Id of the category in the plan.
    type: str
    required: true
  failure:
    description: Why the batch of this category broke off, if it left no observation. Its nodes are then untested.
    type: str
  created:
    description: Whether that batch may have created objects in the cluster. V(false) where it could not even begin.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Judge a category
  gpu_cluster.readiness.category_judge:
    run_dir: "{{ planned.run_dir }}"
    category: c01-nccl-all-reduce-intra-node
"""

RETURN = r"""
verdict:
  description: V(passed), V(failed), V(incomplete) or V(error).
  returned: success
  type: str
  sample: failed
why:
  description: One sentence.
  returned: success
  type: str
  sample: 2 of 4 groups failed, 2 nodes failed, 3 nodes untested (ThresholdViolation 1, TransportFallback 1)
nodes:
  description: Verdicts of the member nodes, counted.
  returned: success
  type: dict
  sample: {passed: 63, suspect: 1}
isolate:
  description: Whether the fault has to be located next, by M(gpu_cluster.readiness.isolation_step).
  returned: success
  type: bool
  sample: true
judged:
  description: File in the archive with measurements, findings and verdicts.
  returned: success
  type: str
  sample: /home/sre/runs/20260302-080000-1a2b/judged/c02-nccl-all-reduce-intra-rack.json
"""
