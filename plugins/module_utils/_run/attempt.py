# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""One execution of a workload, and the rules by which it ends: time and facts come in, a decision goes out. No I/O.

Every way out of waiting and running is a Decision.
"""

from __future__ import annotations

import dataclasses
import enum
import typing as t

from .._causes.api_words import Waiting, reason_of_word, refusal_of, waiting_of
from .._causes.exit_codes import KILLED
from .._causes.reasons import reason_of
from .._common.hostlist import fold
from .._common.shapes import HealthEvent, NodeState, Outcome, Untested
from .._common.words import counted
from .._workload.pods import Ends
from .._workload.shell_parts import SETUP_ERROR, SETUP_EXIT_CODE
from .contact import News
from .projections import Facts
from .steps import Target

# Hundreds of workers that end because one failed have nothing to say; see Attempt.pods_to_log.
MAX_WORKER_LOGS = 8
# Objects about which events are asked: the Job, and this many of its pods.
MAX_PODS_ASKED = 8
QUIET = News()


class State(enum.Enum):
    """Where an attempt stands. The engine has one method for each way from one to the next."""

    CREATING = "creating"
    WAITING = "waiting"  # for its pods to run
    RUNNING = "running"
    COLLECTING = "collecting"  # its end is decided
    REMOVING = "removing"
    RELEASING = "releasing"  # its pods go, then its nodes are free
    DONE = "done"


@dataclasses.dataclass
class Decision:
    """How an attempt ended. reason is None where only the log can tell; nodes are those the cause names."""

    outcome: Outcome
    reason: str | None = None
    message: str = ""
    nodes: list[str] = dataclasses.field(default_factory=list)
    exit_code: int | None = None
    by_clock: bool = False  # because nothing was heard for long: it holds only if the cluster, asked once more, says nothing else


@dataclasses.dataclass
class Attempt:
    """The record of one attempt while it lives. Times are seconds of the engine's clock; None: not yet."""

    group: str
    nodes: list[str]
    number: int
    name: str
    repeat: int = 1  # of its group
    env: dict[str, str] = dataclasses.field(default_factory=dict)  # set or replaced in the template for this group alone
    ends: Ends = "first"
    state: State = State.CREATING
    uid: str | None = None
    created_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    queued: bool = False
    job: Facts | None = None
    pods: dict[str, Facts] = dataclasses.field(default_factory=dict)
    removed: list[str] = dataclasses.field(default_factory=list)  # pods, or the Job, that somebody else deleted; see see_pod
    trouble_since: dict[str, float] = dataclasses.field(default_factory=dict)  # by pod: when it began to wait with trouble
    under_way: set[t.Any] = dataclasses.field(default_factory=set)  # steps that have not ended; one of each kind at most
    polled_at: dict[str, float] = dataclasses.field(default_factory=dict)  # log, refusal: when they were asked for last
    asked_at: float | None = None  # when the cluster last answered how its pods and nodes are
    asking_since: float | None = None  # since when the cluster owes an answer to that
    outages: int = 0  # how often it answered so late that it must have been away
    settled_at: float = 0.0  # until when those that were away with it are given time to tell how they are
    heard_at: float | None = None  # when its launcher last printed something
    unclaimed: list[tuple[Facts, bool]] = dataclasses.field(default_factory=list)  # pods seen before the UID of its Job was known
    before: dict[str, NodeState | None] = dataclasses.field(default_factory=dict)  # its nodes, when it began
    after: dict[str, NodeState | None] = dataclasses.field(default_factory=dict)  # and when its end was decided
    fewest_gpus: dict[str, int] = dataclasses.field(default_factory=dict)  # that its nodes offered meanwhile
    excluded: list[Untested] = dataclasses.field(default_factory=list)  # members of the group that it began without
    health: list[HealthEvent] = dataclasses.field(default_factory=list)
    mass_event: str = ""  # what most nodes show at once, which is no node's own illness
    under_event: set[str] = dataclasses.field(default_factory=set)  # its nodes that show it
    refusal: str = ""  # why the cluster does not let the Job create its pods, where no patience mends that
    events: list[str] = dataclasses.field(default_factory=list)
    logs: dict[str, tuple[str, bool]] = dataclasses.field(default_factory=dict)
    log_problems: dict[str, str] = dataclasses.field(default_factory=dict)  # by pod: why its log could not be read whole
    decision: Decision | None = None

    def launcher(self) -> Facts | None:
        """The pod whose end decides: index 0."""
        return next((pod for pod in self.pods.values() if pod["index"] == 0), None)

    def pods_to_log(self) -> list[Facts]:
        """The pods whose logs are kept: the launcher, and of those that failed the few that failed first and by themselves.

        Where each speaks for its own node, all are kept; where all work together, the last too: trainers print their steps there.
        """
        ordered = _by_index(self)
        kept = ordered if self.ends == "each" else [pod for pod in ordered if pod["index"] == 0]
        kept += [pod for pod in ordered[-1:] if self.ends == "all" and pod not in kept]
        failed = [pod for pod in ordered if pod not in kept and pod["terminated"] and pod["terminated"]["exit_code"]]
        failed.sort(key=lambda pod: (_killed(pod["terminated"]), pod["terminated"]["finished"] or "", pod["index"] or 0))
        return kept + failed[:MAX_WORKER_LOGS]

    def holds_nodes(self) -> bool:
        """Whether a pod of it may still use its node; one that has ended does not, even where its object cannot be deleted."""
        return any(not pod.get("gone") and pod["phase"] not in ("Succeeded", "Failed") for pod in self.pods.values())

    def objects(self) -> list[str]:
        """Whose events may say why it did not succeed: its Job and its pods."""
        return [self.name, *[pod["name"] for pod in self.pods.values() if pod["phase"] != "Succeeded"][:MAX_PODS_ASKED]]

    def target(self) -> Target:
        """What steps may know of it: values, so that no thread but the engine's loop ever writes an attempt."""
        return Target(self.group, self.number, self.name, tuple(self.nodes), dict(self.env))

    def has_come(self, node: str) -> bool:
        """Whether a pod of the attempt has been bound to this node."""
        return any(pod["node"] == node for pod in self.pods.values())

    def see_illness(self, told: HealthEvent) -> None:
        """A node that its own evidence condemns; the first word counts."""
        if all(item["node"] != told["node"] for item in self.health):
            self.health.append(told)

    def see_event(self, nodes: t.Collection[str], event: str) -> None:
        """What these of its nodes show is shown by most nodes: it condemns none of them, also not those that showed it first."""
        accused = self.decision is not None and self.decision.reason == "HardwareFailureDetected"
        if not nodes or (self.decision is not None and not accused):
            return
        self.health = [item for item in self.health if item["node"] not in nodes]
        self.mass_event, self.under_event = event, self.under_event | set(nodes)
        if accused and not self.health:
            self.decision = _under_event(self)

    def see_node(self, name: str, state: NodeState | None) -> None:
        """Takes in what a watch says of one of its nodes: until a pod is there, what it is; from then on, what becomes of it."""
        if not self.has_come(name) and self.started_at is None:
            self.before[name] = state
        elif state and state["gpus"] is not None:
            self.fewest_gpus[name] = min(state["gpus"], self.fewest_gpus.get(name, state["gpus"]))

    def claim_pod(self, pod: Facts, gone: bool) -> None:
        """A pod that bears the name of its Job. It is one of its pods if the Job controls it; labels anybody can write."""
        if self.uid is None:
            self.unclaimed.append((pod, gone))
        elif pod["owner"] == self.uid:
            self.see_pod(pod, gone)

    def own(self, uid: str) -> None:
        """Its Job exists; pods that were seen too early are looked at again."""
        self.uid = uid
        early, self.unclaimed = self.unclaimed, []
        for pod, gone in early:
            self.claim_pod(pod, gone)

    def see_pod(self, pod: Facts, gone: bool) -> None:
        """Takes in what a watch says of a pod; one that is gone stays with its last facts, which say how it ended.

        The Job controller deletes pods only after one of them has ended, and a watch tells things in their order: a pod that is
        being deleted while all of the group still run was deleted by somebody else.
        """
        self.pods[pod["name"]] = {**pod, "gone": gone}
        leaving = gone or pod["deleting"]
        ended = any(other["terminated"] or other["phase"] in ("Succeeded", "Failed") for other in self.pods.values())
        if leaving and self.decision is None and not ended and pod["name"] not in self.removed:
            self.removed.append(pod["name"])


