# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The definition of a simulated cluster: reading, checking, defaults, JSON Schema. docs/simulation.md explains every key.

Every mistake raises InputError with the key path, the allowed values and a near match.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t
from pathlib import Path

from ..._common.errors import InputError, unknown_value
from ..._common.plain import to_plain
from .fault_kinds import KINDS
from .faults import Fault
from .gpus import PRODUCTS, GpuProduct, product
from .platforms import FABRICS, PLATFORMS, Platform

MAX_NODES = 8192
MAX_GPUS = 16  # of one node


@dataclasses.dataclass(frozen=True)
class Pool:
    """Racks of equal nodes."""

    gpu: GpuProduct
    racks: int
    nodes_per_rack: int


@dataclasses.dataclass(frozen=True)
class Software:
    """Versions that nodes and logs show."""

    nccl_tests: str = "2.17.8"
    nccl: str = "2.28.9+cuda13.0"
    driver: str = "580.95.05"
    cuda: str = "13.0"
    kubelet: str = "v1.36.3"
    mpi: str = "openmpi5"


@dataclasses.dataclass(frozen=True)
class Definition:
    """A checked definition with all defaults filled in.

    noise:      relative sigma of a measured bandwidth.
    time_scale: simulated seconds per real second.
    """

    seed: int
    platform: Platform
    fabric: str
    pools: tuple[Pool, ...]
    cpu_nodes: int
    noise: float
    time_scale: float
    software: Software
    faults: tuple[Fault, ...]

    def node_names(self) -> dict[str, str]:
        """Name of each GPU node -> name of its rack, in order. Racks are numbered through all pools."""
        names: dict[str, str] = {}
        rack = 0
        for pool in self.pools:
            for _index in range(pool.racks):
                names.update({f"gpu-r{rack}-n{number:02d}": f"r{rack}" for number in range(pool.nodes_per_rack)})
                rack += 1
        return names


_SIZES = ("racks", "nodes_per_rack", "gpus_per_node")
_KEYS = ("seed", "platform", "gpu", *_SIZES, "fabric", "noise", "time_scale", "cpu_nodes", "software", "faults")
_VERSION = r"\d+\.\d+\.\d+"


def load(source: t.Any) -> Definition:
    """A definition from a path (str or Path: YAML or JSON) or from a mapping. `None` or an empty file: all defaults."""
    if isinstance(source, (str, Path)):
        return parse(_read(Path(source)), place=str(source))
    return parse(source)


def _read(path: Path) -> t.Any:
    try:
        import yaml
    except ImportError as error:
        raise InputError("PyYAML is needed to read a definition file", hint="pip install PyYAML") from error
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the definition: {error.strerror or error}", place=str(path)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"not valid YAML: {' '.join(str(error).split())}", place=str(path)) from error


def parse(value: t.Any, place: str = "") -> Definition:
    """Check a mapping and fill in the defaults. `place` prefixes the key paths in errors."""
    return _Reader(place).definition({} if value is None else to_plain(value))


