# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Two fact sheets of one node, from before and after other tests: what its counters rose by meanwhile, and what is no longer as it was.

A value that only one of them has is told and never guessed. GPUs are known by their UUIDs, so their order makes no difference.
"""

from __future__ import annotations

import typing as t
from collections import Counter

from ..._catalog.load import shipped_evidence
from ..._common.shapes import MeasurementFinding
from ..measurement import finding
from ..outcomes import whole

Row = t.Mapping[str, t.Any]
Path = tuple[str, ...]
DURING = "during this run"
_SHOWN = 4
_ALIKE = 2  # what more GPUs or ports have in common is told of them together
_CONVICTS, _NOTE = "HardwareFailureDetected", "Warning"


class _Counter(t.NamedTuple):
    """A counter of a GPU. is_broken: whether a rise convicts. lasts: a restart of the node does not clear it."""

    path: Path
    words: str
    is_broken: bool = False
    lasts: bool = False
    unit: str = ""


_GPU_COUNTERS = (
    _Counter(("ecc", "uncorrectable"), "memory errors that were not corrected", is_broken=True),
    _Counter(("ecc", "uncorrectable_ever"), "memory errors over its life that were not corrected", is_broken=True, lasts=True),
    _Counter(("ecc", "correctable"), "corrected memory errors"),
    _Counter(("ecc", "correctable_ever"), "corrected memory errors over its life", lasts=True),
    _Counter(("remapped_rows", "correctable"), "rows remapped for corrected errors", lasts=True),
    _Counter(("remapped_rows", "uncorrectable"), "rows remapped for errors that were not corrected", lasts=True),
    _Counter(("retired_pages", "single_bit"), "pages retired for corrected errors", lasts=True),
    _Counter(("retired_pages", "double_bit"), "pages retired for errors that were not corrected", lasts=True),
    _Counter(("pcie", "replays"), "PCIe replays"),
    # Its power limit slows a GPU down in its normal life; heat and a brake do not.
    _Counter(("slowed_us", "hw_therm_slowdown"), "slowed down by heat (hardware)", unit="us"),
    _Counter(("slowed_us", "sw_therm_slowdown"), "slowed down by heat (driver)", unit="us"),
    _Counter(("slowed_us", "hw_power_brake"), "slowed down by a power brake", unit="us"),
)
# What a GPU may come to say of itself.
_GPU_FLAGS: tuple[tuple[Path, str], ...] = (
    (("remapped_rows", "pending"), "a row of its memory waits for a reset to be remapped"),
    (("remapped_rows", "failure"), "a row of its memory could not be remapped"),
    (("retired_pages", "pending"), "a page of its memory waits for a reset to be retired"),
    (("ecc", "repair_pending"), "a repair waits for a reset"),
    (("ecc", "unrepairable"), "its memory is beyond repair"),
    (("ecc", "sram_threshold_exceeded"), "its SRAM had more errors than it may have"),
)


class _Part:
    """What is found of one part of a node. name: for people; short: the same where several are listed; entity: for machines.

    broken, noted: what rose or changed, with both values. backwards: the same of counters that fell. one_sided: counters by the sheet that
    alone has them.
    """

    def __init__(self, name: str, *, short: str = "", entity: str | None = None, identity: str = "") -> None:
        self.name, self.short, self.entity, self.identity = name, short or name, entity, [identity] if identity else []
        self.broken: dict[str, str] = {}
        self.noted: dict[str, str] = {}
        self.backwards: dict[str, str] = {}
        self.one_sided: dict[str, dict[str, str]] = {"before": {}, "after": {}}

    def tell(self, what: str, values: str = "", *, is_broken: bool = False) -> None:
        (self.broken if is_broken else self.noted)[what] = values

    def count(self, words: str, before: t.Any, after: t.Any, *, is_broken: bool = False, unit: str = "") -> None:
        """Compares a counter of the two sheets."""
        old, new = _counted(before), _counted(after)
        if old is None and new is None:
            return
        if old is None or new is None:
            self.one_sided["before" if new is None else "after"][words] = ""
        elif new > old:
            self.tell(words, f"{old} -> {new} {unit}".rstrip(), is_broken=is_broken)
        elif new < old:
            self.backwards[words] = f"{old} -> {new}"

    def say(self, what: str, before: t.Any, after: t.Any) -> None:
        """Compares what should have stayed as it was."""
        if before is not None and after is not None and before != after:
            self.tell(what, f"{_text(before)}, then {_text(after)}")


def _findings(parts: t.Sequence[_Part], host: str | None) -> list[MeasurementFinding]:
    """What is found of parts of one kind. What convicts is told of each; what more of them have in common is told once."""
    counts = Counter(what for part in parts for what in part.noted)
    shared = [what for what, count in counts.items() if count > _ALIKE]
    made = [_finding(_CONVICTS, f"{DURING}: {part.name}", part.broken, [part], host) for part in parts if part.broken]
    for part in parts:
        own = {what: values for what, values in part.noted.items() if what not in shared}
        made += [_finding(_NOTE, f"{DURING}: {part.name}", own, [part], host)] if own else []
    for what in shared:
        owners = [part for part in parts if what in part.noted]
        values = {part.short: part.noted[what] for part in owners}
        made.append(_finding(_NOTE, f"{DURING}: {what}", values, owners, host))
    back = f"went backwards, so it was reset {DURING} and its rise is not known"
    lacks = "not compared, since the sheet from {} the tests has no such counter"
    made += _unknown([(part, part.backwards) for part in parts], back, host)
    made += _unknown([(part, part.one_sided["before"]) for part in parts], lacks.format("after"), host)
    return made + _unknown([(part, part.one_sided["after"]) for part in parts], lacks.format("before"), host)


def _unknown(counters: t.Sequence[tuple[_Part, t.Mapping[str, str]]], lead: str, host: str | None) -> list[MeasurementFinding]:
    """Counters whose rise is not known, once for all parts of which they are the same."""
    alike: dict[tuple[str, ...], list[_Part]] = {}
    for part, values in counters:
        alike.setdefault(tuple(values), []).append(part)
    values_of = {part.short: values for part, values in counters}
    made = []
    for words, parts in alike.items():
        alone = len(parts) == 1
        names = parts[0].name if alone else ", ".join(part.short for part in parts)
        values = values_of[parts[0].short] if alone else dict.fromkeys(words, "")
        made += [_finding(_NOTE, f"{names}: {lead}", values, parts, host)] if words else []
    return made


def _finding(reason: str, lead: str, values: t.Mapping[str, str], parts: t.Sequence[_Part], host: str | None) -> MeasurementFinding:
    texts = [f"{what}: {text}" if text else what for what, text in values.items()]
    left = f"; and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    evidence = [*(line for part in parts for line in part.identity), *texts]
    entity = parts[0].entity if len(parts) == 1 else None
    return finding(reason, f"{lead}: {'; '.join(texts[:_SHOWN])}{left}", host=host, entity=entity, evidence=evidence)


def changes(before: Row, after: Row, host: str | None) -> list[MeasurementFinding]:
    """What two sheets of a node say together. Equal sheets say nothing.

    before, after: the facts. Errors that were not corrected, a lost GPU, a PCIe link with fewer lanes and an Xid of broken hardware
    convict; the rest are notes.
    """
    restarted = _restarted(before, after)
    node = _Part("the node")
    if restarted:
        boots = f"boot ID {_at(before, 'host', 'boot_id')}, then {_at(after, 'host', 'boot_id')}"
        node.tell(f"it restarted ({boots})", "counters that a restart clears are not compared")
    node.say("kernel", _at(before, "host", "kernel"), _at(after, "host", "kernel"))
    node.say("GPU driver", _at(before, "driver", "version"), _at(after, "driver", "version"))
    pairs, lost, new = _matched(_rows(before, "gpus"), _rows(after, "gpus"))
    return [
        *_findings([node], host),
        *_other_gpus(lost, new, bool(_rows(after, "gpus")), host),
        *_findings([_gpu(old, now, bool(restarted)) for old, now in pairs], host),
        *_findings(_nics(before, after, bool(restarted)), host),
        *_xids(before, after, restarted, host),
    ]


# --- GPUs


def _matched(before: t.Sequence[Row], after: t.Sequence[Row]) -> tuple[list[tuple[Row, Row]], list[Row], list[Row]]:
    """(GPUs of both sheets, those of the first alone, those of the second alone), each in the order of their numbers."""
    old, now = _by_name(before), _by_name(after)
    both = [name for name in now if name in old]
    lost, new = ([gpu for name, gpu in own.items() if name not in both] for own in (old, now))
    return [(old[name], now[name]) for name in both], lost, new


def _by_name(gpus: t.Sequence[Row]) -> dict[str, Row]:
    named = {name: gpu for gpu in gpus if isinstance(name := gpu.get("uuid") or gpu.get("bus_id"), str)}
    return dict(sorted(named.items(), key=lambda item: (_counted(item[1].get("number")) or 0, item[0])))


def _other_gpus(lost: t.Sequence[Row], new: t.Sequence[Row], is_any: bool, host: str | None) -> list[MeasurementFinding]:
    """GPUs that only one of the sheets has. Where others have come instead the pod may have got others; a sheet without any lost none."""
    if not is_any:
        return []
    found = []
    for gpu in lost:
        text = f"{_name(gpu)} is not on the sheet from after the tests, which has others: not compared"
        if not new:
            text = f"{DURING}: {_name(gpu)} was lost: it is no longer on the fact sheet"
        found.append(finding(_NOTE if new else _CONVICTS, text, host=host, entity=_entity(gpu), evidence=[_identity(gpu)]))
    for gpu in new:
        text = f"{_name(gpu)} was not on the sheet from before the tests: not compared"
        found.append(finding(_NOTE, text, host=host, entity=_entity(gpu), evidence=[_identity(gpu)]))
    return found


def _gpu(old: Row, now: Row, restarted: bool) -> _Part:
    part = _Part(_name(now), short=_entity(now), entity=_entity(now), identity=_identity(now))
    for counter in _GPU_COUNTERS:
        if counter.lasts or not restarted:
            before, after = _at(old, *counter.path), _at(now, *counter.path)
            part.count(counter.words, before, after, is_broken=counter.is_broken, unit=counter.unit)
    for path, words in _GPU_FLAGS:
        if _at(old, *path) is False and _at(now, *path) is True:
            part.tell(words, is_broken=True)
    _links(part, old, now, restarted)
    width, lanes = (whole(_at(gpu, "pcie", "width")) for gpu in (old, now))
    if width is not None and lanes is not None and width != lanes:
        # Both sheets are read from an idle node: what it does to save power it would have done before too.
        part.tell("PCIe lanes", f"{width}, then {lanes}", is_broken=lanes < width)
    part.say("VBIOS", old.get("vbios"), now.get("vbios"))
    part.say("ECC", _at(old, "ecc", "enabled"), _at(now, "ecc", "enabled"))
    return part


def _links(part: _Part, old: Row, now: Row, restarted: bool) -> None:
    """The NVLinks of a GPU: counters of each, and those that are no longer active."""
    before, after = _mapping(_at(old, "nvlinks", "counters")), _mapping(_at(now, "nvlinks", "counters"))
    for link in [] if restarted else sorted({*before, *after}, key=lambda name: (len(name), name)):
        first, second = _mapping(before.get(link)), _mapping(after.get(link))
        for name in sorted({*first, *second}):
            words = name.replace("_", " ").replace("crc", "CRC")
            part.count(f"NVLink {link}: {words}", first.get(name), second.get(name))
    idle, dark = _at(old, "nvlinks", "inactive"), _at(now, "nvlinks", "inactive")
    if isinstance(idle, list) and isinstance(dark, list):
        gone = [str(link) for link in dark if link not in idle]
        if gone:
            part.tell("NVLinks no longer active", ", ".join(gone))


def _name(gpu: Row) -> str:
    return f"{_entity(gpu)} ({gpu.get('uuid') or gpu.get('bus_id')})"


def _entity(gpu: Row) -> str:
    return f"GPU{gpu.get('number')}"


def _identity(gpu: Row) -> str:
    return ", ".join(f"{key} {gpu[key]}" for key in ("serial", "uuid", "bus_id") if gpu.get(key))


# --- NICs


def _nics(before: Row, after: Row, restarted: bool) -> list[_Part]:
    old, now = _ports(before), _ports(after)
    parts = []
    for name in sorted({*old, *now}):
        part = _Part(f"port {name[1]} of {name[0]}", entity=name[0])
        if name not in old or name not in now:
            part.tell(f"it is on the sheet from {'before' if name in old else 'after'} the tests alone")
        else:
            _port(part, old[name], now[name], restarted)
        parts.append(part)
    return parts


def _port(part: _Part, old: Row, now: Row, restarted: bool) -> None:
    before, after = _mapping(old.get("counters")), _mapping(now.get("counters"))
    for name in [] if restarted else sorted({*before, *after}):
        part.count(name, before.get(name), after.get(name))
    part.say("state", old.get("state"), now.get("state"))
    part.say("rate", old.get("rate"), now.get("rate"))
    part.say("firmware", old.get("firmware"), now.get("firmware"))


def _ports(facts: Row) -> dict[tuple[str, str], Row]:
    """By device and number of the port, the port with the firmware of its NIC."""
    return {
        (str(nic.get("device")), str(port.get("number"))): {**port, "firmware": nic.get("firmware")}
        for nic in _rows(facts, "nics")
        for port in _rows(nic, "ports")
    }


# --- Xids


def _xids(before: Row, after: Row, restarted: bool | None, host: str | None) -> list[MeasurementFinding]:
    """The Xids that the kernel has logged since the first sheet, one finding for each Xid of a GPU."""
    log, known = after.get("kernel_log"), before.get("kernel_log")
    lines = _rows(log, "xids") if isinstance(log, dict) else []
    if not lines:
        return []
    mark = _seconds(known.get("last_s")) if isinstance(known, dict) else None
    if restarted is None or (not restarted and mark is None):
        why = "the boot ID is not known" if restarted is None else "the kernel's log could not be read before the tests"
        codes = ", ".join(sorted({f"Xid {item.get('code')}" for item in lines}))
        return [finding(_NOTE, f"the kernel's log has {codes}; whether {DURING} is not known, since {why}", host=host)]
    new = [item for item in lines if restarted or ((at_s := _seconds(item.get("at_s"))) is not None and mark is not None and at_s > mark)]
    found = []
    for code, bus in sorted({key for item in new if (key := _xid(item))}):
        own = [item for item in new if _xid(item) == (code, bus)]
        found.append(_xid_finding(code, bus, own, _rows(after, "gpus"), host))
    return found


def _xid(item: Row) -> tuple[int, str] | None:
    code = whole(item.get("code"))
    return None if code is None else (code, _slot(item.get("bus_id")))


def _xid_finding(code: int, bus: str, lines: t.Sequence[Row], gpus: t.Sequence[Row], host: str | None) -> MeasurementFinding:
    said = shipped_evidence().xid(code)
    gpu = next((gpu for gpu in gpus if _slot(gpu.get("bus_id")) == bus), None)
    where = _name(gpu) if gpu else f"the GPU at {bus}"
    times = [str(item["at"]) for item in lines if item.get("at")]
    when = f" at {min(times)}" if times else ""
    often = f", {len(lines)} times" if len(lines) > 1 else ""
    text = f"{DURING}: {where}: Xid {code}{f' ({said.title})' if said else ''}{when}{often}"
    evidence = list(dict.fromkeys(str(item.get("line")) for item in lines))
    reason = _CONVICTS if said and said.convicts else _NOTE
    return finding(reason, text, host=host, entity=_entity(gpu) if gpu else None, evidence=evidence[:_SHOWN])


def _slot(bus: t.Any) -> str:
    """Bus and device of a PCI address, however long its domain is written: 00000000:4B:00.0 and 0000:4b:00 are the same."""
    return ":".join(str(bus).lower().partition(".")[0].split(":")[-2:])


# --- plain values


def _restarted(before: Row, after: Row) -> bool | None:
    """None when nobody knows."""
    boots = [_at(facts, "host", "boot_id") for facts in (before, after)]
    return None if not all(isinstance(boot, str) and boot for boot in boots) else boots[0] != boots[1]


def _at(row: Row, *path: str) -> t.Any:
    node: t.Any = row
    for key in path:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _rows(facts: t.Any, key: str) -> list[Row]:
    found = facts.get(key)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _mapping(value: t.Any) -> Row:
    return value if isinstance(value, dict) else {}


def _counted(value: t.Any) -> int | None:
    """A counter: a whole number that is not negative."""
    found = None if isinstance(value, (bool, str)) else whole(value)
    return found if found is not None and found >= 0 else None


def _seconds(value: t.Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _text(value: t.Any) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
