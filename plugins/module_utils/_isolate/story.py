# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The search, told: what is known good, who is suspected and why, what a wave asks. For the live line and the report."""

from __future__ import annotations

import re
import typing as t
from collections import Counter

from .._common.words import counted
from .evidence import FAIL
from .explain import class_of, component, domains_of, unique
from .search import Search
from .trial import Trial

MOST_TOLD = 3  # suspects told in one sentence


def suspected(search: Search) -> list[str]:
    """Who is suspected now and why, a short sentence each: named components first, then groups that failed unexplained."""
    told = []
    for finding in search.findings:
        kind = class_of(search, finding)
        name = component(search, finding, kind)["name"]
        failed = sum(search.evidence.weight(trial) > 0 for trial in unique(finding.witnesses))
        sure = search.sure(finding, kind)
        chance = f", {100 * sure:.0f} % sure" if sure else ""
        told.append(f"{name} ({finding.note.split(':')[0] or kind}{chance}; {counted(failed, 'failed test')})")
    seen: set[int] = set()
    failures = [trial for trial in search.trials if search.evidence.weight(trial) >= FAIL and not search.explained(trial)]
    for trial in sorted(failures, key=lambda trial: (len(trial.nodes), trial.wave)):
        if seen & set(trial.nodes) or search.passed_together(trial.nodes, trial.transport):
            continue
        open_ = [node for node in trial.nodes if node not in search.cleared[trial.transport]]
        if open_ or len(trial.nodes) > 1:
            told.append(_group_suspected(search, trial, open_))
            seen.update(trial.nodes)
    return told


def _group_suspected(search: Search, trial: Trial, open_: list[int]) -> str:
    """A failed group: who of it is not known to be good, or else that something is between its members."""
    homes = domains_of(search, open_ or trial.nodes)
    where = f"{', '.join(homes[:3])}{' …' if len(homes) > 3 else ''}"
    if not open_:
        return f"something between {len(trial.nodes)} nodes of {where} (failed together in wave {trial.wave}, each passed with others)"
    who = search.names[open_[0]] if len(open_) == 1 else f"{len(open_)} nodes of {where}"
    return f"{who} (failed {'alone' if len(trial.nodes) == 1 else 'together'} in wave {trial.wave})"


def asked(trials: t.Sequence[Trial]) -> list[str]:
    """What tests do, each kind once with its number."""
    counts = Counter(_in_general(trial.purpose) for trial in trials)
    return [f"{purpose} ({count} tests)" if count > 1 else purpose for purpose, count in counts.most_common()]


def _in_general(purpose: str) -> str:
    """A purpose without the name it is about, so that tests of one kind count together."""
    text = re.sub(r"^domain .+ alone$", "a domain alone", purpose.removeprefix("repeat: "))
    return re.sub(r"^\S+ alone(.*)$", r"one node alone\1", text)


def known_good(search: Search) -> int:
    """How many nodes passed together with others and are not accused."""
    return len((search.cleared["net"] | search.cleared["nvl"]) - set(search.accused))


def standing(search: Search) -> str:
    """What is known now: how many nodes are good, who is suspected and why."""
    told = suspected(search)
    more = f" and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
    who = f"; suspected: {', '.join(told[:MOST_TOLD])}{more}" if told else "; nobody suspected"
    return f"{known_good(search)} of {len(search.names)} nodes known good{who}"


def story(search: Search, known: t.Sequence[str] = ()) -> list[str]:
    """The search wave by wave: what was asked, what came out, and what was known then where that changed.

    known: the `standing` after each wave.
    """
    lines = []
    before = ""
    for wave in range(1, search.wave + 1):
        ran = [trial for trial in search.trials if trial.wave == wave]
        after = known[wave - 1] if wave <= len(known) else before
        if ran:
            failed = sum(search.evidence.weight(trial) > 0 for trial in ran)
            what = asked(ran)
            more = f"; and {len(what) - 3} more kinds" if len(what) > 3 else ""
            result = f"{failed} of {len(ran)} failed" if failed else "all passed" if len(ran) > 1 else "passed"
            now = f" {after[0].upper()}{after[1:]}." if after != before else ""
            lines.append(f"Wave {wave}: {'; '.join(what[:3])}{more}: {result}.{now}")
            before = after
    return lines
