# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From what the API said about an attempt to its cause: one reason of the table, its words, and the nodes it names."""

from __future__ import annotations

import re
import typing as t

from .._common.shapes import Cause, HealthEvent, Outcome, PodRecord
from .api_words import reason_of_word
from .exit_codes import exit_of
from .reasons import reason_of
from .wordings import reason_of_wording

# When several pods tell different stories: causes before consequences.
PRIORITY = (
    "HardwareFailureDetected",
    "NodeLost",
    "DeviceRejected",
    "OOMKilled",
    "Evicted",
    "Quota",
    "Forbidden",
    "AdmissionDenied",
    "ImagePull",
    "SetupError",
    "LauncherFailed",
    "Unschedulable",
    "Queued",
    "NodeUnavailable",
    "LogUnavailable",
    "TimedOut",
    "WorkloadFailed",
)
# Reasons that say how an attempt ended rather than why; anything else that is known outweighs them.
_GENERIC = ("WorkloadFailed", "TimedOut", "Untested", "Cancelled", "NoMeasurement", "LogIncomplete")
# Of what was told about a succeeded attempt, only this contradicts it; it has recovered from everything else.
_DISTURBING = ("HardwareFailureDetected", "NodeLost", "Evicted", "LogUnavailable")
# What keeps pods from starting. Once all of them have run, a warning of this kind has mended itself: it explains nothing any more.
_OF_THE_START = frozenset({"Quota", "Forbidden", "AdmissionDenied", "ImagePull", "SetupError", "Unschedulable", "Queued", "DeviceRejected"})
# Lines of our own among the events: what could not be asked or kept. The words in them are about us, not about the attempt.
NOT_READ = "not read: "
_NEVER_RAN = {"cancelled": "the run ended before this attempt was done", "not_started": "the workload never started"}


class Said(t.NamedTuple):
    """What whoever ended an attempt said of it: an API word or a reason, words for people, the nodes it names."""

    reason: str | None = None
    message: str = ""
    nodes: tuple[str, ...] = ()


class _Story(t.NamedTuple):
    reason: str
    message: str
    nodes: tuple[str, ...]
    evidence: tuple[str, ...] = ()


def classify(
    outcome: Outcome,
    said: Said,
    *,
    exit_code: int | None = None,
    pods: t.Sequence[PodRecord] = (),
    events: t.Sequence[str] = (),
    health: t.Sequence[HealthEvent] = (),
    ran: bool = False,
) -> Cause | None:
    """The cause of an attempt's end; None when it succeeded and nothing in its pods or node health contradicts that.

    ran: all its pods have run, so that what was said of their start is over.
    """
    stories = _health(health) + _named(said) + _pods(pods) + _events(events, ran)
    if outcome == "succeeded":
        stories += _unread_log(pods)
    specific = [story for story in stories if story.reason not in _GENERIC]
    if outcome == "succeeded":
        specific = [story for story in specific if story.reason in _DISTURBING]
        if not specific:
            return None
    elif not specific:
        specific = [_generic(outcome, said, exit_code, stories)]
    first = min(specific, key=lambda story: PRIORITY.index(story.reason) if story.reason in PRIORITY else len(PRIORITY))
    same = [story for story in specific if story.reason == first.reason]
    lines = [line for story in same for line in (story.evidence or (story.message,)) if line]
    return {
        "reason": first.reason,
        "message": first.message,
        "nodes": sorted({node for story in same for node in story.nodes}),
        "evidence": list(dict.fromkeys(lines)),
        "retryable": reason_of(first.reason).retryable and (first.reason == "LogUnavailable" or outcome not in ("succeeded", "cancelled")),
    }


def _health(health: t.Sequence[HealthEvent]) -> list[_Story]:
    """Node-health expressions that became true; one that tells of a silent kubelet means a lost node."""
    stories = []
    for item in health:
        message = item["message"] or "node-health expression became true"
        lost = re.search(r"condition Ready=(False|Unknown)|NodeLost", message)
        evidence = tuple(item["evidence"]) or (message,)
        stories.append(_Story("NodeLost" if lost else "HardwareFailureDetected", message, (item["node"],), evidence))
    return stories


def _named(said: Said) -> list[_Story]:
    """The reason that was given, refined by its wording where the word alone is general."""
    reason = reason_of_word(said.reason)
    if reason == "Cancelled":  # it quotes what ended the whole run; of that only a lost permission is a cause of its own
        reason = "Forbidden" if reason_of_wording(said.message) == "Forbidden" else reason
    elif not reason or reason in _GENERIC:
        reason = reason_of_wording(said.message) or reason or reason_of_wording(said.reason)
    return [_Story(reason, said.message or str(said.reason), said.nodes)] if reason else []


def _pods(pods: t.Sequence[PodRecord]) -> list[_Story]:
    stories = []
    for pod in pods:
        word, node = pod["reason"], pod["node"]
        reason = reason_of_word(word) or reason_of_wording(word)
        if reason:
            where = f" on {node}" if node else ""
            text = f": {pod['message']}" if pod["message"] else ""
            stories.append(_Story(reason, f"pod {pod['name']}{where}: {word}{text}", (node,) if node else ()))
    return stories


def _unread_log(pods: t.Sequence[PodRecord]) -> list[_Story]:
    """A launcher's log that could not be read: without it a success proves nothing."""
    return [
        _Story("LogUnavailable", f"the log of {pod['name']} could not be read: {problem}", ())
        for pod in pods
        if pod["role"] == "launcher" and (problem := pod.get("log_problem"))
    ]


def _events(events: t.Sequence[str], ran: bool) -> list[_Story]:
    """Warnings; a cause found only there names no node, because events outlive what they tell of."""
    lines = [line for line in events if not line.startswith(("Normal ", NOT_READ))]
    told = [_Story(reason, line, ()) for line in lines for reason in [reason_of_wording(line)] if reason]
    return [story for story in told if not (ran and story.reason in _OF_THE_START)]


def _generic(outcome: Outcome, said: Said, exit_code: int | None, stories: list[_Story]) -> _Story:
    """The cause when nothing specific is known: by exit code, then by outcome."""
    told = next(iter(stories), None)
    if outcome in ("cancelled", "not_started"):
        if told and told.reason in ("Untested", "Cancelled"):
            return told
        words = told.message if told else said.message or _NEVER_RAN[outcome]
        return _Story("Cancelled" if outcome == "cancelled" else "Untested", words, ())
    if outcome == "timed_out":
        return told if told and told.reason == "TimedOut" else _Story("TimedOut", said.message or "time ran out", ())
    known = exit_of(exit_code)
    if known:
        return _Story(known.reason, known.text, (), (said.message,) if said.message else ())
    if told:
        return told
    words = f"the workload failed with exit code {exit_code}" if exit_code is not None else "the workload failed"
    return _Story("WorkloadFailed", said.message or words, ())
