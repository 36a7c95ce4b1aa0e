# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A batch's hold on its place in the cluster: taken, kept alive by a heartbeat, and given up when its objects are gone.

Taking comes before sweeping. An anchor of a dead start is claimed first, with its resource version, so that of two who find it only one
goes on; where there is none, creating one is the claim. Whoever comes second is refused and touches nothing.
"""

from __future__ import annotations

import secrets
import threading
import typing as t

from .._archive.owners import HEARTBEAT_S, same_play
from .._cluster.client import Client
from .._cluster.kinds import CONFIG_MAP, JOB, SECRET
from .._common.errors import ClusterError
from .._common.shapes import CleanupProof
from .._common.times import utc
from .._workload import names
from .._workload.objects import anchor as anchor_object
from .._workload.objects import fuse, ssh_secret
from .._workload.pods import uses_ssh
from . import cleanup
from .anchors import EXPIRY_MARGIN_S, Anchor, NotOurs, alive, anchors, category_selector, marks, read_anchor, refuse_if_alive
from .messages import Batch

References = list[dict[str, t.Any]]
# A batch that begins at its deadline still gets so long to learn what there is.
LEAST_SWEEP_S = 10.0


class Unswept(ClusterError):
    """Objects of an earlier start cannot be removed, or not even be looked for. proof: what is known of them."""

    def __init__(self, namespace: str, proof: CleanupProof) -> None:
        left = f"objects of an earlier start of this run are still there: {', '.join(proof['left'][:5])}" if proof["left"] else ""
        super().__init__(
            left or "whether objects of an earlier start of this run are still there could not be found out",
            place=f"namespace {namespace}",
            hint=proof.get("message") or "",
        )
        self.proof = proof


class Holding:
    """The hold of one batch. lost: told why, when the anchor is no longer ours. tell: told what is worth knowing."""

    def __init__(self, client: Client, batch: Batch, *, lost: t.Callable[[str], None], tell: t.Callable[[str], None]) -> None:
        self._client, self._batch, self._lost, self._tell = client, batch, lost, tell
        self._namespace = batch.template["namespace"]
        self._selector = category_selector(batch.run_id, batch.category)
        self._path = CONFIG_MAP.path(self._namespace, names.anchor_name(batch.run_id, batch.category))
        self._made: References = []  # the ownerReference to our anchor, once there is one
        self._version = ""
        self._not_ours = ""
        self._sweep_s = batch.api_outage_s
        self._cleaning = False
        self._ended = threading.Event()

    def take(self, seconds: float) -> References:
        """Takes the place of this batch and sweeps what an earlier start left. Returns the ownerReference to the anchor.

        seconds: until the run ends. Raises ClusterError; as NotOurs when another runs this run, and then nothing was touched.
        """
        batch = self._batch
        self._sweep_s = min(batch.api_outage_s, max(LEAST_SWEEP_S, seconds))
        try:
            refuse_if_alive(self._client, self._namespace, batch.run_id, batch.owner)
            self._claim_dead()
            start, lasts = secrets.token_hex(4), max(seconds, 0.0) + EXPIRY_MARGIN_S
            fused = self._light_fuse(start, round(lasts))
            made = self._create(start, lasts, fused)
        except NotOurs as error:
            self._not_ours = error.message
            raise
        threading.Thread(target=self._beat, name="anchor", daemon=True).start()
        owner = self._made = [names.owner_reference({"apiVersion": CONFIG_MAP.api_version, "kind": "ConfigMap", **made})]
        self._sweep(keep={item["uid"] for item in [*owner, *fused]})
        if any(uses_ssh(batch.template, len(group["nodes"])) for group in batch.groups):
            make_keys(self._client, self._namespace, batch.run_id, batch.category, owner, batch.template["ssh_port"])
        return owner

    def clean_up(self, lost_nodes: t.Container[str], outage_s: float | None = None) -> CleanupProof:
        """Removes everything of the batch, unless another runs this run now: then what is there is not ours.

        outage_s: how long an API server that is away is waited for; None: as long as the batch may wait.
        """
        outage_s = self._batch.api_outage_s if outage_s is None else outage_s
        self._cleaning = True
        try:
            refuse_if_alive(self._client.hurried(), self._namespace, self._batch.run_id, self._batch.owner)
        except NotOurs as error:
            self._not_ours = self._not_ours or error.message
        except ClusterError:  # the cleanup will find the same, and say so
            pass
        if self._not_ours:
            proof: CleanupProof = {"proven": False, "left": [], "message": f"nothing was removed: {self._not_ours}"}
        else:
            proof = cleanup.clean(
                self._client, self._namespace, self._selector, outage_s=outage_s, anchors=self._made, lost_nodes=lost_nodes
            )
        self._ended.set()
        return proof

    # Taking

    def _claim_dead(self) -> None:
        """An anchor that a dead start of this batch left is made ours before it is swept, with all that it owns."""
        left = [item for item in anchors(self._client, self._namespace, self._batch.run_id) if item.category == self._batch.category]
        for item in left:
            now = self._client.now()
            notes = marks(self._batch.owner, now, now + EXPIRY_MARGIN_S)
            try:
                self._client.patch(self._path, {"metadata": {"resourceVersion": item.version, "annotations": notes}})
            except ClusterError as error:
                if error.status not in (404, 409):
                    raise
                raise self._came_second() from error
        if left:
            self._sweep()

    def _light_fuse(self, start: str, seconds: int) -> References:
        """A Job that removes all of this batch when nobody else did. Returns the ownerReference to it, or none where it is refused."""
        batch = self._batch
        wanted = fuse(batch.template, batch.run_id, batch.category, start, seconds)
        try:
            made = self._client.create(JOB.path(self._namespace), wanted, is_ours=lambda _found: True)  # its name is of this start alone
        except ClusterError as error:
            self._tell(f"{batch.title}: should this process die, its objects stay until they are cleaned up: {error.render()}")
            return []
        return [names.owner_reference({"apiVersion": JOB.api_version, "kind": "Job", **made})]

    def _create(self, start: str, lasts: float, fused: References) -> dict[str, t.Any]:
        batch, now = self._batch, self._client.now()
        wanted = anchor_object(batch.run_id, self._namespace, batch.category, marks(batch.owner, now, now + lasts), fused)
        wanted["data"]["start"] = start
        try:
            made = self._client.create(
                CONFIG_MAP.path(self._namespace), wanted, is_ours=lambda found: (found.get("data") or {}).get("start") == start
            )
        except ClusterError as error:
            if error.api_reason != "AlreadyExists":
                raise
            self._put_out(fused)
            raise self._came_second() from error
        self._version = str(made["metadata"].get("resourceVersion", ""))
        self._yield_to_older(read_anchor(made), fused)
        return made

    def _yield_to_older(self, mine: Anchor, fused: References) -> None:
        """Of two runs of this id that began other batches at the same moment, the older goes on."""
        for other in anchors(self._client, self._namespace, self._batch.run_id):
            foreign = not same_play(other.owner, self._batch.owner) and other.lives(self._client.now())
            if foreign and (other.created, other.uid) < (mine.created, mine.uid):
                self._client.delete(self._path, uid=mine.uid)
                self._put_out(fused)
                raise alive(other, self._namespace)

    def _put_out(self, fused: References) -> None:
        for item in fused:
            self._client.delete(JOB.path(self._namespace, item["name"]), uid=item["uid"])

    def _came_second(self) -> NotOurs:
        hint = "Nothing was changed. Let that one end, or take another run_id"
        return NotOurs("another process took up this run at the same moment", place=self._path, hint=hint, status=409)

    def _sweep(self, keep: t.Container[str] = ()) -> None:
        proof = cleanup.clean(self._client, self._namespace, self._selector, outage_s=self._sweep_s, keep=keep)
        if not proof["proven"]:
            raise Unswept(self._namespace, proof)

    # Keeping

    def _beat(self) -> None:
        client = self._client.hurried()
        while not self._ended.wait(HEARTBEAT_S):
            try:
                why = self._renew(client)
            except Exception:  # whatever it is: the next beat may come through, and others wait for STALE_S
                continue
            if why:
                if not self._cleaning:
                    self._lost(why)
                return

    def _renew(self, client: Client) -> str:
        """One heartbeat. Returns why the anchor is no longer ours, or ""."""
        beat = {names.HEARTBEAT_ANNOTATION: utc(client.now())}
        try:
            done = client.patch(self._path, {"metadata": {"resourceVersion": self._version, "annotations": beat}})
            self._version = str(done["metadata"]["resourceVersion"])
        except ClusterError as error:
            if error.status == 404:
                return "its anchor was removed from the cluster, so somebody cleaned up after it"
            if error.status != 409:
                raise
            found = read_anchor(client.get(self._path))
            if found.owner is None or found.owner["token"] != self._batch.owner["token"]:
                self._not_ours = f"another process has taken up this run: {found.who()}"
                return self._not_ours
            self._version = found.version  # somebody labelled it, or our own beat was stored and its answer lost
        return ""


def make_keys(client: Client, namespace: str, run_id: str, category: str, owner: References, port: int) -> None:
    """Creates the Secret with a fresh key pair. Raises ClusterError."""
    private, public = make_ssh_key()
    secret = ssh_secret(run_id, namespace, category, owner, private_key=private, public_key=public, port=port)
    client.create(SECRET.path(namespace), secret, is_ours=lambda found: found["metadata"].get("ownerReferences") == owner)


def make_ssh_key() -> tuple[str, str]:
    """A fresh ed25519 key pair as OpenSSH texts (private, public)."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private.decode(), public.decode() + "\n"
