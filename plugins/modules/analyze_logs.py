#!/usr/bin/python
# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin; the work is done on the controller by plugins/action/analyze_logs.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: analyze_logs
short_description: Judge log files from anywhere
version_added: 0.1.0
author:
  - The gpu_cluster.readiness authors (@gpu-cluster-readiness)
description:
  - Measures logs of NCCL tests, DCGM diagnostics, training and other programs, judges them by criteria, and leaves a run directory from
    which M(gpu_cluster.readiness.certification_report) writes the same report as for a certification.
  - Each log becomes a group, its hosts become the nodes, the logs of one kind a category.
extends_documentation_fragment:
  - gpu_cluster.readiness._attributes
attributes:
  check_mode:
    support: full
    description: The logs are judged but nothing is written.
  diff_mode:
    support: none
options:
  logs:
    description:
      - A file, a directory or a list of them. In a directory, files below it whose names end in C(.log), C(.txt), C(.json), C(.out),
        C(.err) or C(.gz) are taken; those of an unknown kind are skipped, and the report says so.
    type: raw
    required: true
  kind:
    description: Kind of the logs, such as V(nccl), V(dcgm) or V(training). V(auto) tells it from the content of each file.
    type: str
    default: auto
  criteria:
    description:
      - CEL expressions over C(measured.*), such as C(measured.bus_bandwidth >= 400), one or a list.
      - Each applies to the kinds of log that measure what it names.
    type: raw
    default: []
  thresholds:
    description: The same in the form of NVCRE, such as C(value >= 400) for C(busBandwidthGBps).
    type: raw
    default: {}
  allow_no_criteria:
    description: Whether correctness, transport and completeness alone may pass a log. Otherwise a log without criteria is incomplete.
    type: bool
    default: false
  exit_code:
    description: Exit code of the program, where it is known.
    type: int
  nodes:
    description: Nodes the logs come from, where the log does not name its hosts.
    type: list
    elements: str
    default: []
  context:
    description: What else is known, such as C(expect_transport), C(expected_sizes), C(expected_gpus), C(required_tests) or C(warmup_steps).
    type: dict
    default: {}
  together:
    description: Whether all files are parts of one log, such as the runs of a training that was restarted.
    type: bool
    default: false
  runs_dir:
    description: Directory under which the run directory is created.
    type: path
    default: runs
  run_id:
    description: Name of the run directory. Made from the time when it is not given.
    type: str
"""

EXAMPLES = r"""
- name: Judge a log someone mailed
  gpu_cluster.readiness.analyze_logs:
    logs: /tmp/all_reduce.log
    criteria:
      - measured.bus_bandwidth >= 400
    context:
      expect_transport: ib
  register: analyzed

- name: Report it
  gpu_cluster.readiness.certification_report:
    run_dir: "{{ analyzed.run_dir }}"
"""

RETURN = r"""
run_id:
  description: Name of the run.
  returned: success
  type: str
  sample: 20260302-080000-1a2b
run_dir:
  description: Absolute path of the run directory.
  returned: success
  type: str
  sample: /home/sre/runs/20260302-080000-1a2b
verdicts:
  description: Verdict of each category.
  returned: success
  type: dict
  sample: {c01-nccl-logs: passed}
"""
