# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The tests of the catalog as rows, and as a text for people."""

from __future__ import annotations

import textwrap
import typing as t

from .._catalog.entries import Entry, list_entries, load_entry, render
from .._catalog.floors import load_floors
from .._judge.groups import SELF_JUDGING

WIDTH = 110
Row = dict[str, t.Any]


def list_tests(directories: t.Sequence[str], names: t.Sequence[str] = ()) -> list[Row]:
    """Every test, or those named, one row each.

    {name, description, framework, image, test_scales, measures, options, criteria, floors, needs, attempt_s}
    options: {name: {type, default, description, minimum?, choices?}}. floors: [{gpus, gpus_per_node, path, nodes_max, criteria, source}].
    needs: what the pods ask for beyond an ordinary pod. attempt_s: longest execution on one group, in seconds.
    Raises InputError with file and line.
    """
    floors = load_floors(directories)
    return [_row(load_entry(directories, name), floors) for name in (names or list_entries(directories))]


def _row(entry: Entry, floors: t.Sequence[t.Mapping[str, t.Any]]) -> Row:
    image = entry["image"]
    defaults = {name: option.get("default") for name, option in entry["options"].items()}
    return {
        "name": entry["name"],
        "description": entry["description"],
        "framework": entry["framework"],
        "image": f"{image['registry']}: {image['repository']}:{image.get('digest') or image.get('tag')}",
        "test_scales": list(entry["test_scales"]),
        "measures": entry["measure"]["kind"],
        "options": {
            name: {key: option[key] for key in ("type", "default", "minimum", "choices", "description") if key in option}
            for name, option in entry["options"].items()
        },
        "criteria": render(entry["criteria"], {"options": defaults}, f"{entry['name']}: criteria"),
        "floors": [{key: value for key, value in row.items() if key != "test"} for row in floors if row["test"] == entry["floors_of"]],
        "needs": _needs(entry),
        "attempt_s": entry["timeouts"]["attempt_s"],
    }


def _needs(entry: Entry) -> list[str]:
    security = entry["security"]
    found = ["all GPUs of each node", "capability IPC_LOCK"]
    found += [f"capability {name}" for name in security.get("capabilities", [])]
    found += ["a privileged container"] if security.get("privileged") else []
    found += ["the network of the host"] if security.get("host_network") else []
    if entry["framework"] == "mpi" and entry["test_scales"] != ["intra-node"]:
        found.append("an ssh server in the image, for groups of several nodes")
    return found


def render_tests(rows: t.Sequence[Row]) -> list[str]:
    """Lines for a terminal: each test with what it measures, where, by which options and limits, and what it costs."""
    lines: list[str] = []
    for row in rows:
        lines += ["", row["name"], *_wrapped(row["description"])]
        lines += _wrapped(f"scales     {', '.join(row['test_scales'])}; at most {row['attempt_s'] // 60} minutes on each group")
        lines += _wrapped(f"image      {row['image']}")
        lines += _wrapped(f"needs      {', '.join(row['needs'])}")
        lines += [line for name, option in row["options"].items() for line in _wrapped(_option(name, option))]
        lines += _wrapped(f"judged by  {_judged(row)}")
    return lines[1:]


def _option(name: str, option: t.Mapping[str, t.Any]) -> str:
    default = option.get("default")
    shown = "found out" if default is None else "none" if default in ("", []) else default if isinstance(default, str) else repr(default)
    return f"option     {name} ({shown}): {option['description']}"


def _judged(row: Row) -> str:
    if row["criteria"]:
        return " and ".join(row["criteria"])
    if row["measures"] in SELF_JUDGING:
        return "what the program itself says of each GPU"
    if row["floors"]:
        gpus = sorted({gpu for floor in row["floors"] for gpu in floor["gpus"]})
        return f"floors for {', '.join(gpus)}; criteria of yours elsewhere"
    return "criteria of yours: no floor is calibrated"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent=" " * 13)
