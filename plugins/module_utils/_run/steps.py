# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the engine does in the cluster, one method per step: values in, values out.

Steps run in threads of the engine's pool. They know no attempt: whatever they find out goes back to the engine's loop, which alone
writes attempts. That is kept by what this module may import (see tests/unit/test_import_laws.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import typing as t

from .._archive.run_directory import TERMINATION_SUFFIX
from .._causes.classify import NOT_READ
from .._cluster.client import Client
from .._cluster.kinds import CONFIG_MAP, EVENT, JOB, NODE, POD, SERVICE
from .._common.errors import ClusterError
from .._common.shapes import EnvItem, Template
from .._workload import names
from .._workload.objects import attempt_objects
from .._workload.pods import JOB_NAME_LABEL
from .logs import PodLog
from .projections import Facts, node_facts, pod_facts

# More nodes than this are read with one list.
SINGLE_READS = 16
# Objects about which events are asked, and events that are kept.
MAX_ASKED = 9
MAX_EVENTS = 20
OBJECT_KINDS = {"job": JOB, "config_map": CONFIG_MAP, "service": SERVICE}


class Target(t.NamedTuple):
    """An attempt as its steps know it."""

    group: str
    number: int
    name: str  # of its objects
    nodes: tuple[str, ...]
    env: t.Mapping[str, str]


@dataclasses.dataclass
class Collected:
    """What was left of an attempt: logs by pod (path relative to the archive, whether it is whole), events, a last look at its nodes.

    problems: by pod, why its log could not be read whole.
    """

    logs: dict[str, tuple[str, bool]] = dataclasses.field(default_factory=dict)
    problems: dict[str, str] = dataclasses.field(default_factory=dict)
    events: list[str] = dataclasses.field(default_factory=list)
    nodes: list[Facts] = dataclasses.field(default_factory=list)


class Now(t.NamedTuple):
    """The pods of an attempt, and those of its nodes that are there."""

    pods: list[Facts]
    nodes: list[Facts]


class Steps:
    """The steps of one batch. Every method may raise ClusterError, and OSError where it writes logs."""

    def __init__(self, client: Client, template: Template, run_id: str, category: str, run_dir: str) -> None:
        self._client, self._template, self._run_id, self._category, self._run_dir = client, template, run_id, category, run_dir
        self._namespace = template["namespace"]

    def create(self, target: Target, owner: t.Sequence[dict[str, t.Any]]) -> str:
        """Creates the objects of an attempt and lets its Job go. Returns the Job's UID."""
        identity = {
            "run_id": self._run_id,
            "category": self._category,
            "group": target.group,
            "attempt": target.number,
            "owner": list(owner),
        }
        self._forget_logs(target)
        objects = attempt_objects(_with_env(self._template, target.env), identity, target.nodes)
        wanted = objects["job"]
        job = self._client.create(JOB.path(self._namespace), wanted, is_ours=lambda found: is_same(found, wanted))
        uid = str(job["metadata"]["uid"])
        try:
            self._complete(target, objects, [names.owner_reference({"apiVersion": JOB.api_version, "kind": "Job", **job})])
        except ClusterError:
            self.remove(target, uid, [])
            raise
        return uid

    def _complete(self, target: Target, objects: dict[str, t.Any], owned_by: list[dict[str, t.Any]]) -> None:
        """What belongs to a Job that exists; then it may create its pods."""
        for kind in ("config_map", "service"):
            if kind in objects:
                objects[kind]["metadata"]["ownerReferences"] = owned_by
                same = functools.partial(is_same, made=objects[kind])
                self._client.create(OBJECT_KINDS[kind].path(self._namespace), objects[kind], is_ours=same)
        self._client.patch(JOB.path(self._namespace, target.name), {"spec": {"suspend": False}})

    def collect(
        self, target: Target, pods: t.Sequence[Facts], logs: t.Mapping[str, PodLog], about: t.Sequence[str], silent: t.Container[str]
    ) -> Collected:
        """Logs of these pods; when the attempt failed, the events about these objects (else none are named) and one more look at its nodes.

        A node may have fallen ill in the very moment it took the workload down. silent: nodes that do not answer.
        """
        found = Collected()
        for pod in pods:
            if pod["running"] or pod["terminated"]:
                log = logs.get(pod["name"]) or self.pod_log(target, pod)
                whole, problem = log.finish(answers=pod["node"] not in silent)
                if problem:
                    found.problems[pod["name"]] = problem
                if os.path.exists(log.path):
                    found.logs[pod["name"]] = (os.path.relpath(log.path, self._run_dir), whole)
                _keep_termination(log.path, pod)
        if about:
            found.events = self.events(target, about)
            with contextlib.suppress(ClusterError):  # then what the watch told of them must do
                found.nodes = self.look_at(target.nodes)
        return found

    def ask_now(self, target: Target) -> Now:
        """How pods and nodes of an attempt are: asked before time decides, since a watch that tells nothing may be the silent one."""
        selector = f"{JOB_NAME_LABEL}={target.name}"
        client = self._client.hurried()
        pods = client.list_result(POD.path(self._namespace), label_selector=selector, project=pod_facts).items
        return Now(list(pods), self.look_at(target.nodes))

    def refusal(self, target: Target, about: t.Sequence[str]) -> list[str]:
        """Why pods do not come into being; only events of the Job tell it: pod security, a missing service account."""
        return [line for line in self.events(target, about) if line.startswith("FailedCreate ")]

    def events(self, target: Target, about: t.Sequence[str]) -> list[str]:
        """Warnings about these objects, as "reason object: message", newest last, a bounded number.

        They explain, and prove nothing: nobody waits long for them, and where one cannot be read the others are not asked about.
        """
        lines: list[str] = []
        client = self._client.hurried()
        for name in about[:MAX_ASKED]:
            try:
                selector = f"involvedObject.name={name},type=Warning"
                found = client.list(EVENT.path(self._namespace), field_selector=selector)
                lines += [f"{item.get('reason')} {name}: {' '.join((item.get('message') or '').split())}" for item in found]
            except ClusterError as error:
                lines.append(f"{NOT_READ}events of {name}: {error.render()}")
                break
        # The Job controller gives each try a new random name; the same refusal twenty times would hide everything else.
        latest = {re.sub(rf"{re.escape(target.name)}-\d+-\w+", target.name, line): line for line in lines}
        return list(latest.values())[-MAX_EVENTS:]

    def remove(self, target: Target, uid: str | None, stranded: t.Sequence[Facts]) -> None:
        """Deletes an attempt's Job, and no other of its name. uid: of the Job that was created; None: none was, as far as we were told.

        stranded: pods on nodes that are lost; no kubelet will ever confirm their deletion.
        """
        if uid is not None:
            try:
                self._client.delete(JOB.path(self._namespace, target.name), uid=uid)
            except ClusterError as error:
                if error.status != 409:  # another Job has taken the name
                    raise
        for pod in stranded:
            self._client.delete(POD.path(self._namespace, pod["name"]), uid=pod["uid"], grace_period_s=0)

    def pod_log(self, target: Target, pod: Facts) -> PodLog:
        """Where the log of a pod goes."""
        folder = os.path.join(self._run_dir, "logs", self._category)
        path = os.path.join(folder, f"{target.group}-{target.number}-{pod['index'] or 0}.log")
        return PodLog(self._client, self._namespace, pod["name"], path)

    def look_at(self, members: t.Sequence[str]) -> list[Facts]:
        """The nodes as they are now, without those that are gone. The watch tells of them too, so nobody waits long."""
        client = self._client.hurried()
        if len(members) > SINGLE_READS:
            wanted = set(members)
            every = client.list_result(NODE.path(), project=node_facts).items
            return [node for node in every if node["metadata"]["name"] in wanted]
        return [node for name in members if (node := _node(client, name))]

    def _forget_logs(self, target: Target) -> None:
        """Logs of an attempt of this number that was killed with its control node: two executions in one log prove nothing."""
        folder = os.path.join(self._run_dir, "logs", self._category)
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.startswith(f"{target.group}-{target.number}-"):
                os.unlink(os.path.join(folder, name))


def _node(client: Client, name: str) -> Facts | None:
    try:
        return node_facts(client.get(NODE.path(name=name)))
    except ClusterError as error:
        if error.status == 404:
            return None
        raise


def is_same(found: t.Mapping[str, t.Any], made: t.Mapping[str, t.Any]) -> bool:
    """Whether an object that exists is the one that we made: webhooks add labels and annotations, but take away nothing of ours."""
    meta, wanted = found["metadata"], made["metadata"]
    owners = {item.get("uid") for item in meta.get("ownerReferences") or []}
    labels = (meta.get("labels") or {}).items()
    return wanted["labels"].items() <= labels and owners >= {item["uid"] for item in wanted["ownerReferences"]}


def _keep_termination(path: str, pod: Facts) -> None:
    text = (pod["terminated"] or {}).get("message")
    if text:
        with open(f"{path}{TERMINATION_SUFFIX}", "w", encoding="utf-8") as handle:
            handle.write(text)


def _with_env(template: Template, env: t.Mapping[str, str]) -> Template:
    if not env:
        return template
    kept = [item for item in template["env"] if item["name"] not in env]
    added: list[EnvItem] = [{"name": name, "value": value} for name, value in env.items()]
    return {**template, "env": kept + added}