def nothing_left(excluded: t.Sequence[Untested]) -> Decision:
    """The end of an attempt of whose members none can be tested; each keeps its own reason, whatever the others' is."""
    absent = [item for item in excluded if reason_of(item["reason"]).effect != "convicts"] or excluded
    reason = absent[0]["reason"]
    words = "; ".join(f"{item['node']}: {item['message']}" for item in excluded)
    return Decision("not_started", reason, words, [item["node"] for item in absent if item["reason"] == reason])


def decide(attempt: Attempt, now: float, bounds: t.Mapping[str, t.Any], news: News = QUIET) -> Decision | None:
    """The decision that the facts allow now, or None while the attempt goes on.

    bounds: attempt_timeout_s, queue_timeout_s, start_grace_s. news: of the silent members. What a workload that failed says of itself is
    not the last word while a member is silent: it may have failed because that one died.
    """
    ended = _launcher_ended(attempt)
    if ended and ended.outcome == "succeeded":
        return ended
    told = _unwell(attempt) or _pod_refused(attempt, news)
    if told is None and not (ended and attempt.started_at is None):
        # A launcher that ended may have run with all its workers, also with one whose kubelet died before it told so. Its log says whether
        # it had, and the judge what that means for a node that fell silent.
        told = _by_clock(_node_lost(attempt, news))
    if told:
        return told
    late = _by_clock(_out_of_time(attempt, now, bounds, news))
    if news.unsettled:
        return late
    return _removed(attempt) or ended or _job_ended(attempt) or _by_clock(_cannot_start(attempt, now, bounds)) or late


