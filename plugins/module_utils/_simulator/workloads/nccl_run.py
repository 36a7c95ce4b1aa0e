# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""nccl-tests as pods run them: one process with several GPUs, or mpirun over hosts that serve ssh."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence

from ..hardware.definition import version_tuple
from ..hardware.faults import Abort
from ..hardware.model import Path
from ..hardware.seam import LogLine, Outcome, PodView
from . import launcher_recap, mpirun, nccl_failures, nccl_info, nccl_tests, shell, ssh
from .console import Console
from .context import Context, abort_of, gpus_of
from .nccl_members import Member, host_name_of, lacks_gpus, network_of, path_of, ranks_of

_SSH_WAIT_S = 120
_LOST_AFTER_S = 25


def claim(context: Context) -> Outcome | None:
    """The outcome of a container that runs an nccl-tests program or serves ssh for one; None for others."""
    before, found = shell.find_command(context.text, nccl_tests.is_program)
    launcher = next((index for index, word in enumerate(before) if shell.basename(word) in mpirun.LAUNCHERS), None)
    serves = bool(shell.find_command(context.text, lambda name: name == "sshd")[1])
    if serves and not context.container.init and (not found or (launcher is not None and context.index not in (None, 0))):
        return ssh.serve(context)
    if not found:
        return None
    outcome = Outcome(lines=())
    run = _Run(context, outcome, found, shell.timeout_of(before))
    if launcher is None:
        outcome.lines = run.guarded(run.alone())
    else:
        call = mpirun.parse(before[launcher + 1 :], context.container.env, context.container.files)
        outcome.lines = run.guarded(run.launched(call))
    return outcome


