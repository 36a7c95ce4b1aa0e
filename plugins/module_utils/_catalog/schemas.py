# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The shape of the catalog's data files, as JSON Schema. catalog/schema/*.json are written from here (a test compares them).

Only the words that yamlfile.validate knows are used: type, properties, required, additionalProperties, items, enum, minimum.
"""

from __future__ import annotations

import typing as t

from .._causes.evidence import CLASSES, KINDS
from .yamlfile import YamlFile, read_yaml, validate

Schema = dict[str, t.Any]


def _closed(properties: dict[str, t.Any], required: t.Sequence[str] = (), description: str = "") -> Schema:
    made: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    if required:
        made["required"] = list(required)
    if description:
        made["description"] = description
    return made


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


TEXT: Schema = {"type": "string"}
FREE: Schema = {"type": "object", "additionalProperties": {}}
COUNT: Schema = {"type": ["integer", "null"], "minimum": 0}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}

GPU = _closed(
    {
        "name": TEXT,
        "title": TEXT,
        "architecture": TEXT,
        "products": _list(TEXT),
        "products_by_memory": _list(_closed({"product": TEXT, "min_mib": COUNT, "max_mib": COUNT}, ["product"])),
        "gpus_per_node": COUNT,
        "other_shapes": _list({"type": "integer", "minimum": 1}),
        "nics_per_node": COUNT,
        "nvlink_domain": COUNT,
        "mnnvl": {"type": "boolean"},
        "notes": TEXT,
    },
    ["name"],
    "A GPU product; see the head of gpus.yml for the meaning of each key.",
)

DETECT = _closed(
    {
        "always": {"type": "boolean", "enum": [True]},
        "provider_id_prefix": TEXT,
        "provider_id_empty": {"type": "boolean"},
        "label": {**TEXT, "description": "The node carries this label."},
        "label_equals": _map(TEXT),
        "label_contains": _map(TEXT),
        "allocatable": {**TEXT, "description": "The node offers this extended resource."},
    },
    description="All conditions of one rule must hold; one rule is enough.",
)

IMAGE: Schema = {
    "type": ["object", "null"],
    "additionalProperties": False,
    "properties": {"registry": TEXT, "repository": TEXT, "tag": TEXT, "digest": TEXT},
    "required": ["registry", "repository"],
}

RULE = _closed(
    {
        "name": TEXT,
        "when": _closed(
            {
                "gpus": _list(TEXT),
                "not_gpus": _list(TEXT),
                "mnnvl": {"type": "boolean"},
                "gpus_per_node": _list({"type": "integer", "minimum": 1}),
                "workload": {"type": "string", "enum": ["collective", "training"]},
                "allocatable": TEXT,
                "not_allocatable": {**TEXT, "description": "No node offers this extended resource."},
            },
            description="All must hold. A rule with more conditions beats one with fewer.",
        ),
        "transport": {"type": "string", "enum": ["ib", "roce", "efa", "tcpxo", "mnnvl", "tcp"]},
        "env": _map({"type": ["string", "null"]}),
        "nic_resource": {**TEXT_OR_NULL, "description": "An extended resource, auto (look for it), or null (none)."},
        "nics_per_node": COUNT,
        "resources": _map({"type": ["string", "null"]}),
        "annotations": _map({"type": ["string", "null"]}),
        "annotations_per_nic": _map({"type": ["string", "null"]}),
        "volumes": _list(FREE),
        "volume_mounts": _list(FREE),
        "tolerations": _list(FREE),
        "resource_claims": _list(
            _closed({"name": TEXT, "device_class": TEXT, "count": COUNT, "per_nic": {"type": "boolean"}}, ["name", "device_class"])
        ),
        "gpu_claim": {**_closed({"device_class": TEXT}, ["device_class"]), "type": ["object", "null"]},
        "init_containers": _list(FREE),
        "mca": _map({"type": ["string", "null"]}),
        "mpirun_args": _list(TEXT),
        "pre_command": _list(TEXT),
        "security": _closed({"capabilities": _list(TEXT), "privileged": {"type": "boolean"}}),
        "compute_domain": {"type": "boolean"},
        "image": IMAGE,
        "mpirun": TEXT_OR_NULL,
        "binary_dir": TEXT_OR_NULL,
    },
    ["name"],
    "Network settings of one platform for some GPUs. null takes away what a less specific rule gives.",
)

PLATFORM = _closed(
    {
        "name": TEXT,
        "title": TEXT,
        "priority": {"type": "integer"},
        "detect": _list(DETECT),
        "topology": _closed({"clique": _list(TEXT), "rack": _list(TEXT), "block": _list(TEXT)}),
        "gpus": _map(_closed({"gpus_per_node": COUNT, "nics_per_node": COUNT, "other_shapes": _list({"type": "integer", "minimum": 1})})),
        "network": _list(RULE),
        "notes": _list(TEXT),
    },
    ["name"],
    "A platform: how its nodes are recognised, its exceptions to the GPU table, its network settings.",
)

GPUS_FILE = _closed({"gpus": _list(GPU)}, ["gpus"])
TOPOLOGY_FILE = _closed({"topology": _closed({"clique": _list(TEXT), "rack": _list(TEXT), "block": _list(TEXT)})}, ["topology"])
# What a user's own directory may hold beside evidence/: rules for node conditions in short.
CONDITIONS_FILE = _closed(
    {
        "health_conditions": _list(
            _closed(
                {"name": TEXT, "pattern": TEXT, "bad": {"type": "string", "enum": ["True", "False", "never"]}}, ["name", "pattern", "bad"]
            )
        )
    },
    ["health_conditions"],
)

EVIDENCE = _closed(
    {
        "name": {**TEXT, "description": "What a user's row of the same kind and name replaces."},
        "kind": {"type": "string", "enum": list(KINDS)},
        "class": {"type": "string", "enum": list(CLASSES), "description": "What it means; only hardware convicts."},
        "pattern": {**TEXT, "description": "A regular expression: of a condition's type, a key, or words."},
        "value": {**TEXT, "description": "A regular expression of the value of a label, annotation or taint."},
        "bad": {"type": "string", "enum": ["True", "False", "never"], "description": "The status of a condition that means trouble."},
        "code": {"type": "integer", "minimum": 0, "description": "The number of an Xid, a DCGM code or a severity."},
        "symbol": {**TEXT, "description": "The name of a DCGM code after DCGM_FR_."},
        "also": {**_list(TEXT), "description": "Other names of the code in other versions."},
        "severity": {"type": "string", "enum": ["none", "monitor", "isolate", "unknown", "triage", "config", "reset"]},
        "title": TEXT,
        "advice": TEXT,
        "source": {**TEXT, "description": "Where it is known from."},
        "examples": {**_list(TEXT), "description": "What must fit."},
        "counter_examples": {**_list(TEXT), "description": "What must not."},
    },
    ["kind"],
    "One thing that speaks for or against hardware, or marks a node.",
)
EVIDENCE_FILE = _closed({"evidence": _list(EVIDENCE)}, ["evidence"])

TEST_SCALES = ("intra-node", "intra-rack", "full-scale", "diagnose")
FRAMEWORKS = ("mpi", "exec", "torch")
SCALES: Schema = {"type": "string", "enum": list(TEST_SCALES)}
OPTION = {
    **_closed(
        {
            "type": {"type": "string", "enum": ["int", "size", "text", "bool", "list"]},
            "default": {},
            "minimum": {"type": "integer"},
            "choices": {**_list(TEXT), "description": "All that a text, or each item of a list, may be."},
            "gpu_memory_divisor": {"type": "integer", "minimum": 1},
            "description": TEXT,
        }
    ),
    "type": ["object", "null"],
}
SECURITY = _closed({"capabilities": _list(TEXT), "privileged": {"type": "boolean"}, "host_network": {"type": "boolean"}})
TEST = _closed(
    {
        "name": TEXT,
        "description": TEXT,
        "extends": {**TEXT, "description": "A test whose file says the rest; one of the same name: the file this one stands before."},
        "framework": {"type": "string", "enum": list(FRAMEWORKS)},
        "image": IMAGE,
        "test_scales": _list(SCALES),
        "measure": {**FREE, "description": "kind, and what its reader is to know."},
        "options": _map(OPTION),
        "option_defaults_by_test_scale": _map({**FREE, "type": ["object", "null"]}),
        "option_defaults_by_gpu": {**_map({**FREE, "type": ["object", "null"]}), "description": "By the name of a GPU in gpus.yml."},
        "group_gpus": _closed(
            {"minimum": {"type": "integer", "minimum": 1}, "multiple_of": _list(TEXT)},
            description="GPUs that a group must have: so many at least, and a multiple of the product of these options.",
        ),
        "mpi": _closed({"mpirun": TEXT, "binary": TEXT, "args": _list(TEXT)}),
        "exec": _closed(
            {
                "script": {**TEXT, "description": "Lines of bash; {{ options.x }} is filled in."},
                "command": _list(TEXT),
                "per": {"type": "string", "enum": ["node", "group"], "description": "Whose end counts: each node's, or that of index 0."},
            }
        ),
        "torch": _closed(
            {
                "script": TEXT,
                "module": TEXT,
                "args": _list(TEXT),
                "prepare": {**TEXT, "description": "Lines of bash that each pod runs before torchrun."},
                "rendezvous": {"type": "string", "enum": ["static", "c10d"]},
            }
        ),
        "files": {
            **_map({"type": ["string", "object"], "additionalProperties": False, "properties": {"file": TEXT}, "required": ["file"]}),
            "description": "Files for the pods, under /etc/readiness/files: a text, or {file: path beside this file}.",
        },
        "env": _list(_closed({"name": TEXT, "value": TEXT_OR_NULL}, ["name", "value"])),
        "criteria": {**_list(TEXT), "description": "What must hold where the user names no criteria; {{ options.x }} is filled in."},
        "floors_of": {**TEXT, "description": "The test whose floors hold for this one too, since it measures the same."},
        "expect_transport": {**TEXT, "description": "What a group's traffic must use; network: whatever carries it between nodes."},
        "security": SECURITY,
        "timeouts": _closed({"attempt_s": {"type": "integer", "minimum": 1}}),
    },
    ["name"],
    "A test of the catalog.",
)
FLOORS_FILE = _closed(
    {
        "floors": _list(
            _closed(
                {
                    "test": TEXT,
                    "gpus": _list(TEXT),
                    "gpus_per_node": {"type": "integer", "minimum": 1},
                    "path": {"type": "string", "enum": ["local", "mnnvl", "rdma"]},
                    "nodes_max": {"type": "integer", "minimum": 1},
                    "criteria": _list(TEXT),
                    "source": {**TEXT, "description": "Where the figure is from, with its range."},
                },
                ["test", "gpus", "gpus_per_node", "path", "criteria", "source"],
            )
        )
    },
    ["floors"],
    "What a healthy group reaches at least.",
)

FILES: dict[str, Schema] = {
    "gpus": GPUS_FILE,
    "platform": PLATFORM,
    "topology": TOPOLOGY_FILE,
    "health_conditions": CONDITIONS_FILE,
    "evidence": EVIDENCE_FILE,
    "test": TEST,
    "floors": FLOORS_FILE,
}


def read_checked(path: str, kind: str) -> YamlFile:
    """A file of the catalog, checked against the schema of its kind. Raises InputError with file and line."""
    file = read_yaml(path)
    validate(file, FILES[kind])
    return file


def published(name: str) -> Schema:
    """The schema as it stands in catalog/schema/<name>.schema.json."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"gpu_cluster.readiness catalog: {name}", **FILES[name]}
