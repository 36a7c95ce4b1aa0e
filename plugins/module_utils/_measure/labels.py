# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What launchers and log collectors put before every line, as one grammar.

A line is a stack of labels and the text of a program. Labels are of two sorts:

- Their shape alone tells: `[1,0]<stdout>:`, `[pod/launcher-0/node] `, a kubelet's time stamp, `(worker pid=7) `. They are
  taken off any line, in any order, as often as they are stacked.
- They might be text of a program: `node-a: `, `[10:31:07] `, `launcher-0  | `, ` 3: `. One of these is a label where nearly
  all lines of some stretch of the log carry it, and if it names something, names few things again and again. Once learnt it
  is taken off every line that has it.
"""

from __future__ import annotations

import collections
import itertools
import os
import re
import typing as t

_ZONE = r"(?:Z|[+-]\d\d:?\d\d)"
STAMP = rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{{1,9}})?{_ZONE}"
_DAY = r"(?:[A-Z][a-z]{2},? )?(?:[A-Z][a-z]{2} [ 0-3]?\d|[ 0-3]\d [A-Z][a-z]{2})"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_CTIME = rf"{_DAY} {_CLOCK} \d{{4}}"

ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\^_])")
CRI = re.compile(rf"({STAMP}) (stdout|stderr) ([FP])(?::\S*)?(?: |$)")
# GitLab puts the number of the stream behind its stamp: 00O, 01E+.
_TIMESTAMP = re.compile(rf"({STAMP})(?: \d\d[OE](?:\+| |$)| |$)")
_POD = re.compile(r"\[pod/([^/\]\s]{1,300})/([^\]\s]{1,300})\] ?")
# Open MPI, PRRTE: [1,0]<stdout>:  [job@1,3][host:pid]<stderr>:  with a date before them or behind, in brackets or not.
_TAG = re.compile(
    rf"[ \t]*(?:\[?{_CTIME}\]? ?)?(?:\[(?:[^\]\s]{{0,200}}?,)?(\d{{1,9}})[^\]\s]{{0,200}}\])?(?:\[[^\]\s]{{0,200}}\])?"
    rf"<(std(?:out|err|diag))>(?:\[?{_CTIME}\]? ?)?:"
)
_TORCH = re.compile(r"[ \t]*\[(?:default|rank)(\d{1,9})\]:")
# Ray and what is built on it: (name, rank=0, pid=7, ip=10.0.0.8)
_ACTOR = re.compile(r"[ \t]*\((?:[^()]{0,200}[ ,])?pid=[\w.-]{1,64}(?:,[^()]{0,200})?\)(?: |$)")
_ACTOR_RANK = re.compile(r"\brank=(\d{1,9})")
# syslog of RFC 5424: <13>1 time host program process message data
_SYSLOG = re.compile(rf"<\d{{1,3}}>1 ({STAMP}|-) \S{{1,255}} \S{{1,48}} \S{{1,128}} \S{{1,32}} (?:-|\[[^\]]{{0,500}}\])(?: |$)")
_PRIORITY = re.compile(r"<\d{1,3}>(?=[A-Z])")
_BARE_RANK = re.compile(r"\[ {0,5}(\d{1,6})(?:@[^\]\s]{1,200})?\](?= |$|#)")
_SRUN = re.compile(r" {0,5}(\d{1,6}):(?: |$)")
# What may follow "3: " for it to be a label and not a text of its own.
_AFTER_SRUN = re.compile(r"[ #]|$|\[\d{4}-|\[rank|NCCL version |\S{1,255}:\d{1,10}:\d{1,10} \[|\S{1,255}: Test | \.\. ")
_SHOWS_SRUN = re.compile(r" {0,5}\d{1,6}: (?:#|\S{1,255}:\d{1,10}:\d{1,10} \[)")
# A label that a launcher put into a row at a flush.
_INNER_LABEL = re.compile(r"\[\d{1,6}\](?=\s|$)")
REPR_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[nrt'\"\\])")


class Line(t.NamedTuple):
    """A line as the program printed it, and what its labels said; None where they said nothing.

    timestamp: RFC 3339 with a zone. partial: the line goes on in the next one of its stream.
    """

    text: str
    rank: int | None = None
    pod: str | None = None
    container: str | None = None
    timestamp: str | None = None
    stream: str | None = None
    partial: bool = False


class _Kind(t.NamedTuple):
    """A label that must be learnt.

    named: its group is a name, which must come again. after_stamp: only behind a time stamp.
    """

    name: str
    pattern: re.Pattern[str]
    named: bool = False
    after_stamp: bool = False


_END = r"(?:[ \t]|$)"
_DATE = r"\d{4}[-/]\d\d[-/]\d\d[ T]"
_KINDS: tuple[_Kind, ...] = (
    _Kind("number", re.compile(rf"[ \t]{{0,8}}(\d{{1,6}}):{_END}")),
    _Kind("stamp", re.compile(rf"\[?{_DATE}{_CLOCK}(?: ?(?:{_ZONE}|[A-Z]{{3,4}}))?\]?:?(?: |$|(?=\[))")),
    _Kind("stamp", re.compile(rf"\[?{_DAY} (?:\d{{4}} )?{_CLOCK}(?: [A-Z]{{3,4}})?(?: \d{{4}})?(?:\]:?(?: |$|(?=[#\w]))|:?(?: |$))")),
    _Kind("stamp", re.compile(rf"\d\d/\d\d/\d{{4}} {_CLOCK}:?(?: |$)")),
    # klog and glog: level, day, time, process, place in the source
    _Kind("stamp", re.compile(rf"[IWEF]\d{{4}} {_CLOCK} {{1,8}}\d{{1,9}} [\w./-]{{1,200}}:\d{{1,6}}\](?: |$)")),
    _Kind("stamp", re.compile(rf"\[?{_CLOCK}\]?:?(?: |$)")),
    _Kind("stamp", re.compile(r"(?:\[ {0,8}\d{1,10}\.\d{1,9}\]|\d{10}\.\d{3,9}|\d{13}):?(?: |$)")),
    _Kind("rank", re.compile(rf"[ \t]{{0,8}}\[ {{0,5}}(\d{{1,6}})(?:[@:,][^\]\s]{{1,200}})?\]:?{_END}")),
    _Kind("syslog", re.compile(rf"([\w.-]{{1,255}} [\w./@-]{{1,64}})(?:\[\d{{1,10}}\])?:{_END}"), named=True, after_stamp=True),
    _Kind("stream", re.compile(rf"([\w.-]{{1,99}}(?:/[\w.-]{{1,99}}){{1,6}}|\{{[^{{}}]{{1,500}}\}}){_END}"), named=True, after_stamp=True),
    _Kind("compose", re.compile(rf"([\w./@-]{{1,128}}) {{0,64}}\|{_END}"), named=True),
    _Kind("tab", re.compile(r"([\w./@:-]{1,128})\t"), named=True),
    _Kind("host", re.compile(rf"([\w./@-]{{1,255}}(?::\d{{1,6}})?):{_END}"), named=True),
    _Kind("bracket", re.compile(r"\[([^\[\]]{1,200})\]:?(?:[ \t]|$|(?=\[))"), named=True),
    _Kind("round", re.compile(rf"\(([^()]{{1,200}})\):?{_END}"), named=True),
    _Kind("task", re.compile(rf"([A-Za-z][\w.-]{{0,127}}/\d{{1,6}}){_END}"), named=True),
    _Kind("pod", re.compile(rf"([a-z0-9][\w.]{{0,63}}-[\w.-]{{1,200}} [a-z][\w.-]{{0,127}}){_END}"), named=True),
    _Kind("pod", re.compile(rf"([a-z][\w.-]{{0,63}} [a-z0-9][\w.]{{0,63}}-[\w.-]{{1,200}} [a-z][\w.-]{{0,127}}){_END}"), named=True),
    _Kind("quote", re.compile(r"(?:> ?){1,8}")),
)
# How many lines are looked at together, and how many of them may go without the label.
_WINDOW = 32
_NARROW = 12  # in the first block, where the labels of a short log may begin anywhere
_FEWEST = 4
_MISSES = 10
# Blocks that are looked at at the beginning; later on only every so many: an answer that has not changed is not worth the time.
_FIRST_BLOCKS = 4
_LATER_BLOCKS = 64
# Text of programs that looks like a label and is none.
_OWN_TEXT = re.compile(r" {0,4}iteration +\d|Test \w+ (?:failure|timeout)|Test timeout")
_HEAD = re.compile(r"[^\s:>\[\]]{1,255}:\d{1,10}:\d{1,10} \[")
_OWN_PREFIX = re.compile(r"\biteration\b|\bNCCL\b|\bEpoch\b|\bstep\b|:\d+:\d+ \[", re.IGNORECASE)
_MOST_LABELS = 12
_TWICE = 2  # a tool on one machine starts another on the next


class Labels:
    """The labels of one log. Show it the log block by block with learn(), then let clean() take them off the lines."""

    def __init__(self) -> None:
        self._learnt: list[_Kind] = []
        self._constant = ""
        self._indent = ""
        self._srun = False
        self._block = 0

    def learn(self, text: str) -> None:
        """Looks at some lines at the beginning, in the middle and at the end of a block."""
        self._block += 1
        if self._block > _FIRST_BLOCKS and self._block % _LATER_BLOCKS:
            return
        lines = [line for line in text.split("\n") if line and not line.isspace()]
        if self._block == 1 and lines:
            self._learn_indent(lines[:_WINDOW])
        if not self._srun and any(map(_SHOWS_SRUN.match, lines[:_WINDOW])):
            self._srun = True
        if self._block == 1:
            for start in range(0, max(1, len(lines) - _NARROW // 2), _NARROW // 2):
                self._learn_from(lines[start : start + _NARROW])
        last = max(0, len(lines) - _WINDOW)
        for start in sorted({0, last // 2, last}):
            self._learn_from(lines[start : start + _WINDOW])

    def _learn_indent(self, lines: list[str]) -> None:
        """What carried a whole log may have moved all of it to the right."""
        if len(lines) >= _FEWEST:
            widths = [len(line) - len(line.lstrip(" \t")) for line in lines]
            self._indent = lines[0][: min(widths)]

    def _learn_from(self, lines: list[str]) -> None:
        if len(lines) < _FEWEST or sum(map(_is_bare, lines)) * 5 > len(lines):
            return
        for _label in range(4):
            cleaned = [line for line in map(self.clean, lines) if line.text and not line.text.isspace()]
            texts = [line.text for line in cleaned]
            kind = next((kind for kind in _KINDS if self._learnt.count(kind) < _TWICE and self._carry(kind, cleaned)), None)
            if kind is None:
                break
            self._learnt.append(kind)
        else:
            return
        if not self._constant:
            self._constant = _common_label(texts)

    def _carry(self, kind: _Kind, lines: list[Line]) -> bool:
        """Whether nearly all of the lines begin with such a label. Those whose rank is known had it."""
        stamped = any(known.name == "stamp" for known in self._learnt) or all(line.timestamp for line in lines)
        if kind.after_stamp and not stamped:
            return False
        ranked = kind.name in ("number", "rank") and not all(line.rank is not None for line in lines)
        misses, allowed = 0, len(lines) // _MISSES
        names: collections.Counter[str] = collections.Counter()
        rests: list[str] = []
        for text, rank, *_said in lines:
            if ranked and rank is not None:
                rests.append(text)
                continue
            match = kind.pattern.match(text)
            if match is None or _OWN_TEXT.match(text, match.end()) or (kind.named and not _may_be_name(kind, match.group(1))):
                misses += 1
                if misses > allowed:
                    return False
                continue
            rests.append(text[match.end() :])
            if kind.named:
                names[match.group(1)] += 1
        if len(rests) < _FEWEST:
            return False
        if kind.name in ("number", "rank", "quote"):
            return _words(rests) or _begin_like_output(rests)
        if not kind.named:
            return True
        return _begin_like_output(rests) or (len(names) * 3 <= len(rests) and _words(rests))

    def clean(self, line: str) -> Line:
        """One physical line without its labels."""
        head = line[:1]
        # Most lines of most logs begin with a blank, a # or a host name: nothing to do.
        if (
            not self._learnt
            and not self._constant
            and not self._indent
            and not head.isdigit()
            and head not in "[(<"
            and not (head in " \t" and line.lstrip(" \t")[:1] in "[(")
            and "\x1b" not in line
            and line[-1:] != "\r"
            and line[:2] not in ("b'", 'b"')
            and line != "'"
            and "<std" not in line[:100]
        ):
            return Line(line)
        return self._strip(line)

    def _strip(self, line: str) -> Line:
        text = line.rstrip("\r")
        if "\x1b" in text:
            text = ANSI.sub("", text)
        if self._indent:
            common = os.path.commonprefix([self._indent, text])
            text = text[len(common) :]
        said: dict[str, t.Any] = {}
        left = list(self._learnt)
        constant = self._constant
        for _label in range(_MOST_LABELS):
            rest = _take_sure(text, said, self._srun)
            if rest is None:
                kind = next((kind for kind in left if kind.pattern.match(text)), None)
                if kind is not None:
                    left.remove(kind)
                    rest = _take_learnt(kind, text, said)
                elif constant and text.startswith(constant):
                    rest, constant = text[len(constant) :], ""
                else:
                    break
            text = rest
        if text[:2] in ("b'", 'b"') or text == "'":
            text = text[2:] if text[:1] == "b" else ""
            text = text[:-1] if text[-1:] in ("'", '"') else text
        return Line(text, **said)


def _is_bare(line: str) -> bool:
    """Whether the line begins as only text of a program does."""
    return line[0] == "#" or _HEAD.match(line) is not None


def _may_be_name(kind: _Kind, name: str) -> bool:
    """Whether the word can be a host's, a pod's, a level's or a task's."""
    if kind.name in ("host", "tab"):
        return any(char in "-.0123456789" for char in name) and not name.isdigit()
    if kind.name == "bracket":
        return name.count(" ") <= 3 and not name.isdigit()
    return True


def _words(rests: list[str]) -> bool:
    """Whether what follows the label is text of a program rather than the value of a key."""
    return sum(len(rest.split(None, 2)) > 1 for rest in rests) * 2 >= len(rests)


def _begin_like_output(rests: list[str]) -> bool:
    """Whether some of the texts begin as only the first column of a line does."""
    return sum(rest[:1] in ("#", "+", "|", "{") or rest[:2] == "  " for rest in rests) * 5 >= len(rests)


def _common_label(texts: list[str]) -> str:
    """A beginning that all lines have in common and that no program printed, or ""."""
    if len(texts) < 2 * _FEWEST:
        return ""
    common = os.path.commonprefix(texts)
    while common and (common[-1].isalnum() or common[-1] in "#."):
        common = common[:-1]
    stripped = common.rstrip(" \t")
    if not stripped or _OWN_PREFIX.search(common) or not any(char.isalpha() for char in stripped):
        return ""
    common = common[: len(stripped) + 1]
    rests = [text[len(common) :] for text in texts]
    return common if any(rest.startswith("#") for rest in rests) and _begin_like_output(rests) else ""


def _take_learnt(kind: _Kind, text: str, said: dict[str, t.Any]) -> str:
    match = t.cast("re.Match[str]", kind.pattern.match(text))
    if kind.name in ("number", "rank"):
        said.setdefault("rank", int(match.group(1)))
    return text[match.end() :]


def _take_sure(text: str, said: dict[str, t.Any], srun: bool) -> str | None:
    """The text behind a label that its shape proves, or None. What the label says is added to `said`."""
    head = text[:1]
    if head == "[":
        return _take_bracket(text, said)
    if head.isdigit():
        rest = _take_stamp(text, said)
        return _take_number(text, said, srun) if rest is None else rest
    if head in (" ", "\t"):
        return _take_behind_blanks(text, said, srun)
    if head == "(":
        return _take_actor(text, said)
    if head == "<" or "<std" in text[:100]:
        rest = _take_tag(text, said)
        return _take_syslog(text, said) if rest is None else rest
    return None


def _take_bracket(text: str, said: dict[str, t.Any]) -> str | None:
    if text.startswith("[pod/"):
        match = _POD.match(text)
        if match:
            said.setdefault("pod", match.group(1))
            said.setdefault("container", match.group(2))
            return text[match.end() :]
    rest = _take_tag(text, said) if "<std" in text[:300] else None
    if rest is not None:
        return rest
    match = _TORCH.match(text)
    if match:
        said.setdefault("rank", int(match.group(1)))
        return text[match.end() :]
    match = _BARE_RANK.match(text)
    if match and not text.startswith((" NCCL INFO ", " NCCL WARN "), match.end()):
        said.setdefault("rank", int(match.group(1)))
        return text[match.end() :]
    return None


def _take_tag(text: str, said: dict[str, t.Any]) -> str | None:
    match = _TAG.match(text)
    if match is None:
        return None
    if match.group(1):
        said.setdefault("rank", int(match.group(1)))
    said.setdefault("stream", match.group(2))
    return text[match.end() :]


def _take_stamp(text: str, said: dict[str, t.Any]) -> str | None:
    if text[4:5] != "-" or text[10:11] != "T":
        return None
    match = CRI.match(text)
    if match:
        said.setdefault("timestamp", match.group(1))
        said.setdefault("stream", match.group(2))
        said["partial"] = match.group(3) == "P"
        return text[match.end() :]
    # A second stamp is the program's own.
    match = _TIMESTAMP.match(text) if "timestamp" not in said else None
    if match:
        said["timestamp"] = match.group(1)
        return text[match.end() :]
    return None


def _take_number(text: str, said: dict[str, t.Any], srun: bool) -> str | None:
    match = _SRUN.match(text) if "rank" not in said else None
    if match and (srun or _AFTER_SRUN.match(text, match.end())):
        said["rank"] = int(match.group(1))
        return text[match.end() :]
    return None


def _take_behind_blanks(text: str, said: dict[str, t.Any], srun: bool) -> str | None:
    head = text.lstrip(" \t")[:1]
    if head == "[" or "<std" in text[:300]:
        rest = _take_tag(text, said)
        match = _TORCH.match(text) if rest is None else None
        if match:
            said.setdefault("rank", int(match.group(1)))
            return text[match.end() :]
        return rest
    if head == "(":
        return _take_actor(text, said)
    return _take_number(text, said, True) if srun and head.isdigit() else None


def _take_actor(text: str, said: dict[str, t.Any]) -> str | None:
    match = _ACTOR.match(text)
    if match is None:
        return None
    rank = _ACTOR_RANK.search(match.group())
    if rank:
        said.setdefault("rank", int(rank.group(1)))
    return text[match.end() :]


def _take_syslog(text: str, said: dict[str, t.Any]) -> str | None:
    match = _SYSLOG.match(text)
    if match:
        if match.group(1) != "-":
            said.setdefault("timestamp", match.group(1))
        return text[match.end() :]
    match = _PRIORITY.match(text)
    return text[match.end() :] if match else None


def strip_prefix(line: str) -> dict[str, t.Any]:
    """One line without the labels that need not be learnt, as a dict: text and partial always, the others null if unknown."""
    return Labels().clean(line)._asdict()


def without_inner_labels(text: str) -> str:
    """A table row without the rank labels that a launcher put between its cells."""
    return _INNER_LABEL.sub("", text)


def labels_of(lines: t.Iterable[str]) -> Labels:
    """Labels learnt from a few lines of a log."""
    labels = Labels()
    labels.learn("\n".join(itertools.islice(lines, 4096)))
    return labels
