# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""DCGM tables: error codes, severities, exit codes, entity groups and what to do about each.

The numbers are those of DCGM 2.1 to 4.6. A code or exit status that is not here is treated with caution: it is
reported with its number and never turns into a pass.
"""

from __future__ import annotations

import typing as t

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

CATEGORY_NAMES = {
    1: "performance threshold",
    2: "performance violation",
    3: "software configuration",
    4: "software library",
    5: "Xid",
    6: "CUDA",
    7: "EUD",
    8: "software, other",
    9: "thermal",
    10: "memory",
    11: "NVLink",
    12: "NVSwitch",
    13: "PCIe",
    14: "power",
    15: "hardware, other",
    16: "internal",
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


class Exit(t.NamedTuple):
    """An exit status of dcgmi: the return value behind it, its name, the class it means and what to do."""

    ret: int
    name: str
    outcome: str
    advice: str = ""


# Return values after which a document says what happened.
NVVS_ERROR, NVVS_ISOLATE_ERROR = -30, -51

_BUSY = "Wait until the other diagnostic has ended, then run again."
_IMAGE = "The image of the test is broken or too old for the host engine."
_ENGINE = "Check the host engine service: its address, port and version."

_EXITS: tuple[tuple[int, str, str, str], ...] = (
    (NVVS_ERROR, "NVVS_ERROR", "inconclusive", "Read the document: the diagnostic ran and reported errors."),
    (NVVS_ISOLATE_ERROR, "NVVS_ISOLATE_ERROR", "inconclusive", "The diagnostic asked for isolation, but no document says of what."),
    (-34, "IN_USE", "busy", _BUSY),
    (-39, "DIAG_ALREADY_RUNNING", "busy", _BUSY),
    (-54, "PAUSED", "busy", "The host engine is paused: resume it, then run again."),
    (-53, "NVVS_KILLED", "incomplete", "The diagnostic was killed before it finished."),
    (-66, "NVVS_STOPPED", "incomplete", "The diagnostic was stopped before it finished."),
    (-11, "TIMEOUT", "timed_out", "Give the diagnostic more time, or find what made it hang."),
    (-14, "NO_DATA", "incomplete", "No test produced a result."),
    (-23, "GROUP_INCOMPATIBLE", "setup_error", "Run on GPUs of one model, without mixed MIG layouts."),
    (-6, "NOT_SUPPORTED", "setup_error", "The driver does not support this diagnostic."),
    (-41, "DIAG_BAD_LAUNCH", "setup_error", _IMAGE),
    (-40, "DIAG_BAD_JSON", "setup_error", _IMAGE),
    (-52, "NVVS_BINARY_NOT_FOUND", "setup_error", _IMAGE),
    (-21, "CONNECTION_NOT_VALID", "setup_error", _ENGINE),
    (-29, "REQUIRES_ROOT", "setup_error", "Run the test as root."),
    (-58, "NO_AVAILABLE_TEST", "setup_error", "None of the requested tests exists for these GPUs."),
    (-67, "GPUS_DETACHED", "setup_error", "The host engine has detached its GPUs: attach them again."),
    (-18, "GPU_IS_LOST", "hardware_fail", "A GPU was lost: reboot the node; replace the GPU if it is lost again."),
    (-19, "RESET_REQUIRED", "hardware_reset", "Drain the node, reset the GPU, run again."),
    (-57, "NVML_DRIVER_TIMEOUT", "inconclusive", "The driver did not answer: run again once; if it repeats, it is hardware."),
    (-1, "BADPARAM", "setup_error", "The arguments of the test are wrong for this version."),
    (-2, "UNCAUGHT_EXCEPTION", "setup_error", _IMAGE),
    (-7, "INIT_ERROR", "setup_error", _ENGINE),
    (-10, "UNINITIALIZED", "setup_error", _ENGINE),
    (-12, "VER_MISMATCH", "setup_error", "Client and host engine differ in version: use the image of the engine's version."),
    (-17, "NO_PERMISSION", "setup_error", "The container lacks a permission that the diagnostic needs."),
    (-35, "GROUP_IS_EMPTY", "setup_error", "The host engine sees no GPU: check its pod and the device plugin."),
    (-44, "INSUFFICIENT_DRIVER_VERSION", "setup_error", "Update the driver."),
    (-56, "NVML_NOT_LOADED", "setup_error", "The host engine could not load NVML: check the driver of the node."),
    (-3, "GENERIC_ERROR", "inconclusive", "Run again."),
    (-4, "MEMORY", "inconclusive", "Run again."),
    (-8, "NVML_ERROR", "inconclusive", "Run again."),
    (-49, "INSUFFICIENT_RESOURCES", "inconclusive", "Run again."),
    (-50, "PLUGIN_EXCEPTION", "inconclusive", "Run again."),
    (-64, "CHILD_SIGNAL_RECEIVED", "inconclusive", "Run again."),
    (-59, "MN_CONNECTION_UNAVAILABLE", "setup_error", "A host of the multi-node diagnostic could not be reached."),
    (-60, "MN_UNAUTHORIZED", "setup_error", "A host of the multi-node diagnostic refused the connection."),
    (-61, "MN_SSH_FAILED", "setup_error", "ssh to a host of the multi-node diagnostic failed."),
    (-62, "MN_SPAWN_FAILED", "setup_error", "A process of the multi-node diagnostic could not be started."),
)

EXIT_OF_RETURN: dict[int, Exit] = {ret: Exit(ret, name, outcome, text) for ret, name, outcome, text in _EXITS}
EXITS: dict[int, Exit] = {ret & 0xFF: entry for ret, entry in EXIT_OF_RETURN.items()}

_SHELL_EXITS = {
    124: Exit(0, "outer timeout", "timed_out", "Give the diagnostic more time, or find what made it hang."),
    126: Exit(0, "not executable", "setup_error", _IMAGE),
    127: Exit(0, "command not found", "setup_error", _IMAGE),
}


def exit_status(code: int | None) -> Exit | None:
    """What an exit status means, or None for 0, for an unknown one and when it is not known."""
    if code is None or code == 0:
        return None
    code &= 0xFF
    if code in _SHELL_EXITS:
        return _SHELL_EXITS[code]
    if code in EXITS:
        return EXITS[code]
    if 128 < code < 160:
        return Exit(0, f"signal {code - 128}", "incomplete", "The diagnostic was killed: by a deadline or for memory.")
    return None


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
