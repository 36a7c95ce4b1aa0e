# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The report for people: plain text, at most 100 columns, no colour, the worst first."""

from __future__ import annotations

import re
import textwrap
import typing as t

from .._common.hostlist import fold
from .._common.plain import safe
from .._criteria.criteria import number
from .._criteria.lead import LEAD_METRICS

WIDTH = 100
NAMES_WIDTH = 30  # of the columns GROUP and NODES together
PASSING_ROWS = 4  # passing groups shown of a long table: those with the least margin
RACKS_SHOWN = 8  # those with the lowest values
ROWS_SHOWN = 40  # groups that did not pass, of one category
BLOCKS_SHOWN = 25  # nodes told one by one, of one verdict; the others are told by reason
FINDINGS_SHOWN, EVIDENCE_SHOWN = 4, 3
STORY_SHOWN = (10, 10)  # waves of a search: from its beginning, from its end
_MARKS = {"failed": "FAIL", "error": "ERROR", "incomplete": "INCOMPL", "passed": "pass"}
_ORDER = ("failed", "error", "incomplete", "passed")
Row = t.Mapping[str, t.Any]


def render_text(report: Row) -> str:
    """The whole report as one text that ends in a newline."""
    lines = _head(report) + _nodes(report) + _excluded(report)
    for category in report["categories"]:
        lines += ["", *_category(category)]
    lines += _tail(report)
    return "\n".join(safe(line).rstrip() for line in lines) + "\n"


def _head(report: Row) -> list[str]:
    cluster, coverage = report["cluster"], report["coverage"]
    name = report["certification"].get("name")
    took = _duration(report.get("started"), report.get("finished"))
    lines = ["=" * WIDTH, f"CLUSTER READINESS: {report['verdict'].upper()}", *_wrap(report["why"], "  "), "=" * WIDTH]
    lines += _field("Run", f"{report['run_id']}{f' ({name})' if name else ''}")
    if report.get("started") and report["started"] != report.get("finished"):
        lines += _field("Time", f"{report['started']} to {report.get('finished') or '?'}{f' ({took})' if took else ''}")
    lines += _field("Cluster", _cluster(cluster))
    versions = [
        f"{key} {', '.join(sorted(found))}" for key, found in sorted(cluster["versions"].items()) if key in ("driver", "cuda", "kubelet")
    ]
    lines += _field("Software", "; ".join(versions)) if versions else []
    lines += _field("Coverage", _coverage(coverage, len(report["not_selected"])))
    counts = [f"{sum(node['verdict'] == word for node in report['nodes'])} {word}" for word in ("passed", "failed", "suspect", "untested")]
    lines += _field("Nodes", ", ".join(counts))
    for note in report["notes"]:
        lines += _field("Note", note)
    return lines


def _cluster(cluster: Row) -> str:
    pools = [f"{row.get('nodes')} x {row.get('gpus_per_node')} {row.get('product')}" for row in cluster["gpus"]]
    platform = cluster["platform"] or "platform unknown"
    server = f", Kubernetes {cluster['server_version']}" if cluster["server_version"] else ""
    return f"{platform}{server}, {cluster['nodes']} GPU nodes{': ' + ', '.join(pools) if pools else ''}"


def _coverage(coverage: Row, not_selected: int) -> str:
    text = f"{coverage['tested']} of {coverage['targets']} target nodes tested"
    text += f", {coverage['excluded']} excluded (coverage {coverage['ratio']:.1%})"
    return f"{text}, {not_selected} not selected" if not_selected else text


# ------------------------------------------------------------------------------------------ categories


def _category(category: Row) -> list[str]:
    title = f"{category['id']}: {category['verdict'].upper()}"
    lines = ["-" * WIDTH, title, *_wrap(f"{category['test']} at {category['test_scale']}: {category['why']}", "  ")]
    for expression in category["criteria"]:
        lines += _wrap(f"criterion  {expression}", "  ", "             ")
    if not category["criteria"]:
        lines.append("  no criteria: only what the test itself says was judged")
    lines += _table(category["groups"])
    lines += _racks(category.get("roll_up") or {})
    lines += _untested(category["untested"])
    isolation = category.get("isolation") or {}
    lines += _isolation(isolation.get("findings", []))
    lines += _search((isolation.get("conclusion") or {}).get("story") or [])
    return lines


