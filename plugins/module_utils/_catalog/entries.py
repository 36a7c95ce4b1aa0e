# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Catalog tests: one YAML file each under <catalog>/tests/<domain>/<variant>.yml.

A user's own directory is searched before the shipped one, so an entry can be replaced or added without code. An entry may extend
another and then says only what differs.
"""

from __future__ import annotations

import os
import re
import typing as t

from .._common.checks import known_keys, of_type, one_of, string
from .._common.errors import InputError, unknown_value
from .schemas import FRAMEWORKS, read_checked
from .yamlfile import YamlFile, existing, read_yaml

# Variables that launchers and our own scripts set for each process; a user's value would send ranks elsewhere.
RESERVED_ENV = re.compile(
    r"(JOB_COMPLETION_INDEX|HOSTNAME|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|MASTER_ADDR|MASTER_PORT"
    r"|PET_.*|TORCHELASTIC_.*|OMPI_COMM_WORLD_.*|PMIX_RANK|READINESS_.*)"
)
_REQUIRED = ("description", "framework", "image", "test_scales", "measure")
_MERGED = ("options", "measure", "mpi", "exec", "torch", "timeouts", "files", "option_defaults_by_test_scale", "option_defaults_by_gpu")
Entry = dict[str, t.Any]


def list_entries(directories: t.Sequence[str]) -> list[str]:
    """Names of all tests in the given catalog directories, sorted."""
    found = set()
    for directory in directories:
        root = os.path.join(directory, "tests")
        for folder, _folders, files in os.walk(root):
            for name in files:
                if name.endswith((".yml", ".yaml")):
                    found.add(os.path.relpath(os.path.join(folder, os.path.splitext(name)[0]), root).replace(os.sep, "/"))
    return sorted(found)


def load_entry(directories: t.Sequence[str], name: str, place: str = "test") -> Entry:
    """The entry of that name, checked, every key present. Raises InputError with file and line or, for an unknown name, the nearest one."""
    found = _find(directories, name)
    if found is None:
        raise unknown_value("catalog test", name, list_entries(directories), place)
    file, raw = _extended(directories, *found, seen=())
    return _completed(file, raw)


def _find(directories: t.Sequence[str], name: str) -> tuple[int, YamlFile] | None:
    """The file of a test and the number of the directory that holds it."""
    for index, directory in enumerate(directories):
        path = existing(os.path.join(directory, "tests", *name.split("/")))
        if path:
            return index, read_checked(path, "test")
    return None


def _extended(directories: t.Sequence[str], index: int, file: YamlFile, seen: tuple[str, ...]) -> tuple[YamlFile, dict[str, t.Any]]:
    """What a file says, on top of what it extends. A file that extends its own name means the one it stands before."""
    own = dict(file.data)
    base = own.pop("extends", None)
    if "files" in own:
        own["files"] = {name: _text(file, name, text) for name, text in own["files"].items()}
    if base is None:
        return file, own
    place = file.place(("extends",))
    if file.path in seen:
        raise InputError(f"extends itself by way of {', '.join(seen)}", place=place)
    same = base == own["name"]
    found = _find(directories[index + 1 :] if same else directories, base)
    if found is None:
        raise unknown_value("catalog test", base, list_entries(directories), place)
    raw = _extended(directories, found[0] + (index + 1 if same else 0), found[1], (*seen, file.path))[1]
    return file, _merged(raw, own)


def _merged(base: t.Mapping[str, t.Any], own: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Mappings are merged key by key, env by name; null takes away what the base has; everything else is replaced."""
    result = {**base, **{key: value for key, value in own.items() if key not in (*_MERGED, "env")}}
    for key in _MERGED:
        if key in own:
            both = {**(base.get(key) or {}), **(own[key] or {})}
            result[key] = {name: value for name, value in both.items() if value is not None}
    if "options" in own:
        known = base.get("options") or {}
        result["options"] = {
            name: {**known.get(name, {}), **option} if option else option
            for name, option in {**known, **own["options"]}.items()
            if option is not None
        }
    if "env" in own:
        named = {item["name"]: item for item in [*(base.get("env") or []), *own["env"]]}
        result["env"] = [item for item in named.values() if item.get("value") is not None]
    return result


