# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From what the API said about an attempt to one reason of the table, its words and the nodes it names."""

from __future__ import annotations

import re
import typing as t

from .reasons import REASONS, reason_of

# Words of the Kubernetes API (pod, container, condition and event reasons) and the reason each of them means.
API_WORDS: dict[str, str] = {
    "ErrImagePull": "ImagePull",
    "ImagePullBackOff": "ImagePull",
    "InvalidImageName": "ImagePull",
    "ErrImageNeverPull": "ImagePull",
    "ImageInspectError": "ImagePull",
    "RegistryUnavailable": "ImagePull",
    "SignatureValidationFailed": "ImagePull",
    "CreateContainerConfigError": "SetupError",
    "CreateContainerError": "SetupError",
    "RunContainerError": "SetupError",
    "ContainerCannotRun": "SetupError",
    "StartError": "SetupError",
    "PostStartHookError": "SetupError",
    "ContainerStatusUnknown": "NodeLost",
    "FailedMount": "SetupError",
    "FailedAttachVolume": "SetupError",
    "FailedCreatePodSandBox": "SetupError",
    "FailedPrepareDynamicResources": "SetupError",
    "OOMKilled": "OOMKilled",
    "Evicted": "Evicted",
    "Preempting": "Evicted",
    "Preempted": "Evicted",
    "PreemptionByScheduler": "Evicted",
    "PreemptionByKubeScheduler": "Evicted",
    "DeletionByTaintManager": "Evicted",
    "TaintManagerEviction": "Evicted",
    "EvictionByEvictionAPI": "Evicted",
    "DeletionByPodGC": "Evicted",
    "TerminationByKubelet": "Evicted",
    "NodeShutdown": "Evicted",
    "NodeLost": "NodeLost",
    "NodeNotReady": "NodeLost",
    "UnexpectedAdmissionError": "DeviceRejected",
    "TopologyAffinityError": "DeviceRejected",
    "NodeAffinity": "DeviceRejected",
    "Unschedulable": "Unschedulable",
    "FailedScheduling": "Unschedulable",
    "SchedulingGated": "Queued",
    "Suspended": "Queued",
    "QuotaReserved": "Queued",
    "DeadlineExceeded": "TimedOut",
    "PodSecurity": "AdmissionDenied",
    "BackoffLimitExceeded": "WorkloadFailed",
    "PodFailurePolicy": "WorkloadFailed",
    "CrashLoopBackOff": "WorkloadFailed",
    "Error": "WorkloadFailed",
}

# Wordings, tried in order; the first that matches decides.
WORDINGS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (reason, re.compile(pattern, re.IGNORECASE))
    for reason, pattern in (
        ("Quota", r"exceeded quota|failed quota|insufficient quota"),
        ("AdmissionDenied", r"violates PodSecurity|failed calling webhook|denied the request|admission webhook"
                            r"|unable to validate against any security context constraint|is forbidden"),
        ("ImagePull", r"ErrImagePull|ImagePullBackOff|Back-off pulling image|Failed to pull image|manifest unknown|InvalidImageName"
                      r"|couldn't parse image (name|reference)|pull access denied"),
        ("DeviceRejected", r"UnexpectedAdmissionError|Allocate failed due to|OutOf(cpu|memory|pods|\S*/\S+)|Pod was rejected"),
        ("NodeLost", r"NodeNotReady|NodeLost|node (is )?(not ready|lost|unreachable)|Kubelet stopped posting"),
        ("Evicted", r"\bEvicted\b|TaintManagerEviction|DeletionByTaintManager|\bPreempt(ed|ing)?\b|low on resource"),
        ("OOMKilled", r"OOMKilled|OOMKilling|exceeded its memory limit"),
        ("LauncherFailed", r"Could not resolve hostname|ssh: connect to host|Temporary failure in name resolution|Name or service not known"
                           r"|Permission denied \(publickey|Host key verification failed|kex_exchange_identification"
                           r"|(ORTE|PRTE|prted|orted)\b.*(unable|daemon|lost|fail|error)|unable to (reliably )?start the daemons?"),
        ("Unschedulable", r"FailedScheduling|\d+/\d+ nodes are available|Insufficient \S+|tasks in gang unschedulable|PodGroup.*not ready"),
        ("Queued", r"waiting for (quota|admission)|workload is (suspended|not admitted)"),
        ("SetupError", r"FailedMount|FailedAttachVolume|FailedCreatePodSandBox|CreateContainerConfigError|CreateContainerError"
                       r"|RunContainerError|MountVolume\.\w+ failed|(secret|configmap) \"?\S+\"? not found|executable file not found"
                       r"|could not find the requested resource|cannot allocate all claims"),
        ("TimedOut", r"DeadlineExceeded|active on the node longer than the specified deadline"),
    )
)  # fmt: skip

