# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A genuine Kubernetes control plane on this machine, for tests: built from Go modules, with simulated nodes attached."""