def _isolation(findings: t.Sequence[Row]) -> list[str]:
    """What isolation found, once for all nodes of which it says the same, and whom it cleared."""
    lines = []
    alike: dict[tuple[str, str, str], list[str]] = {}
    for item in findings:
        if not item["note"]:
            sure = f" ({item['confidence']:.0%} sure)" if isinstance(item.get("confidence"), float) else ""
            nodes = alike.setdefault((str(item.get("class") or item["reason"]), sure, item["message"]), [])
            nodes += [str(item["node"])] if item.get("node") else []
    for (what, sure, message), nodes in alike.items():
        lines += _wrap(f"isolation  {what}{f' on {fold(nodes)}' if nodes else ''}{sure}: {message}", "  ", "             ")
    cleared = [str(item["node"]) for item in findings if item["note"] and item.get("node")]
    if cleared:
        lines += _wrap(f"isolation  cleared {len(cleared)} nodes: {fold(cleared)}", "  ", "             ")
    return lines


def _search(story: t.Sequence[str]) -> list[str]:
    """How isolation came to that, wave by wave; of a long search the beginning and the end."""
    if not story:
        return []
    first, last = STORY_SHOWN
    left_out = len(story) - first - last
    told = list(story) if left_out < 2 else [*story[:first], f"... {left_out} more waves, see report.json", *story[-last:]]
    lines = ["  how isolation searched"]
    for line in told:
        lines += _wrap(line, "    ", "      ", 4)
    return lines


def _untested(items: t.Sequence[Row]) -> list[str]:
    """Nodes no group was built with, together when the reason is the same."""
    by_reason: dict[tuple[t.Any, t.Any], list[str]] = {}
    for item in items:
        by_reason.setdefault((item["reason"], item["message"]), []).append(str(item["node"]))
    lines = []
    for (reason, message), names in by_reason.items():
        lines += _wrap(f"in no group  {fold(names)}: {reason}: {message}", "  ", "               ")
    return lines


def _table(groups: t.Sequence[Row]) -> list[str]:
    """Group, nodes, value, limit, margin, verdict; failing ones first, of the passing ones those closest to a limit."""
    if not groups:
        return []
    ordered = sorted(groups, key=lambda group: (_ORDER.index(group["verdict"]), _margin_key(group), str(group["name"])))
    passing = [group for group in ordered if group["verdict"] == "passed"]
    missed = [group for group in ordered if group["verdict"] != "passed"]
    shown = missed[:ROWS_SHOWN]
    rest = passing[PASSING_ROWS:] if len(passing) > PASSING_ROWS + 1 else []
    shown += passing[: len(passing) - len(rest)]
    width = min(max([len(str(group["name"])) for group in shown] + [5]), NAMES_WIDTH - 10)
    header = ("GROUP", "NODES", "VALUE", "LIMIT", "MARGIN", "VERDICT")
    lines = ["", _columns(width, *header)]
    for group in shown:
        lines += [_columns(width, *row) for row in _rows(group)] + _repeats(group)
    if len(missed) > ROWS_SHOWN:
        lines.append(f"  ... {len(missed) - ROWS_SHOWN} more groups did not pass, see report.json")
    return [*lines, *_rest(rest)] if rest else lines


