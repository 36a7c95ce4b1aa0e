# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The simulated API server: storage, decoding, defaults, admission, validation, watches, HTTP. It runs alone by `python -m`."""

from __future__ import annotations
