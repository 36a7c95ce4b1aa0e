# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a batch owns as a whole: the anchor that everything else belongs to, and the key by which launchers reach their workers."""

from __future__ import annotations

import secrets
import typing as t

from .._cluster.client import Client
from .._cluster.kinds import CONFIG_MAP, SECRET
from .._common.errors import ClusterError
from .._common.shapes import CleanupProof
from .._common.times import utc
from .._workload import names
from .._workload.objects import anchor, ssh_secret
from .._workload.pods import uses_ssh
from . import cleanup
from .messages import Batch

EXPIRY_MARGIN_S = 3600.0
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


def open_batch(client: Client, batch: Batch, now: float) -> list[dict[str, t.Any]]:
    """Anchor and, where launchers have workers to reach, keys of a batch. Returns the ownerReference to the anchor. Raises ClusterError."""
    namespace, template = batch.template["namespace"], batch.template
    outage_s = min(batch.api_outage_s, max(LEAST_SWEEP_S, batch.deadline_at - now))
    sweep(client, namespace, category_selector(batch.run_id, batch.category), outage_s)
    owner = make_anchor(client, namespace, batch.run_id, batch.category, utc(max(batch.deadline_at, now) + EXPIRY_MARGIN_S))
    if any(uses_ssh(template, len(group["nodes"])) for group in batch.groups):
        make_keys(client, namespace, batch.run_id, batch.category, owner, template["ssh_port"])
    return owner


def sweep(client: Client, namespace: str, label_selector: str, outage_s: float) -> None:
    """Removes what a start that was interrupted left. Raises Unswept when that is not possible."""
    proof = cleanup.clean(client, namespace, label_selector, outage_s=outage_s)
    if not proof["proven"]:
        raise Unswept(namespace, proof)


def make_anchor(client: Client, namespace: str, run_id: str, category: str, expires: str) -> list[dict[str, t.Any]]:
    """Creates the anchor of a category and returns the ownerReference to it. Raises ClusterError."""
    wanted = anchor(run_id, namespace, category, expires)
    mine = secrets.token_hex(8)
    wanted["data"]["start"] = mine
    made = client.create(CONFIG_MAP.path(namespace), wanted, is_ours=lambda found: (found.get("data") or {}).get("start") == mine)
    return [names.owner_reference({"apiVersion": CONFIG_MAP.api_version, "kind": "ConfigMap", **made})]


def make_keys(client: Client, namespace: str, run_id: str, category: str, owner: list[dict[str, t.Any]], port: int) -> None:
    """Creates the Secret with a fresh key pair. Raises ClusterError."""
    private, public = make_ssh_key()
    secret = ssh_secret(run_id, namespace, category, owner, private_key=private, public_key=public, port=port)
    client.create(SECRET.path(namespace), secret, is_ours=lambda found: found["metadata"].get("ownerReferences") == owner)


def category_selector(run_id: str, category: str) -> str:
    """The label selector of everything of one category (by short id) of a run."""
    return f"{cleanup.selector(run_id)},{names.CATEGORY_LABEL}={category}"


def make_ssh_key() -> tuple[str, str]:
    """A fresh ed25519 key pair as OpenSSH texts (private, public)."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private.decode(), public.decode() + "\n"
