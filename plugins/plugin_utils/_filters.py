# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What filters share: plain Python in, one kind of error out."""

from __future__ import annotations

import functools
import os
import traceback
import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ReadinessError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.plain import finite, to_plain
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.category import with_thresholds
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._log_paths import log_paths


def plain_filter(function: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
    """Give a filter plain arguments and turn its errors into AnsibleFilterError with the filter's full name."""

    @functools.wraps(function)
    def call(*args: t.Any, **kwargs: t.Any) -> t.Any:
        name = f"gpu_cluster.readiness.{function.__name__}"
        try:
            return function(*[to_plain(item) for item in args], **{key: to_plain(item) for key, item in kwargs.items()})
        except ReadinessError as error:
            raise AnsibleFilterError(f"{name}: {error.render()}") from error
        except (KeyError, TypeError, AttributeError) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(where.filename)}:{where.lineno}"
            text = f"the input has not the expected shape, or this is a defect of the collection (at {place}): {error!r}"
            raise AnsibleFilterError(f"{name}: {text}. The filter's documentation shows the shape") from error

    return call


def log_filter(name: str, kind: str) -> t.Callable[..., t.Any]:
    """A filter that measures the logs of one run: paths, and an optional context, whose `thresholds` are held against the result."""

    def read(paths: t.Any, context: dict[str, t.Any] | None = None) -> t.Any:
        given = dict(context or {})
        thresholds = given.pop("thresholds", None)
        return finite(with_thresholds(measure(kind, log_paths(paths), given), thresholds))

    read.__name__ = name
    return plain_filter(read)
