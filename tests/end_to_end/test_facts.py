# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Small Jobs take the course that was recorded on genuine controllers: what the simulator shows is what a cluster would show."""

from __future__ import annotations

import pytest

from ansible_collections.gpu_cluster.readiness.tests.control_plane import backend, cases, facts


@pytest.mark.parametrize("case", sorted(cases.PLAIN_JOBS))
def test_a_job_takes_its_recorded_course(start_cluster, case):
    cluster = start_cluster(**facts.DEFINITION)
    assert facts.record(backend.Server(cluster.kubeconfig), case) == facts.load(case)
