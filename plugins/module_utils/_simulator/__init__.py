# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated Kubernetes cluster: an API server in memory and, as ordinary API clients, its controllers and node agents.

Nothing here knows the rest of the collection: the product meets the simulator only through a kubeconfig.
"""

from __future__ import annotations
