# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A search for the component at fault as a picture: nodes across, waves down, tests in the colour of their result.

Pure: the text of a self-contained SVG, without scripts, fonts or links.
"""

from __future__ import annotations

import math
import textwrap
import typing as t
from xml.sax.saxutils import escape

Row = dict[str, t.Any]

PASS, FAIL, UNCLEAR, NOTHING = "#3d9970", "#d6453d", "#e6a23c", "#c9ced6"
INK, FAINT, PAPER, BAND = "#1f2733", "#6b7684", "#ffffff", "#f3f5f8"
ACCUSED, HELD = "#8e1b14", "#b26a00"
LEFT, RIGHT, TOP = 118, 24, 92
ROW, BAR, VERDICT = 16, 10, 14
GAP = 5  # between domains
WIDEST = 1500  # nodes that need more room than this are drawn per domain
LEAST_WIDTH = 760  # room for the sentences below
MOST_ROWS = 120


def draw(conclusion: Row, title: str = "") -> str:
    """The SVG of a conclusion with `tests` and `domains`, as planner.conclude returns it."""
    return _Drawing(conclusion, title).text()


class _Drawing:
    def __init__(self, conclusion: Row, title: str) -> None:
        self.conclusion = conclusion
        self.title = title or "Search for the component at fault"
        self.out: list[str] = []
        self.status = _status(conclusion)
        self.waves = _waves(conclusion["tests"])
        self.proofs = {test["id"] for test in (conclusion["proof"] or {"tests": []})["tests"]}
        self._place_nodes()

    # ----- geometry -----

    def _place_nodes(self) -> None:
        """A column per node; where that is too wide, domains in which nothing happened share one narrow column."""
        domains = self.conclusion["domains"]
        count = sum(len(domain["nodes"]) for domain in domains)
        step = max(1.6, min(12.0, (WIDEST - GAP * len(domains)) / max(count, 1)))
        busy = self._busy_domains()
        fold = step * count + GAP * len(domains) > WIDEST + 1
        if fold:
            step = 4.0
        self.x: dict[str, float] = {}
        self.bands: list[tuple[str, float, float, bool]] = []
        at = float(LEFT)
        for domain in domains:
            folded = fold and domain["name"] not in busy
            width = 4.0 if folded else step * len(domain["nodes"])
            for number, node in enumerate(domain["nodes"]):
                self.x[node] = at if folded else at + number * step
            self.bands.append((domain["name"], at, width, folded))
            at += width + (1 if folded else GAP)
        self.step = step
        self.width = max(at + RIGHT, LEAST_WIDTH)

    def _busy_domains(self) -> set[str]:
        """Domains with a test of their own that is not just the first look, or with a node that is not cleared."""
        home = {node: domain["name"] for domain in self.conclusion["domains"] for node in domain["nodes"]}
        busy = {home[node] for node in self.status}
        for test in self.conclusion["tests"]:
            homes = {home[node] for node in test["nodes"]}
            if test["weight"] > 0 and len(homes) <= 4:
                busy |= homes
        return busy

    # ----- parts -----

    def text(self) -> str:
        """The document."""
        bottom = self._grid(TOP)
        bottom = self._verdict_row(bottom + 10)
        bottom = self._sentences(bottom + 26)
        size = f'width="{self.width:.0f}" height="{bottom:.0f}" viewBox="0 0 {self.width:.0f} {bottom:.0f}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="Helvetica, Arial, sans-serif" font-size="11" role="img">'
        about = f"<title>{escape(self.title)}</title><desc>{escape(self.conclusion['reason'])}</desc>"
        paper = f'<rect width="{self.width:.0f}" height="{bottom:.0f}" fill="{PAPER}"/>'
        return "\n".join([head, about, paper, *self._heading(), *self.out, "</svg>"]) + "\n"

    def _heading(self) -> list[str]:
        cost = self.conclusion["cost"]
        coverage = self.conclusion["coverage"]
        facts = (
            f"{coverage['target']} nodes in {len(self.conclusion['domains'])} domains · {cost['tests']} tests in {cost['waves']} waves · "
            f"{coverage['proven']} proven together"
        )
        color = {"passed": PASS, "failed": FAIL}.get(self.conclusion["verdict"], UNCLEAR)
        result = [
            _label(16, 26, self.title, size=16, weight="bold"),
            _label(16, 44, facts, fill=FAINT),
            f'<rect x="16" y="54" width="92" height="18" rx="3" fill="{color}"/>',
            _label(62, 67, self.conclusion["verdict"], fill=PAPER, anchor="middle", weight="bold"),
        ]
        at = 124.0
        keys = (
            ("passed", PASS),
            ("failed", FAIL),
            ("unclear", UNCLEAR),
            ("not measured", NOTHING),
            ("accused", ACCUSED),
            ("held back", HELD),
        )
        for text, fill in keys:
            result.append(f'<rect x="{at:.0f}" y="58" width="10" height="10" fill="{fill}"/>')
            result.append(_label(at + 14, 67, text, fill=FAINT))
            at += 30 + 6.2 * len(text)
        return result

    def _grid(self, top: float) -> float:
        """Domains as bands, waves as rows; returns the lower edge."""
        shown = self.waves[:MOST_ROWS]
        names_height = 14
        height = ROW * len(shown)
        for number, (name, at, width, folded) in enumerate(self.bands):
            if not folded:
                fill = BAND if number % 2 == 0 else "#e9edf2"
                self.out.append(
                    f'<rect x="{at - 1:.1f}" y="{top:.0f}" width="{width + 1:.1f}" height="{names_height + height:.0f}" fill="{fill}"/>'
                )
                room = int((width + GAP) / 6)
                if room >= 3:
                    self.out.append(_label(at + width / 2, top + 11, _short(name, room), fill=FAINT, size=9, anchor="middle"))
        folded_bands = [band for band in self.bands if band[3]]
        if folded_bands:
            text = f"{len(folded_bands)} domains in which nothing failed are drawn as thin lines"
            self.out.append(_label(LEFT, top - 6, text, fill=FAINT, size=9))
        for number, (wave, tests) in enumerate(shown):
            y = top + names_height + ROW * number
            name = f"wave {wave}" if wave else "known before"
            if any(test["id"] in self.proofs for test in tests):
                name = f"proof: {name}"
            self.out.append(
                _label(LEFT - 10, y + 11, f"{name}, {len(tests)} test{'s' * (len(tests) != 1)}", fill=INK, size=9, anchor="end")
            )
            for test in tests:
                self._test(test, y + (ROW - BAR) / 2)
        if len(self.waves) > len(shown):
            self.out.append(_label(LEFT, top + names_height + height + 11, f"and {len(self.waves) - len(shown)} more waves", fill=FAINT))
            height += ROW
        return top + names_height + height

    def _test(self, test: Row, y: float) -> None:
        """Bars over the members; members that lie apart are joined by a line."""
        fill = (
            NOTHING if test["outcome"] == "unmeasured" else PASS if test["weight"] <= -2.9 else FAIL if test["weight"] >= 2.9 else UNCLEAR
        )
        spans = self._spans(test["nodes"])
        about = f"{test['id']}: {test['shape']} over {test['transport']}, {test['size']} nodes, {_result(test)}. {test['purpose']}"
        parts = [f"<title>{escape(about)}</title>"]
        if len(spans) > 1:
            start, end = spans[0][0], spans[-1][1]
            parts.append(f'<path d="M{start:.1f} {y + BAR / 2:.1f}H{end:.1f}" stroke="{fill}" stroke-width="1" opacity="0.45"/>')
        parts += [
            f'<rect x="{a:.1f}" y="{y:.1f}" width="{max(b - a, 1.2):.1f}" height="{BAR}" rx="{1.5 if self.step > 3 else 0}" fill="{fill}"/>'
            for a, b in spans
        ]
        self.out.append("<g>" + "".join(parts) + "</g>")

    def _spans(self, nodes: list[str]) -> list[tuple[float, float]]:
        """Runs of adjacent columns; the gaps between domains are bridged."""
        spans: list[tuple[float, float]] = []
        for at in sorted({self.x[node] for node in nodes}):
            end = at + max(self.step - 0.8, 1.0)
            if spans and at - spans[-1][1] <= 1.0:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((at, end))
        return spans

    def _verdict_row(self, y: float) -> float:
        self.out.append(_label(LEFT - 10, y + 11, "verdict", fill=INK, size=9, anchor="end", weight="bold"))
        proven = set(self.conclusion["cleared"])
        folded = {at for _name, at, _width, thin in self.bands if thin}
        drawn: set[float] = set()
        for node, at in self.x.items():
            if at in folded and at in drawn:
                continue
            drawn.add(at)
            kind = self.status.get(node)
            fill = {"accused": ACCUSED, "held": HELD}.get(kind or "", PASS if node in proven else NOTHING)
            if at in folded and kind is None and node not in proven:
                fill = NOTHING
            about = f"<title>{escape(node)}</title>"
            self.out.append(
                f'<rect x="{at:.1f}" y="{y:.1f}" width="{max(self.step - 0.8, 1.2):.1f}" height="{VERDICT}" fill="{fill}">{about}</rect>'
            )
        for number, suspect in enumerate(self.conclusion["suspects"][:40], 1):
            if suspect["class"] in ("unresolved", "irreproducible") and len(suspect["nodes"]) > 8:
                continue
            ends = suspect["nodes"] if len(suspect["nodes"]) <= 2 else suspect["nodes"][:1]
            for node in ends:
                x = self.x[node] + self.step / 2
                self.out.append(f'<path d="M{x:.1f} {y + VERDICT + 1:.1f}l-4 7h8z" fill="{ACCUSED}"/>')
                self.out.append(_label(x, y + VERDICT + 17, str(number), fill=ACCUSED, size=9, anchor="middle", weight="bold"))
        return y + VERDICT + 18

    def _sentences(self, y: float) -> float:
        """What is at fault and why, numbered as in the verdict row."""
        columns = int((self.width - 60) / 5.9)
        for number, suspect in enumerate(self.conclusion["suspects"][:40], 1):
            confidence = f", confidence {suspect['confidence']:.3f}" if suspect["confidence"] else ""
            self.out.append(_label(16, y, f"{number}", fill=ACCUSED, weight="bold"))
            self.out.append(_label(40, y, f"{suspect['component']['name']}: {suspect['class']}{confidence}", weight="bold"))
            y += 15
            for line in textwrap.wrap(suspect["reason"], columns) + textwrap.wrap(suspect["action"], columns):
                self.out.append(_label(40, y, line, fill=INK))
                y += 14
            y += 6
        lines = [self.conclusion["reason"]] if not self.conclusion["suspects"] else []
        lines += self.conclusion["coverage"]["notes"]
        for note in lines:
            for line in textwrap.wrap(note, columns):
                self.out.append(_label(16, y, line, fill=FAINT))
                y += 14
        return y + 8


def _status(conclusion: Row) -> dict[str, str]:
    """accused for nodes and ends of pairs, held for other nodes that are not proven."""
    result = {item["node"]: "held" for item in conclusion["coverage"]["not_proven"] if item["code"] not in ("budget", "running")}
    for suspect in conclusion["suspects"]:
        kind = "accused" if suspect["component"]["kind"] in ("node", "pair") else "held"
        result.update(dict.fromkeys(suspect["nodes"], kind))
    return result


def _waves(tests: list[Row]) -> list[tuple[int, list[Row]]]:
    waves: dict[int, list[Row]] = {}
    for test in tests:
        waves.setdefault(test["wave"], []).append(test)
    return sorted(waves.items())


def _result(test: Row) -> str:
    if test["ratio"] is not None:
        return f"{100 * test['ratio']:.0f} % of expected"
    return str(test["outcome"])


def _short(name: str, room: int) -> str:
    return name if len(name) <= room else "…" + name[-(room - 1) :]


def _label(x: float, y: float, text: str, *, fill: str = INK, size: float = 11, anchor: str = "start", weight: str = "normal") -> str:
    more = "" if anchor == "start" else f' text-anchor="{anchor}"'
    more += "" if weight == "normal" else f' font-weight="{weight}"'
    if not math.isclose(size, 11):
        more += f' font-size="{size:g}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}"{more}>{escape(text)}</text>'
