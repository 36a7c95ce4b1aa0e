# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""nccl-tests as pods run them: one process with several GPUs, or mpirun over hosts that serve ssh."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Iterable, Iterator, Sequence

from ..hardware.faults import Abort
from ..hardware.gpus import GpuProduct
from ..hardware.model import Node, Path
from ..hardware.seam import LogLine, Outcome, PodView
from . import mpirun, nccl_info, nccl_tests, shell
from .context import Context, abort_of, gpus_of, sees_rdma, serves_ssh

_SSH_WAIT_S = 120
_LOST_AFTER_S = 25
_PCI_8 = ("18", "29", "3a", "4b", "5c", "6d", "7e", "8f")
_PCI_4 = ("0008:01:00", "0009:01:00", "0018:01:00", "0019:01:00")


def claim(context: Context) -> Outcome | None:
    """The outcome of a container that runs an nccl-tests program or serves ssh for one; None for others."""
    before, found = shell.find_command(context.text, nccl_tests.is_program)
    launcher = next((index for index, word in enumerate(before) if shell.basename(word) in mpirun.LAUNCHERS), None)
    serves = bool(shell.find_command(context.text, lambda name: name == "sshd")[1])
    if serves and not context.container.init and (not found or (launcher is not None and context.index not in (None, 0))):
        return _ssh_server(context)
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


# --- the ssh server of a worker --------------------------------------------------------------------------------------


def ssh_port(text: str) -> int:
    """The port that a script hands to sshd."""
    match = re.search(r"sshd\b[^\n]*?(?:-p\s*|-o\s*\"?Port[= ])(\d+)", text) or re.search(r"(?m)^\s*Port\s+(\d+)", text)
    return int(match.group(1)) if match else 22


def _ssh_server(context: Context) -> Outcome:
    outcome = Outcome(lines=(), duration_s=None)
    outcome.lines = _serve(context, outcome)
    return outcome


def _serve(context: Context, outcome: Outcome) -> Iterator[LogLine]:
    port = ssh_port(context.text)
    yield LogLine(0.1, f"Server listening on 0.0.0.0 port {port}.", "stderr")
    yield LogLine(0.1, f"Server listening on :: port {port}.", "stderr")
    # Only a pod that may be killed needs to look; the others sleep until they are deleted.
    node = context.node
    if node is None or not any((abort := fault.abort()) is not None and abort.killed for fault in node.faults):
        return
    now = 0.1
    while context.pod.uid not in context.killed:
        now += context.poll_s()
        yield LogLine(now, None)
    outcome.exit_code, outcome.reason, outcome.duration_s = 137, "OOMKilled", now


# --- the run ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Member:
    """A host that takes part: its name for the launcher, its pod and node, its processes."""

    host: str
    pod: PodView
    node: Node
    processes: int


