# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Custom resource definitions: structural schemas with pruning, defaulting, validation and validation rules."""

from __future__ import annotations

import copy
import functools
import typing as t

from . import clock
from .deps import jsonschema_rs
from .errors import FieldError, duplicate, invalid_value, required, unsupported
from .objects import Object
from .resources import Resource
from .schema import OBJECT_META, BuiltInTypes, TypeNode, path_text

Path = tuple[t.Any, ...]

# What of a structural schema is plain JSON schema (draft 4, as OpenAPI 3.0 is).
_COPIED = (
    "type",
    "format",
    "pattern",
    "required",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "multipleOf",
    "uniqueItems",
)


def json_schema(schema: Object) -> Object:
    """A structural schema as a draft 4 JSON schema."""
    result: Object = {key: schema[key] for key in _COPIED if key in schema}
    if "enum" in schema:
        result["enum"] = [*schema["enum"], None] if schema.get("nullable") else schema["enum"]
    if schema.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
        result["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    for key in ("allOf", "anyOf", "oneOf"):
        if key in schema and key not in result:
            result[key] = [json_schema(item) for item in schema[key]]
    if "not" in schema:
        result["not"] = json_schema(schema["not"])
    if "properties" in schema:
        result["properties"] = {key: json_schema(value) for key, value in schema["properties"].items()}
    if isinstance(schema.get("items"), dict):
        result["items"] = json_schema(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = json_schema(schema["additionalProperties"])
    if schema.get("nullable") and "type" in result:
        result["type"] = [result["type"], "null"]
    return result


def prune(value: t.Any, schema: Object, path: Path = (), *, root: bool = False) -> list[Path]:
    """Remove fields the schema does not have, in place. Returns their paths."""
    dropped: list[Path] = []
    if isinstance(value, list):
        for index, item in enumerate(value):
            dropped += prune(item, schema.get("items") or {}, (*path, index))
        return dropped
    if not isinstance(value, dict):
        return dropped
    known = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    resource = root or schema.get("x-kubernetes-embedded-resource", False)
    for key in list(value):
        if resource and key in ("apiVersion", "kind", "metadata"):
            continue
        if key in known:
            dropped += prune(value[key], known[key], (*path, key))
        elif isinstance(extra, dict):
            dropped += prune(value[key], extra, (*path, key))
        elif not extra and not schema.get("x-kubernetes-preserve-unknown-fields"):
            del value[key]
            dropped.append((*path, key))
    return dropped


def set_defaults(value: t.Any, schema: Object) -> None:
    """Fill in the defaults of the schema, in place."""
    if isinstance(value, list):
        for item in value:
            set_defaults(item, schema.get("items") or {})
        return
    if not isinstance(value, dict):
        return
    known = schema.get("properties") or {}
    for key, inner in known.items():
        absent = key not in value or (value[key] is None and not inner.get("nullable"))
        if absent and "default" in inner:
            value[key] = copy.deepcopy(inner["default"])
        elif key in value and value[key] is None and not inner.get("nullable"):
            del value[key]
    extra = schema.get("additionalProperties")
    for key, item in value.items():
        inner = known.get(key) or (extra if isinstance(extra, dict) else None)
        if inner:
            set_defaults(item, inner)


# --- validation rules -----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=512)
def _program(rule: str) -> t.Any:
    """A compiled CEL rule, or None where no CEL engine is installed or it does not know the rule's functions."""
    try:
        import celpy
    except ImportError:
        return None
    environment = celpy.Environment()
    try:
        return environment.program(environment.compile(rule))
    except Exception:  # the engine raises several unrelated classes for what it cannot parse
        return None


def _holds(rule: str, value: t.Any, old: t.Any) -> bool:
    """Whether a rule holds. A rule that cannot be evaluated here holds: the simulator must not refuse what a real server accepts."""
    text = rule.strip()
    if text in ("self == oldSelf", "oldSelf == self"):
        return bool(value == old)
    program = _program(text)
    if program is None:
        return True
    from celpy.adapter import json_to_cel

    activation = {"self": json_to_cel(value)}
    if "oldSelf" in text:
        activation["oldSelf"] = json_to_cel(old)
    try:
        return bool(program.evaluate(activation))
    except Exception:  # as above
        return True


def check_rules(value: t.Any, old: t.Any, schema: Object, path: Path = ()) -> list[FieldError]:
    """Evaluate x-kubernetes-validations. Rules that name oldSelf apply only where there is an old value."""
    errors: list[FieldError] = []
    for rule in schema.get("x-kubernetes-validations") or ():
        if "oldSelf" in rule["rule"] and old is None and not rule.get("optionalOldSelf"):
            continue
        if not _holds(rule["rule"], value, old):
            message = rule.get("message") or f"failed rule: {rule['rule'].strip()}"
            errors.append(invalid_value(path_text(path), value if not isinstance(value, dict) else "object", message))
    if isinstance(value, dict):
        known = schema.get("properties") or {}
        extra = schema.get("additionalProperties")
        for key, item in value.items():
            inner = known.get(key) or (extra if isinstance(extra, dict) else None)
            if inner:
                before = old.get(key) if isinstance(old, dict) else None
                errors += check_rules(item, before, inner, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            errors += check_rules(item, _matching(item, old, schema), schema.get("items") or {}, (*path, index))
    return errors


def _matching(item: t.Any, old: t.Any, schema: Object) -> t.Any:
    """The old item with the same keys in a list of type map; other lists have no correlated items."""
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    if not keys or not isinstance(old, list) or not isinstance(item, dict):
        return None
    for other in old:
        if isinstance(other, dict) and all(other.get(key) == item.get(key) for key in keys):
            return other
    return None


def _duplicates(value: t.Any, schema: Object, path: Path) -> list[FieldError]:
    """Items that are not unique in lists of type set or map."""
    errors: list[FieldError] = []
    if isinstance(value, dict):
        for key, item in value.items():
            inner = (schema.get("properties") or {}).get(key)
            if inner:
                errors += _duplicates(item, inner, (*path, key))
    elif isinstance(value, list):
        kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys") or ()
        seen: list[t.Any] = []
        for index, item in enumerate(value):
            mark = [item.get(key) for key in keys] if kind == "map" and isinstance(item, dict) else item
            if kind in ("set", "map") and mark in seen:
                errors.append(duplicate(path_text((*path, index)), mark))
            seen.append(mark)
            errors += _duplicates(item, schema.get("items") or {}, (*path, index))
    return errors


class CustomVersion:
    """One version of a custom kind, compiled: schema, validator, type tree, printer columns, selectable fields."""

    def __init__(self, version: Object, types: BuiltInTypes) -> None:
        self.schema: Object = (version.get("schema") or {}).get("openAPIV3Schema") or {"x-kubernetes-preserve-unknown-fields": True}
        self.columns: list[Object] = version.get("additionalPrinterColumns") or []
        self.selectable = tuple(item["jsonPath"].lstrip(".") for item in version.get("selectableFields") or ())
        self.has_status = "status" in (version.get("subresources") or {})
        checked = {**self.schema, "properties": {k: v for k, v in (self.schema.get("properties") or {}).items() if k != "metadata"}}
        self._validator = jsonschema_rs.Draft4Validator(json_schema(checked), validate_formats=True)
        typed = {**self.schema, "properties": {**(self.schema.get("properties") or {}), "metadata": {"$ref": OBJECT_META}}}
        self.node = TypeNode(typed, types.definitions)

    def clean(self, obj: Object) -> list[Path]:
        """Prune, then default, in place. Returns the pruned paths."""
        dropped = prune(obj, self.schema, root=True)
        set_defaults(obj, self.schema)
        return dropped

    def check(self, obj: Object, old: Object | None) -> list[FieldError]:
        """Every violation of the schema, then of its rules (only when the schema holds)."""
        errors: list[FieldError] = []
        if not self._validator.is_valid(obj):
            errors = [self._field_error(error) for error in self._validator.iter_errors(obj)]
        errors += _duplicates(obj, self.schema, ())
        return errors or check_rules(obj, old, self.schema)

    @staticmethod
    def _field_error(error: t.Any) -> FieldError:
        path = list(error.instance_path)
        missing = getattr(error.kind, "property", None)
        if missing is not None:
            return required(path_text([*path, missing]))
        options = getattr(error.kind, "options", None)
        if isinstance(options, list):
            return unsupported(path_text(path), error.instance, [str(item) for item in options])
        shown = error.instance if isinstance(error.instance, (str, int, float, bool, type(None))) else type(error.instance).__name__
        return invalid_value(path_text(path), shown, f"{path_text(path)} in body: {error.message}")


def resources_of(definition: Object, types: BuiltInTypes) -> list[Resource]:
    """The kinds a CustomResourceDefinition serves."""
    spec = definition["spec"]
    names = spec["names"]
    result = []
    for version in spec["versions"]:
        if not version.get("served", True):
            continue
        compiled = CustomVersion(version, types)
        result.append(
            Resource(
                group=spec["group"],
                version=version["name"],
                plural=names["plural"],
                kind=names["kind"],
                namespaced=spec["scope"] == "Namespaced",
                singular=names.get("singular", ""),
                short_names=tuple(names.get("shortNames") or ()),
                categories=tuple(names.get("categories") or ()),
                subresources=frozenset(("status",) if compiled.has_status else ()),
                generation=True,
                list_kind=names.get("listKind", ""),
                custom=compiled,
            )
        )
    return result


def complete_names(definition: Object) -> None:
    """Fill in singular, listKind and conversion of a definition, in place."""
    spec = definition.get("spec") or {}
    names = spec.get("names") or {}
    if names.get("kind"):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", names["kind"] + "List")
    spec.setdefault("conversion", {"strategy": "None"})


def check_definition(definition: Object) -> list[FieldError]:
    """Semantic errors of a CustomResourceDefinition."""
    spec = definition.get("spec") or {}
    names = spec.get("names") or {}
    errors: list[FieldError] = []
    for field in ("group", "scope", "versions"):
        if not spec.get(field):
            errors.append(required(f"spec.{field}"))
    for field in ("plural", "kind"):
        if not names.get(field):
            errors.append(required(f"spec.names.{field}"))
    if errors:
        return errors
    expected = f"{names['plural']}.{spec['group']}"
    if definition["metadata"]["name"] != expected:
        errors.append(
            invalid_value("metadata.name", definition["metadata"]["name"], f'must be spec.names.plural+"."+spec.group ({expected})')
        )
    if spec["scope"] not in ("Namespaced", "Cluster"):
        errors.append(unsupported("spec.scope", spec["scope"], ("Namespaced", "Cluster")))
    if sum(bool(version.get("storage")) for version in spec["versions"]) != 1:
        errors.append(invalid_value("spec.versions", "versions", "must have exactly one version marked as storage version"))
    for index, version in enumerate(spec["versions"]):
        if not ((version.get("schema") or {}).get("openAPIV3Schema")):
            errors.append(required(f"spec.versions[{index}].schema.openAPIV3Schema", "schemas are required"))
    return errors


def established_status(spec: Object) -> Object:
    """The status of a definition whose kinds are served."""
    return {
        "conditions": [
            _true_condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            _true_condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        "acceptedNames": spec["names"],
        "storedVersions": [version["name"] for version in spec["versions"] if version.get("storage")],
    }


def _true_condition(kind: str, reason: str, message: str) -> Object:
    return {"type": kind, "status": "True", "lastTransitionTime": clock.stamp(clock.now()), "reason": reason, "message": message}
