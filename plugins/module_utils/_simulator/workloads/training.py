# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""torchrun with a Megatron-LM pretraining script: step and checkpoint lines as Megatron core 0.16 and later print them.

The last node prints the steps, the first one the checkpoints, as with the real program. Lines carry the wall clock of the pod, so
they are not a pure function of the seed; the numbers in them are.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
from collections.abc import Iterator, Sequence

from ..hardware.model import Path
from ..hardware.nodes import Node
from ..hardware.seam import LogLine, Outcome
from . import shell
from .context import Context, abort_of, gpus_of, sees_rdma

_STARTERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_RENDEZVOUS_S = 600
_STEP_S = 1.2  # one sample per GPU on healthy hardware
_SAVE_S = 6.0
_TCP_SHARE = 0.12  # of its speed is left to a training whose gradients go over TCP


def claim(context: Context) -> Outcome | None:
    """The outcome of a container that trains with Megatron-LM under torchrun; None for others."""
    _before, words = shell.find_command(context.text, lambda name: name in _STARTERS)
    script = next((index for index, word in enumerate(words) if word.endswith(".py")), None)
    if script is None or "train-iters" not in _options(words[script:]):
        return None
    outcome = Outcome(lines=())
    outcome.lines = _Training(context, outcome, words[:script], words[script + 1 :]).lines()
    return outcome


@dataclasses.dataclass(frozen=True)
class _Shape:
    """Size and options of the training."""

    nodes: int
    node_rank: int
    gpus: int
    master: str
    iterations: int
    interval: int
    batch: int
    tensor: int
    save: str
    save_every: int
    async_save: bool
    throughput: bool
    minutes: float
    flops: float  # of a sample, forward and backward; 0: of no model in particular

    @property
    def world(self) -> int:
        return self.nodes * self.gpus


def _options(words: Sequence[str]) -> dict[str, str]:
    """--name value, --name=value and --flag of a command line; names with hyphens."""
    found: dict[str, str] = {}
    for index, word in enumerate(words):
        if word.startswith("--"):
            name, glued, value = word[2:].partition("=")
            following = words[index + 1] if index + 1 < len(words) else ""
            found[name.replace("_", "-")] = value if glued else "" if following.startswith("--") else following
    return found


def _whole(text: str, other: int) -> int:
    return int(text) if text.isdigit() else other


def _shape(context: Context, starter: Sequence[str], words: Sequence[str]) -> _Shape:
    launch, train, env = _options(starter), _options(words), context.container.env
    gpus = gpus_of(context.pod)
    nodes = _whole(launch.get("nnodes", env.get("PET_NNODES", "1")), 1)
    per_node = _whole(launch.get("nproc-per-node", env.get("PET_NPROC_PER_NODE", "")), gpus)
    master = launch.get("master-addr") or launch.get("rdzv-endpoint") or env.get("PET_MASTER_ADDR") or env.get("MASTER_ADDR") or ""
    return _Shape(
        nodes=nodes,
        node_rank=_whole(launch.get("node-rank", env.get("PET_NODE_RANK", "")), context.index or 0),
        gpus=per_node,
        master=master.split(":")[0],
        iterations=_whole(train.get("train-iters", ""), 1),
        interval=max(1, _whole(train.get("log-interval", ""), 100)),
        batch=_whole(train.get("global-batch-size", ""), 0) or nodes * per_node,
        tensor=max(1, _whole(train.get("tensor-model-parallel-size", ""), 1)),
        save=train.get("save") or train.get("checkpoint-dir", ""),
        save_every=_whole(train.get("save-interval", ""), 0),
        async_save="async-save" in train,
        throughput="log-throughput" in train,
        minutes=float(_whole(train.get("exit-duration-in-mins", ""), 0)),
        flops=_flops(train),
    )


def _flops(train: dict[str, str]) -> float:
    """Six operations for each weight and token, twelve for each pair of tokens; 0 where the widths of the model are not named."""
    layers, width, inner, tokens = (
        _whole(train.get(name, ""), 0) for name in ("num-layers", "hidden-size", "ffn-hidden-size", "seq-length")
    )
    weights = layers * (2.5 * width * width + 2 * width * inner)  # eight groups share keys and values
    return (6.0 * weights + 12.0 * layers * width * tokens) * tokens if inner else 0.0


