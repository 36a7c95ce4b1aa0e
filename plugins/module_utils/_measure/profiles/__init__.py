# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""User-defined log profiles: regular expressions and JMESPath over logs."""

from __future__ import annotations
