# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What keeps a result when its log is rotated: NCCL's debug output goes to files of the pods, and the launcher ends with a recap.

While the test runs only its own output is in the log. After it the launcher prints, in this order: the debug lines that matter
(transport, network, version, warnings; bounded), and the recap, which it also leaves as its termination message. The recap has at most
4096 bytes; `_measure.nccl.recap` documents its lines and reads it when the log has lost its head or its table.
"""

from __future__ import annotations

import shlex
import typing as t

DEBUG_DIR = "/tmp/readiness-nccl"
DEBUG_FILE = f"{DEBUG_DIR}/%h.%p"
TERMINATION_LOG = "/dev/termination-log"
MARK = "gcr1"
# Of the debug output of a whole group, in bytes; and seconds for fetching it from the other nodes.
_MOST_DEBUG = 200_000
_FETCH_S = 60
# A copy of more output than this is not kept, in blocks of 1024 bytes.
_MOST_OUTPUT = 32_768

# The debug lines of one node that matter: warnings, steps of failures, one of each kind that tells the network, two edges of each kind per
# rank. Runs in any POSIX awk.
DIGEST = r"""
{ sub(/\r$/, "") }
/ NCCL WARN / { if (warned++ < 40) print; next }
/ NCCL INFO .* -> [0-9]+$/ { if (traced++ < 40) print; next }
/ NCCL INFO |^NCCL version / {
  kind = $0; sub(/^.* NCCL INFO /, "", kind); gsub(/0x[0-9a-f]+/, "x", kind); gsub(/[0-9]+/, "n", kind)
  if (kind ~ / via /) { if (seen[FILENAME kind]++ < 2 && edges++ < 1000) print }
  else if (kind in seen) next
  else if (kind ~ /[Nn]etwork|NET|nRanks|NCCL version|NVLS|coll channels|Connected|MNNVL|set by environment/ \
           || kind ~ /disabled|[Mm]ismatch|GPU Direct/) { seen[kind] = 1; if (kinds++ < 200) print }
}
"""

# From the test's output (part 1) and the digests of all nodes (part 2).
RECAP = r"""
function flat(s) { gsub(/[ \t]+/, "~", s); sub(/^~/, "", s); sub(/~$/, "", s); return s }
function put(s) { out = out s "\n"; used += length(s) + 1 }
function host_of(rank,   i, last) { last = 0; for (i = 1; i <= hosts; i++) { last += ranks[i]; if (rank < last) return i } return 0 }
function note(s) { s = "N" flat(s); if (noted + length(s) < 1200) { notes[++notes_n] = s; noted += length(s) + 1 } }
{ sub(/\r$/, ""); sub(/^\[[^]]*\]<std[a-z]*>: ?/, "") }
part == 1 && / Rank +[0-9]+ .* on +[^ ]+ +device / {
  if ($0 ~ /Group +[1-9]/ || $0 ~ /\.\.\.$/) odd = 1
  for (i = 1; i < NF; i++) if ($i == "on") { if (host[hosts] != $(i + 1) || !hosts) { host[++hosts] = $(i + 1) } ranks[hosts]++; break }
  next
}
part == 1 && $1 ~ /^[0-9]+$/ && $3 ~ /^[a-z]/ && NF >= 11 { if (rows < 5000) { row[++rows] = flat($0); size[rows] = $1 } next }
part == 1 && /Out of bounds values|Avg bus bandwidth|test concluded:|GPU memory usage|^# error/ { foot[++feet] = "F" flat($0); next }
part == 1 && /nccl-tests version|test starting:|minBytes|Reducing maxBytes|out-of-place|size +count|\(elements\)/ {
  if (heads < 12) head[++heads] = "T" flat($0); next
}
part == 2 && / NCCL INFO / {
  where = $1; sub(/:.*/, "", where); text = $0; sub(/^.* NCCL INFO /, "", text)
  kind = text; gsub(/0x[0-9a-f]+/, "x", kind); gsub(/[0-9]+/, "n", kind)
  if (text ~ / -> .* via /) {
    split(text, words, " : "); split(words[2], ends, " ")
    far = host_of(ends[1] + 0) != host_of(ends[3] + 0)
    if (seen[kind far]++ < 2) edge[far, ++edges[far]] = where " " text
  }
  else if (text ~ /NET\/.* Using \[|Selected [Pp]rovider/) {
    if (!seen[kind where]++) card[++cards] = where " " text
  }
  else if (text ~ /Using network|nRanks|NCCL version|nvls channels|No device found/) {
    if (!seen[kind]++) fact[++facts] = where " " text
  }
}
END {
  if (!rows || feet < 2 || odd) exit
  for (i = 1; i <= edges[1] + 0; i++) note(edge[1, i])
  for (i = 1; i <= facts; i++) note(fact[i])
  for (i = 1; i <= edges[0] + 0 && i <= 4; i++) note(edge[0, i])
  for (i = 1; i <= cards; i++) note(card[i])
  put(mark)
  for (i = 1; i <= heads; i++) put(head[i])
  for (i = 1; i <= feet; i++) put(foot[i])
  for (i = 1; i <= hosts; i = next_host) {
    stem = host[i]; sub(/[0-9]+$/, "", stem); first = substr(host[i], length(stem) + 1); last = first
    for (next_host = i + 1; next_host <= hosts && first != "" && first !~ /^0./; next_host++) {
      if (ranks[next_host] != ranks[i] || host[next_host] != stem (last + 1)) break
      last++
    }
    put("H" ranks[i] "~" host[i] (last == first ? "" : "~" last))
  }
  for (i = 1; i <= notes_n; i++) put(notes[i])
  for (i = 2; i <= rows; i++) {
    kept = row[i]; large = size[i]
    for (j = i - 1; j >= 1 && size[j] + 0 < large + 0; j--) { row[j + 1] = row[j]; size[j + 1] = size[j] }
    row[j + 1] = kept; size[j + 1] = large
  }
  for (carried = 0; carried < rows && used + length(row[carried + 1]) + 24 < 4096; carried++) put("R" row[carried + 1])
  put("X" status "~" (rows - carried))
  printf "%s", out
}
"""


def has_own_debug_file(env: t.Sequence[t.Mapping[str, str]]) -> bool:
    """Whether the user says where debug output goes; then it is theirs."""
    return any(item["name"] == "NCCL_DEBUG_FILE" for item in env)


def recap_lines(command: str, everywhere: str) -> list[str]:
    """Shell lines that run the launcher's command and end with its exit status.

    command: what is run, one shell word list. everywhere: the same launcher up to its program, one process a node; "" for one node.
    TERM and INT reach the command. An image without awk or a writable directory runs it as it is.
    """
    here = f"awk {shlex.quote(DIGEST)} {DEBUG_DIR}/*"
    digest = f"timeout -k 2 {_FETCH_S} {everywhere} /bin/bash -c {shlex.quote(here)}" if everywhere else here
    return [
        "launch() {",
        f"exec {command}",
        "}",
        'type awk tee head sed timeout >/dev/null 2>&1 && kept=$(mktemp -d 2>/dev/null) && mkfifo "$kept/pipe" || launch',
        f'(trap "" XFSZ TERM INT; ulimit -f {_MOST_OUTPUT}; exec tee "$kept/output" <"$kept/pipe" 2>/dev/null) & copier=$!',
        'launch >"$kept/pipe" & child=$!',
        "told=1 stopped= status=",
        "trap 'told=1 stopped=1; kill -TERM \"$child\" 2>/dev/null' TERM INT",
        # A signal ends `wait` early; asked again, it tells the status of the child, or 127 when it has told it before.
        'while [ -n "$told" ]; do told=; wait "$child"; code=$?; [ "$code" = 127 ] && [ -n "$status" ] || status=$code; done',
        # Processes that outlive the launcher may hold the pipe open.
        'for _ in {1..25}; do kill -0 "$copier" 2>/dev/null || break; sleep 0.2; done; kill -KILL "$copier" 2>/dev/null',
        f'if [ -z "$stopped" ]; then {digest} >"$kept/debug" 2>/dev/null </dev/null & child=$!; wait "$child"',
        f'else {here} >"$kept/debug" 2>/dev/null </dev/null; fi',
        f'head -c {_MOST_DEBUG} "$kept/debug"',
        f'awk -v mark={MARK} -v status="$status" {shlex.quote(RECAP)}'
        ' part=1 "$kept/output" part=2 "$kept/debug" >"$kept/recap" 2>/dev/null',
        f'if [ -s "$kept/recap" ]; then sed "s/^/gcr|/" "$kept/recap"; cat "$kept/recap" >{TERMINATION_LOG}; fi 2>/dev/null',
        'rm -rf "$kept"',
        'exit "$status"',
    ]
