# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What lines that belong to no table say of a run that went wrong: NCCL's warnings, the program's failures, the launcher's words."""

from __future__ import annotations

import re

from .debug_lines import HEAD
from .sections import Section

_MAX_EVIDENCE = 5
_MAX_TEXT = 1000  # characters of a line that is kept
_RUNTIME = re.compile(r"NCCL version (\d\S*)")
_FAILURE = re.compile(r"(?<!\S)(\S+): Test (\w+) failure \S+ '(.*?)'?$")
_CALL_CHAIN = re.compile(r"^ *\.\. (\S+) pid \d+: Test failure")
_WATCHDOG = re.compile(r"(?<!\S)(\S+): Test timeout \((\d{1,9})s\)")
_GPU_COUNT = re.compile(r"Invalid number of GPUs: (\d{1,9}) requested but only (\d{1,9}) were found")
_COMPLETION = re.compile(
    r"Got completion (?:from peer ([^<\s]{1,128})(?:<\d{1,9}>)? )?with (?:status=|error )(?:([A-Za-z_]\w{0,40})\()?(\d{1,5})\b"
)
_HCA = re.compile(r"\bhca (\S{1,64})")
# What an adapter says of itself or its port, in all wordings: async event, non-fatal async event, async fatal event on QP.
_EVENT = re.compile(r"(?<!\S)([A-Za-z]\w{0,62}):(\d{1,3}) (?:Got )?(?:non-fatal |fatal )?async (?:fatal )?event(.{0,200})")
# Events that are no trouble: addresses and managers of a fabric change in normal work.
_QUIET_EVENT = re.compile(r"\bGID|\bLID|SM change|client rereg|pkey|P_Key", re.IGNORECASE)
# Names of the numbers with which verbs end a request.
_COMPLETION_STATUS = {
    1: "IBV_WC_LOC_LEN_ERR", 2: "IBV_WC_LOC_QP_OP_ERR", 4: "IBV_WC_LOC_PROT_ERR", 5: "IBV_WC_WR_FLUSH_ERR", 6: "IBV_WC_MW_BIND_ERR",
    7: "IBV_WC_BAD_RESP_ERR", 8: "IBV_WC_LOC_ACCESS_ERR", 9: "IBV_WC_REM_INV_REQ_ERR", 10: "IBV_WC_REM_ACCESS_ERR", 11: "IBV_WC_REM_OP_ERR",
    12: "IBV_WC_RETRY_EXC_ERR", 13: "IBV_WC_RNR_RETRY_EXC_ERR", 14: "IBV_WC_LOC_RDD_VIOL_ERR", 15: "IBV_WC_REM_INV_RD_REQ_ERR",
    16: "IBV_WC_REM_ABORT_ERR", 19: "IBV_WC_FATAL_ERR", 20: "IBV_WC_RESP_TIMEOUT_ERR", 21: "IBV_WC_GENERAL_ERR",
}  # fmt: skip
_MISMATCH = re.compile(r"Mismatched NCCL version detected : rank (\d{1,9}) version (\d{1,9}) rank (\d{1,9}) version (\d{1,9})")
_PROCESS_NAME = re.compile(r"Process name: \[[^\]]*,(\d{1,9})\]")
_EXIT_CODE = re.compile(r"Exit code: +(\d{1,9})\b")
_SIGNALLED = re.compile(r"process rank (\d{1,9}) with PID \d+ on node (\S+) exited")
_SIGNAL = re.compile(r"exited\s+on signal (\d{1,9})\b|^signal (\d{1,9}) ")
_FALLBACK = re.compile(r"invalid (?:type|op|option|datatype|redop)\b.{0,400}default|unsupported|not supported.{0,400}ignor", re.IGNORECASE)
# Texts that name a wrong set-up rather than a broken node, with the words a person needs.
_SETUP_TEXTS: tuple[tuple[str, str], ...] = (
    ("Mismatched NCCL version detected", "NCCL versions differ between ranks"),
    ("Duplicate GPU detected", "two ranks were given the same GPU"),
    ("no socket interface found", "NCCL_SOCKET_IFNAME names no interface"),
    ("Failed to initialize any NET plugin", "no network plugin could be initialized"),
    ("is available but not working", "MNNVL is present but IMEX is not configured"),
    ("There are not enough slots", "mpirun has fewer slots than ranks"),
    ("PRTE was unable", "the launcher could not start the processes"),
    ("ORTE was unable", "the launcher could not start the processes"),
    ("prterun was unable", "the launcher could not start the processes"),
    ("mpirun was unable", "the launcher could not start the processes"),
    ("system not yet initialized", "CUDA is not initialized: the fabric manager does not run, or the NVLink fabric is not set up"),
    ("system has unsupported display driver", "the driver on the node and its libraries in the container do not fit"),
    ("no kernel image is available", "the program was built for other GPUs"),
    ("device kernel image is invalid", "the program was built for other GPUs"),
    ("compiled with an unsupported toolchain", "the program was built with a newer CUDA than the driver knows"),
    ("CUDA driver version is insufficient", "the driver is too old for the CUDA of the image"),
    ("forward compatibility was attempted", "the CUDA compatibility libraries of the image do not fit these GPUs"),
    ("invalid device ordinal", "a process was given a GPU that its container does not have"),
    ("failed to extend /dev/shm", "the container's /dev/shm is too small"),
    ("Error while creating shared memory segment /dev/shm", "the container's /dev/shm is too small"),
    ("ibv_reg_mr failed with error Cannot allocate memory", "the container's locked memory is limited (ulimit -l)"),
    ("ibv_reg_mr_iova2 failed with error Cannot allocate memory", "the container's locked memory is limited (ulimit -l)"),
    ("devices are busy or unavailable", "other processes use the GPUs"),
    ("device already in use", "other processes use the GPUs"),
    ("no CUDA-capable device is detected", "no GPU is visible in the container"),
    ("Permission denied (publickey", "ssh refused the launcher's key"),
    ("Could not resolve hostname", "a worker's host name cannot be resolved"),
    ("error while loading shared libraries", "a library is missing in the image"),
)
_MALIGN_WARNINGS: tuple[str, ...] = (
    "P2P is disabled between NVLINK connected GPUs",
    "cuMulticast",
    "ibv_modify_qp failed",
    "Net device count differs",
)