# Exit codes that say more than "failed". 128 + n is signal n.
EXIT_CODES: dict[int, tuple[str, str]] = {
    124: ("TimedOut", "the program was stopped by its time limit (exit 124)"),
    126: ("SetupError", "the program could not be executed (exit 126)"),
    127: ("SetupError", "the program was not found in the image (exit 127)"),
    128: ("SetupError", "the container could not start its program (exit 128)"),
    134: ("WorkloadFailed", "the program aborted (exit 134, SIGABRT)"),
    135: ("WorkloadFailed", "the program hit a bus error (exit 135, SIGBUS)"),
    136: ("WorkloadFailed", "the program hit an arithmetic error (exit 136, SIGFPE)"),
    137: ("WorkloadFailed", "the program was killed (exit 137, SIGKILL) and the API does not say by whom"),
    139: ("WorkloadFailed", "the program crashed (exit 139, SIGSEGV)"),
    143: ("WorkloadFailed", "the program was told to end (exit 143, SIGTERM)"),
}

# When several pods tell different stories: causes before consequences.
PRIORITY = (
    "HardwareFailureDetected",
    "NodeLost",
    "DeviceRejected",
    "OOMKilled",
    "Evicted",
    "Quota",
    "AdmissionDenied",
    "ImagePull",
    "SetupError",
    "LauncherFailed",
    "Unschedulable",
    "Queued",
    "TimedOut",
    "WorkloadFailed",
)
_GENERIC = ("WorkloadFailed", "TimedOut", "Untested", "Cancelled", "NoMeasurement", "LogIncomplete")


class _Cause(t.NamedTuple):
    reason: str
    message: str
    nodes: tuple[str, ...]
    evidence: tuple[str, ...] = ()


