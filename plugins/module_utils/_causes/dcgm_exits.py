# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Exit statuses of dcgmi: the return value behind each, the class it means and what to do.

Return values are those of DCGM 2.1 to 4.6; dcgmi exits with their low byte. What ended the program itself (time limit, signals,
not found) is known by `exit_codes`.
"""

from __future__ import annotations

import typing as t

from .exit_codes import EXITS as PROCESS_EXITS


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
EXITS_OF_BYTE: dict[int, Exit] = {ret & 0xFF: entry for ret, entry in EXIT_OF_RETURN.items()}

_PROCESS_NAMES = {124: "outer timeout", 126: "not executable", 127: "command not found"}
# What the exit of any program means for a diagnostic: its class by the reason of the log.
_PROCESS_CLASSES = {"TimedOut": "timed_out", "SetupError": "setup_error", "LogIncomplete": "incomplete"}
_PROCESS_ADVICE = {
    "timed_out": "Give the diagnostic more time, or find what made it hang.",
    "setup_error": _IMAGE,
    "incomplete": "The diagnostic was killed: by a deadline or for memory.",
}


def exit_status(code: int | None) -> Exit | None:
    """What an exit status means, or None for 0, for an unknown one and when it is not known."""
    if code is None or code == 0:
        return None
    code &= 0xFF
    if code in _PROCESS_NAMES:
        return _of_process(PROCESS_EXITS[code].log_reason, _PROCESS_NAMES[code])
    if code in EXITS_OF_BYTE:
        return EXITS_OF_BYTE[code]
    if 128 < code < 160:
        return _of_process("LogIncomplete", f"signal {code - 128}")
    return None


def _of_process(log_reason: str, name: str) -> Exit:
    outcome = _PROCESS_CLASSES[log_reason]
    return Exit(0, name, outcome, _PROCESS_ADVICE[outcome])
