# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The one table of reasons. docs/reasons.md is written from it (`tools/write_reasons.py`).

To add a reason: add a row, run that script, and name it in `api_words`, `wordings`, `exit_codes` or a measurement.
"""

from __future__ import annotations

import typing as t

from .._common.shapes import Finding, Verdict

EFFECTS = {
    "convicts": "the named node is failed; the other members of its group are untested, not accused",
    "suspects": "the members of the group become suspect until isolation convicts or clears them",
    "untested": "not the nodes' fault: they stay untested",
    "note": "said in the report, changes no verdict",
}


class Reason(t.NamedTuple):
    """One reason.

    effect:     a key of `EFFECTS`.
    verdict:    of the group it decides: failed, incomplete (not proven) or error (could not be measured).
    kind:       hardware, data, transport, performance, setup, scheduling, infrastructure, log.
    retryable:  a new attempt may help.
    named_only: only the nodes it names are touched, the rest of the group stays untested.
    pause_s:    seconds before a new attempt: what a new attempt may help against seldom mends itself at once.
    """

    name: str
    effect: str
    verdict: Verdict
    kind: str
    retryable: bool
    meaning: str
    hint: str
    named_only: bool = False
    pause_s: float = 0.0


_TABLE = (
    Reason("HardwareFailureDetected", "convicts", "failed", "hardware", False,
           "A node's own evidence says that its hardware is broken: a health condition, a missing GPU, a failed diagnostic.",
           "Take the node out of service, check GPUs and links with dcgmi diag and nvidia-smi, then certify it again."),
    Reason("NodeLost", "convicts", "failed", "hardware", False,
           "The node stopped answering while it was under test.",
           "Look at the node's console, power and kernel log; a machine that dies under load is not ready."),
    Reason("DataCorruption", "suspects", "failed", "data", False,
           "A collective returned wrong elements. No bandwidth makes up for that.",
           "Test the members alone and in pairs to find the GPU or link; check ECC and Xid errors."),
    Reason("TransportFallback", "suspects", "failed", "transport", False,
           "The traffic did not use the expected transport, for example TCP instead of InfiniBand.",
           "Check the network devices and plugin inside the pod: device resources, mounts, NCCL_IB_HCA, NCCL_SOCKET_IFNAME."),
    Reason("ThresholdViolation", "suspects", "failed", "performance", False,
           "A complete measurement missed a criterion.",
           "Compare value and limit; run the diagnose scale to find the node, link or boundary."),
    Reason("Unstable", "suspects", "failed", "performance", False,
           "Samples of one measurement differ by more than a tenth, or an attempt failed and its repetition passed.",
           "Repeat the test; look for other load, thermal throttling and flapping links."),
    Reason("WorkloadFailed", "suspects", "failed", "infrastructure", True,
           "The workload ended with an error that names no other cause.",
           "Read the end of the launcher's log in the archive."),
    Reason("OOMKilled", "suspects", "failed", "infrastructure", False,
           "The kernel killed a container that exceeded its memory limit.",
           "Raise the memory of the test, or free memory on the node."),
    Reason("TimedOut", "suspects", "failed", "infrastructure", True,
           "The workload ran but did not end in its time: a hang or a very slow path.",
           "Look at the last lines of the log; a collective that hangs usually has one bad link or rank."),
    Reason("DeviceRejected", "suspects", "failed", "hardware", True,
           "The kubelet of the named node could not hand out the devices it advertises, or took some of them back for a while.",
           "Restart the device plugin on the node, check for GPUs that fell off the bus and for a stale allocation.",
           named_only=True, pause_s=10.0),
    Reason("SetupError", "untested", "error", "setup", False,
           "The test could not start as asked: bad arguments, a missing file, volume, claim or prerequisite, a wrong configuration.",
           "Fix what the message names; no node was judged."),
    Reason("LauncherFailed", "untested", "error", "setup", True,
           "The launcher could not reach its workers: name resolution, ssh or the MPI daemons.",
           "Check cluster DNS and network policies; a first failure of this kind is repeated.", pause_s=5.0),
    Reason("ImagePull", "untested", "error", "setup", False,
           "The image could not be pulled.",
           "Check its name, the registry, the pull secret and the mirror."),
    Reason("AdmissionDenied", "untested", "error", "setup", False,
           "The cluster refused to create the pods: pod security, a webhook or a policy.",
           "Read the refusal; label the namespace for the needed pod security level or ask the policy's owner."),
    Reason("Forbidden", "untested", "error", "setup", False,
           "Our user may not do what the test needs: a permission is missing, or was taken away while the run went on.",
           "Grant what the message names, as docs/rbac.yml does, and resume the run."),
    Reason("Quota", "untested", "error", "setup", False,
           "A resource quota forbids the pods.",
           "Raise the quota of the namespace or choose another one."),
    Reason("Unschedulable", "untested", "incomplete", "scheduling", False,
           "No node could take a pod: devices in use, taints, affinity.",
           "Free the devices or tolerate the taint named in the message."),
    Reason("Queued", "untested", "incomplete", "scheduling", False,
           "A queue or gang scheduler did not admit the workload in time.",
           "Wait for capacity, raise queue_timeout_s, or use another queue."),
    Reason("Evicted", "untested", "incomplete", "infrastructure", True,
           "The cluster removed a pod: node pressure, preemption, drain or a taint.",
           "Stop what evicts, or run in a maintenance window.", pause_s=10.0),
    Reason("NodeUnavailable", "untested", "incomplete", "infrastructure", True,
           "The node was not there for its test as it was planned: not Ready before it began, taken away, replaced, or restarted after it; "
           "or most nodes showed the same trouble at once.",
           "Certify it again when it is back for good; nothing was found against its hardware.", pause_s=2.0),
    Reason("LogUnavailable", "untested", "error", "log", True,
           "The workload ran, but its log could not be read from the cluster.",
           "Read the API server's words in the message: they say whether a permission, the kubelet or the connection was missing.",
           pause_s=10.0),
    Reason("LogIncomplete", "untested", "incomplete", "log", False,
           "The log breaks off or lacks a part: a partial result is never compared with a limit.",
           "Read the reason; raise the container log size limit or lower NCCL_DEBUG if the log was rotated."),
    Reason("NoMeasurement", "untested", "error", "log", False,
           "The workload ended, but its log holds no value that a criterion needs.",
           "Check that the image runs the expected program and that the criterion names a metric it prints."),
    Reason("NoCriterion", "untested", "incomplete", "setup", False,
           "The values were measured, but nothing says how good is good enough.",
           "Set criteria for this GPU, or allow_no_criteria to accept correctness, transport and completeness alone."),
    Reason("Untested", "untested", "incomplete", "scheduling", False,
           "The node took part in no complete test.",
           "Certify it again; the message says what kept it out."),
    Reason("Cancelled", "untested", "incomplete", "scheduling", False,
           "The run ended before this test was done: the total deadline, a limit or an interruption.",
           "Resume the run, or raise its deadline."),
    Reason("Warning", "note", "passed", "hardware", False,
           "The test passed, but what it says deserves a look.",
           "Read the warning; it does not fail the node."),
)  # fmt: skip

REASONS: dict[str, Reason] = {reason.name: reason for reason in _TABLE}


def reason_of(name: str | None) -> Reason:
    """The row of a reason; a name that is not in the table counts as WorkloadFailed, so that it cannot pass unseen."""
    return REASONS.get(name or "", REASONS["WorkloadFailed"])


def finding(
    reason: str, message: str, *, node: str | None = None, evidence: t.Iterable[str] = (), hint: str = "", note: bool = False
) -> Finding:
    """One finding of a group or node; node: None when no member is named, note: it changes no verdict."""
    row = reason_of(reason)
    is_note = note or row.effect == "note"
    return {"reason": row.name, "node": node, "message": message, "evidence": list(evidence), "hint": hint or row.hint, "note": is_note}


def mass_event(kind: str, count: int, size: int) -> str:
    """What is said of evidence that most nodes show at once."""
    look = "look at the agent that sets it, and at what was changed on all nodes"
    return f"{count} of {size} nodes show the same at once ({kind}): {look}; no node is accused"


def as_markdown() -> str:
    """The page docs/reasons.md."""
    lines = [
        "# Reasons",
        "",
        "Every verdict that is not `passed` has a reason from this table. It is written from",
        "`plugins/module_utils/_causes/reasons.py` by `tools/write_reasons.py`; change it there.",
        "",
        "What a reason does to nodes:",
        "",
        *(f"- `{name}`: {text}." for name, text in EFFECTS.items()),
        "",
        "A group's verdict is that of its first finding in the order correctness, transport, completeness, thresholds.",
        "",
        "Retried: whether the engine runs a group again whose attempt ended so, at most `bounds.retries` times, and after which pause.",
        "An attempt that was cancelled does not count.",
        "",
        "| reason | effect | group verdict | class | retried | meaning | what to do |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in _TABLE:
        effect = f"{row.effect} (named node only)" if row.named_only else row.effect
        again = "the others, without the node" if row.effect == "convicts" else "no"
        retried = again if not row.retryable else f"yes, after {row.pause_s:g} s" if row.pause_s else "yes"
        lines.append(f"| `{row.name}` | {effect} | {row.verdict} | {row.kind} | {retried} | {row.meaning} | {row.hint} |")
    return "\n".join(lines) + "\n"
