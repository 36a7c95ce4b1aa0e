# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""API objects as this server holds them."""

from __future__ import annotations

import typing as t

Object: t.TypeAlias = dict[str, t.Any]
"""An object of the API, or a part of one, as JSON has it."""
