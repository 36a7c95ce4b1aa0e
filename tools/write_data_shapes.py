# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Write docs/data_shapes.md from plugins/module_utils/_common/shapes.py.

Run it (python tools/write_data_shapes.py) after changing a shape; a unit test compares the two. The comment behind a key is its meaning.
"""

from __future__ import annotations

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "plugins/module_utils/_common/shapes.py"
PAGE = ROOT / "docs/data_shapes.md"

HEAD = """# Data shapes

Every step of a certification turns one plain JSON-able value into the next. This page is the contract between the rooms
of `plugins/module_utils/`; a step can be run alone, from a file, in a test, or in a play of your own. It is written
from `plugins/module_utils/_common/shapes.py` by `tools/write_data_shapes.py`: change it there.

```
request ─► snapshot ─► plan ─► observation ─► measurement ─► judged category ─► rolled up ─► report
```

Conventions: times are RFC 3339 UTC texts; names ending `_s` are seconds, `_bytes` bytes; bandwidths are GB/s (10⁹ bytes
per second); unknown is `null`, never 0 or "". A key marked *optional* may be absent.

Files of the archive: `spec.json` request, `snapshot.json`, `plan.json`, `run.json` run meta, `journal.jsonl` (one JSON
object a line: `at`, `event`, and what the event is about: `batch_start`, `attempt_creating`, `attempt_running`,
`attempt_decided`, `attempt_deleting`, `attempt_done` with the attempt record, `attempt_acquitted` with a corrected one,
`batch_end` with the cleanup proof), `observations/<category>.json`, `judged/<category>.json`,
`isolation/<category>.json` (docs/isolation.md) with a drawing beside it, `logs/`, `report.json`, `report.txt`,
`MANIFEST.sha256`. A finished archive carries the manifest: whoever goes on in it, or rebuilds its report, verifies it
first. While a play works in it there is `.lock`, with its owner; neither that nor a half-written file (`.….tmp`,
`….log.part`) belongs to the archive.
"""
TAIL = """
## Context of a measurement

`measure(kind, paths, context) -> measurement`. All keys are optional: `exit_code, expected_sizes, judged_size,
expect_transport, expect_gdr, require_data_check, require_transport_proof, allow_reduced_sizes, cycles, collective,
expected_gpus, expected_ranks, required_tests, log_interval, warmup_steps, nodes, host_of_node`; dcgm `exit_codes` (one per file),
`dcgm_level`, `iterations`; goodput and training `measurement_started_at`, `job_interrupted_at` (a time or a list),
`job_succeeded_at`, `job_failed_at`; nccl `termination_messages` (files with what the launchers left as their termination
message, read when the log lacks a part); log_profile `profile` (name, path or data), `profile_directories`; key_value
`required_keys`. Kinds add keys of their own to a measurement: dcgm `class`, `failed_entities`, `notes`; training
`computed`, `goodput`, `notes`, `profile`; goodput its terms.

A nccl log may hold several tests, and several runs of one. All must be whole; each of `values` is then the worst number of
them (null where one does not know it), words are those of the slowest run, and `judged` is by collective when there are
several. Of one collective the runs of the largest size are compared, or those of `judged_size`: a warm-up with small
messages is not the measurement. `nodes` and `expected_ranks` are counted against the hosts and ranks that took part, and an
`expect_transport` that no line shows is incomplete.

A metric that is missing, null or not finite makes its criterion `unmeasured`, whatever else the expression says.
Certification: failed before error before incomplete before passed. Node: failed before suspect before untested before
passed, over all categories. What each reason does to nodes: [reasons.md](reasons.md).
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _type(node: ast.expr) -> tuple[str, bool]:
    """A type as readers know it, and whether the key may be absent."""
    text = ast.unparse(node)
    optional = text.startswith("t.NotRequired[")
    if optional:
        text = text[len("t.NotRequired[") : -1]
    for python, json in (("t.Literal", ""), ("t.Any", "any"), ("None", "null")):
        text = text.replace(python, json)
    return re.sub(r"\bt\.", "", text), optional


def _rows(fields: list[tuple[str, ast.expr, int]], lines: list[str]) -> list[str]:
    rows = ["| key | type | meaning |", "|---|---|---|"]
    for name, annotation, line in fields:
        kind, optional = _type(annotation)
        meaning = lines[line - 1].partition("  # ")[2].strip()
        rows.append(f"| `{name}` | `{_cell(kind)}` | {_cell(' '.join(filter(None, ['*optional*' if optional else '', meaning])))} |")
    return rows


def page() -> str:
    """The whole page."""
    text = SOURCE.read_text(encoding="utf-8")
    lines = text.splitlines()
    out = [HEAD]
    headings = {number: found[1] for number, line in enumerate(lines, 1) if (found := re.fullmatch(r"# --- (.+) ---", line))}
    for node in ast.parse(text).body:
        before = [number for number in headings if number < node.lineno]
        for number in before:
            out.append(f"\n## {headings.pop(number)}\n")
        if isinstance(node, ast.ClassDef):
            fields = [
                (item.target.id, item.annotation, item.lineno)
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            ]
            out += [f"### {node.name}\n", f"{ast.get_docstring(node)}\n", *_rows(fields, lines), ""]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.value.args[-1], ast.Dict):
            table = node.value.args[-1]
            fields = [(str(ast.literal_eval(key)), value, value.lineno) for key, value in zip(table.keys, table.values, strict=True) if key]
            name = node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""
            out += [f"### {name}\n", *_rows(fields, lines), ""]
    return "\n".join(out) + TAIL


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
