# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Reading a container's command: enough shell to find the program that a script runs, and no more.

Known: line continuations, assignments, arrays, `$NAME`, `${NAME}`, `${NAME:-default}`, `$@` and `$1`, files mounted into the
container and called as scripts. Not known: functions, conditions, command substitution. A program is found by its name, wherever in the
script it stands.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from ..hardware.seam import ContainerView

_SHELLS = ("sh", "bash", "dash", "ash")
# Words that may stand before a command, commands that only talk about files, and commands that run the text they are given.
_BEFORE_COMMAND = ("if", "elif", "while", "until", "then", "do", "else", "!", "{")
_MENTIONS = ("[", "[[", "test", "which", "type", "hash", "ls", "stat", "file", "echo", "printf", "export", "rm", "cp", "mv", "ln", "chmod")
_RUN_TEXT = (*_SHELLS, "eval", "su", "ssh", "srun", "xargs")
_OPERATORS = frozenset(";&|()<>")
_ARRAY = re.compile(r"^[ \t]*(?:local |declare -a |readonly )?(\w+)\+?=\(([^)]*)\)", re.MULTILINE)
_ASSIGNMENT = re.compile(r"""^[ \t]*(?:export |local |readonly )?(\w+)=("[^"\n]*"|'[^'\n]*'|[^\s;&|"'()]*)[ \t]*(?=;|$)""", re.MULTILINE)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?:\[[@*]\])?(?::?-([^}]*))?\}|(\w+)|@)")


def basename(word: str) -> str:
    """The last part of a path."""
    return word.rsplit("/", 1)[-1]


def script_text(container: ContainerView) -> str:
    """The container's command as one expanded shell text."""
    words = [*container.command, *container.args]
    variables = dict(container.env)
    text, positional = _inner_script(words, container.files)
    text = re.sub(r"\\\r?\n[ \t]*", " ", text)
    text = re.sub(r"(?m)^[ \t]*#.*$", "", text)
    for number, word in enumerate(positional):
        variables[str(number)] = word
    variables["@"] = shlex.join(positional[1:])
    for name, body in _ARRAY.findall(text):
        earlier = variables.get(name, "") + " " if re.search(rf"^[ \t]*{name}\+=\(", text, re.MULTILINE) else ""
        variables[name] = earlier + " ".join(_expand(body, variables).split())
    for name, value in _ASSIGNMENT.findall(text):
        variables[name] = value[1:-1] if value.startswith("'") else _expand(value.strip('"'), variables)
    return _expand(text, variables)


def _inner_script(words: Sequence[str], files: dict[str, str]) -> tuple[str, list[str]]:
    """The script that `sh -c TEXT args…` or `sh FILE args…` or a mounted FILE runs, and its $0, $1 …"""
    words = list(words)
    while words and basename(words[0]) in ("env", "exec", "tini", "dumb-init", "nice"):
        words = words[1:]
        while words and (words[0].startswith("-") or re.fullmatch(r"\w+=.*", words[0])):
            words = words[1:]
    if words and basename(words[0]) in _SHELLS:
        rest = words[1:]
        is_text = False
        while rest and rest[0].startswith("-"):
            is_text = is_text or ("c" in rest[0] and not rest[0].startswith("--"))
            rest = rest[1:]
        if rest and is_text:
            return rest[0], rest[1:]
        words = rest
    if words and words[0] in files:
        return files[words[0]], words
    return shlex.join(words), words


def _expand(text: str, variables: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        if match.group(0) == "$@":
            return variables.get("@", "")
        name = match.group(1) or match.group(3)
        return variables.get(name) or match.group(2) or ""

    # Quotes around an expanded array or "$@" would glue its words together.
    text = re.sub(r'"(\$\{\w+\[[@*]\]\}|\$@)"', r"\1", text)
    return _VARIABLE.sub(value, text)


def tokens(line: str) -> list[str]:
    """Words and operators of one line; a line with an open quote is split at blanks."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:
        return line.replace('"', " ").replace("'", " ").split()


def _simple_commands(line: str) -> list[list[str]]:
    commands: list[list[str]] = [[]]
    words = tokens(line)
    skip = False
    for index, word in enumerate(words):
        if skip:
            skip = False
        elif word and set(word) <= _OPERATORS:
            if "<" in word or ">" in word:  # a redirection and its target belong to no argument list
                if commands[-1] and commands[-1][-1].isdigit():
                    commands[-1].pop()
                skip = index + 1 < len(words)
            else:
                commands.append([])
        else:
            commands[-1].append(word)
    return [command for command in commands if command]


def commands_of(text: str) -> list[list[str]]:
    """All simple commands of a script, as word lists without redirections, in order."""
    return [command for line in text.splitlines() for command in _simple_commands(line)]


def find_command(text: str, is_program: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    """The first simple command that has a word for which `is_program(basename)` is true.

    Returns the words before that word and the words from it on; two empty lists if there is none. Also looks into the text that a
    shell is given (`bash -c '…'`). A command that only mentions a program (`[ -x /usr/bin/mpirun ]`) does not run it.
    """
    for command in commands_of(text):
        head = next((basename(word) for word in command if word not in _BEFORE_COMMAND), "")
        if head in _MENTIONS or (head == "command" and "-v" in command):
            continue
        for index, word in enumerate(command):
            if is_program(basename(word)) and not any(char.isspace() for char in word):
                return command[:index], command[index:]
        for index, word in enumerate(command):
            if any(char.isspace() for char in word) and any(basename(earlier) in _RUN_TEXT for earlier in command[:index]):
                before, found = find_command(word, is_program)
                if found:
                    return [*command[:index], *before], found
    return [], []


def timeout_of(words: Sequence[str]) -> float | None:
    """Seconds of a `timeout [options] DURATION` among the words; None if there is none."""
    names = [basename(word) for word in words]
    if "timeout" not in names:
        return None
    index = names.index("timeout") + 1
    while index < len(words):
        word = words[index]
        if word in ("-k", "--kill-after", "-s", "--signal"):
            index += 2
        elif word.startswith("-"):
            index += 1
        else:
            return duration(word)
    return None


def duration(word: str) -> float | None:
    """Seconds of 90, 1.5, 90s, 10m, 2h, 1d."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", word)
    if match is None:
        return None
    return float(match.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match.group(2)]
