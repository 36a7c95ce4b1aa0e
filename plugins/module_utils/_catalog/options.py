# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The options of a catalog test: what a user gave, checked, and which rule set each value."""

from __future__ import annotations

import typing as t

from .._common.checks import boolean, integer, known_keys, list_of, of_type, one_of, size_bytes, string
from .._common.errors import InputError
from .._common.shapes import Explained

# Values become words of commands and lines of scripts: nothing that a shell would read otherwise.
_WORD = r"[A-Za-z0-9_.:,=+/@%-]+"


def resolve_options(
    entry: t.Mapping[str, t.Any],
    given: t.Mapping[str, t.Any],
    test_scale: str,
    place: str,
    memory_mib: int | None = None,
    gpu: str | None = None,
) -> tuple[dict[str, t.Any], list[Explained]]:
    """Option values for one category, and which rule set each: user, GPU memory, GPU, test scale, or the entry's default.

    Sizes stay as written (16G): that is how the program takes them. memory_mib: of one GPU, when it is known: an option with
    gpu_memory_divisor is lowered to what fits, since nccl-tests holds several buffers of the message size. gpu: its name in the catalog.
    """
    known_keys(dict(given), entry["options"], place)
    values: dict[str, t.Any] = {}
    explain: list[Explained] = []
    by_scale = entry["option_defaults_by_test_scale"].get(test_scale, {})
    by_gpu = entry["option_defaults_by_gpu"].get(gpu or "", {})
    for name, option in entry["options"].items():
        candidates = [
            ("user", given.get(name)),
            ("GPU memory", _fitting(option, memory_mib)),
            (f"GPU {gpu}", by_gpu.get(name)),
            (f"test scale {test_scale}", by_scale.get(name)),
            ("entry default", option.get("default")),
        ]
        chosen = next(((rule, value) for rule, value in candidates if value is not None), ("entry default", None))
        values[name] = None if chosen[1] is None else _checked(chosen[1], option, f"{place}.{name}")
        overridden = [{"rule": rule, "value": value} for rule, value in candidates if value is not None and rule != chosen[0]]
        explain.append({"path": f"options.{name}", "value": values[name], "rule": chosen[0], "overridden": overridden})
    return values, explain


def _fitting(option: t.Mapping[str, t.Any], memory_mib: int | None) -> str | None:
    """The largest power of two that fits the GPU's memory, when the default does not; None when it does."""
    divisor = option.get("gpu_memory_divisor")
    if not divisor or not memory_mib:
        return None
    limit = memory_mib * (1 << 20) // int(divisor)
    if size_bytes(option["default"], "default") <= limit:
        return None
    return f"{(1 << (limit.bit_length() - 1)) >> 20}M"


def _checked(value: t.Any, option: t.Mapping[str, t.Any], place: str) -> t.Any:
    kind = option["type"]
    if kind == "int":
        return integer(value, place, minimum=option.get("minimum", 0))
    if kind == "size":
        size_bytes(value, place)
        return str(value).strip().upper()
    if kind == "bool":
        return boolean(value, place)
    if kind == "list":
        # AWX surveys and -e name=value have no lists.
        items = value.split(",") if isinstance(value, str) else value
        return list_of([item for item in of_type(items, list, place) if item != ""], place, lambda item, spot: _word(item, option, spot))
    return _word(value, option, place)


def _word(value: t.Any, option: t.Mapping[str, t.Any], place: str) -> str:
    if isinstance(value, (dict, list)):
        of_type(value, str, place)
    text = str(value).strip()
    if option.get("choices"):
        return str(one_of(text, option["choices"], "value", place))
    if not text and option.get("default") == "":
        return text  # an option that need not be given
    return string(text, place, pattern=_WORD, hint="Letters, digits and _.:,=+/@%- only")


def expected_sizes(options: t.Mapping[str, t.Any]) -> list[int]:
    """Message sizes that nccl-tests is asked for, in bytes: min, min*factor, … up to max."""
    size, last = size_bytes(options["min_bytes"], "options.min_bytes"), size_bytes(options["max_bytes"], "options.max_bytes")
    factor = int(options["step_factor"])
    if not 0 < size <= last:
        raise InputError(f"{options['min_bytes']} is larger than max_bytes {options['max_bytes']} or zero", place="options.min_bytes")
    sizes = []
    while size <= last:
        sizes.append(size)
        size *= factor
    return sizes