class _Run:
    """One call of a program. The generators yield LogLines and leave the result in the outcome."""

    def __init__(self, context: Context, outcome: Outcome, words: Sequence[str], limit_s: float | None) -> None:
        self.context = context
        self.outcome = outcome
        self.words = words
        self.limit_s = limit_s
        software = context.hardware.definition.software
        self.version = software.nccl_tests
        self.software = software
        self.style = mpirun.STYLES[software.mpi]
        self.options = nccl_tests.parse_options(words[1:], nccl_tests.version_tuple(software.nccl_tests))
        self.call = mpirun.Call()
        self.with_mpi = False
        self.now = 0.0
        self.kept: list[str] = []  # what a wrapper would copy to the termination message
        self.members: list[_Member] = []
        self.settings: dict[str, str] = {}

    def guarded(self, lines: Iterator[LogLine]) -> Iterator[LogLine]:
        """Apply the outer `timeout`, and write the termination message at the end."""
        for line in lines:
            if self.limit_s is not None and line.at_s > self.limit_s:
                self.outcome.exit_code = 124
                yield LogLine(self.limit_s, None)
                break
            yield line
        self.outcome.duration_s = min(self.now, self.limit_s) if self.limit_s is not None else self.now
        if not self.outcome.termination_message:
            self.outcome.termination_message = self.context.write_termination(self.kept)

    # -- printing

    def _say(self, texts: Iterable[str], stream: str = "stdout", rank: int | None = None) -> Iterator[LogLine]:
        for text in texts:
            tag = self.style.tag(rank, stream) if rank is not None and self.call.tag_output else ""
            yield LogLine(self.now, f"{tag}{text}", stream)

    def _say_ranks(self, lines: Iterable[tuple[int, str]]) -> Iterator[LogLine]:
        for rank, text in lines:
            yield from self._say([text], rank=rank)

    def _table(self, texts: Iterable[str]) -> Iterator[LogLine]:
        """Lines of rank 0 that belong to the result."""
        for text in texts:
            self.kept.append(text)
            yield from self._say([text], rank=0)

    # -- the two ways to start

    def alone(self) -> Iterator[LogLine]:
        """One process in this container."""
        node = self.context.node
        self.settings = self.context.nccl_settings()
        if node is None or gpus_of(self.context.pod) == 0:
            yield from self._no_gpu(self.context.pod)
            return
        self.members = [_Member(self.context.pod.host_name, self.context.pod, node, 1)]
        self.now = 1.0
        yield from self._program()

    def launched(self, call: mpirun.Call) -> Iterator[LogLine]:
        """mpirun in this container, over this and other pods."""
        self.call, self.with_mpi = call, True
        program = self.words[0]
        if call.problem:
            yield from self._say(mpirun.hostfile_missing(call.problem, self.style), "stderr")
            self.outcome.exit_code = 1
            return
        placed = mpirun.place(call, self.context.pod.host_name, gpus_of(self.context.pod))
        if placed is None:
            wanted = call.count or (call.per_node or 1) * len(call.hosts)
            yield from self._say(mpirun.not_enough_slots(wanted, program), "stderr")
            self.outcome.exit_code = 1
            return
        hosts = list(dict.fromkeys(placed))
        yield from self._wait_for(hosts)
        problem = self._unreachable(hosts)
        if problem:
            host, text = problem
            yield from self._say([text], "stderr")
            yield from self._say(mpirun.daemons_not_started(self.style, self._host_name(self.context.pod), host), "stderr")
            self.outcome.exit_code = 1
            return
        yield from self._start_daemons(hosts)
        for host in hosts:
            pod = self._pod(host)
            node = self.context.hardware.nodes.get(pod.node) if pod else None
            if pod is None or node is None or gpus_of(pod) == 0:
                yield from self._no_gpu(pod or self.context.pod)
                return
            self.members.append(_Member(host, pod, node, placed.count(host)))
        here = all(self.context.is_me(host) for host in hosts)
        self.settings = {**(self.context.nccl_settings() if here else {}), **call.settings}
        yield from self._program()

    def _wait_for(self, hosts: Sequence[str]) -> Iterator[LogLine]:
        """The time in which a launch script waits for its workers."""
        limit = self.context.patience_s(_SSH_WAIT_S, real=5.0 + 0.3 * len(hosts))  # a busy machine starts three pods a second
        while self.now < limit and self._unreachable(hosts):
            self.now += self.context.poll_s()
            yield LogLine(self.now, None)

    def _pod(self, host: str) -> PodView | None:
        return self.context.pod if self.context.is_me(host) else self.context.peers(host)

    def _unreachable(self, hosts: Sequence[str]) -> tuple[str, str] | None:
        """The first host that ssh cannot reach, and ssh's words."""
        for host in hosts:
            if self.context.is_me(host):
                continue
            pod = self.context.peers(host)
            if pod is None:
                return host, mpirun.unresolved(host)
            if not serves_ssh(pod):
                return host, mpirun.refused(host, 22)
        return None

    def _start_daemons(self, hosts: Sequence[str]) -> Iterator[LogLine]:
        self.now += 1.0
        quiet = re.search(r"LogLevel[= ](?:ERROR|QUIET|FATAL)|-q\b", self.context.text)
        for host in hosts:
            if self.context.is_me(host):
                continue
            self.now += 0.02
            if not quiet:
                port = ssh_port(self.context.text)
                name = host if port == 22 else f"[{host}]:{port}"
                yield from self._say([mpirun.permanently_added(name)], "stderr")
        self.now += 1.5

    # -- the program itself

    def _no_gpu(self, pod: PodView) -> Iterator[LogLine]:
        host = self._host_name(pod)
        yield from self._say([f"{host}: Test CUDA failure common.cu:1203 'no CUDA-capable device is detected'"], rank=0)
        yield from self._say([f" .. {host} pid {self._pid(0)}: Test failure common.cu:1092"], rank=0)
        yield from self._finish(2, 0)

    def _finish(self, code: int, rank: int) -> Iterator[LogLine]:
        self.outcome.exit_code = code
        if code and self.with_mpi:
            yield from self._say(mpirun.nonzero_exit(self.style, self._host_name(self.context.pod), rank, code), "stderr")

    @staticmethod
    def _host_name(pod: PodView) -> str:
        if pod.manifest.get("spec", {}).get("hostNetwork"):
            return pod.node
        return pod.host_name.split(".")[0]

    def _pid(self, rank: int) -> int:
        return 100 + self.context.hardware.chance("pid", self.context.pod.host_name).randrange(400) + rank

    def _program(self) -> Iterator[LogLine]:
        if self.options.problem:
            yield from self._say([f"invalid option '{self.options.problem}'", f"USAGE: {shell.basename(self.words[0])}"], rank=0)
            yield from self._finish(255, 0)
            return
        per_process = self.options.gpus * self.options.threads
        ranks = self._ranks(per_process)
        name = shell.basename(self.words[0])
        printer = nccl_tests.Printer(name, self.options, self.version, self.software.nccl, ranks)
        memory = min(member.node.gpu.memory_mib for member in self.members)
        short = next((member for member in self.members if member.processes * per_process > gpus_of(member.pod)), None)
        reduced = [] if short else printer.fit_to_memory(memory)
        yield from self._say(printer.opening(), rank=0)
        if short:
            yield from self._too_few_gpus(short, per_process)
            return
        yield from self._say([*printer.devices(), *reduced], rank=0)
        if not nccl_info.interface_found(self.settings):
            yield from self._no_interface(ranks[0])
            return
        yield from self._measure(printer, ranks)

    def _ranks(self, per_process: int) -> list[nccl_tests.Rank]:
        ranks: list[nccl_tests.Rank] = []
        process = 0
        for member in self.members:
            gpus = gpus_of(member.pod)
            for local in range(member.processes * per_process):
                ranks.append(
                    nccl_tests.Rank(
                        number=len(ranks),
                        host=self._host_name(member.pod),
                        node=member.node.name,
                        device=local,
                        local=local,
                        pid=self._pid(process + local // per_process),
                        pci=pci_address(member.node.gpu, local, gpus),
                        gpu_name=member.node.gpu.device_name,
                        ip=member.pod.pod_ip or "10.0.0.1",
                    )
                )
            process += member.processes
        return ranks

    def _too_few_gpus(self, member: _Member, per_process: int) -> Iterator[LogLine]:
        wanted = member.processes * per_process
        texts = [
            f"Invalid number of GPUs: {wanted} requested but only {gpus_of(member.pod)} were found.",
            "Please check the number of processes and GPUs per process.",
        ]
        yield from self._say(texts, "stderr", rank=0)
        yield from self._say([f" .. {self._host_name(member.pod)} pid {self._pid(0)}: Test failure common.cu:1454"], rank=0)
        yield from self._finish(5 if nccl_tests.version_tuple(self.version) >= (2, 17, 0) else 1, 0)

    def _no_interface(self, rank: nccl_tests.Rank) -> Iterator[LogLine]:
        log = nccl_info.Log(self._communicator([rank], Path("socket")))
        yield from self._say_ranks(log.warning(rank, "bootstrap.cc:114", "Bootstrap : no socket interface found"))
        yield from self._say_ranks(log.trace(rank, "init.cc:126", 5))
        text = f"{rank.host}: Test NCCL failure common.cu:1550 'invalid usage (run with NCCL_DEBUG=WARN for details) / '"
        yield from self._say([text, f" .. {rank.host} pid {rank.pid}: Test failure common.cu:1454"], rank=rank.number)
        yield from self._finish(3, rank.number)

    def _path(self) -> Path:
        settings = self.settings
        networks = [self._network(member) for member in self.members]
        off = settings.get("NCCL_IB_DISABLE") == "1" or settings.get("NCCL_NET", "").lower() == "socket"
        algorithms = settings.get("NCCL_ALGO", "").lower()
        return Path(
            network="socket" if off or not all(found.hcas for found in networks) else self.members[0].node.fabric,
            nvls=settings.get("NCCL_NVLS_ENABLE") != "0" and (not algorithms or "nvls" in algorithms),
            peer_access=settings.get("NCCL_P2P_DISABLE") != "1",
            shared_memory=settings.get("NCCL_SHM_DISABLE") != "1",
            mnnvl=settings.get("NCCL_MNNVL_ENABLE") != "0",
        )

    def _network(self, member: _Member) -> nccl_info.HostNetwork:
        fabric, gpu = member.node.fabric, member.node.gpu
        link = {"ib": "IB", "roce": "RoCE", "efa": "EFA"}.get(fabric, "")
        if fabric == "tcp" or not sees_rdma(member.pod, member.node):
            return nccl_info.HostNetwork((), link)
        if fabric == "efa":
            return nccl_info.HostNetwork(tuple(f"rdmap{number}" for number in range(gpu.efa_nics)), link)
        return nccl_info.HostNetwork(nccl_info.usable_hcas(self.settings, [f"mlx5_{number}" for number in range(gpu.nics)]), link)

    def _communicator(self, ranks: Sequence[nccl_tests.Rank], path: Path) -> nccl_info.Communicator:
        hosts = {self._host_name(member.pod): member for member in self.members}
        domains = {host: member.node.clique if path.mnnvl and member.node.clique else host for host, member in hosts.items()}
        gpu = self.members[0].node.gpu
        return nccl_info.Communicator(
            ranks=ranks,
            networks={host: self._network(member) for host, member in hosts.items()},
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
        hardware = self.context.hardware
        nodes = [member.node for member in self.members]
        names = list(dict.fromkeys(node.name for node in nodes))
        path = self._path()
        log = nccl_info.Log(self._communicator(ranks, path))
        run = hardware.next_run(printer.program, names)
        speed = hardware.speed(run, printer.collective, names, max(1, len(ranks) // len(names)), path)
        self.now += 0.5
        yield from self._say_ranks(log.version())
        yield from self._say_ranks(log.setup())
        self.now += 1.0 + 0.01 * len(ranks)
        yield from self._table(printer.header())
        yield from self._say_ranks(log.edges())
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
            self.now += row.seconds
            yield from self._table([printer.row_text(row, self._stamp())])
            done.append(row)
        self.now += 0.2
        yield from self._say_ranks(log.teardown())
        footer, code = printer.footer(
            done, _float(self.settings.get("NCCL_TESTS_MIN_BW", self.context.container.env.get("NCCL_TESTS_MIN_BW")))
        )
        yield from self._table(footer)
        yield from self._json(printer, done)
        yield from self._finish(code, 0)

    def _stamp(self) -> str:
        """The time of a row with -S 1; the only output that is not a pure function of the seed."""
        return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S") if self.options.row_times else ""

    def _json(self, printer: nccl_tests.Printer, rows: Sequence[nccl_tests.Row]) -> Iterator[LogLine]:
        path = self.options.json_file
        if not path:
            return
        document = printer.document(rows, self.words)
        yield from self._say([f"# Writing JSON output to {path}"], rank=0)
        if path == "/dev/termination-log":
            self.outcome.termination_message = document[:4096]
        elif path in ("/dev/stdout", "/proc/1/fd/1") or re.search(rf"\bcat\b[^\n]*{re.escape(path)}", self.context.text):
            yield LogLine(self.now, document)

    # -- runs that end early

    def _lost(self) -> _Member | None:
        """A member whose pod no longer answers."""
        return next((item for item in self.members if not self.context.is_me(item.host) and self.context.peers(item.host) is None), None)

    def _lose(self, member: _Member, head: str, ranks: Sequence[nccl_tests.Rank], log: nccl_info.Log) -> Iterator[LogLine]:
        """A node is gone: its neighbour's retries run out, then the launcher gives up."""
        yield LogLine(self.now + _LOST_AFTER_S, None)
        self.now += _LOST_AFTER_S
        gone = self._host_name(member.pod)
        victim = next((rank for rank in ranks if rank.host != gone), ranks[0])
        peer = next((rank for rank in ranks if rank.host == gone), ranks[0])
        yield from self._say([head], rank=0)
        yield from self._retry_exhausted(victim, peer, log)
        yield from self._say(mpirun.lost_daemon(self.style, self._host_name(self.context.pod), member.host), "stderr")
        self.outcome.exit_code = 3

    def _break(self, abort: Abort, head: str, ranks: Sequence[nccl_tests.Rank], log: nccl_info.Log, path: Path) -> Iterator[LogLine]:
        """The run ends in the middle of a row."""
        self.now += 2.0
        member = [item for item in self.members if item.node.name == abort.node][0]
        own = [rank for rank in ranks if rank.node == abort.node]
        rank = own[min(2, len(own) - 1)]
        if abort.killed:
            if self.context.is_me(member.host):
                yield LogLine(self.now, head)
                self.outcome.exit_code, self.outcome.reason = 137, "OOMKilled"
                return
            self.context.killed.add(member.pod.uid)
        yield from self._say([head], rank=0)
        if abort.killed or abort.exit_code > 128:
            number = 9 if abort.killed else abort.exit_code - 128
            if self.with_mpi:
                yield from self._say(mpirun.killed_by_signal(self.style, rank.number, rank.pid, rank.host, number), "stderr")
            self.outcome.exit_code = 128 + number
            return
        if abort.exit_code == 3 and path.network in ("ib", "roce") and len({item.host for item in ranks}) > 1:
            peer = [item for item in ranks if item.host != rank.host][0]
            yield from self._retry_exhausted(rank, peer, log)
        elif abort.exit_code == 3:
            yield from self._nccl_failure(rank, log)
        else:
            words = "uncorrectable ECC error encountered" if abort.exit_code == 2 else "unspecified launch failure"
            if abort.exit_code == 2:
                yield from self._say([f"{rank.host}: Test CUDA failure common.cu:389 '{words}'"], rank=rank.number)
            yield from self._call_chain(rank)
        yield from self._finish(abort.exit_code, rank.number)

    def _nccl_failure(self, rank: nccl_tests.Rank, log: nccl_info.Log) -> Iterator[LogLine]:
        yield from self._say_ranks(log.warning(rank, "enqueue.cc:1643", "Cuda failure 'uncorrectable ECC error encountered'"))
        yield from self._say_ranks(log.trace(rank, "enqueue.cc:1643", 1))
        text = f"{rank.host}: Test NCCL failure common.cu:389 'unhandled cuda error (run with NCCL_DEBUG=INFO for details) / '"
        yield from self._say([text], rank=rank.number)
        yield from self._call_chain(rank)

    def _retry_exhausted(self, rank: nccl_tests.Rank, peer: nccl_tests.Rank, log: nccl_info.Log) -> Iterator[LogLine]:
        device = f"mlx5_{rank.local}"
        text = (
            f"NET/IB: Got completion from peer {peer.ip}<41022> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 "
            f"vendor_err=129 req_type=Send localGid fe80::1 remoteGidsfe80::2 hca {device}"
        )
        yield from self._say_ranks(log.warning(rank, "transport/net_ib/p2p.cc:420", text))
        yield from self._say_ranks(log.trace(rank, "transport/net.cc:1299", 6))
        last = f"NET/IB: Got completion from peer {peer.ip}<41022> with status=IBV_WC_RETRY_EXC_ERR(12)"
        words = f"{rank.host}: Test NCCL failure common.cu:389 'remote process exited or there was a network error / {last}'"
        yield from self._say([words], rank=rank.number)
        yield from self._call_chain(rank)

    def _call_chain(self, rank: nccl_tests.Rank) -> Iterator[LogLine]:
        program = nccl_tests.collective_of(shell.basename(self.words[0]))
        places = ("common.cu:597", f"{program}.cu:574", "common.cu:1454")
        yield from self._say([f" .. {rank.host} pid {rank.pid}: Test failure {place}" for place in places], rank=rank.number)


def pci_address(gpu: GpuProduct, device: int, gpus: int) -> str:
    """The PCI address of a GPU, without the function."""
    if gpu.gpus_per_node == 4:
        return _PCI_4[device % 4]
    return f"0000:{_PCI_8[device % 8]}:00"


def _float(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