class _Run:
    """One call of a program. The generators yield LogLines and leave the result in the outcome."""

    def __init__(self, context: Context, outcome: Outcome, words: Sequence[str], limit_s: float | None) -> None:
        self.context = context
        self.outcome = outcome
        self.words = words
        self.program = shell.basename(words[0])
        self.limit_s = limit_s
        self.software = context.hardware.definition.software
        self.style = mpirun.STYLES[self.software.mpi]
        self.console = Console(self.style)
        self.options = nccl_tests.parse_options(words[1:], version_tuple(self.software.nccl_tests))
        self.host = host_name_of(context.pod)
        self.with_mpi = False
        self.members: list[Member] = []
        self.settings: dict[str, str] = {}

    def guarded(self, lines: Iterator[LogLine]) -> Iterator[LogLine]:
        """Apply the outer `timeout`, do what the script does after the test, and write the termination message at the end."""
        printed: list[str] = []
        for line in lines:
            if self.limit_s is not None and line.at_s > self.limit_s:
                self.outcome.exit_code = 124
                yield LogLine(self.limit_s, None)
                break
            if line.text is not None and line.stream == "stdout":
                printed.append(line.text)
            yield line
        self.outcome.duration_s = min(self.console.now, self.limit_s) if self.limit_s is not None else self.console.now
        mark = launcher_recap.mark_of(self.context)
        if mark and not self.outcome.reason:
            yield from self._recap(mark, printed)
        elif not self.outcome.termination_message:
            self.outcome.termination_message = self.context.write_termination(self.console.result)

    def _recap(self, mark: str, printed: Sequence[str]) -> Iterator[LogLine]:
        now = self.outcome.duration_s or 0.0
        debug = launcher_recap.digest(self.console.debug or []) if launcher_recap.collected(self.context, self.settings) else []
        recap = launcher_recap.recap(mark, printed, debug, self.outcome.exit_code)
        for text in (*debug, *(f"gcr|{line}" for line in recap)):
            yield LogLine(now, text)
        if recap:
            self.outcome.termination_message = "\n".join(recap) + "\n"

    # -- the two ways to start

    def alone(self) -> Iterator[LogLine]:
        """One process in this container."""
        node = self.context.node
        self.settings = self.context.nccl_settings()
        if node is None or gpus_of(self.context.pod) == 0:
            yield from self._no_gpu(self.context.pod)
            return
        self.members = [Member(self.context.pod.host_name, self.context.pod, node, 1)]
        self.console.now = 1.0
        yield from self._program()

    def launched(self, call: mpirun.Call) -> Iterator[LogLine]:
        """mpirun in this container, over this and other pods."""
        self.with_mpi, self.console.tag_output = True, call.tag_output
        if call.problem:
            yield from self._not_launched(mpirun.hostfile_missing(call.problem, self.style))
            return
        placed = mpirun.place(call, self.context.pod.host_name, gpus_of(self.context.pod))
        if placed is None:
            wanted = call.count or (call.per_node or 1) * len(call.hosts)
            yield from self._not_launched(mpirun.not_enough_slots(wanted, self.words[0]))
            return
        hosts = list(dict.fromkeys(placed))
        yield from self._wait_for(hosts)
        problem = ssh.unreachable(self.context, hosts)
        if problem:
            host, text = problem
            yield from self._not_launched([text, *mpirun.daemons_not_started(self.style, self.host, host)])
            return
        yield from self._start_daemons(hosts)
        for host in hosts:
            pod = self.context.find(host)
            node = self.context.hardware.nodes.get(pod.node) if pod else None
            if pod is None or node is None or gpus_of(pod) == 0:
                yield from self._no_gpu(pod or self.context.pod)
                return
            self.members.append(Member(host, pod, node, placed.count(host)))
        here = all(self.context.is_me(host) for host in hosts)
        self.settings = {**(self.context.nccl_settings() if here else {}), **call.settings}
        yield from self._program()

    def _not_launched(self, texts: Sequence[str]) -> Iterator[LogLine]:
        yield from self.console.say(texts, "stderr")
        self.outcome.exit_code = 1

    def _wait_for(self, hosts: Sequence[str]) -> Iterator[LogLine]:
        """The time in which a launch script waits for its workers."""
        # A busy machine starts three pods a second, and many more slowly still.
        limit = self.context.patience_s(_SSH_WAIT_S, len(hosts))
        while self.console.now < limit and ssh.unreachable(self.context, hosts):
            self.console.now += self.context.poll_s()
            yield LogLine(self.console.now, None)

    def _start_daemons(self, hosts: Sequence[str]) -> Iterator[LogLine]:
        self.console.now += 1.0
        for host in hosts:
            if self.context.is_me(host):
                continue
            self.console.now += 0.02
            words = ssh.added_host(self.context, host)
            if words:
                yield from self.console.say([words], "stderr")
        self.console.now += 1.5

    # -- the program itself

    def _pid(self, process: int) -> int:
        return 100 + self.context.hardware.chance("pid", self.context.pod.host_name).randrange(400) + process

    def _finish(self, code: int, rank: int) -> Iterator[LogLine]:
        self.outcome.exit_code = code
        if code and self.with_mpi:
            yield from self.console.say(mpirun.nonzero_exit(self.style, self.host, rank, code), "stderr")

    def _program(self) -> Iterator[LogLine]:
        self.console.debug = [] if launcher_recap.goes_to_file(self.settings) else None
        if self.options.problem:
            yield from self.console.say([f"invalid option '{self.options.problem}'", f"USAGE: {self.program}"], rank=0)
            yield from self._finish(255, 0)
            return
        per_process = self.options.gpus * self.options.threads
        ranks = ranks_of(self.members, per_process, self._pid)
        printer = nccl_tests.Printer(self.program, self.options, self.software.nccl_tests, self.software.nccl, ranks)
        memory_mib = min(member.node.gpu.memory_mib for member in self.members)
        short = next((member for member in self.members if lacks_gpus(member, per_process)), None)
        reduced = [] if short else printer.fit_to_memory(memory_mib)
        yield from self.console.say(printer.opening(), rank=0)
        if short:
            yield from self._too_few_gpus(short, per_process)
            return
        yield from self.console.say([*printer.devices(), *reduced], rank=0)
        if not nccl_info.interface_found(self.settings):
            yield from self._no_interface(ranks[0])
            return
        yield from self._measure(printer, ranks)

    def _communicator(self, ranks: Sequence[nccl_tests.Rank], path: Path) -> nccl_info.Communicator:
        hosts = {host_name_of(member.pod): member for member in self.members}
        domains = {host: member.node.clique if path.mnnvl and member.node.clique else host for host, member in hosts.items()}
        gpu = self.members[0].node.gpu
        return nccl_info.Communicator(
            ranks=ranks,
            networks={host: network_of(member, self.settings) for host, member in hosts.items()},
            domains=domains,
            network=path.network,
            nvls=path.nvls and gpu.nvls_gb_s is not None and path.peer_access and len(ranks) > 1,
            peer_access=path.peer_access,
            shared_memory=path.shared_memory,
            mnnvl=len(set(domains.values())) < len(domains),
            settings=self.settings,
            nccl=self.software.nccl,
            driver_cuda=self.software.cuda,
            one_process=not self.with_mpi,
            salt=self.context.hardware.chance("comm", *hosts).getrandbits(48),
        )

    def _measure(self, printer: nccl_tests.Printer, ranks: Sequence[nccl_tests.Rank]) -> Iterator[LogLine]:
        hardware, console = self.context.hardware, self.console
        nodes = [member.node for member in self.members]
        names = list(dict.fromkeys(node.name for node in nodes))
        path = path_of(self.members, self.settings)
        log = nccl_info.Log(self._communicator(ranks, path))
        run = hardware.next_run(printer.program, names)
        speed = hardware.speed(run, printer.collective, names, max(1, len(ranks) // len(names)), path)
        console.now += 0.5
        yield from console.say_ranks(log.version())
        yield from console.say_ranks(log.setup())
        console.now += 1.0 + 0.01 * len(ranks)
        yield from console.say_result(printer.header())
        yield from console.say_ranks(log.edges())
        wrong = any(fault.corrupts() for node in nodes for fault in node.faults)
        sigma = hardware.definition.noise * 0.1
        rows = printer.rows(speed, hardware.jitter(run), sigma, wrong, nodes[0].gpu.hbm_gb_s)
        done: list[nccl_tests.Row] = []
        abort = abort_of(nodes)
        breaking = len(self.options.sizes()) // 2
        for row in rows:
            if abort is not None and len(done) >= breaking:
                yield from self._break(abort, printer.row_head(row), ranks, log, path)
                return
            lost = self._lost()
            if lost is not None:
                yield from self._lose(lost, printer.row_head(row), ranks, log)
                return
            console.now += row.seconds
            yield from console.say_result([printer.row_text(row, self._stamp())])
            done.append(row)
        console.now += 0.2
        yield from console.say_ranks(log.teardown())
        footer, code = printer.footer(done, self._least_bandwidth())
        yield from console.say_result(footer)
        yield from self._json(printer, done)
        yield from self._finish(code, 0)

    def _least_bandwidth(self) -> float | None:
        return _float(self.settings.get("NCCL_TESTS_MIN_BW", self.context.container.env.get("NCCL_TESTS_MIN_BW")))

    def _stamp(self) -> str:
        """The time of a row with -S 1; the only output that is not a pure function of the seed."""
        return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S") if self.options.row_times else ""

    def _json(self, printer: nccl_tests.Printer, rows: Sequence[nccl_tests.Row]) -> Iterator[LogLine]:
        path = self.options.json_file
        if not path:
            return
        document = printer.document(rows, self.words)
        yield from self.console.say([f"# Writing JSON output to {path}"], rank=0)
        if path == "/dev/termination-log":
            self.outcome.termination_message = document[:4096]
        elif path in ("/dev/stdout", "/proc/1/fd/1") or re.search(rf"\bcat\b[^\n]*{re.escape(path)}", self.context.text):
            yield LogLine(self.console.now, document)

    # -- runs that end early

    def _no_gpu(self, pod: PodView) -> Iterator[LogLine]:
        yield from self.console.say_ranks(nccl_failures.no_gpu(host_name_of(pod), self._pid(0)))
        yield from self._finish(2, 0)

    def _too_few_gpus(self, member: Member, per_process: int) -> Iterator[LogLine]:
        texts = nccl_failures.too_few_gpus(member.processes * per_process, gpus_of(member.pod))
        yield from self.console.say(texts, "stderr", rank=0)
        yield from self.console.say([nccl_failures.failed_at(host_name_of(member.pod), self._pid(0), "common.cu:1454")], rank=0)
        yield from self._finish(5 if version_tuple(self.software.nccl_tests) >= (2, 17, 0) else 1, 0)

    def _no_interface(self, rank: nccl_tests.Rank) -> Iterator[LogLine]:
        log = nccl_info.Log(self._communicator([rank], Path("socket")))
        yield from self.console.say_ranks(nccl_failures.no_interface(rank, log))
        yield from self._finish(3, rank.number)

    def _lost(self) -> Member | None:
        """A member whose pod no longer answers."""
        return next((member for member in self.members if self.context.find(member.host) is None), None)

    def _lose(self, member: Member, head: str, ranks: Sequence[nccl_tests.Rank], log: nccl_info.Log) -> Iterator[LogLine]:
        """A node is gone: its neighbour's retries run out, then the launcher gives up."""
        self.console.now += _LOST_AFTER_S
        yield LogLine(self.console.now, None)
        gone = host_name_of(member.pod)
        victim = next((rank for rank in ranks if rank.host != gone), ranks[0])
        peer = next((rank for rank in ranks if rank.host == gone), ranks[0])
        yield from self.console.say([head], rank=0)
        yield from self.console.say_ranks(nccl_failures.retry_exhausted(victim, peer, log, self.program))
        yield from self.console.say(mpirun.lost_daemon(self.style, self.host, member.host), "stderr")
        self.outcome.exit_code = 3

    def _break(self, abort: Abort, head: str, ranks: Sequence[nccl_tests.Rank], log: nccl_info.Log, path: Path) -> Iterator[LogLine]:
        """The run ends in the middle of a row."""
        self.console.now += 2.0
        member = [item for item in self.members if item.node.name == abort.node][0]
        own = [rank for rank in ranks if rank.node == abort.node]
        rank = own[min(2, len(own) - 1)]
        if abort.killed:
            if self.context.is_me(member.host):
                yield LogLine(self.console.now, head)
                self.outcome.exit_code, self.outcome.reason = 137, "OOMKilled"
                return
            self.context.killed.add(member.pod.uid)
        yield from self.console.say([head], rank=0)
        if abort.killed or abort.exit_code > 128:
            number = 9 if abort.killed else abort.exit_code - 128
            if self.with_mpi:
                yield from self.console.say(mpirun.killed_by_signal(self.style, rank.number, rank.pid, rank.host, number), "stderr")
            self.outcome.exit_code = 128 + number
            return
        yield from self.console.say_ranks(self._last_words(abort, rank, ranks, log, path))
        yield from self._finish(abort.exit_code, rank.number)

    def _last_words(
        self, abort: Abort, rank: nccl_tests.Rank, ranks: Sequence[nccl_tests.Rank], log: nccl_info.Log, path: Path
    ) -> Iterator[nccl_info.Line]:
        """What the failing rank says, by its exit code: 3 is an error of NCCL, 2 one of CUDA."""
        others = [other for other in ranks if other.host != rank.host]
        if abort.exit_code == 3 and path.network in ("ib", "roce") and others:
            return nccl_failures.retry_exhausted(rank, others[0], log, self.program)
        if abort.exit_code == 3:
            return nccl_failures.gpu_failed_in_nccl(rank, log, self.program)
        if abort.exit_code == 2:
            return nccl_failures.gpu_failed_in_test(rank, self.program)
        return nccl_failures.gave_up(rank, self.program)


def _float(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
