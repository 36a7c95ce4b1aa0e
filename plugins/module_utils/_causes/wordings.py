# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Wordings of Kubernetes, runtimes and launchers, and the reason each of them means. Messages have no codes, so their words must do."""

from __future__ import annotations

import re

# Wordings, tried in order; the first that matches decides. Each begins and ends at a word: "supported" is no word of orted.
WORDINGS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (reason, re.compile(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])", re.IGNORECASE))
    for reason, pattern in (
        ("Quota", r"exceeded quota|failed quota|insufficient quota"),
        ("Forbidden", r"is forbidden: User .* cannot \w+ resource|our user lacks \d+ permissions?"),
        ("AdmissionDenied", r"violates PodSecurity|failed calling webhook|denied the request|admission webhook"
                            r"|unable to validate against any security context constraint|is forbidden"),
        ("ImagePull", r"ErrImagePull|ImagePullBackOff|Back-off pulling image|Failed to pull image|manifest unknown|InvalidImageName"
                      r"|couldn't parse image (name|reference)|pull access denied"),
        ("DeviceRejected", r"UnexpectedAdmissionError|Allocate failed due to|OutOf\S*/\S+"),
        ("Evicted", r"Evicted|TaintManagerEviction|DeletionByTaintManager|Preempt(ed|ing)?|low on resources?"),
        ("OOMKilled", r"OOMKilled|OOMKilling|exceeded its memory limit"),
        ("LauncherFailed", r"Could not resolve hostname|ssh: connect to host|Temporary failure in name resolution|Name or service not known"
                           r"|Permission denied \(publickey|Host key verification failed|kex_exchange_identification"
                           r"|(ORTE|PRTE)_ERROR_LOG|(ORTE|PRTE|prted|orted)\b.*\b(unable|daemons?|lost|fail(ed|s|ure)?|errors?)"
                           r"|unable to (reliably )?start the daemons?"),
        ("Unschedulable", r"FailedScheduling|\d+/\d+ nodes are available|Insufficient \S+|tasks in gang unschedulable"
                          r"|PodGroup.*not ready|OutOf(cpu|memory|pods|ephemeral-storage)"),
        ("Queued", r"waiting for (quota|admission)|workload is (suspended|not admitted)"),
        ("SetupError", r"FailedMount|FailedAttachVolume|FailedCreatePodSandBox|CreateContainerConfigError|CreateContainerError"
                       r"|RunContainerError|MountVolume\.\w+ failed|(secret|configmap) \"?\S+\"? not found|executable file not found"
                       r"|could not find the requested resource|cannot allocate all claims"),
        ("TimedOut", r"DeadlineExceeded|active on the node longer than the specified deadline"),
    )
)  # fmt: skip


def reason_of_wording(text: str | None) -> str:
    """The reason a message's wording stands for, or ""."""
    return next((reason for reason, pattern in WORDINGS if text and pattern.search(text)), "")


def reason_of_refusal(status: int | None, message: str) -> str:
    """Why an API server refused our objects: Quota, Forbidden, AdmissionDenied or SetupError. None of these is a node's fault."""
    worded = reason_of_wording(message)
    if worded in ("Quota", "Forbidden", "AdmissionDenied"):
        return worded
    return "AdmissionDenied" if status == 403 or "admission" in message.lower() else "SetupError"
