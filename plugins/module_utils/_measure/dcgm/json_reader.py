# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""JSON documents of every generation: up to 3.2, 3.3, 4.x, several iterations, several hosts."""

from __future__ import annotations

import typing as t

from . import codes
from .documents import Document, Error, Result, Test, is_gpu, status_of, tested_gpus, worst_status
from .values import codes_of, entity_number, entity_numbers, errors, integer, mapping, objects, strings, text

Lacks: t.TypeAlias = t.Callable[[str], None]

# Keys a document can begin with: dcgmi sorts them.
FIRST_KEYS = ('DCGM[^"\n]{0,40}', "Overall Result", "iterations", "entity_groups", "Driver Version Detected")


def is_root(value: t.Any) -> bool:
    """Whether an object is one of ours; other programs print JSON to the same stream."""
    if not isinstance(value, dict):
        return False
    if _is_one(value):
        return True
    runs = value.get("iterations")
    return isinstance(runs, list) and ("Overall Result" in value or any(isinstance(run, dict) and _is_one(run) for run in runs))


def _is_one(value: dict[str, t.Any]) -> bool:
    return any(key.startswith("DCGM") for key in value) or ("entity_groups" in value and "metadata" in value)


def read_root(root: dict[str, t.Any], return_of: t.Callable[[str], int | None]) -> Document:
    """The document of a root object. return_of: the return value that an error text stands for, or None."""
    if isinstance(root.get("iterations"), list):
        return _iterations(root, return_of)
    v4 = root.get("DCGM Diagnostic")
    if isinstance(v4, str):
        return _mndiag(root)
    v3 = root.get("DCGM GPU Diagnostic")
    for node, reader in ((v4, _v4), (v3, _v3)):
        if isinstance(node, dict):
            return _runtime_error(node, return_of) if "runtime_error" in node else reader(root, node)
    if "metadata" in root and "entity_groups" in root and v4 is None and v3 is None:
        return _v4(root, {})
    return Document("unknown", complete=False, seen=sorted(map(str, root))[:20], message="a document of an unknown generation")


def _iterations(root: dict[str, t.Any], return_of: t.Callable[[str], int | None]) -> Document:
    whole = Document("unknown", overall=text(root.get("Overall Result")))
    runs = objects(root["iterations"], whole.lacks, "iterations")
    parts = [read_root({key: value for key, value in run.items() if key != "iterations"}, return_of) for run in runs]
    for number, part in enumerate(parts, start=1):
        for test in part.tests:
            test.iteration = number
        if not part.complete:
            whole.lacks(f"iteration {number}: {part.message}")
    if not parts:
        whole.lacks("no iteration")
        return whole
    whole.generation, whole.iterations = f"{parts[0].generation}_iterations", len(parts)
    whole.dcgm = next((part.dcgm for part in parts if part.dcgm), None)
    whole.driver = next((part.driver for part in parts if part.driver), None)
    whole.tests = [test for part in parts for test in part.tests]
    # A GPU that disappears between two iterations is missing: keep the smallest set.
    sets = [part.gpus[None] for part in parts if part.gpus.get(None)]
    if sets:
        whole.gpus = {None: min(sets, key=len)}
    whole.ret = next((part.ret for part in parts if part.ret is not None), None)
    whole.message = text(root.get("Warning")) or whole.message or next((part.message for part in parts if part.message), "")
    return whole


def _runtime_error(node: dict[str, t.Any], return_of: t.Callable[[str], int | None]) -> Document:
    message = text(node.get("runtime_error")) or ""
    return Document("runtime_error", dcgm=text(node.get("version")), message=message, ret=return_of(message))


def _v4(root: dict[str, t.Any], node: dict[str, t.Any]) -> Document:
    metadata = mapping(root.get("metadata"))
    document = Document("v4", dcgm=text(metadata.get("version")), driver=text(metadata.get("Driver Version Detected")))
    document.tests = _v4_tests(node, document.lacks)
    document.gpus = {None: _listed_gpus(root.get("entity_groups"), document.lacks) or tested_gpus(document.tests)}
    return document


def _v4_tests(node: dict[str, t.Any], lacks: Lacks, hosts: dict[str | None, str] | None = None) -> list[Test]:
    return [
        _v4_test(category, test, lacks, hosts)
        for category in objects(node.get("test_categories"), lacks, "test_categories")
        for test in _tests(category, lacks)
    ]


def _tests(category: dict[str, t.Any], lacks: Lacks) -> list[dict[str, t.Any]]:
    """The tests of a category; one without any has lost them, since dcgmi prints none."""
    if not category.get("tests"):
        lacks(f"category {text(category.get('category')) or ''} holds no test")
    return objects(category.get("tests"), lacks, "tests")