def _racks(roll_up: Row) -> list[str]:
    """Where the values of each rack lie, the lowest first; nothing where there is one rack to tell of."""
    racks = roll_up.get("racks") or []
    if len(racks) < 2:
        return []
    ordered = sorted(racks, key=lambda row: (row["low"] is None, row["low"] or 0.0, row["rack"]))
    unit = f" ({roll_up['unit']})" if roll_up["unit"] else ""
    width = min(max(len(row["rack"]) for row in racks), NAMES_WIDTH)
    lines = ["", f"  by rack: {roll_up['metric'] or 'nothing was measured'}{unit}, lowest, median and highest of its groups"]
    for row in ordered[:RACKS_SHOWN]:
        measured = f"{row['nodes_measured']} of {row['nodes']} nodes"
        values = " ".join(f"{_rounded(row[name]) if row[name] is not None else '-':>12}" for name in ("low", "median", "high"))
        lines.append(_cut(f"  {_cut(row['rack'], width):<{width}} {measured:>18} {values}", WIDTH))
    if len(racks) > RACKS_SHOWN:
        lines.append(f"  ... {len(racks) - RACKS_SHOWN} more racks, see report.json")
    return lines


def _rows(group: Row) -> list[tuple[str, str, str, str, str, str]]:
    """One line per missed criterion, else one for the criterion with the least margin."""
    missed = [result for result in group["criteria"] if not result["passed"]]
    first = next((item["reason"] for item in group["findings"] if not item["note"]), "")
    results = missed or sorted(group["criteria"], key=lambda result: (result["margin"] is None, result["margin"] or 0.0))[:1]
    cells = [_cells(result) for result in results] or [(*_lead_value(group), "")]
    rows = [(str(group["name"]), fold(group["nodes"]), *cells[0], f"{_MARKS[group['verdict']]} {first}".strip())]
    return rows + [("", "", *more, "") for more in cells[1:]]


def _repeats(group: Row) -> list[str]:
    """How the repeats of a group went, and where their values lie."""
    told = group.get("repeats")
    if not told:
        return []
    all_of_them = told["measured"] == told["wanted"]
    text = f"{told['wanted']} repeats" if all_of_them else f"{told['measured']} of {told['wanted']} repeats measured"
    for name, found in list(told["ranges"].items())[:1]:
        unit = ((group.get("measurement") or {}).get("units") or {}).get(name) or name.replace("_", " ")
        text += f", {_rounded(found['low'])} to {_rounded(found['high'])} {unit}"
        text += "" if found["spread"] is None else f", spread {found['spread']:.1%}"
    rule = f"{told['k_of_n']} must" if told["k_of_n"] else "the median decides"
    return _wrap(f"{text}; {told['passed']} passed, {rule}", "    ", "      ")


def _cells(result: Row) -> tuple[str, str, str]:
    unit = f" {result['unit']}" if result.get("unit") else ""
    value = f"{_rounded(result['measured'])}{unit}" if result["measured"] is not None else "not measured"
    limit = f"{result['op']} {number(result['limit'])}" if result["limit"] is not None else "see criterion"
    margin = f"{result['margin']:+.1%}" if result["margin"] is not None else ""
    return value, limit, margin


def _lead_value(group: Row) -> tuple[str, str]:
    """What was measured where no criterion was evaluated, and whether it is partial."""
    measurement = group.get("measurement") or {}
    values, units = measurement.get("values") or {}, measurement.get("units") or {}
    name = next((item for item in LEAD_METRICS if values.get(item) is not None), None)
    if name is None:
        return str(measurement.get("verdict") or "not measured"), ""
    shown = f"{_rounded(values[name])} {units.get(name) or name.replace('_', ' ')}"
    return shown, "" if measurement.get("complete") else "(partial)"


def _rest(groups: t.Sequence[Row]) -> list[str]:
    """The passing groups that are not listed, as a range."""
    results = [result for group in groups for result in group["criteria"][:1] if isinstance(result["measured"], (int, float))]
    text = f"{len(groups)} more groups passed"
    if results and len({result["metric"] for result in results}) == 1:
        low, high = (pick(result["measured"] for result in results) for pick in (min, max))
        text += f", {results[0]['metric']} {_rounded(low)} to {_rounded(high)} {results[0]['unit'] or ''}".rstrip()
    return _wrap(text, "  ... ", "      ")


