#!/usr/bin/python
# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin; the work is done on the controller by plugins/action/certification_look.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: certification_look
short_description: Look once more at all nodes that a run has tested
version_added: 0.1.0
author:
  - The gpu_cluster.readiness authors (@gpu-cluster-readiness)
description:
  - Reads the nodes when all categories of a run have been judged, and leaves in its archive what they are now.
  - The report of M(gpu_cluster.readiness.certification_report) then passes no node that has failed, restarted, lost a GPU, or was
    replaced since its last test.
  - A node that does not answer gets C(bounds.node_grace_s) of the certification to come back, an API server that does not answer
    five minutes. If nobody could look, no node passes.
extends_documentation_fragment:
  - gpu_cluster.readiness._auth
  - gpu_cluster.readiness._attributes
  - gpu_cluster.readiness._attributes.actiongroup_k8s
attributes:
  check_mode:
    support: full
    description: Nothing is read or written.
  diff_mode:
    support: none
options:
  run_dir:
    description: Archive of the run.
    type: path
    required: true
notes:
  - "Needs this verb in the cluster: list on nodes."
"""

EXAMPLES = r"""
- name: Look at all tested nodes once more
  gpu_cluster.readiness.certification_look:
    run_dir: "{{ planned.run_dir }}"
"""

RETURN = r"""
seen:
  description: How many nodes were looked at; null if nobody could look.
  returned: success
  type: int
  sample: 64
why:
  description: Why nobody could look, or an empty text.
  returned: success
  type: str
  sample: ""
"""