def _v4_test(category: dict[str, t.Any], node: dict[str, t.Any], lacks: Lacks, hosts: dict[str | None, str] | None) -> Test:
    name = text(node.get("name")) or ""
    results = [
        Result(
            _entity_name(result.get("entity_group"), result.get("entity_group_id"), result.get("entity_id")),
            status_of(result.get("status")),
            errors(result.get("warnings")),
            strings(result.get("info")),
            _host(hosts, result.get("host_id")),
        )
        for result in objects(node.get("results"), lacks, f"results of {name}")
    ]
    summary = mapping(node.get("test_summary"))
    known = {error for result in results for error in result.errors}
    own = [error for error in errors(summary.get("warnings")) if error not in known]
    mpi = node.get("mpi_error")
    status = summary.get("status", node.get("status"))
    return Test(
        text(category.get("category")),
        name,
        status_of(status) if status is not None else worst_status(results),
        results,
        own,
        strings(summary.get("info")),
        mpi_error=None if mpi is None else text(mapping(mpi).get("warning")) or text(mpi) or "MPI error",
    )


def _mndiag(root: dict[str, t.Any]) -> Document:
    document = Document("mndiag")
    entries = objects(root.get("hosts"), document.lacks, "hosts")
    hosts = {text(entry.get("host_id")): text(entry.get("hostname")) or "" for entry in entries}
    for entry in entries:
        document.dcgm = document.dcgm or text(entry.get("dcgm_version"))
        document.driver = document.driver or text(entry.get("driver_version"))
        document.gpus[text(entry.get("hostname"))] = _gpu_names(objects(entry.get("entities"), document.lacks, "entities"))
    document.tests = _v4_tests(root, document.lacks, hosts)
    document.global_errors = [error.text for error in errors(root.get("global_errors"))]
    return document


def _v3(root: dict[str, t.Any], node: dict[str, t.Any]) -> Document:
    version = text(node.get("version")) or text(root.get("version"))
    driver = text(node.get("Driver Version Detected")) or text(root.get("Driver Version Detected"))
    document = Document("v3", dcgm=version, driver=driver)
    for category in objects(node.get("test_categories"), document.lacks, "test_categories"):
        for entry in _tests(category, document.lacks):
            name = text(entry.get("name")) or ""
            lines = objects(entry.get("results"), document.lacks, f"results of {name}", holes=True)
            results = [result for line in lines for result in _v3_results(line)]
            string_warning = any(isinstance(line.get("warnings"), str) for line in lines)
            if string_warning or any("gpu_ids" in line for line in lines):
                document.generation = "v3_legacy"
            test = Test(text(category.get("category")), name, worst_status(results), results, string_warning=string_warning)
            document.tests.append(test)
    ids = node.get("GPU Device IDs", root.get("GPU Device IDs"))
    listed = {f"GPU{number}" for number in range(len(ids))} if isinstance(ids, list) else set()
    tested = tested_gpus(document.tests)
    document.gpus = {None: listed if len(listed) >= len(tested) else tested}
    return document


def _v3_results(node: dict[str, t.Any]) -> list[Result]:
    """One result line of 3.x, which may stand for several GPUs: `gpu_ids` is text such as "0,1,2"."""
    raw = node.get("warnings")
    found = [Error(raw, *codes_of(node))] if isinstance(raw, str) and raw.strip() else errors(raw)
    if not found and integer(node.get("error_id")):
        found = [Error(text(node.get("info")) or "", *codes_of(node))]
    info = strings(node.get("info"))
    names = [f"GPU{number}" for number in entity_numbers(node.get("gpu_ids", node.get("gpu_id")))]
    cpu = entity_number(node.get("cpu_id"))
    if not names and cpu is not None:
        names = [f"CPU{cpu}"]
    status = status_of(node.get("status"))
    return [Result(name, status, list(found), info) for name in names] or [Result(None, status, found, info)]


def _entity_name(group: t.Any, group_id: t.Any, entity_id: t.Any) -> str | None:
    name = text(group) or codes.ENTITY_GROUPS.get(t.cast(int, integer(group_id)), "")
    number = entity_number(entity_id)
    if not name or name == "None":
        return None
    return name if number is None else f"{name}{number}"


def _host(hosts: dict[str | None, str] | None, host_id: t.Any) -> str | None:
    number = text(host_id)
    if hosts is None or number is None:
        return None
    return hosts.get(number) or f"host {number}"


def _listed_gpus(groups: t.Any, lacks: Lacks) -> set[str]:
    names: set[str | None] = set()
    for group in objects(groups, lacks, "entity_groups"):
        if group.get("entity_group") == "GPU" or group.get("entity_group_id") == 1:
            names |= {_entity_name("GPU", 1, entry.get("entity_id")) for entry in objects(group.get("entities"), lacks, "entities")}
    return {name for name in names if is_gpu(name)}


def _gpu_names(entities: t.Sequence[t.Mapping[str, t.Any]]) -> set[str]:
    named = (_entity_name(e.get("entity_group"), e.get("entity_group_id"), e.get("entity_id")) for e in entities)
    return {name for name in named if is_gpu(name)}