def classify_attempt(attempt: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The cause of an attempt's end.

    attempt: an entry of `attempts` in an observation (docs/data_shapes.md).

    Returns {reason, message, hint, nodes, retryable, evidence}. `reason` is None when the attempt succeeded and
    nothing in its pods, events or node health contradicts that.
    """
    succeeded = attempt.get("outcome") == "succeeded"
    causes = _health(attempt) + _named(attempt) + _pods(attempt) + _events(attempt)
    specific = [cause for cause in causes if cause.reason not in _GENERIC]
    if succeeded:
        # A succeeded attempt is only contradicted by what happens to pods and nodes, not by events it recovered from.
        disturbing = ("HardwareFailureDetected", "NodeLost", "Evicted")
        specific = [cause for cause in specific if cause.reason in disturbing]
        if not specific:
            return _result(_Cause("", "", ()))
    elif not specific:
        specific = [_outcome(attempt, causes)]
    first = min(specific, key=lambda cause: PRIORITY.index(cause.reason) if cause.reason in PRIORITY else len(PRIORITY))
    same = [cause for cause in specific if cause.reason == first.reason]
    nodes = tuple(sorted({node for cause in same for node in cause.nodes}))
    evidence = tuple(dict.fromkeys(line for cause in same for line in (cause.evidence or (cause.message,)) if line))
    return _result(_Cause(first.reason, first.message, nodes, evidence))


def reason_from_word(word: str | None) -> str:
    """The reason an API word or a reason's own name stands for, or "" when it is unknown."""
    if not word:
        return ""
    if word in REASONS:
        return word
    if word.startswith("OutOf"):
        return "DeviceRejected"
    return API_WORDS.get(word, "")


def reason_from_text(text: str | None) -> str:
    """The reason a message's wording stands for, or ""."""
    return next((reason for reason, pattern in WORDINGS if text and pattern.search(text)), "")


def _result(cause: _Cause) -> dict[str, t.Any]:
    row = reason_of(cause.reason) if cause.reason else None
    return {
        "reason": cause.reason or None,
        "message": cause.message,
        "hint": row.hint if row else "",
        "nodes": list(cause.nodes),
        "retryable": bool(row and row.retryable),
        "evidence": list(cause.evidence),
    }


def _health(attempt: t.Mapping[str, t.Any]) -> list[_Cause]:
    """Node-health expressions that became true; one that tells of a silent kubelet means a lost node."""
    causes = []
    for item in attempt.get("health") or []:
        message = str(item.get("message") or "node-health expression became true")
        lost = re.search(r"condition Ready=(False|Unknown)|NodeLost", message)
        evidence = tuple(str(line) for line in item.get("evidence") or [message])
        causes.append(_Cause("NodeLost" if lost else "HardwareFailureDetected", message, (str(item.get("node")),), evidence))
    return causes


def _named(attempt: t.Mapping[str, t.Any]) -> list[_Cause]:
    """The cause the engine wrote down, refined by its wording when the word alone is general."""
    word, message = attempt.get("reason"), str(attempt.get("message") or "")
    reason = reason_from_word(word)
    if not word and not message:
        return []
    if not reason or reason in _GENERIC:
        reason = reason_from_text(message) or reason or reason_from_text(word)
    if not reason:
        return []
    return [_Cause(reason, message or str(word), tuple(attempt.get("nodes") or ()))]


def _pods(attempt: t.Mapping[str, t.Any]) -> list[_Cause]:
    causes = []
    for pod in attempt.get("pods") or []:
        reason = reason_from_word(pod.get("reason")) or reason_from_text(pod.get("reason"))
        if reason:
            where = f" on {pod['node']}" if pod.get("node") else ""
            said = f": {pod['message']}" if pod.get("message") else ""
            message = f"pod {pod.get('name')}{where}: {pod.get('reason')}{said}"
            causes.append(_Cause(reason, message, (pod["node"],) if pod.get("node") else ()))
    return causes


def _events(attempt: t.Mapping[str, t.Any]) -> list[_Cause]:
    """Warnings; a cause found only there names no node, because events outlive what they tell of."""
    lines = [str(line) for line in attempt.get("events") or [] if not str(line).startswith("Normal ")]
    return [_Cause(reason, line, ()) for line in lines for reason in [reason_from_text(line)] if reason]


def _outcome(attempt: t.Mapping[str, t.Any], causes: list[_Cause]) -> _Cause:
    """The cause when nothing specific is known: by exit code, then by outcome."""
    outcome, code = attempt.get("outcome"), attempt.get("exit_code")
    named = next(iter(causes), None)
    if outcome in ("cancelled", "not_started"):
        if named and named.reason in ("Untested", "Cancelled"):
            return named
        words = {"cancelled": "the run ended before this attempt was done", "not_started": "the workload never started"}
        said = named.message if named else str(attempt.get("message") or words[outcome])
        return _Cause("Cancelled" if outcome == "cancelled" else "Untested", said, ())
    if outcome == "timed_out":
        return named if named and named.reason == "TimedOut" else _Cause("TimedOut", str(attempt.get("message") or "time ran out"), ())
    if code in EXIT_CODES:
        reason, message = EXIT_CODES[code]
        return _Cause(reason, message, (), tuple(line for line in (attempt.get("message"),) if line))
    if named:
        return named
    exit_text = f"the workload failed with exit code {code}" if code is not None else "the workload failed"
    return _Cause("WorkloadFailed", str(attempt.get("message") or exit_text), ())
