# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation fragment: attributes that all our action plugins share."""

from __future__ import annotations


class ModuleDocFragment:
    """Attributes; a module states the support of check_mode and diff_mode itself."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check mode and predict the outcome without changing anything.
  diff_mode:
    description: Shows what changed, or would change, when diff mode is on.
  action:
    description: Has an action plugin that does the work on the control node.
    support: full
  async:
    description: Supports the C(async) keyword.
    support: none
  platform:
    description: Operating system of the control node.
    support: full
    platforms: posix
"""

    # For modules that only read.
    INFO_MODULE = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check mode and predict the outcome without changing anything.
    support: full
    details:
      - It changes nothing, so it does the same in check mode.
  diff_mode:
    description: Shows what changed, or would change, when diff mode is on.
    support: N/A
    details:
      - It changes nothing.
"""

    # For modules that talk to the Kubernetes API: those of the group in meta/runtime.yml.
    ACTIONGROUP_K8S = r"""
options: {}
attributes:
  action_group:
    description: Use C(group/gpu_cluster.readiness.k8s) in C(module_defaults) to set the options of a login once.
    support: full
    membership:
      - gpu_cluster.readiness.k8s
"""