def _margin_key(group: Row) -> float:
    return min((result["margin"] for result in group["criteria"] if result["margin"] is not None), default=float("inf"))


def _columns(width: int, name: str, nodes: str, value: str, limit: str, margin: str, verdict: str) -> str:
    room = NAMES_WIDTH - width
    line = f"  {_cut(name, width):<{width}} {_cut(nodes, room):<{room}} {_cut(value, 14):>14} {_cut(limit, 12):>12} {margin:>8}  {verdict}"
    return _cut(line, WIDTH)


# ------------------------------------------------------------------------------------------ nodes and the rest


def _nodes(report: Row) -> list[str]:
    lines: list[str] = []
    for word in ("failed", "suspect", "untested"):
        nodes = [node for node in report["nodes"] if node["verdict"] == word]
        if nodes:
            lines += ["", "-" * WIDTH, f"{word.upper()} NODES ({len(nodes)})"]
            lines += _blocks(nodes)
    # That isolation cleared a node is told with its category; here it would only repeat a long list.
    noted = [node for node in report["nodes"] if node["verdict"] == "passed" and _other_than_cleared(node["findings"])]
    if noted:
        lines += ["", "-" * WIDTH, f"PASSED WITH NOTES ({len(noted)})"]
        lines += _blocks(noted)
    return lines


def _other_than_cleared(findings: t.Sequence[Row]) -> bool:
    return any(item.get("class") != "cleared" for item in findings)


def _blocks(nodes: t.Sequence[Row]) -> list[str]:
    """Each node with its findings; of a great many only the first, and the rest by reason."""
    alike = _alike(nodes)
    lines = [line for names, findings in alike[:BLOCKS_SHOWN] for line in _node_block(names, findings)]
    by_reason: dict[str, list[str]] = {}
    for names, findings in alike[BLOCKS_SHOWN:]:
        reason = findings[0]["reason"] if findings else "no finding"
        by_reason.setdefault(reason, []).extend(names)
    for reason, names in by_reason.items():
        lines += _wrap(f"{len(names)} more nodes, {reason} (see report.json): {fold(names)}", "  ", "    ", most=80)
    return lines


def _alike(nodes: t.Sequence[Row]) -> list[tuple[list[str], t.Sequence[Row]]]:
    """Nodes with the same findings are told once; names of pods, nodes and groups in them make no difference."""
    groups: dict[t.Any, tuple[list[str], list[Row]]] = {}
    for node in nodes:
        key = tuple((item["reason"], item["category"], _essence(item["message"], node["name"])) for item in node["findings"])
        names, findings = groups.setdefault(key, ([], list(node["findings"])))
        names.append(node["name"])
        for index, item in enumerate(node["findings"]):
            if findings[index]["group"] != item["group"]:
                findings[index] = {**findings[index], "group": None}
    return list(groups.values())


def _essence(message: str, node: str) -> str:
    return re.sub(r"readiness-[a-z0-9-]+", "*", message.replace(node, "*"))


