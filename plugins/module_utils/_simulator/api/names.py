# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The ends of names that the server makes up."""

from __future__ import annotations

import secrets

_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"  # without vowels and look-alikes, so that no words arise


def random_suffix() -> str:
    """Five characters, as generateName gets them."""
    return "".join(secrets.choice(_CHARACTERS) for _index in range(5))
