# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What speaks against hardware, and what does not: the one table (`catalog/evidence/`) and how it is read.

Node conditions, taints, labels, annotations, wordings, Xids and DCGM codes are rows with a class. Only the class `hardware`
convicts. Discovery, the health of nodes under test and the readers of diagnostics all ask here, so that none of them has a
rule of its own.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Iterable, Mapping, Sequence

Row: t.TypeAlias = dict[str, t.Any]

# What a row can mean. hardware: the device is broken. context: decides nothing by itself. The others are no hardware fault.
CLASSES = (
    "hardware", "configuration", "setup", "busy", "inconclusive", "application", "monitoring", "note", "context",
    "leaving", "starting", "gpu", "shared", "mig",
)  # fmt: skip
KINDS = ("condition", "taint", "label", "annotation", "resource", "instance_type", "wording", "xid", "dcgm", "severity")

_DCGM_SYMBOL = re.compile(r"\bDCGM_FR_([A-Z0-9_]{2,60})\b|DCGMHealthCode(\d{1,4})")
# A number behind the word, or a list of them: `Xid (PCI:0000:3b:00): 79`, `XID-94`, `XIDs detected: 31, 43`, `xid_errors=[31 43]`.
_XID = re.compile(
    r"(?<![a-z])xids?(?:[\s_]{0,3}\(pci:[0-9a-f:.]{4,24}\)|[\s_]{0,3}(?:errors?|codes?|events?))?(?:\s{1,3}(?:detected|found|seen))?"
    r"\s{0,3}[:=#-]?\s{0,3}\[?(\d{1,3}(?:(?:,\s?|\s)\d{1,3}(?=[\],;.\s]|$)){0,20})(?!\d)",
    re.IGNORECASE,
)
_XID_OF_REASON = re.compile(r"nvidiaxid(\d{1,3})(?!\d)", re.IGNORECASE)
_UNIT = re.compile(r"(?=\bErrorCode:)")
_UNIT_CODE = re.compile(r"ErrorCode:\s*(\d{1,3})\b")


class Said(t.NamedTuple):
    """What the table says: the class, why (for people), what to do, and whether a row for exactly this was found."""

    kind: str
    title: str = ""
    advice: str = ""
    exact: bool = True

    @property
    def convicts(self) -> bool:
        """Whether it speaks against hardware; nothing else does."""
        return self.kind == "hardware"