def _by_clock(decision: Decision | None) -> Decision | None:
    return dataclasses.replace(decision, by_clock=True) if decision else None


def all_running(attempt: Attempt) -> bool:
    """Whether every pod of the group runs (or has run): from here the attempt's clock counts."""
    alive = [pod for pod in attempt.pods.values() if pod["running"] or pod["terminated"]]
    return len(alive) >= len(attempt.nodes)


def lacks_pods(attempt: Attempt) -> bool:
    """Whether the Job may create pods and has not created all of them."""
    return not attempt.queued and len(attempt.pods) < len(attempt.nodes)


def _launcher_ended(attempt: Attempt) -> Decision | None:
    if attempt.ends != "first":
        return _all_ended(attempt)
    launcher = attempt.launcher()
    end = launcher and launcher["terminated"]
    if not launcher or not end:
        return None
    code = end["exit_code"]
    if code == 0:
        return Decision("succeeded", exit_code=0)
    if end["reason"] == "OOMKilled":
        return Decision("failed", "OOMKilled", _out_of_memory(launcher), _named(launcher), code)
    culprit = _first_failed(attempt)
    if code in KILLED and culprit and culprit is not launcher:
        return _failed_pod(culprit)
    return Decision("failed", *_setup_error(end, f"the launcher ended with exit code {code}"), [], code)


def _all_ended(attempt: Attempt) -> Decision | None:
    """Where every pod must succeed: the first that fails is the end."""
    culprit = _first_failed(attempt)
    if culprit:
        return _of_one(attempt, _failed_pod(culprit))
    done = [pod for pod in attempt.pods.values() if pod["terminated"]]
    return Decision("succeeded", exit_code=0) if len(done) >= len(attempt.nodes) else None


def _of_one(attempt: Attempt, decision: Decision) -> Decision:
    """The failure of one pod: where all work together it names nobody, for whoever loses its partner may fail first."""
    together = attempt.ends == "all" and decision.reason is None and len(attempt.nodes) > 1
    return dataclasses.replace(decision, nodes=[]) if together else decision