def member_hosts(master: str, nodes: int) -> list[str]:
    """job-0.svc, job-1.svc … of the first member's name."""
    name, dot, domain = master.partition(".")
    stem = re.sub(r"-0$", "", name)
    return [f"{stem}-{number}{dot}{domain}" for number in range(nodes)]


class _Training:
    """One container of a training."""

    def __init__(self, context: Context, outcome: Outcome, starter: Sequence[str], words: Sequence[str]) -> None:
        self.context = context
        self.outcome = outcome
        self.shape = _shape(context, starter, words)
        self.began = datetime.datetime.now(datetime.UTC)
        self.now = 0.0
        self.nodes: list[Node] = []

    def lines(self) -> Iterator[LogLine]:
        """Everything the container prints."""
        shape = self.shape
        if gpus_of(self.context.pod) < shape.gpus or shape.gpus == 0:
            yield from self._child_failed(0, f"RuntimeError: {shape.gpus} GPUs wanted, {gpus_of(self.context.pod)} found")
            return
        hosts = member_hosts(shape.master, shape.nodes) if shape.nodes > 1 else []
        yield from self._rendezvous(hosts)
        if self._absent(hosts):
            yield LogLine(self.now, "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "stderr")
            self.outcome.exit_code, self.outcome.duration_s = 1, self.now
            return
        if hosts:
            met = self.context.met.setdefault(shape.master, datetime.datetime.now(datetime.UTC))
            self.began = met - datetime.timedelta(seconds=self.now)
        self.nodes = self._node_list(hosts)
        if not self.nodes:
            yield from self._child_failed(0, "RuntimeError: No CUDA GPUs are available")
            return
        self.now += 20.0
        if shape.node_rank == 0:
            data = max(1, shape.world // shape.tensor)
            yield self._say(
                f"using world size: {shape.world}, data-parallel size: {data}, context-parallel size: 1, hierarchical context-parallel "
                f"sizes: None, tensor-model-parallel size: {shape.tensor}, pipeline-model-parallel size: 1"
            )
            yield self._say(f"[before the start of training step] datetime: {self._clock()} ")
        yield from self._steps(hosts)
        self.outcome.duration_s = self.now

    # -- the group

    def _rendezvous(self, hosts: Sequence[str]) -> Iterator[LogLine]:
        limit = self.context.patience_s(_RENDEZVOUS_S, len(hosts))
        while self._absent(hosts) and self.now < limit:
            self.now += self.context.poll_s()
            yield LogLine(self.now, None)

    def _absent(self, hosts: Sequence[str]) -> bool:
        return any(
            not self.context.is_me(host) and host not in self.context.finished and self.context.peers(host) is None for host in hosts
        )

    def _node_list(self, hosts: Sequence[str]) -> list[Node]:
        pods = [self.context.find(host) for host in hosts] or [self.context.pod]
        found = [self.context.hardware.nodes.get(pod.node) for pod in pods if pod is not None]
        return [node for node in found if node is not None]

    def _tflops(self) -> float:
        """Sustained TFLOP/s per GPU of this run."""
        hardware = self.context.hardware
        names = list(dict.fromkeys(node.name for node in self.nodes))
        # Every member counts its own runs, so all of them come to the same number.
        _what, _mark, count = hardware.next_run(f"train-{self.shape.node_rank}", names).rpartition("|")
        run = f"train|{','.join(sorted(names))}|{count}"
        rdma = sees_rdma(self.context.pod, self.nodes[0]) and not any(node.hides_rdma for node in self.nodes)
        exercise = hardware.exercise(run, names, Path("ib"))
        left = min((fault.limit(exercise) for fault in hardware.definition.faults), default=1.0)
        left = min(
            left, *(node.part_share("gpu", gpu) for node in self.nodes for gpu in range(self.shape.gpus))
        )  # the slowest sets the pace
        if exercise.over_nic and not rdma:
            left = min(left, _TCP_SHARE)
        noise = math.exp(hardware.chance("noise", run).gauss(0, hardware.definition.noise / 2))
        return min(node.gpu.tflops for node in self.nodes) * left * noise

    # -- the steps

    def _steps(self, hosts: Sequence[str]) -> Iterator[LogLine]:
        shape = self.shape
        tflops = self._tflops()
        healthy = min(node.gpu.tflops for node in self.nodes)
        each = shape.flops / (healthy * 1e12) if shape.flops else _STEP_S
        step = each * max(1.0, shape.batch / shape.world) * healthy / tflops
        abort = abort_of(self.nodes)
        wrong = any(fault.corrupts() for node in self.nodes for fault in node.faults)
        waiting, since = 0.0, 0
        for iteration in range(1, shape.iterations + 1):
            took = step * (12 if iteration == 1 else 1)
            self.now, waiting, since = self.now + took, waiting + took, since + 1
            if abort is not None and iteration > shape.iterations // 2:
                yield from self._break(abort.node, abort.killed, abort.exit_code)
                return
            if iteration == 1 or iteration % shape.interval == 0:
                if self._absent(hosts):
                    yield from self._child_failed(1, _REMOTE)
                    return
                if shape.node_rank == shape.nodes - 1:
                    yield self._say(self._step_line(iteration, waiting / since, tflops * step / (waiting / since), wrong))
                else:
                    yield LogLine(self.now, None)
                waiting, since = 0.0, 0
            if shape.save and shape.save_every and iteration % shape.save_every == 0:
                yield from self._save(iteration)
            if shape.minutes and self.now > shape.minutes * 60:
                yield self._say(f"[exiting program after {self.now / 60:.1f} minutes] datetime: {self._clock()}")
                self._leave(hosts)
                return
        if shape.node_rank == 0:
            yield self._say(f"[after training is done] datetime: {self._clock()} ")
        self._leave(hosts)

    def _leave(self, hosts: Sequence[str]) -> None:
        """The good end: members whose clock is a little behind do not take it for a death."""
        self.context.finished.update(host for host in hosts if self.context.is_me(host))

    def _step_line(self, iteration: int, seconds: float, tflops: float, wrong: bool) -> str:
        shape = self.shape
        bad = wrong and iteration > shape.iterations // 2
        loss = "" if bad else f" lm loss: {2.0 + 9.9 * math.exp(-iteration / 200):.6E} |"
        throughput = f" throughput per GPU (TFLOP/s/GPU): {tflops:.1f} |" if shape.throughput else ""
        return (
            f" [{self._clock()}] iteration {iteration:8d}/{shape.iterations:8d} | consumed samples: {iteration * shape.batch:12d} | "
            f"elapsed time per iteration (ms): {seconds * 1e3:.1f} |{throughput} learning rate: 6.000000E-04 | "
            f"global batch size: {shape.batch:5d} |{loss} loss scale: 1.0 | grad norm: {'nan' if bad else '0.812'} | "
            f"number of skipped iterations: {0:3d} | number of nan iterations: {0:3d} |"
        )

    def _save(self, iteration: int) -> Iterator[LogLine]:
        shape = self.shape
        if shape.node_rank == 0:
            yield self._say(f"[{self._clock()}] saving checkpoint at iteration {iteration:7d} to {shape.save} in torch_dist format")
        if not shape.async_save:
            self.now += _SAVE_S
        if shape.node_rank == 0:
            yield self._say(
                f"  [{self._clock()}] successfully saved checkpoint from iteration {iteration:7d} to {shape.save} "
                f"[ t 1/{shape.tensor}, p 1/1 ]"
            )

    # -- the end before its time

    def _break(self, node: str, killed: bool, exit_code: int) -> Iterator[LogLine]:
        if node != self.context.pod.node:
            self.now += 20.0
            yield from self._child_failed(1, _REMOTE)
        elif killed:
            yield LogLine(self.now, None)
            self.outcome.exit_code, self.outcome.reason, self.outcome.duration_s = 137, "OOMKilled", self.now
        else:
            yield from self._child_failed(exit_code, "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered")

    def _child_failed(self, exit_code: int, words: str) -> Iterator[LogLine]:
        """The failing rank's last line and torchrun's summary. torchrun itself ends with 1."""
        rank = self.shape.node_rank * self.shape.gpus
        yield LogLine(self.now, f"[rank{rank}]: {words}", "stderr")
        yield LogLine(self.now, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "stderr")
        yield LogLine(self.now, f"  rank      : {rank} (local_rank: 0)", "stderr")
        yield LogLine(self.now, f"  exitcode  : {exit_code or 1} (pid: 128)", "stderr")
        self.outcome.exit_code, self.outcome.duration_s = 1, self.now

    # -- printing

    def _say(self, text: str) -> LogLine:
        return LogLine(self.now, text)

    def _clock(self) -> str:
        return (self.began + datetime.timedelta(seconds=self.now)).strftime("%Y-%m-%d %H:%M:%S.%f")


_REMOTE = (
    "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error, "
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
)
