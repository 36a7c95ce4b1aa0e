# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Error codes, severities, entity groups and test names of DCGM 2.1 to 4.6.

The codes themselves are rows of the table of evidence (`catalog/evidence/dcgm.yml`). A code or exit status that is not there is
treated with caution: it is reported with its number and never turns into a pass.
"""

from __future__ import annotations

from ..._catalog.load import shipped_evidence

ENTITY_GROUPS = {
    0: "None",
    1: "GPU",
    2: "vGPU",
    3: "Switch",
    4: "GPU_I",
    5: "GPU_CI",
    6: "LINK",
    7: "CPU",
    8: "CPU_CORE",
    9: "ConnectX",
}


def severity_of(code: int | None) -> int | None:
    """The severity of a code, for documents that carry the code only."""
    return shipped_evidence().severity_of(code)


def severity_name(severity: int | None) -> str | None:
    """The word of a severity; None for a number that is none."""
    return shipped_evidence().severity_name(severity)


def advice(code: int | None, severity: int | None) -> str:
    """What a person does next about an error. Never empty."""
    said = shipped_evidence().dcgm(code, severity)
    return (said.advice if said else "") or "No code was given: read the message, and run the test again before replacing anything."


# Tests a run level is expected to run on every GPU. Tests that need root, a second GPU or a permission of their
# own (eud, nccl_tests, nvbandwidth) are left out: the caller names them when it asked for them.
LEVEL_TESTS: dict[int, tuple[str, ...]] = {
    1: ("software",),
    2: ("software", "memory", "pcie"),
    3: ("software", "memory", "pcie", "diagnostic", "memory_bandwidth", "targeted_stress", "targeted_power"),
    4: ("software", "memory", "pcie", "diagnostic", "memory_bandwidth", "targeted_stress", "targeted_power", "memtest", "pulse_test"),
}

# Old names of tests in documents and tables before 4.0.
TEST_ALIASES = {
    "gpu memory": "memory",
    "pcie": "pcie",
    "diagnostic": "diagnostic",
    "sm stress": "sm_stress",
    "targeted stress": "targeted_stress",
    "targeted power": "targeted_power",
    "memory bandwidth": "memory_bandwidth",
    "pulse test": "pulse_test",
    "memtest": "memtest",
    "eud test": "eud",
    "integration": "pcie",
}

# Before 4.0 the test "software" was these separate lines.
SOFTWARE_SUBTESTS = frozenset(
    {
        "denylist",
        "blacklist",
        "nvml library",
        "cuda main library",
        "permissions and os blocks",
        "persistence mode",
        "environment variables",
        "page retirement/row remap",
        "page retirement",
        "graphics processes",
        "inforom",
    }
)


# Of these, the ones that look at settings and software only: their failure without a code is no broken GPU.
SETTINGS_SUBTESTS = SOFTWARE_SUBTESTS - {"page retirement/row remap", "page retirement", "inforom"}


def canonical_test(name: str) -> str:
    """The 4.x name of a test, whatever the version called it."""
    key = name.strip().lower()
    if key in SOFTWARE_SUBTESTS:
        return "software"
    return TEST_ALIASES.get(key, key.replace(" ", "_"))
