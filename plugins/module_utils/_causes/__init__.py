# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Why an attempt ended, and whom that may convict: the table of reasons, the words that mean each, one classification."""

from __future__ import annotations