class _Reader:
    """Checks one definition. Its methods take the key path of the value they look at."""

    def __init__(self, source: str) -> None:
        self.source = source

    def at(self, path: str) -> str:
        return f"{self.source}: {path}" if self.source and path else self.source or path

    def fail(self, path: str, says: str, value: t.Any, hint: str = "") -> t.NoReturn:
        raise InputError(f"must be {says}, not {value!r}", place=self.at(path), hint=hint)

    def mapping(self, value: t.Any, path: str, allowed: t.Iterable[str], what: str = "key") -> dict[str, t.Any]:
        if not isinstance(value, dict):
            raise InputError(f"must be a mapping, not {type(value).__name__}", place=self.at(path or "definition"))
        for key in value:
            if key not in allowed:
                raise unknown_value(what, key, allowed, self.at(f"{path}.{key}" if path else key))
        return value

    def number(self, value: t.Any, path: str, low: float, high: float, above: bool = False) -> float:
        says = f"a number {'above' if above else 'from'} {low:g} to {high:g}"
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high or (above and value == low):
            self.fail(path, says, value)
        return float(value)

    def whole(self, value: t.Any, path: str, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.fail(path, f"a whole number from {low} to {high}", value)
        return int(value)

    def choice(self, value: t.Any, path: str, allowed: t.Iterable[str], what: str) -> str:
        if value not in tuple(allowed):
            raise unknown_value(what, value, allowed, self.at(path))
        return t.cast(str, value)

    def definition(self, value: t.Any) -> Definition:
        data = self.mapping(value, "", _KEYS)
        platform = PLATFORMS[self.choice(data.get("platform", "onprem"), "platform", PLATFORMS, "platform")]
        draft = Definition(
            seed=self.whole(data.get("seed", 0), "seed", -(2**63), 2**63),
            platform=platform,
            fabric=self.choice(data.get("fabric", platform.fabric), "fabric", FABRICS, "fabric"),
            pools=self.pools(data),
            cpu_nodes=self.whole(data.get("cpu_nodes", 0), "cpu_nodes", 0, 100),
            noise=self.number(data.get("noise", 0.02), "noise", 0, 0.5),
            time_scale=self.number(data.get("time_scale", 600), "time_scale", 0, 1e6, above=True),
            software=self.software(data.get("software")),
            faults=(),
        )
        total = sum(pool.racks * pool.nodes_per_rack for pool in draft.pools)
        if total > MAX_NODES:
            raise InputError(f"{total} nodes are too many", place=self.at("racks"), hint=f"At most {MAX_NODES}")
        nodes = draft.node_names()
        return dataclasses.replace(draft, faults=self.faults(data.get("faults"), nodes, draft))

    def pools(self, data: dict[str, t.Any]) -> tuple[Pool, ...]:
        gpu = data.get("gpu", "NVIDIA-H100-80GB-HBM3")
        if isinstance(gpu, str):
            return (self.pool({**{key: data[key] for key in _SIZES if key in data}, "gpu": gpu}, ""),)
        if not isinstance(gpu, list) or not gpu:
            self.fail("gpu", "a product name or a list of pools {gpu, racks, nodes_per_rack, gpus_per_node}", gpu)
        for key in _SIZES:
            if key in data:
                raise InputError("is given twice: each pool in gpu has its own", place=self.at(key), hint=f"Move {key} into the pools")
        return tuple(self.pool(item, f"gpu[{index}]") for index, item in enumerate(gpu))

    def pool(self, value: t.Any, path: str) -> Pool:
        prefix = f"{path}." if path else ""
        data = self.mapping(value, path, ("gpu", *_SIZES))
        name = data.get("gpu")
        if not isinstance(name, str):
            self.fail(f"{prefix}gpu", "the name of a GPU product", name)
        gpu = product(name, self.at(f"{prefix}gpu"))
        gpus = self.whole(data.get("gpus_per_node", gpu.gpus_per_node), f"{prefix}gpus_per_node", 1, MAX_GPUS)
        return Pool(
            gpu=dataclasses.replace(gpu, gpus_per_node=gpus),
            racks=self.whole(data.get("racks", 4), f"{prefix}racks", 1, MAX_NODES),
            nodes_per_rack=self.whole(data.get("nodes_per_rack", gpu.clique_nodes or 16), f"{prefix}nodes_per_rack", 1, MAX_NODES),
        )

    def software(self, value: t.Any) -> Software:
        patterns = {
            "nccl_tests": (_VERSION, "2.17.8"),
            "nccl": (_VERSION + r"\+cuda\d+\.\d+", "2.28.9+cuda13.0"),
            "driver": (r"\d+\.\d+(\.\d+)?", "580.95.05"),
            "cuda": (r"\d+\.\d+", "13.0"),
            "kubelet": ("v" + _VERSION, "v1.36.3"),
            "mpi": ("openmpi[45]", "openmpi4 or openmpi5"),
        }
        data = self.mapping({} if value is None else value, "software", patterns)
        for key, item in data.items():
            if not isinstance(item, str) or not re.fullmatch(patterns[key][0], item):
                self.fail(f"software.{key}", f"a text like {patterns[key][1]!r}", item)
        made = Software(**data)
        if version_tuple(made.nccl_tests) < (2, 13, 2):
            self.fail("software.nccl_tests", "2.13.2 or later", made.nccl_tests)
        return made

    def faults(self, value: t.Any, nodes: dict[str, str], draft: Definition) -> tuple[Fault, ...]:
        if value is None:
            return ()
        if not isinstance(value, list):
            self.fail("faults", "a list of faults {kind, node, …}", value)
        return tuple(self.fault(item, f"faults[{index}]", nodes, draft) for index, item in enumerate(value))

    def fault(self, value: t.Any, path: str, nodes: dict[str, str], draft: Definition) -> Fault:
        if not isinstance(value, dict):
            raise InputError(f"must be a mapping {{kind, node, …}}, not {type(value).__name__}", place=self.at(path))
        if "kind" not in value:
            raise InputError("kind is missing", place=self.at(path), hint=f"Allowed: {', '.join(sorted(KINDS))}")
        kind = self.choice(value["kind"], f"{path}.kind", KINDS, "fault kind")
        fields = {field.name: field for field in dataclasses.fields(KINDS[kind])}
        data = self.mapping({key: item for key, item in value.items() if key != "kind"}, path, fields, f"key of the fault {kind}")
        for name, field in fields.items():
            if name not in data and field.default is dataclasses.MISSING:
                raise InputError(
                    f"{name} is missing: {field.metadata['about']}", place=self.at(path), hint=f"Must be {field.metadata['type'].says}"
                )
            if name in data and not field.metadata["type"].accepts(data[name]):
                self.fail(f"{path}.{name}", field.metadata["type"].says, data[name])
        made = KINDS[kind](**{name: tuple(item) if isinstance(item, list) else item for name, item in data.items()})
        self.names(made, path, nodes)
        self.makes_sense(made, path, draft)
        return made

    def names(self, made: Fault, path: str, nodes: dict[str, str]) -> None:
        key = "nodes" if hasattr(made, "nodes") else "node"
        for node in made.named_nodes():
            if node not in nodes:
                raise _unknown_name("node", node, nodes, self.at(f"{path}.{key}"))
        rack = getattr(made, "rack", None)
        if rack is not None and rack not in nodes.values():
            raise _unknown_name("rack", rack, dict.fromkeys(nodes.values(), ""), self.at(f"{path}.rack"))

    def makes_sense(self, made: Fault, path: str, draft: Definition) -> None:
        """Refuse faults that nobody could ever see on this cluster."""
        if made.kind == "nvl_port" and not any(pool.gpu.clique_nodes for pool in draft.pools):
            raise InputError(
                "no GPU of this cluster has NVLink between nodes",
                place=self.at(path),
                hint="Take nic_slow or node_slow, or a GPU such as NVIDIA-GB200",
            )
        most = max(pool.gpu.gpus_per_node for pool in draft.pools)
        if made.kind == "gpus_missing" and getattr(made, "count", 0) > most:
            self.fail(f"{path}.count", f"a whole number from 1 to {most}, the GPUs of a node", getattr(made, "count", 0))


def _unknown_name(what: str, value: str, names: dict[str, str], place: str) -> InputError:
    """The error for a node or rack that is not there. Long lists of names are shortened to their ends."""
    import difflib

    known = list(names)
    near = difflib.get_close_matches(value, known, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return InputError(
        f"unknown {what} {value!r}", place=place, hint=f"{hint}The cluster has {known[0]} to {known[-1]} ({len(known)} in all)"
    )


def version_tuple(text: str) -> tuple[int, ...]:
    """(2, 17, 8) of "2.17.8" or of "2.28.9+cuda13.0"."""
    return tuple(int(part) for part in text.split("+")[0].split("."))


def json_schema() -> dict[str, t.Any]:
    """The JSON Schema of a definition file, built from the same tables that the checks use."""
    size = {"type": "integer", "minimum": 1, "maximum": MAX_NODES}
    gpu = {"type": "string", "description": f"a GPU product: {', '.join(PRODUCTS)}"}
    gpus = {"type": "integer", "minimum": 1, "maximum": MAX_GPUS, "description": "default: those of the usual node with this GPU"}
    pool = {
        "type": "object",
        "additionalProperties": False,
        "required": ["gpu"],
        "properties": {"gpu": gpu, "racks": size, "nodes_per_rack": size, "gpus_per_node": gpus},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Definition of a simulated GPU cluster",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "seed": {"type": "integer", "default": 0},
            "platform": {"enum": sorted(PLATFORMS), "default": "onprem"},
            "gpu": {"oneOf": [gpu, {"type": "array", "minItems": 1, "items": pool}], "default": "NVIDIA-H100-80GB-HBM3"},
            "racks": {**size, "default": 4},
            "nodes_per_rack": {**size, "description": "default 16; 18 for GPUs whose NVLink domain spans nodes"},
            "gpus_per_node": gpus,
            "fabric": {"enum": list(FABRICS), "description": "default: that of the platform"},
            "noise": {"type": "number", "minimum": 0, "maximum": 0.5, "default": 0.02},
            "time_scale": {"type": "number", "exclusiveMinimum": 0, "maximum": 1e6, "default": 600},
            "cpu_nodes": {"type": "integer", "minimum": 0, "maximum": 100, "default": 0},
            "software": {
                "type": "object",
                "additionalProperties": False,
                "properties": {field.name: {"type": "string", "default": field.default} for field in dataclasses.fields(Software)},
            },
            "faults": {"type": "array", "items": {"oneOf": [_fault_schema(kind) for kind in sorted(KINDS)]}},
        },
    }


def _fault_schema(kind: str) -> dict[str, t.Any]:
    fields = dataclasses.fields(KINDS[kind])
    properties: dict[str, t.Any] = {"kind": {"const": kind}}
    for field in fields:
        properties[field.name] = {**field.metadata["type"].schema, "description": field.metadata["about"]}
        if field.default is not dataclasses.MISSING and field.default is not None:
            properties[field.name]["default"] = field.default
    return {
        "type": "object",
        "description": (KINDS[kind].__doc__ or "").split("\n")[0],
        "additionalProperties": False,
        "required": ["kind", *(field.name for field in fields if field.default is dataclasses.MISSING)],
        "properties": properties,
    }
