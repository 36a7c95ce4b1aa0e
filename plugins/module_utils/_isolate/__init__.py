# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Adaptive fault isolation: which test to run next, and what the results prove.

`planner` is the door: `start`, `next_step`, `conclude`. Everything else serves it.
"""