class Evidence:
    """The table, ready to be asked."""

    def __init__(self, rows: Iterable[Mapping[str, t.Any]]) -> None:
        self.rows: list[Row] = [dict(row) for row in rows]
        of = {kind: [row for row in self.rows if row["kind"] == kind] for kind in KINDS}
        self._conditions = [(_compiled(row["pattern"]), row) for row in of["condition"]]
        self._wordings = [(_compiled(row["pattern"].replace(" ", r"\s*")), row) for row in of["wording"]]
        self._marks = {kind: _Marks(of[kind]) for kind in ("taint", "label", "annotation", "resource", "instance_type")}
        self._xids = {row["code"]: row for row in of["xid"]}
        self._severities = {row["severity"]: row for row in of["severity"]}
        self._severity_names = {row["code"]: row["severity"] for row in of["severity"]}
        self._codes = {row["code"]: row for row in of["dcgm"]}
        self._symbols = {name: row for row in of["dcgm"] for name in (row.get("symbol"), *row.get("also", ())) if name}

    # Conditions

    def of_condition(self, condition: Mapping[str, t.Any]) -> Said | None:
        """What a node condition says; None when its type is not in the table, or it is as it should be.

        The class is `unknown` for a status that is neither True nor False: the agent is silent, which convicts nobody.
        """
        name = str(condition.get("type") or "")
        row = next((row for pattern, row in self._conditions if pattern.fullmatch(name)), None)
        if row is None or row["bad"] == "never":
            return None
        status = condition.get("status")
        if status not in ("True", "False"):
            return Said("unknown", "its agent is silent", exact=False)
        if status != row["bad"]:
            return None
        text = f"{condition.get('reason') or ''} {condition.get('message') or ''}"
        numbered = "xid" in name.lower() and "sxid" not in name.lower()
        return self._of_message(text, numbered=numbered) or Said(row["class"], row.get("title", ""), row.get("advice", ""), exact=False)

    def _of_message(self, text: str, *, numbered: bool) -> Said | None:
        """A message may list several errors (`ErrorCode:…;ErrorCode:…;`): it convicts if one of them does."""
        units = [unit for unit in _UNIT.split(text) if unit.startswith("ErrorCode:")] or [text]
        said = [self._of_unit(unit, numbered) for unit in units]
        worst = next((item for item in said if item and item.convicts), None)
        return worst or (None if None in said else said[0])

    def _of_unit(self, text: str, numbered: bool) -> Said | None:
        code = _UNIT_CODE.match(text) if numbered else None
        return self.of_text(text, xids=[int(code.group(1))] if code else [])

    # Text

    def of_text(self, text: str, xids: Sequence[int] = ()) -> Said | None:
        """What words, Xids and DCGM codes of a text say together; None when nothing in it is known.

        The monitor's own advice to do nothing counts first, then whatever speaks against hardware, then the rest.
        """
        words = [row for pattern, row in self._wordings if pattern.search(text)]
        codes = [row for row in (*self._dcgm_rows(text), *self._xid_rows(text, xids)) if self._class(row) != "context"]
        advised = next((row for row in words if row["name"] == "no-action"), None)
        found = [advised] if advised else [row for row in (*codes, *words) if self._class(row) == "hardware"] or [*words, *codes]
        return self._said(found[0]) if found else None

    def words(self, text: str) -> Said | None:
        """What the wordings alone say of a text: hardware first, else the first row that fits."""
        rows = [row for pattern, row in self._wordings if pattern.search(text)]
        rows.sort(key=lambda row: row["class"] != "hardware")
        return self._said(rows[0]) if rows else None

    def xid(self, number: int) -> Said | None:
        """What an Xid says; None for one that is not in the table."""
        row = self._xids.get(number)
        return self._said(row) if row else None

    def of_xids(self, text: str) -> Said | None:
        """What the Xids that a text names say; None when it names none that decides."""
        rows = [row for row in self._xid_rows(text, ()) if row["class"] != "context"]
        rows.sort(key=lambda row: row["class"] != "hardware")
        return self._said(rows[0]) if rows else None

    # DCGM

    def dcgm(self, code: int | None, severity: int | None = None) -> Said | None:
        """What an error code of DCGM says, else its severity; None when neither is known."""
        row = self._codes.get(code) if code is not None else None
        if row is not None and "class" in row:
            return self._said(row)
        name = self._severity_names.get(severity) if severity is not None else None
        if name in (None, "unknown") and row is not None:
            name = row["severity"]
        rule = self._severities.get(name or "")
        if rule is None:
            return None
        return Said(rule["class"], (row or {}).get("title", ""), (row or {}).get("advice") or rule.get("advice", ""), exact=row is not None)

    def severity_of(self, code: int | None) -> int | None:
        """The number of a code's severity; None for a code that is not in the table, or whose severity DCGM does not know."""
        row = self._codes.get(code) if code is not None else None
        return self._severities[row["severity"]]["code"] if row and row["severity"] != "unknown" else None

    def severity_name(self, severity: int | None) -> str | None:
        """The word of a severity, or None."""
        return self._severity_names.get(severity) if severity is not None else None

    def dcgm_title(self, code: int | None) -> str:
        """The short name of a code, or ""."""
        return str((self._codes.get(code) or {}).get("title", "")) if code is not None else ""

    # Marks of nodes

    def marks(self, node: Mapping[str, t.Any], *classes: str) -> list[tuple[str, Row, str]]:
        """(kind, row, quote) for each taint, label, annotation, resource or instance type of a Node object with one of these classes.

        A resource counts with any quantity above zero; a taint that only asks to be preferred elsewhere marks nothing but `gpu`.
        """
        metadata, spec, status = (node.get(part) or {} for part in ("metadata", "spec", "status"))
        labels = metadata.get("labels") or {}
        found: list[tuple[str, Row, str]] = []
        pairs: list[tuple[str, str, str, str]] = [("label", key, str(value), f"label {key}={value}") for key, value in labels.items()]
        pairs += [("annotation", key, str(value), f"annotation {key}") for key, value in (metadata.get("annotations") or {}).items()]
        for part in ("capacity", "allocatable"):
            offered = (status.get(part) or {}).items()
            pairs += [
                ("resource", key, str(value), f"resource {key}: {value}") for key, value in offered if str(value).strip() not in ("", "0")
            ]
        kind = labels.get("node.kubernetes.io/instance-type") or labels.get("beta.kubernetes.io/instance-type")
        if kind:
            pairs.append(("instance_type", str(kind), "", f"instance type {kind}"))
        for where, key, value, quote in pairs:
            found += [(where, row, quote) for row in self._marks[where].of(key, value, classes)]
        for taint in spec.get("taints") or []:
            found += [("taint", row, f"taint {quote_taint(taint)}") for row in self.of_taint(taint, *classes)]
        return found

    def of_taint(self, taint: Mapping[str, t.Any], *classes: str) -> list[Row]:
        """The rows with one of these classes that a taint fits."""
        rows = self._marks["taint"].of(str(taint.get("key") or ""), str(taint.get("value") or ""), classes)
        return [row for row in rows if row["class"] == "gpu"] if taint.get("effect") == "PreferNoSchedule" else rows

    # Parts

    def _dcgm_rows(self, text: str) -> list[Row]:
        named = (self._symbols.get(hit[0]) if hit[0] else self._codes.get(int(hit[1])) for hit in _DCGM_SYMBOL.findall(text))
        return [row for row in named if row]

    def _xid_rows(self, text: str, more: Sequence[int]) -> list[Row]:
        numbers = [*more, *_xid_numbers(text)]
        return [self._xids[number] for number in numbers if number in self._xids]

    def _class(self, row: Row) -> str:
        if "class" in row:
            return str(row["class"])
        rule = self._severities.get(row.get("severity", ""))
        return str(rule["class"]) if rule else "context"

    def _said(self, row: Row) -> Said:
        rule = self._severities.get(row.get("severity", "")) or {}
        return Said(self._class(row), row.get("title", "") or row.get("name", ""), row.get("advice") or rule.get("advice", ""))


def _xid_numbers(text: str) -> list[int]:
    return [int(number) for pattern in (_XID, _XID_OF_REASON) for some in pattern.findall(text) for number in re.findall(r"\d+", some)]


class _Marks:
    """Rows that fit a key and its value; most keys fit none, which one look at all patterns tells."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = [(_compiled(row["pattern"]), _compiled(row["value"]) if "value" in row else None, row) for row in rows]
        self._any = _compiled("|".join(f"(?:{row['pattern']})" for row in rows)) if rows else None

    def of(self, key: str, value: str, classes: Sequence[str]) -> list[Row]:
        if self._any is None or not self._any.fullmatch(key):
            return []
        return [
            row
            for pattern, wanted, row in self._rows
            if row["class"] in classes and pattern.fullmatch(key) and (wanted is None or wanted.fullmatch(value))
        ]


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


def quote_taint(taint: Mapping[str, t.Any]) -> str:
    """`key=value:effect` as kubectl writes it."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}"


def kind_of_quote(quote: str) -> str:
    """What a quoted condition or taint is, without what differs from node to node: `condition GpuHealthy=False (XidError)`, `taint k`."""
    head = quote.partition(":")[0].strip()
    return head.partition("=")[0] if head.startswith("taint ") else head