def _text(file: YamlFile, name: str, text: t.Any) -> str:
    """The text of a file for the pods: as it stands, or {file: path beside the entry}."""
    if isinstance(text, str):
        return text
    path = os.path.join(os.path.dirname(file.path), text["file"])
    try:
        with open(path, encoding="utf-8") as handle:
            return handle.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}", place=file.place(("files", name))) from None


def _completed(file: YamlFile, raw: dict[str, t.Any]) -> Entry:
    for key in _REQUIRED:
        if not raw.get(key):
            raise InputError(f"the key {key!r} is missing", place=file.path)
    framework = raw["framework"]
    if not raw.get(framework):
        raise InputError(f"framework {framework} needs a section {framework!r} that says what to run", place=file.path)
    if framework == "exec" and bool(raw["exec"].get("script")) == bool(raw["exec"].get("command")):
        raise InputError("exactly one of script and command says what to run", place=file.place(("exec",)))
    if framework == "torch" and bool(raw["torch"].get("script")) == bool(raw["torch"].get("module")):
        raise InputError("exactly one of script and module says what to run", place=file.place(("torch",)))
    for item in raw.get("env") or ():
        check_env_name(item["name"], file.place(("env",)))
    options = {name: dict(option) for name, option in (raw.get("options") or {}).items()}
    by_gpu = raw.get("option_defaults_by_gpu") or {}
    for gpu, defaults in by_gpu.items():
        known_keys(defaults, options, file.place(("option_defaults_by_gpu", gpu)))
    for name in (raw.get("group_gpus") or {}).get("multiple_of", ()):
        one_of(name, list(options), "option", file.place(("group_gpus", "multiple_of")))
    by_scale = raw.get("option_defaults_by_test_scale") or {}
    for scale, defaults in by_scale.items():
        one_of(scale, raw["test_scales"], "test scale", file.place(("option_defaults_by_test_scale", scale)))
        known_keys(defaults, options, file.place(("option_defaults_by_test_scale", scale)))
    return {
        **{key: raw[key] for key in ("name", *_REQUIRED)},
        "options": options,
        "option_defaults_by_test_scale": {scale: dict(defaults) for scale, defaults in by_scale.items()},
        "option_defaults_by_gpu": {gpu: dict(defaults) for gpu, defaults in by_gpu.items()},
        "group_gpus": {"minimum": 1, "multiple_of": [], **(raw.get("group_gpus") or {})},
        **{name: dict(raw.get(name) or {}) for name in FRAMEWORKS},
        "files": dict(raw.get("files") or {}),
        "env": list(raw.get("env") or []),
        "criteria": list(raw.get("criteria") or []),
        "floors_of": raw.get("floors_of") or raw["name"],
        "expect_transport": raw.get("expect_transport"),
        "security": dict(raw.get("security") or {}),
        "timeouts": {"attempt_s": 3600, **(raw.get("timeouts") or {})},
    }


def check_env_name(name: str, place: str) -> None:
    """Raises InputError for a variable that the launcher sets itself."""
    if RESERVED_ENV.fullmatch(name):
        raise InputError(
            f"{name} is set by the launcher for each process", place=place, hint="Leave it out; nodes and ranks are those of the group"
        )


def load_registries(directories: t.Sequence[str]) -> dict[str, str]:
    """Container registries by the name catalog images use for them; a user's directory wins over the shipped one."""
    registries: dict[str, str] = {}
    for directory in reversed(directories):
        path = os.path.join(directory, "registries.yml")
        if os.path.isfile(path):
            content = of_type(read_yaml(path).data, dict, path)
            registries.update({str(name): string(host, f"{path}: {name}") for name, host in content.items()})
    return registries


def render(value: t.Any, variables: t.Mapping[str, t.Any], place: str) -> t.Any:
    """Every text inside value, with {{ … }} filled in. An unknown variable is an error, never an empty text."""
    import jinja2
    from jinja2.sandbox import SandboxedEnvironment

    environment = SandboxedEnvironment(undefined=jinja2.StrictUndefined)

    def walk(item: t.Any, spot: str) -> t.Any:
        if isinstance(item, str):
            try:
                return environment.from_string(item).render(**variables) if "{" in item else item
            except jinja2.TemplateError as error:
                raise InputError(f"{item!r} cannot be rendered: {error}", place=spot) from error
        if isinstance(item, list):
            return [walk(part, f"{spot}[{index}]") for index, part in enumerate(item)]
        if isinstance(item, dict):
            return {key: walk(part, f"{spot}.{key}") for key, part in item.items()}
        return item

    return walk(value, place)