def read_library_version(section: Section, text: str) -> None:
    """`NCCL version 2.28.9+cuda13.0`, bare or as a debug message."""
    match = _RUNTIME.match(text)
    if match:
        section.versions.setdefault("nccl_runtime", match.group(1))


def read_warning(section: Section, text: str) -> None:
    """A line with ` NCCL WARN ` in it."""
    head, _mark, message = text.partition(" NCCL WARN ")
    match = HEAD.search(head)
    host = match.group(1) if match else None
    _read_setup_text(section, text)
    match = _COMPLETION.search(message)
    if match:
        peer, status, code = match.group(1), match.group(2), int(match.group(3))
        hca = _HCA.search(message, match.end())
        error = {"host": host, "peer": peer, "status": status or _COMPLETION_STATUS.get(code, f"status {code}"), "code": code}
        error["hca"] = hca.group(1) if hca else None
        if error not in section.ib_errors and len(section.ib_errors) < 1000:
            section.ib_errors.append(error)
        return
    event = _EVENT.search(message)
    if event:
        if not _QUIET_EVENT.search(event.group(3)):
            lines = section.link_events.setdefault((host, event.group(1)), [])
            if len(lines) < _MAX_EVIDENCE:
                lines.append(text.strip()[:_MAX_TEXT])
    elif any(words in message for words in _MALIGN_WARNINGS) and len(section.warnings) < _MAX_EVIDENCE:
        section.warnings.append(text.strip()[:_MAX_TEXT])


def _read_setup_text(section: Section, text: str) -> None:
    for words, meaning in _SETUP_TEXTS:
        if words in text:
            section.setup_faults.setdefault(meaning, text.strip()[:_MAX_TEXT])
    match = _MISMATCH.search(text)
    if match:
        section.version_mismatch[match.group(1)] = int(match.group(2))
        section.version_mismatch[match.group(3)] = int(match.group(4))


def read_other(section: Section, text: str, body: str) -> None:
    """A line that is no row, no comment and no debug line. text: as it was cleaned; body: without blanks around."""
    if body.startswith("NCCL version "):
        read_library_version(section, body)
    elif " is not a power of 2, skipping" in body:
        section.skipped = body[:_MAX_TEXT]
    elif "Test timeout" in body:
        match = _WATCHDOG.search(body)
        if match:
            section.watchdog = section.watchdog or (match.group(1), int(match.group(2)))
    elif " failure " in body:
        _read_failure(section, text, body)
    elif "Invalid number of GPUs" in body:
        match = _GPU_COUNT.search(body)
        if match:
            section.setup = {"requested_gpus": int(match.group(1)), "found_gpus": int(match.group(2)), "host": section.call_chain_host}
    elif _FALLBACK.search(body):
        if len(section.config_notes) < _MAX_EVIDENCE:
            section.config_notes.append(body[:_MAX_TEXT])
    else:
        _read_launcher(section, body)


def _read_failure(section: Section, text: str, body: str) -> None:
    match = _FAILURE.search(body)
    if match:
        words = re.split(r" \(run with NCCL_DEBUG| / ", match.group(3))[0].strip()
        words = words[:_MAX_TEXT]
        failure = {"kind": f"{match.group(2)} failure", "host": match.group(1), "text": words}
        if failure not in section.failures and len(section.failures) < 1000:
            section.failures.append(failure)
        _read_setup_text(section, body)
        return
    match = _CALL_CHAIN.match(text)
    if match:
        section.call_chain_host = section.call_chain_host or match.group(1)
        if section.setup and not section.setup.get("host"):
            section.setup["host"] = match.group(1)


def _read_launcher(section: Section, body: str) -> None:
    _read_setup_text(section, body)
    match = _PROCESS_NAME.search(body)
    if match and section.exit_rank is None:
        section.exit_rank = int(match.group(1))
    match = _EXIT_CODE.match(body)
    if match and section.said_exit_code is None:
        section.said_exit_code = int(match.group(1))
    match = _SIGNALLED.search(body)
    if match and section.exit_rank is None:
        section.exit_rank, section.exit_host = int(match.group(1)), match.group(2)
    match = _SIGNAL.search(body)
    if match and section.exit_rank is not None and section.exit_signal is None:
        section.exit_signal = int(match.group(1) or match.group(2))
