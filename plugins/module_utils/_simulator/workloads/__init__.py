# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What simulated pods do: `programs` reads their commands and hands them to the program that they run."""

from __future__ import annotations
