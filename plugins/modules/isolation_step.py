#!/usr/bin/python
# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin; the work is done on the controller by plugins/action/isolation_step.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: isolation_step
short_description: One turn of the search for the component at fault
version_added: 0.1.0
author:
  - The gpu_cluster.readiness authors (@gpu-cluster-readiness)
description:
  - Takes in the results of the wave that M(gpu_cluster.readiness.workload_batch) has run, and plans the next wave or concludes.
  - Saves the state of the search in the archive of the run after every turn, so that an interrupted search goes on where it was.
extends_documentation_fragment:
  - gpu_cluster.readiness._attributes
attributes:
  check_mode:
    support: none
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
"""

EXAMPLES = r"""
- name: Plan the next wave
  gpu_cluster.readiness.isolation_step:
    run_dir: "{{ planned.run_dir }}"
    category: c01-nccl-all-reduce-diagnose
  register: turn

- name: Run the wave
  gpu_cluster.readiness.workload_batch:
    run_dir: "{{ planned.run_dir }}"
    category: c01-nccl-all-reduce-diagnose
    wave: true
  when: not turn.done
"""

RETURN = r"""
done:
  description: Whether the search has ended.
  returned: success
  type: bool
  sample: false
wave:
  description: Number of the wave to be run, or of the last one.
  returned: success
  type: int
  sample: 2
tests:
  description: Tests of the wave to be run; none of its nodes is in two of them.
  returned: success
  type: int
  sample: 8
verdict:
  description: V(passed), V(failed) or V(inconclusive) at the end.
  returned: success
  type: str
  sample: failed
reason:
  description: The conclusion in one sentence.
  returned: success
  type: str
  sample: "At fault: gpu-r1-n03 (nic), gpu-r2-n07 (nic)."
state:
  description: File in the archive that holds the search.
  returned: success
  type: str
  sample: /home/sre/runs/20260302-080000-1a2b/isolation/c02-nccl-all-reduce-intra-rack.json
"""