def _unwell(attempt: Attempt) -> Decision | None:
    if attempt.health:
        named = [item["node"] for item in attempt.health]
        return Decision("failed", "HardwareFailureDetected", "; ".join(item["message"] for item in attempt.health), named)
    return _under_event(attempt) if attempt.mass_event else None


def _under_event(attempt: Attempt) -> Decision:
    return Decision("failed", "NodeUnavailable", attempt.mass_event, sorted(attempt.under_event))


def _node_lost(attempt: Attempt, news: News) -> Decision | None:
    """A member that has died. Where nothing had run yet, the test did not bring it down; a deleted Node object is somebody's doing."""
    started = attempt.started_at is not None
    outcome: Outcome = "failed" if started else "not_started"
    if news.lost:
        when = "during the test" if started else "before the test had begun"
        text = "; ".join(f"{_were(names)} lost {when} ({why})" for why, names in _by_reason(news.lost))
        return Decision(outcome, "NodeLost" if started else "NodeUnavailable", text, sorted(news.lost))
    gone = [f"{_were(names)} deleted from the cluster ({why})" for why, names in _by_reason(news.deleted)]
    gone += [f"{_were(names)} taken away ({why})" for why, names in _by_reason(news.left)]
    if gone:
        return Decision(outcome, "NodeUnavailable", "; ".join(gone), sorted({*news.deleted, *news.left}))
    return None


