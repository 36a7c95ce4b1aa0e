# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the machines that were tested are the machines that are certified: who ran, and what has become of each since.

A measurement is evidence for a node only if a pod ran on it, and only while it is the same machine, without a restart, with all its GPUs.
"""

from __future__ import annotations

import typing as t

from .._causes.reasons import finding, mass_event, reason_of
from .._common.hostlist import fold
from .._common.shapes import AttemptRecord, Finding, Illness, NodeSeen, NodeState
from .._common.times import seconds_between

# A cluster marks a node as silent 40 to 50 s after its last sign of life, and looks every few seconds; some are told to wait longer.
NOTICE_S = 120.0
_WELL: Illness = {"message": "", "evidence": [], "kinds": []}

LastLook: t.TypeAlias = t.Mapping[str, NodeState | None]


def machine_findings(
    nodes: t.Sequence[str], attempts: t.Sequence[AttemptRecord], look: LastLook | None, *, unseen: bool = False
) -> list[Finding]:
    """One finding at most for each member: what keeps the measurement of its group from being evidence for it.

    attempts: of the group, oldest first. look: the nodes after all tests of the batch. unseen: somebody wanted to look, and could not.
    """
    found = []
    for node in nodes:
        seen = [(attempt, item) for attempt in attempts for item in attempt.get("machines") or () if item["node"] == node]
        told = (
            _condemned(node, attempts[:-1])
            or became(node, seen, look, {len(seen) - 1})
            or _short_for_a_while(node, seen)
            or _left_out(node, attempts)
            or _absent(node, attempts)
            or _unseen(node, attempts, unseen)
        )
        if told:
            found.append(told)
    return found


def left_out(attempts: t.Sequence[AttemptRecord]) -> set[str]:
    """The members that the last attempt of a group began without: whatever it ended with is none of theirs."""
    return {item["node"] for item in attempts[-1].get("excluded") or ()} if attempts else set()


def _condemned(node: str, attempts: t.Sequence[AttemptRecord]) -> Finding | None:
    """A member that an earlier attempt has condemned stays so, whatever the others proved without it."""
    for attempt in attempts:
        cause = attempt["cause"]
        if cause and attempt["outcome"] != "cancelled" and node in cause["nodes"] and reason_of(cause["reason"]).effect == "convicts":
            own = [line for line in cause["evidence"] if node in line] or cause["evidence"]
            message = next((line for line in own if node in line), cause["message"])
            return finding(cause["reason"], message, node=node, evidence=own)
    return None


def _left_out(node: str, attempts: t.Sequence[AttemptRecord]) -> Finding | None:
    """A member that the last attempt began without."""
    for item in (attempts[-1].get("excluded") or ()) if attempts else ():
        if item["node"] == node:
            return finding(item["reason"], item["message"], node=node, evidence=[item["message"]])
    return None


def _absent(node: str, attempts: t.Sequence[AttemptRecord]) -> Finding | None:
    """A member on which no pod of a successful attempt ran. Logs from anywhere do not say where they come from."""
    last = attempts[-1] if attempts else None
    if last is None or last["outcome"] != "succeeded":
        return None
    ran = sorted({str(pod["node"]) for pod in last["pods"] if pod["node"] and _ran(pod)})
    if node in ran or not ran:
        return None
    return finding("Untested", f"no pod of the test ran on this node; they ran on {fold(ran)}", node=node)


def _ran(pod: t.Mapping[str, t.Any]) -> bool:
    return pod["exit_code"] is not None or pod["phase"] in ("Running", "Succeeded")


Seen: t.TypeAlias = t.Sequence[tuple[AttemptRecord, NodeSeen]]


def became(node: str, seen: Seen, look: LastLook | None, bearing: t.Collection[int]) -> Finding | None:
    """What became of a node that was tested.

    seen: its attempts, in order of time. bearing: the places in it of those whose measurement counts. look: the nodes after all of them.
    """
    if not seen:
        return None
    return (
        _replaced(node, seen, look, bearing)
        or _rebooted(node, seen, look, bearing)
        or _ill(node, look)
        or _lost_gpus(node, seen, look)
        or _silent(node, seen, look)
    )


def _replaced(node: str, seen: Seen, look: LastLook | None, bearing: t.Collection[int]) -> Finding | None:
    for index in sorted(bearing):
        before = seen[index][1]["before"]
        for later in _later(node, seen, index, look):
            if before and _differ(before["uid"], later["uid"]):
                uids = f"Node UID {before['uid']}, then {later['uid']}"
                return finding(
                    "NodeUnavailable", f"another machine has taken its name since its test began ({uids})", node=node, evidence=[uids]
                )
    if look is not None and node in look and look[node] is None:
        return finding("NodeUnavailable", "its Node object was deleted from the cluster", node=node)
    return None


def _rebooted(node: str, seen: Seen, look: LastLook | None, bearing: t.Collection[int]) -> Finding | None:
    """A restart under test is the machine's own failure, unless it was announced: by a mark on the node, or by evicting the workload.

    One that shows later explains an attempt that failed without a cause of its own; after a success it makes the evidence old.
    """
    for index, (attempt, item) in enumerate(seen):
        before, after = item["before"], item["after"]
        if not before:
            continue
        cause = attempt["cause"]
        unexplained = cause is not None and reason_of(cause["reason"]).effect in ("suspects", "convicts")
        mark = before.get("leaving") or (after.get("leaving") if after else None)
        under_test = _has_run(attempt) and (cause is None or unexplained) and not mark
        if under_test and after and _differ(before["boot_id"], after["boot_id"]):
            return _reboot("NodeLost", "it restarted under test", node, before, after)
        for later in _later(node, seen, index, look):
            if not _differ(before["boot_id"], later["boot_id"]):
                continue
            if under_test and unexplained:
                return _reboot(
                    "NodeLost", f"it restarted under test: attempt {attempt['attempt']} ended with {_name(cause)}", node, before, later
                )
            if index in bearing:
                words = f", announced by {mark}" if mark else ""
                return _reboot("NodeUnavailable", f"it restarted after its test had begun{words}", node, before, later)
    return None


def _name(cause: t.Mapping[str, t.Any] | None) -> str:
    return str(cause["reason"]) if cause else "success"


def _reboot(reason: str, words: str, node: str, before: NodeState, later: NodeState) -> Finding:
    boots = f"boot ID {before['boot_id']}, then {later['boot_id']}"
    return finding(reason, f"{words} ({boots})", node=node, evidence=[boots])


def _ill(node: str, look: LastLook | None) -> Finding | None:
    """What condemns a node by its own evidence when all is over, unless most nodes show it."""
    state = look.get(node) if look else None
    told = state.get("illness") if state else None
    if not told:
        return None
    states = [item for item in (look or {}).values() if item]
    counts = {kind: sum(kind in (item.get("illness") or _WELL)["kinds"] for item in states) for kind in told["kinds"]}
    shared = [kind for kind, count in counts.items() if count > 1 and 2 * count > len(states)]
    if len(shared) < len(counts):
        return finding("HardwareFailureDetected", told["message"], node=node, evidence=told["evidence"])
    text = "; ".join(mass_event(kind, counts[kind], len(states)) for kind in shared)
    return finding("NodeUnavailable", text, node=node, evidence=told["evidence"])


def _lost_gpus(node: str, seen: Seen, look: LastLook | None) -> Finding | None:
    had = _had(seen)
    states = [state for index in range(len(seen)) for state in _later(node, seen, index, look)]
    now = states[-1]["gpus"] if states else None
    if now is not None and now < had and _all_gone_on_most(look):
        return finding("NodeUnavailable", "most nodes offer no GPU since its test: look at the device plugin first", node=node)
    if now is not None and now < had:
        text = f"it offers {now} GPUs, it offered {had} when its test began"
        return finding("HardwareFailureDetected", text, node=node, evidence=[f"allocatable GPUs: {had}, then {now}"])
    return None


def _short_for_a_while(node: str, seen: Seen) -> Finding | None:
    had, fewest = _had(seen), min((item["fewest_gpus"] for _attempt, item in seen if item["fewest_gpus"]), default=None)
    if fewest is None or fewest >= had:
        return None
    text = f"it offered {fewest} of its {had} GPUs for a while under test"
    return finding("DeviceRejected", text, node=node, evidence=[f"allocatable GPUs: {had}, {fewest} under test"])


def _had(seen: Seen) -> int:
    return max((item["before"]["gpus"] for _attempt, item in seen if item["before"] and item["before"]["gpus"] is not None), default=0)


def _all_gone_on_most(look: LastLook | None) -> bool:
    """Whether most nodes offer no GPU at all: what all have in common is not their hardware."""
    states = [state for state in (look or {}).values() if state]
    return len(states) > 1 and 2 * sum(state["gpus"] == 0 for state in states) > len(states)


def _silent(node: str, seen: Seen, look: LastLook | None) -> Finding | None:
    """A node that does not answer when all is over. It died under test where an attempt failed for no cause of its own, the kubelet never
    told how its pod ended, and the silence was noticed as soon as a cluster notices one; unless its departure was announced."""
    state = look.get(node) if look else None
    if state is None or state["trouble"] is None:
        return None
    if mark := state.get("leaving"):
        return finding("NodeUnavailable", f"it was taken away ({state['trouble']}; announced by {mark})", node=node)
    for attempt, _item in seen:
        cause = attempt["cause"]
        unexplained = cause is not None and reason_of(cause["reason"]).effect == "suspects"
        unended = [pod["name"] for pod in attempt["pods"] if pod["node"] == node and pod["exit_code"] is None]
        if _has_run(attempt) and unexplained and unended and _noticed_in_time(attempt, state):
            text = f"it was lost during attempt {attempt['attempt']}, which ended with {_name(cause)} ({state['trouble']})"
            return finding("NodeLost", text, node=node, evidence=[f"how {name} ended was never told" for name in unended])
    return finding("NodeUnavailable", f"it was not Ready when its test was over ({state['trouble']})", node=node)


def _has_run(attempt: AttemptRecord) -> bool:
    """Whether the test had begun: all pods were seen running, or the launcher came to an end before a kubelet could tell of its own."""
    return attempt["started"] is not None or any(pod["role"] == "launcher" and pod["exit_code"] is not None for pod in attempt["pods"])


def _noticed_in_time(attempt: AttemptRecord, state: NodeState) -> bool:
    """Whether the silence may have begun while the attempt ran; what is not known speaks against nothing."""
    since, end = state.get("since"), attempt["finished"]
    return not since or not end or seconds_between(end, since) <= NOTICE_S


def _unseen(node: str, attempts: t.Sequence[AttemptRecord], unseen: bool) -> Finding | None:
    if not unseen or not attempts or attempts[-1]["outcome"] != "succeeded":
        return None
    return finding("NodeUnavailable", "nobody could look at it after its test: contact with the cluster was lost", node=node)


def _later(node: str, seen: Seen, index: int, look: LastLook | None) -> list[NodeState]:
    """What the node was after the beginning of an attempt, in order of time."""
    states = [seen[index][1]["after"]]
    for _attempt, item in seen[index + 1 :]:
        states += [item["before"], item["after"]]
    if look is not None:
        states.append(look.get(node))
    return [state for state in states if state]


def _differ(one: str | None, other: str | None) -> bool:
    return bool(one and other and one != other)