def _node_block(names: list[str], findings: t.Sequence[Row]) -> list[str]:
    count = f" ({len(names)} nodes)" if len(names) > 1 else ""
    lines = _wrap(f"{fold(names)}{count}", "  ", "    ")
    hints: list[str] = []
    # Of a node at fault, that it was left out of later tests is one line; of an untested node it is the story.
    at_fault = any(item["reason"] != "Untested" and not item["note"] for item in findings)
    left_out = [item for item in findings if at_fault and item["reason"] == "Untested"]
    told = [item for item in findings if item not in left_out]
    for item in told[:FINDINGS_SHOWN]:
        where = " / ".join(str(part) for part in (item["category"], item["group"]) if part)
        sure = f", {item['confidence']:.0%} sure" if isinstance(item.get("confidence"), float) else ""
        what = f"{item['reason']} [{item['class']}{sure}]" if item.get("class") else item["reason"]
        lines += _wrap(f"{what}{f' in {where}' if where else ''}: {item['message']}", "    ", "      ")
        evidence = [line for line in item["evidence"] if line and line not in item["message"]]
        for line in evidence[:EVIDENCE_SHOWN]:
            lines += _wrap(f"evidence: {line}", "      ", "        ", 2)
        hints += [item["hint"]] if item.get("hint") and item["hint"] not in hints and not item["note"] else []
    if len(told) > FINDINGS_SHOWN:
        lines.append(f"    {len(told) - FINDINGS_SHOWN} more findings are in report.json")
    if left_out:
        lines += _wrap(f"left out of {', '.join(sorted({str(item['category']) for item in left_out}))}", "    ", "      ")
    # What isolation advises is specific to the component; the general advice of the first finding adds nothing then.
    isolated = next((item["hint"] for item in told if item.get("class") and item.get("hint")), None)
    for hint in [isolated] if isolated else hints[:2]:
        lines += _wrap(f"do: {hint}", "      ", "          ")
    return lines


def _excluded(report: Row) -> list[str]:
    if not report["excluded"]:
        return []
    by_reason: dict[tuple[t.Any, str], list[str]] = {}
    for item in report["excluded"]:
        # The same reason told of different nodes is one line; a message naming its node is told once, as an example.
        general = str(item["message"]).replace(str(item["node"]), "the node")
        by_reason.setdefault((item["reason"], general), []).append(str(item["node"]))
    lines = ["", "-" * WIDTH, f"EXCLUDED NODES ({len(report['excluded'])})"]
    for (reason, message), names in sorted(by_reason.items(), key=lambda entry: str(entry[0])):
        lines += _wrap(f"{fold(names)}: {reason}: {message}", "  ", "    ")
    return lines


def _tail(report: Row) -> list[str]:
    cleanup = report["cleanup"]
    lines = ["", "-" * WIDTH]
    if cleanup["proven"] and not cleanup["left"]:
        lines += _field("Cleanup", "proven: nothing of this run is left in the cluster")
    else:
        left = ", ".join(str(item) for item in cleanup["left"][:10]) or "unknown objects"
        lines += _field("Cleanup", f"NOT PROVEN, may be left: {left}{' ...' if len(cleanup['left']) > 10 else ''}")
    if cleanup.get("message"):
        lines += _wrap(str(cleanup["message"]), "           ")
    if report.get("archive"):
        lines += _field("Archive", str(report["archive"]))
    return [*lines, f"CLUSTER READINESS: {report['verdict'].upper()}"]


def _field(name: str, text: str) -> list[str]:
    return _wrap(text, f"{name:<10} ", " " * 11)


def _wrap(text: str, first: str, following: str | None = None, most: int = 12) -> list[str]:
    """Lines within the width; what is longer than `most` lines is cut, and says so."""
    flat = " ".join(safe(text).split())
    lines = textwrap.wrap(
        flat, WIDTH, initial_indent=first, subsequent_indent=first if following is None else following, break_on_hyphens=False
    ) or [first.rstrip()]
    return lines if len(lines) <= most else [*lines[:most], f"{following or first}... (whole text in report.json)"]


def _cut(text: str, width: int) -> str:
    text = safe(text).replace("\n", " ")
    return text if len(text) <= width else text[: width - 2] + ".."


def _rounded(value: t.Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) and abs(value) >= 0.1 else number(value)


def _duration(started: str | None, finished: str | None) -> str:
    """1h 02m 03s, or "" when a time is missing or not readable."""
    import datetime

    try:
        first, last = (datetime.datetime.fromisoformat(str(item).replace("Z", "+00:00")) for item in (started, finished))
        seconds = int((last - first).total_seconds())
    except (ValueError, TypeError):
        return ""
    hours, minutes = divmod(max(seconds, 0) // 60, 60)
    return f"{hours}h {minutes:02d}m {seconds % 60:02d}s" if hours else f"{minutes}m {seconds % 60:02d}s"
