# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The input of filters that read logs: one path or several."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError


def log_paths(value: t.Any) -> list[str]:
    """A list of paths. Raises InputError for anything but a path or a list of paths."""
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) and path for path in paths):
        raise InputError("the input must be the path of a log, or a list of paths", hint="Give the files of one run")
    return paths
