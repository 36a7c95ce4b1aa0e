# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Settings of all unit tests."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

# Helpers that tests of several rooms share.
sys.path.insert(0, str(Path(__file__).parent))

# A busy machine is no fault of the code: an example may take as long as it takes. The suite tries the same examples each time, so that it
# judges a change and not luck; "--hypothesis-profile search" tries others, "--hypothesis-seed N" says which.
settings.register_profile("suite", deadline=None, derandomize=True, database=None)
settings.register_profile("search", deadline=None)
settings.load_profile("suite")
