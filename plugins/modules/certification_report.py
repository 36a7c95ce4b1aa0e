#!/usr/bin/python
# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin; the work is done on the controller by plugins/action/certification_report.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: certification_report
short_description: Write and print the report of a run
version_added: 0.1.0
author:
  - The gpu_cluster.readiness authors (@gpu-cluster-readiness)
description:
  - Rolls up what the archive of a run holds to one verdict, writes C(report.json), C(report.txt) and the manifest of checksums,
    points C(latest) beside the run directory to it, and prints the text.
  - Needs no cluster. The same archive always gives the same report, byte for byte.
extends_documentation_fragment:
  - gpu_cluster.readiness._attributes
attributes:
  check_mode:
    support: full
    description: The report is printed but not written.
  diff_mode:
    support: none
options:
  run_dir:
    description: Archive of the run.
    type: path
    required: true
  print:
    description: Whether to print the text of the report.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Report a run
  gpu_cluster.readiness.certification_report:
    run_dir: runs/latest
"""

RETURN = r"""
summary:
  description: What a pipeline needs, small whatever the size of the cluster. Lists of names hold at most 200, C(counts) the true numbers.
  returned: success
  type: dict
  sample:
    run_id: 20260302-080000-1f2e
    verdict: failed
    why: 1 of 3 categories failed; 1 node suspect
    failed_nodes: []
    suspect_nodes: [gpu-r1-n03]
    untested_nodes: []
    counts: {passed: 63, failed: 0, suspect: 1, untested: 0, excluded: 0}
    report: /srv/runs/20260302-080000-1f2e/report.json
report:
  description: Path of the report as JSON, described by C(docs/report.schema.json).
  returned: success
  type: str
  sample: /home/sre/runs/20260302-080000-1a2b/report.json
report_text:
  description: Path of the report as text.
  returned: success
  type: str
  sample: /home/sre/runs/20260302-080000-1a2b/report.txt
"""
