# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Words of the Kubernetes API (reasons of pods, containers, conditions and events), and the reason each of them means.

The only table of such words: the engine reads from it what a waiting container may still become, the classification what ended an attempt.
"""

from __future__ import annotations

import enum
import re
import typing as t

from .reasons import REASONS


class Waiting(enum.Enum):
    """What patience does for a container that waits with a word."""

    FATAL = "no patience mends it"
    TRANSIENT = "it may mend itself within the grace time"


class Word(t.NamedTuple):
    """reason: of the table of reasons. waiting: for words that are reasons of waiting containers, else None."""

    reason: str
    waiting: Waiting | None = None


API_WORDS: dict[str, Word] = {
    "ErrImagePull": Word("ImagePull", Waiting.TRANSIENT),
    "ImagePullBackOff": Word("ImagePull", Waiting.TRANSIENT),
    "ImageInspectError": Word("ImagePull", Waiting.TRANSIENT),
    "RegistryUnavailable": Word("ImagePull", Waiting.TRANSIENT),
    "SignatureValidationFailed": Word("ImagePull", Waiting.TRANSIENT),
    "InvalidImageName": Word("ImagePull", Waiting.FATAL),
    "ErrImageNeverPull": Word("ImagePull", Waiting.FATAL),
    "CreateContainerConfigError": Word("SetupError", Waiting.TRANSIENT),
    "CreateContainerError": Word("SetupError", Waiting.TRANSIENT),
    "RunContainerError": Word("SetupError", Waiting.TRANSIENT),
    "PostStartHookError": Word("SetupError", Waiting.TRANSIENT),
    "ContainerCannotRun": Word("SetupError"),
    "StartError": Word("SetupError"),
    "FailedMount": Word("SetupError"),
    "FailedAttachVolume": Word("SetupError"),
    "FailedCreatePodSandBox": Word("SetupError"),
    "FailedPrepareDynamicResources": Word("SetupError"),
    # The kubelet found that the pod does not fit the labels of its node: a change of labels, not of the machine.
    "NodeAffinity": Word("SetupError"),
    "OOMKilled": Word("OOMKilled"),
    "Evicted": Word("Evicted"),
    "Preempting": Word("Evicted"),
    "Preempted": Word("Evicted"),
    "PreemptionByScheduler": Word("Evicted"),
    "PreemptionByKubeScheduler": Word("Evicted"),
    # Taints tell of dead nodes, but an operator's own taint evicts from a healthy one just so; the node itself says which it was.
    "DeletionByTaintManager": Word("Evicted"),
    "TaintManagerEviction": Word("Evicted"),
    "EvictionByEvictionAPI": Word("Evicted"),
    "DeletionByPodGC": Word("Evicted"),
    # Kubelets that are told to shut the machine down say one of these four; somebody wanted that.
    "TerminationByKubelet": Word("Evicted"),
    "NodeShutdown": Word("Evicted"),
    "Shutdown": Word("Evicted"),
    "Terminated": Word("Evicted"),
    "NodeLost": Word("NodeLost"),
    # A kubelet that came back and found no container any more: after an eviction, a drain, a restart. It says nothing of the cause.
    "ContainerStatusUnknown": Word("WorkloadFailed"),
    "UnexpectedAdmissionError": Word("DeviceRejected"),
    "TopologyAffinityError": Word("DeviceRejected"),
    "Unschedulable": Word("Unschedulable"),
    "FailedScheduling": Word("Unschedulable"),
    "SchedulingGated": Word("Queued"),
    "Suspended": Word("Queued"),
    "QuotaReserved": Word("Queued"),
    "DeadlineExceeded": Word("TimedOut"),
    "PodSecurity": Word("AdmissionDenied"),
    "BackoffLimitExceeded": Word("WorkloadFailed"),
    "PodFailurePolicy": Word("WorkloadFailed"),
    "CrashLoopBackOff": Word("WorkloadFailed"),
    "Error": Word("WorkloadFailed"),
}

# Kubelets write the resource behind the word: OutOfcpu, OutOfnvidia.com/gpu; and Preempting, Preempted.
PREFIXES: tuple[tuple[str, str], ...] = (("OutOf", "Unschedulable"), ("Preempt", "Evicted"))
# A resource with a domain is a device; CPU, memory and places for pods were merely taken by others in the meantime.
_OUT_OF_DEVICE = re.compile(r"OutOf\S+/\S+")

# Words with which a kubelet or the control plane refuses or ends a whole pod (its status reason).
POD_WORDS = frozenset(
    {"UnexpectedAdmissionError", "TopologyAffinityError", "Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "NodeAffinity"}
)


def reason_of_word(word: str | None) -> str:
    """The reason an API word, or a reason's own name, stands for; "" when it is unknown."""
    if not word:
        return ""
    if word in REASONS:
        return word
    if word in API_WORDS:
        return API_WORDS[word].reason
    if _OUT_OF_DEVICE.fullmatch(word):
        return "DeviceRejected"
    return next((reason for prefix, reason in PREFIXES if word.startswith(prefix)), "")


def refusal_of(status_reason: str | None) -> str:
    """The reason of a pod that was refused or ended as a whole, by its status reason; "" for any other pod."""
    word = status_reason or ""
    refused = word in POD_WORDS or any(word.startswith(prefix) for prefix, _reason in PREFIXES)
    return reason_of_word(word) if refused else ""


def waiting_of(word: str | None) -> Waiting | None:
    """What patience does for a container that waits with this word; None for words of ordinary waiting."""
    known = API_WORDS.get(word or "")
    return known.waiting if known else None
