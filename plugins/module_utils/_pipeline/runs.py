# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Opening a run, and taking up one that was interrupted."""

from __future__ import annotations

import typing as t

from .._archive.run_directory import RunDirectory
from .._catalog.entries import load_registries
from .._catalog.floors import load_floors
from .._catalog.load import check_directories, load_catalog
from .._cluster.client import Client
from .._cluster.kinds import NODE
from .._cluster.snapshot import cluster_uid
from .._common.errors import InputError
from .._common.shapes import Owner, Plan, Request, RunMeta, Snapshot
from .._common.times import utc
from .._criteria.health import DEFAULT_EXPRESSION, compile_health
from .._plan.planning import Entries, check_request, make_plan
from .._plan.spec import parse_spec
from .._run.anchors import refuse_if_alive


def request_of(certification: t.Any, directories: t.Sequence[str]) -> tuple[Request, Entries]:
    """The request of a user and its catalog entries, checked as far as that goes without a cluster. Raises InputError.

    directories: catalog directories, the user's before the shipped one.
    """
    request = parse_spec(certification)
    compile_health(request["node_health"] or DEFAULT_EXPRESSION, "certification.node_health")
    check_directories(directories)
    return request, check_request(request, directories)


def plan_of(request: Request, entries: Entries, snapshot: Snapshot, directories: t.Sequence[str]) -> Plan:
    """The plan of a checked request on a snapshot. Raises InputError."""
    catalog = {**load_catalog(directories), "registries": load_registries(directories), "floors": load_floors(directories)}
    return make_plan(request, entries, snapshot, catalog)


def open_run(
    run: RunDirectory, run_id: str, request: Request, snapshot: Snapshot, plan: Plan, *, now: float, version: str | None = None
) -> RunMeta:
    """Writes what a run begins with into its directory (of `RunDirectory.create`). Raises InputError when it cannot be written."""
    deadline = now + request["bounds"]["deadline_s"]
    meta: RunMeta = {
        "run_id": run_id,
        "version": version,
        "started": utc(now),
        "started_epoch": now,
        "deadline_at": utc(deadline),
        "deadline_epoch": deadline,
    }
    run.write(run.request, request)
    run.write(run.snapshot, snapshot)
    run.write(run.plan, plan)
    run.write(run.meta, meta)
    return meta


def resume_run(run: RunDirectory, *, now: float, dry: bool = False) -> RunMeta:
    """An interrupted run: the same plan, and the time it was given once more. Raises InputError when the archive is not what it was.

    dry: nothing is written.
    """
    request = run.read_request()
    meta = run.read_meta()
    run.check()
    deadline = now + (request["bounds"]["deadline_s"] if request else 0)
    meta = {**meta, "deadline_at": utc(deadline), "deadline_epoch": deadline, "resumed": [*meta.get("resumed", []), utc(now)]}
    if not dry:
        run.open()
        run.write(run.meta, meta)
    return meta


def check_takeable(run: RunDirectory, client: Client, owner: Owner) -> None:
    """Before a run is taken up: an unchanged archive, of this cluster, that nobody else runs here. Reads only.

    Raises InputError or ClusterError.
    """
    run.check()
    check_cluster(run, client)
    refuse_elsewhere(client, run.read_meta()["run_id"], run.read_plan(), owner)


def refuse_elsewhere(client: Client, run_id: str, plan: Plan, owner: Owner) -> None:
    """Raises ClusterError when another process runs a run of this id in a namespace of the plan."""
    for namespace in sorted({category["template"]["namespace"] for category in plan["categories"]}):
        refuse_if_alive(client, namespace, run_id, owner)


def check_cluster(run: RunDirectory, client: Client) -> None:
    """The cluster must be the one that the run was planned on: its nodes bear names that other clusters have too.

    Known by the UID of kube-system; where that may not be read, by the UIDs of the planned nodes, and where an older snapshot has none by
    their names. A single node that was replaced is left to its test, which excludes it, and a server of another version is the same
    cluster after an upgrade. Raises InputError, or ClusterError when the cluster cannot be asked.
    """
    snapshot = run.read_snapshot()
    planned = snapshot["server"].get("uid")
    found = cluster_uid(client, []) if planned else None
    if planned and found:
        if planned != found:
            raise _elsewhere(run, client, snapshot, f"namespace kube-system had UID {planned}, here it has {found}")
        return
    known = {row["name"]: row.get("uid") for row in snapshot["nodes"]}
    live = {item["metadata"]["name"]: item["metadata"].get("uid") for item in client.list(NODE.path())} if known else {}
    if known and not any(name in live and uid in (None, live[name]) for name, uid in known.items()):
        raise _elsewhere(run, client, snapshot, f"none of its {len(known)} nodes is here, or none has the UID that it had")


def _elsewhere(run: RunDirectory, client: Client, snapshot: Snapshot, why: str) -> InputError:
    return InputError(
        f"this run was planned on another cluster ({snapshot['server'].get('host')}) than {client.host}: {why}",
        place=run.path,
        hint="Name the kubeconfig and context of the cluster that the run began on",
    )
