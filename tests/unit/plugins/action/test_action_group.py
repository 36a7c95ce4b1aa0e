# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`module_defaults` of the group `all` must reach every module, also the newest."""

from __future__ import annotations

import pathlib

import yaml

from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils import _action

ROOT = pathlib.Path(_action.COLLECTION_ROOT)


def test_every_module_is_in_the_action_group():
    groups = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text(encoding="utf-8"))["action_groups"]
    assert groups == {"all": sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("[a-z]*.py"))}
