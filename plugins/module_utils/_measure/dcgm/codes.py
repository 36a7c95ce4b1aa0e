# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""DCGM tables: error codes, severities, exit codes, entity groups and what to do about each.

The numbers are those of DCGM 2.1 to 4.6. A code or exit status that is not here is treated with caution: it is
reported with its number and never turns into a pass.
"""

from __future__ import annotations

# Severities of an error record.
NONE, MONITOR, ISOLATE, UNKNOWN, TRIAGE, CONFIG, RESET = range(7)

SEVERITY_NAMES = {
    NONE: "none",
    MONITOR: "monitor",
    ISOLATE: "isolate",
    UNKNOWN: "unknown",
    TRIAGE: "triage",
    CONFIG: "config",
    RESET: "reset",
}

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

_CODES_BY_SEVERITY: dict[int, tuple[int, ...]] = {
    ISOLATE: (
        *(3, 4, 7, 8, 13, 15, 24, 33, 35, 36, 38, 39, 52, 57, 58, 70, 71, 79, 81, 86, 87, 88, 95, 98),
        *(*range(102, 108), 109, 111, 113, 114, 115, 116, 118, 119, 120, 121, 122, 126),
    ),
    RESET: (6, 25, 80, 83, 84, 85, 125, 127, 128, 129),
    TRIAGE: (
        *(9, 14, 22, 30, 31, 37, 44, 45, 49, 50, 54, 56, 59, 62, 63, 64, 65, 66, 67, 73, 77),
        *(*range(89, 95), 97, 99, 100, 101, 110, 124, 130, 132),
    ),
    CONFIG: (18, 20, 23, 28, 29, 46, 47, 48, 55, 60, 68, 72, 78, 82, 96, 112, 117),
    MONITOR: (5, 10, 11, 12, 16, 17, 19, 26, 27, 32, 34, 40, 41, 42, 43, 51, 53, 61, 69, 74, 75, 76, 108, 123, 131),
}

# Severity of a code, for documents that carry the code only.
SEVERITY_OF_CODE: dict[int, int] = {code: severity for severity, codes in _CODES_BY_SEVERITY.items() for code in codes}

# Codes of severity TRIAGE that say more about what else ran, or about a tool that did not start, than about the GPU.
INCONCLUSIVE_CODES = frozenset({56, 65, 66, 67, 73, 77, *range(89, 95), 97, 124})

CODE_NAMES = {
    9: "corrupt inforom",
    10: "clocks throttled by temperature",
    14: "NVLink down",
    23: "denylisted driver",
    24: "NVML library",
    25: "graphics processes running",
    29: "persistence mode off",
    30: "low PCIe bandwidth",
    45: "PCIe generation",
    46: "PCIe link width",
    47: "test aborted",
    48: "test disabled",
    50: "stress level not reached",
    52: "faulty memory",
    55: "ECC off",
    56: "memory could not be allocated",
    62: "memory bandwidth below the minimum",
    63: "target power not reached",
    81: "uncontained memory error",
    85: "row remap",
    95: "EUD failed",
    101: "Xid",
    108: "fabric manager not initialised",
    109: "SXid",
    111: "NaN in results",
    112: "fabric training not completed",
    117: "test skipped",
    120: "GPU fallen off the bus",
    122: "IMEX unhealthy",
    129: "NCCL error",
    130: "retest recommended",
}

# What to do, where the severity alone would mislead.
_ADVICE_OF_CODE = {
    14: "Look at the NVLink state and error counters of this GPU and its neighbour before replacing anything.",
    24: "Usually software: check that the driver libraries in the container match the driver of the node.",
    25: "Usually software: find and stop the process that uses this GPU, then run again.",
    29: "Set persistence mode on the node (nvidia-persistenced).",
    46: "Usually the seat, the riser or the slot: reseat, then compare the link width again.",
    52: "Take this GPU out of service and start a replacement.",
    55: "Switch ECC on and reset the GPU.",
    56: "Something else held GPU memory: make sure that nothing runs on the node, then run again.",
    62: "Run this test alone: it also reads low when another test still holds the memory clocks.",
    81: "Take this GPU out of service and start a replacement.",
    84: "Reset the GPU so that the row remap takes effect, then run again.",
    85: "Reset the GPU so that the row remap takes effect, then run again.",
    108: "Start the fabric manager, then run again.",
    112: "Check the fabric manager and the state of the NVLink fabric, then run again.",
    120: "Reboot the node; replace the GPU if it falls off the bus again.",
    122: "Usually software: check the IMEX daemon of every node of the NVLink domain.",
    129: "Reset the GPU and run again; if it repeats, look at the NVLink and network errors beside it.",
    130: "Run this test again, alone.",
}

_ADVICE_OF_SEVERITY = {
    ISOLATE: "Do not use this GPU until it has been replaced or cleared.",
    RESET: "Drain the node, reset the GPU, run again.",
    TRIAGE: "Look closer: kernel log, Xid history and the field diagnostic.",
    CONFIG: "Fix the setting on the node, then run again. The hardware is not in doubt.",
    MONITOR: "Usable: watch it.",
}


def advice(code: int | None, severity: int | None) -> str:
    """What a person does next about an error. Never empty."""
    if code is not None and code in _ADVICE_OF_CODE:
        return _ADVICE_OF_CODE[code]
    if severity is not None and severity in _ADVICE_OF_SEVERITY:
        return _ADVICE_OF_SEVERITY[severity]
    return "No code was given: read the message, and run the test again before replacing anything."


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
