# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a fault is: its fields in the definition file, and the hooks through which it is felt. The kinds are in `fault_kinds`."""

from __future__ import annotations

import dataclasses
import typing as t
from collections.abc import Callable, Iterable, Mapping

from .seam import LogPolicy, NodeChange, PodView, Rejection, StartProblem


@dataclasses.dataclass(frozen=True)
class Exercise:
    """What one run makes the hardware do: faults decide from it whether they are felt.

    nodes:    node name -> name of its rack, for every node of the run.
    over_nic: traffic goes through NICs (several nodes that are not one NVLink domain, or peer access switched off).
    over_mnnvl: traffic between nodes goes over NVLink inside a domain.
    chance:   a number in [0, 1) that is a pure function of the seed, this run and the given words.
    """

    nodes: Mapping[str, str]
    over_nic: bool
    over_mnnvl: bool
    chance: Callable[..., float]

    @property
    def multi_node(self) -> bool:
        """More than one node takes part."""
        return len(self.nodes) > 1

    @property
    def racks(self) -> set[str]:
        """The racks of the nodes that take part."""
        return set(self.nodes.values())


# --- fields of a fault -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class FieldType:
    """What a value in the definition file may be. `accepts` judges the plain value; `says` finishes "must be …"."""

    says: str
    accepts: Callable[[t.Any], bool]
    schema: Mapping[str, t.Any]


def _is_number(value: t.Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_int(value: t.Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


NODE = FieldType("the name of a node, e.g. gpu-r0-n03", lambda value: isinstance(value, str), {"type": "string"})
NODES = FieldType(
    "a list of node names",
    lambda value: isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value),
    {"type": "array", "items": {"type": "string"}, "minItems": 1},
)
PAIR = FieldType(
    "a list of two different node names",
    lambda value: isinstance(value, list) and len(value) == 2 and all(isinstance(item, str) for item in value) and value[0] != value[1],
    {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2, "uniqueItems": True},
)
RACK = FieldType("the name of a rack, e.g. r0", lambda value: isinstance(value, str), {"type": "string"})
FACTOR = FieldType(
    "a number above 0 and below 1: the share of the bandwidth that is left",
    lambda value: _is_number(value) and 0 < value < 1,
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
)
PROBABILITY = FieldType(
    "a number above 0 and up to 1",
    lambda value: _is_number(value) and 0 < value <= 1,
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
)
EXIT_CODE = FieldType(
    "an exit code from 1 to 255", lambda value: _is_int(value) and 1 <= value <= 255, {"type": "integer", "minimum": 1, "maximum": 255}
)
INDEX = FieldType("a whole number from 0", lambda value: _is_int(value) and value >= 0, {"type": "integer", "minimum": 0})
COUNT = FieldType("a whole number from 1", lambda value: _is_int(value) and value >= 1, {"type": "integer", "minimum": 1})
SECONDS = FieldType(
    "a number of simulated seconds, 0 or more", lambda value: _is_number(value) and value >= 0, {"type": "number", "minimum": 0}
)
BYTES = FieldType("a whole number of bytes from 256", lambda value: _is_int(value) and value >= 256, {"type": "integer", "minimum": 256})
FLAG = FieldType("true or false", lambda value: isinstance(value, bool), {"type": "boolean"})
TEXT = FieldType("a text", lambda value: isinstance(value, str) and bool(value), {"type": "string", "minLength": 1})
STATUS = FieldType(
    '"True", "False" or "Unknown" (quoted)', lambda value: value in ("True", "False", "Unknown"), {"enum": ["True", "False", "Unknown"]}
)

_REQUIRED: t.Any = dataclasses.MISSING
# By this name because a linter takes every call of field() outside a dataclass for a mistake.
_field = dataclasses.field


def option(kind: FieldType, about: str, default: t.Any = _REQUIRED) -> t.Any:
    """A field of a fault. Without a default the definition must give it. `None` as default means: not given."""
    return _field(default=default, metadata={"type": kind, "about": about})


# A part of a node that one kind of test looks at: what a GPU computes, its PCIe link, the volumes that are mounted.
Part: t.TypeAlias = t.Literal["gpu", "pcie", "disk"]

# --- the base --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Abort:
    """A run that ends before its last row.

    node:      where it begins.
    exit_code: of the first process that fails.
    killed:    the process is killed from outside (out of memory) rather than failing by itself.
    """

    node: str
    exit_code: int
    killed: bool = False


class Rise(t.NamedTuple):
    """A counter of a fact sheet that a workload raises.

    part: gpu, nic. number: of the GPU or NIC, or the key of the fault that says it; None: of all of them.
    """

    part: str
    number: int | str | None
    counter: str
    by: int


@dataclasses.dataclass(frozen=True)
class Fault:
    """Base of all faults. Every hook does nothing; node hooks are called only for the nodes in `where`."""

    kind: t.ClassVar[str] = ""
    counts: t.ClassVar[Rise | None] = None

    def where(self) -> tuple[str, ...]:
        """The nodes whose node hooks this fault wants."""
        node = getattr(self, "node", None)
        return (node,) if node else ()

    def named_nodes(self) -> tuple[str, ...]:
        """Every node that the definition names, to be checked for existence."""
        return self.where()

    def dress(self, node: dict[str, t.Any]) -> None:
        """Change the Node object before it is registered."""

    def admit(self, pod: PodView, wants_gpus: bool) -> Rejection | None:
        """Refuse a pod of the node."""
        return None

    def start(self, image: str) -> StartProblem | None:
        """Keep a container of the node from starting."""
        return None

    def log_policy(self) -> LogPolicy | None:
        """Keep logs of the node in another way."""
        return None

    def changes(self) -> Iterable[NodeChange]:
        """What happens to the node while the cluster runs."""
        return ()

    def limit(self, exercise: Exercise) -> float:
        """The share of its bandwidth that a run keeps; 1.0 when the fault is not felt. Called for every run."""
        return 1.0

    def part_share(self, part: Part, number: int) -> float:
        """The share of its speed that a part of the node keeps. number: of the GPU; 0 for the disk, of which there is one."""
        return 1.0

    def rail_limit(self, exercise: Exercise, rail: int) -> float:
        """The share of its bandwidth that a run over one NIC of each node keeps, and no GPU in it."""
        return self.limit(exercise)

    def rises(self) -> Rise | None:
        """The counter of the node that every workload on it raises."""
        number = self.counts.number if self.counts else None
        return self.counts and self.counts._replace(number=getattr(self, number) if isinstance(number, str) else number)

    def xids(self) -> Iterable[tuple[int, int, str]]:
        """What the driver writes into the kernel's log with every workload on the node: GPU, Xid, words."""
        return ()

    def hides_rdma(self) -> bool:
        """The node shows no RDMA device to its containers."""
        return False

    def corrupts(self) -> bool:
        """Data that passes the node is changed."""
        return False

    def abort(self) -> Abort | None:
        """A run that includes the node ends early."""
        return None
