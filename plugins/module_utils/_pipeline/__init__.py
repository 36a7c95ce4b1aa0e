# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The steps of a certification, joined: plain Python in and out, so that a run can be driven without Ansible (docs/architecture.md)."""

from __future__ import annotations