def _by_reason(gone: t.Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """A whole rack that goes at once has one reason, not sixteen."""
    return [(why, [name for name in sorted(gone) if gone[name] == why]) for why in sorted(set(gone.values()))]


def _were(names: list[str]) -> str:
    return f"{names[0]} was" if len(names) == 1 else f"{fold(names)} were"


def _pod_refused(attempt: Attempt, news: News) -> Decision | None:
    for pod in _by_index(attempt):
        refused = _refusal(pod, news)
        if refused:
            return refused
    return None


def _removed(attempt: Attempt) -> Decision | None:
    """A workload that somebody took away says nothing about its nodes."""
    if not attempt.removed:
        return None
    return Decision("failed", "Evicted", f"{', '.join(attempt.removed[:4])}: deleted during the test by somebody else than this run")


def _refusal(pod: Facts, news: News) -> Decision | None:
    text = pod["message"] or ""
    if pod["disruption"] and (pod["phase"] == "Failed" or pod["deleting"]):
        # Taints tell of dead nodes, but an operator's own taint evicts from a healthy one just so: the node itself says which it was.
        if pod["disruption"]["reason"] == "DeletionByTaintManager" and (pod["node"] in news.lost or pod["node"] in news.unsettled):
            return None
        return Decision("failed", "Evicted", f"{pod['name']}: {pod['disruption']['reason']}: {pod['disruption']['message']}", _named(pod))
    reason = refusal_of(pod["reason"])
    if not reason:
        return None
    return Decision("not_started" if pod["terminated"] is None else "failed", reason, f"{pod['reason']}: {text}", _named(pod))


def _job_ended(attempt: Attempt) -> Decision | None:
    failed = attempt.job and attempt.job["failed"]
    if not failed:
        return None
    if failed["reason"] == "DeadlineExceeded":
        return Decision("timed_out", "TimedOut", failed["message"] or "the Job's deadline passed")
    if attempt.removed:
        return None  # that is what failed it
    culprit = _first_failed(attempt)
    if culprit:
        return _of_one(attempt, _failed_pod(culprit))
    if attempt.pods and not all(pod["terminated"] or pod["phase"] == "Failed" for pod in attempt.pods.values()):
        return None  # the pod that failed it will be seen in a moment
    return Decision("failed", None, f"{failed['reason']}: {failed['message']}")


def _failed_pod(pod: Facts) -> Decision:
    end = pod["terminated"] or {}
    code = end.get("exit_code")
    if end.get("reason") == "OOMKilled":
        return Decision("failed", "OOMKilled", _out_of_memory(pod), _named(pod), code)
    return Decision("failed", *_setup_error(end, f"{pod['name']} on {pod['node']} ended with exit code {code}"), _named(pod), code)


def _setup_error(end: t.Mapping[str, t.Any], otherwise: str) -> tuple[str | None, str]:
    """Reason and message: what our own script says the image or the pod lacks, else no reason and the given message."""
    if end.get("exit_code") == SETUP_EXIT_CODE:
        for line in (end.get("message") or "").splitlines():
            if SETUP_ERROR in line:
                return "SetupError", line[line.index(SETUP_ERROR) + len(SETUP_ERROR) :].strip()
    return None, otherwise


def _killed(end: Facts) -> bool:
    """Whether a container was ended from outside, and not for its own memory."""
    return end["exit_code"] in KILLED and end["reason"] != "OOMKilled"


def _first_failed(attempt: Attempt) -> Facts | None:
    """The pod that failed first; pods that were killed because of it come last."""
    failed = [pod for pod in _by_index(attempt) if pod["terminated"] and pod["terminated"]["exit_code"] not in (0, None)]
    oom = [pod for pod in failed if pod["terminated"]["reason"] == "OOMKilled"]
    own = [pod for pod in failed if pod["terminated"]["exit_code"] not in KILLED]
    ranked = oom or own or failed
    return min(ranked, key=lambda pod: (pod["terminated"]["finished"] or "", pod["index"] or 0)) if ranked else None


def _cannot_start(attempt: Attempt, now: float, bounds: t.Mapping[str, t.Any]) -> Decision | None:
    """Pods that will not come up: told after the grace time, since some troubles mend themselves."""
    if attempt.started_at is not None:
        return None
    if attempt.refusal and lacks_pods(attempt):
        return Decision("not_started", None, attempt.refusal)
    for pod in _by_index(attempt):
        waiting = pod["waiting"]
        patience = waiting_of(waiting["reason"]) if waiting else None
        if not waiting or patience is None:
            attempt.trouble_since.pop(pod["name"], None)
            continue
        text = f"{waiting['reason']}: {waiting['message'] or 'no message'} (image {waiting.get('image') or '?'}, pod {pod['name']})"
        since = attempt.trouble_since.setdefault(pod["name"], now)
        if patience is Waiting.FATAL or now - since >= bounds["start_grace_s"]:
            return Decision("not_started", reason_of_word(waiting["reason"]), text, _named(pod))
    return None


def _out_of_time(attempt: Attempt, now: float, bounds: t.Mapping[str, t.Any], news: News) -> Decision | None:
    if attempt.started_at is not None:
        if now - attempt.started_at < bounds["attempt_timeout_s"]:
            return None
        if news.silent:
            return _node_lost(attempt, news._replace(lost=news.silent))
        return Decision("timed_out", "TimedOut", f"still running after attempt_timeout_s = {bounds['attempt_timeout_s']} s")
    if now - attempt.created_at < bounds["queue_timeout_s"]:
        return None
    after = f"after queue_timeout_s = {bounds['queue_timeout_s']} s"
    if attempt.queued:
        return Decision("not_started", "Queued", f"the workload was still suspended by a queue {after}")
    blocked = [pod for pod in _by_index(attempt) if pod["scheduled"]["status"] == "False"]
    if blocked:
        return Decision("not_started", "Unschedulable", f"{blocked[0]['scheduled']['message'] or 'no message'} ({after})")
    if len(attempt.pods) < len(attempt.nodes):
        return Decision("not_started", "SetupError", f"{len(attempt.pods)} of {counted(len(attempt.nodes), 'pod')} existed {after}")
    stuck = [pod for pod in _by_index(attempt) if not pod["running"]]
    where = [pod["node"] for pod in stuck if pod["node"]]
    return Decision("not_started", "SetupError", f"{counted(len(stuck), 'pod')} had not started {after}", where)


def _out_of_memory(pod: Facts) -> str:
    return f"{pod['name']} on {pod['node']} was killed for memory (OOMKilled, exit code {pod['terminated']['exit_code']})"


def _named(pod: Facts) -> list[str]:
    return [pod["node"]] if pod["node"] else []


def _by_index(attempt: Attempt) -> list[Facts]:
    return sorted(attempt.pods.values(), key=lambda pod: (pod["index"] is None, pod["index"] or 0, pod["name"]))
