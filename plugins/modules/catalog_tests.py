#!/usr/bin/python
# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of an action plugin; the work is done on the controller by plugins/action/catalog_tests.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: catalog_tests
short_description: List the tests of the catalog
version_added: 0.1.0
author:
  - The gpu_cluster.readiness authors (@gpu-cluster-readiness)
description:
  - Tells every test of the catalog with its test scales, options and their defaults, limits, image, what its pods need, and how long it
    may take.
  - Tests of your own are listed with the shipped ones; a mistake in one of them is told with file and line. No cluster is asked.
extends_documentation_fragment:
  - gpu_cluster.readiness._attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
options:
  tests:
    description: Names of the tests to tell of; all when left out.
    type: list
    elements: str
    default: []
  catalog_dirs:
    description: Further catalog directories, searched before the shipped one.
    type: list
    elements: path
    default: []
"""

EXAMPLES = r"""
- name: What can be tested
  gpu_cluster.readiness.catalog_tests:
    tests: [diagnostics/dcgm-level2]
  register: catalog
"""

RETURN = r"""
tests:
  description: One mapping for each test.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the test, as a certification names it.
      type: str
      returned: success
      sample: diagnostics/dcgm-level2
    description:
      description: What it measures.
      type: str
      returned: success
    framework:
      description: What starts its program, C(mpi), C(exec) or C(torch).
      type: str
      returned: success
    image:
      description: Registry, repository and tag of its image.
      type: str
      returned: success
    test_scales:
      description: The test scales it has.
      type: list
      elements: str
      returned: success
    measures:
      description: The kind of its measurement.
      type: str
      returned: success
    options:
      description: Its options, by name, with C(type), C(default) and C(description).
      type: dict
      returned: success
    criteria:
      description: What must hold where the user names no criteria.
      type: list
      elements: str
      returned: success
    floors:
      description: Its calibrated floors, each with GPU, path, group size and source.
      type: list
      elements: dict
      returned: success
    needs:
      description: What its pods ask for.
      type: list
      elements: str
      returned: success
    attempt_s:
      description: Longest execution on one group, in seconds.
      type: int
      returned: success
lines:
  description: The same as lines of text.
  returned: success
  type: list
  elements: str
"""
