# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Settings of all unit tests."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

# Helpers that tests of several rooms share.
sys.path.insert(0, str(Path(__file__).parent))

# A busy machine is no fault of the code: an example may take as long as it takes.
settings.register_profile("busy_machine", deadline=None)
settings.load_profile("busy_machine")
