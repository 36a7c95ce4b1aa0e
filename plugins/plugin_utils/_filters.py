# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What filters share: plain Python in, one kind of error out."""

from __future__ import annotations

import functools
import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ReadinessError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.plain import to_plain


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
            raise AnsibleFilterError(f"{name}: the input has not the expected shape: {error!r}") from error

    return call
