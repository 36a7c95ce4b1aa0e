# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated Kubernetes cluster: an API server in memory and, as ordinary API clients, its controllers and node agents.

Nothing here knows the rest of the collection, except `_common`: the product meets the simulator only through a kubeconfig.

Four wings. Each uses itself and what is named here, no more:

* `hardware`: the machines, their faults, and the `seam` between what runs on them and what runs it. Uses no other wing.
* `workloads`: what pods do. Uses `hardware`.
* `clients`: scheduler, controllers, node agents. Uses only the `seam` of `hardware`, so it runs on a genuine control plane as well.
* `api`: the API server. Uses no other wing; clients reach it over HTTP alone.

Beside them lie `kubeconfig` and `event_loop`, which every wing may use, and `cluster` and `__main__`, which put the wings together and
which no wing may use.
"""

from __future__ import annotations
