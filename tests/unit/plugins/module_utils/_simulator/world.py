# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A workload model with hand-made pods: lets tests run containers without an API server."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware import definition
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware.seam import ContainerView, Outcome, PodView
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.workloads.programs import SimulatedWorkloads

LAUNCH = """
set -eu
if [ "$JOB_COMPLETION_INDEX" != 0 ]; then exec /usr/sbin/sshd -De -p 2222; fi
timeout 3600 mpirun --allow-run-as-root --hostfile /etc/mpi/hostfile -N {gpus} \\
  --mca plm_rsh_args "-p 2222 -o StrictHostKeyChecking=no" -x NCCL_DEBUG={debug} {extra} \\
  /usr/local/bin/all_reduce_perf_mpi -b 512M -e 8G -f 2 -g 1 2>&1 | tee /tmp/log
tail -n 20 /tmp/log > /dev/termination-log
"""
ALONE = "all_reduce_perf -b 512M -e 8G -f 2 -g 8"


@dataclasses.dataclass
class Ran:
    """What came of one container."""

    outcome: Outcome
    lines: list[str]
    model: SimulatedWorkloads
    pods: dict[str, PodView]

    def rows(self) -> list[list[str]]:
        return [line.split() for line in self.lines if line[:12].strip().isdigit()]

    def peak(self) -> float:
        """Out-of-place bus bandwidth of the last row."""
        return float(self.rows()[-1][7])

    def said(self, words: str) -> list[str]:
        return [line for line in self.lines if words in line]


class World:
    """A cluster whose pods are made by hand: one per node, named job-0, job-1 …"""

    def __init__(self, faults: t.Sequence[dict[str, t.Any]] = (), **keys: t.Any) -> None:
        self.model = SimulatedWorkloads(definition.parse({"noise": 0, **keys, "faults": list(faults)}))
        self.names = list(self.model.hardware.nodes)

    def pods(self, nodes: t.Sequence[str], script: str, **options: t.Any) -> dict[str, PodView]:
        return {f"job-{index}": self.pod(index, node, nodes, script, **options) for index, node in enumerate(nodes)}

    def pod(
        self, index: int, node: str, nodes: t.Sequence[str], script: str, *, nic: bool = True, gpus: int | None = None,
        env: dict[str, str] | None = None, files: dict[str, str] | None = None, command: t.Sequence[str] = (),
        mounts: t.Sequence[str] = (),
    ) -> PodView:  # fmt: skip
        hardware = self.model.hardware.nodes[node]
        count = hardware.gpu.gpus_per_node if gpus is None else gpus
        limits = {"nvidia.com/gpu": str(count)} if count else {}
        if nic:
            limits.update({name: str(number) for name, number in hardware.nics.items()})
        hosts = "".join(f"job-{number}.job slots={hardware.gpu.gpus_per_node}\n" for number in range(len(nodes)))
        container = ContainerView(
            name="main",
            image="registry.example.com/nccl-tests:1",
            command=tuple(command) or ("bash", "-c", script),
            env={"JOB_COMPLETION_INDEX": str(index), **(env or {})},
            files={"/etc/mpi/hostfile": hosts, **(files or {})},
            limits=limits,
        )
        spec = {"containers": [{"name": "main", "volumeMounts": [{"name": "v", "mountPath": path} for path in mounts]}]}
        return PodView(
            name=f"job-{index}-abcde", namespace="test", uid=f"uid-{index}", node=node, pod_ip=f"10.1.0.{index + 1}",
            host_name=f"job-{index}", fqdn=f"job-{index}.job.test.svc.cluster.local", subdomain="job", labels={}, annotations={},
            containers=(container,), job_completion_index=index, manifest={"spec": spec},
        )  # fmt: skip

    def run(self, nodes: t.Sequence[str], script: str, index: int = 0, gone: t.Sequence[str] = (), **options: t.Any) -> Ran:
        """Run the pod of one index to its end; hosts in `gone` do not answer."""
        pods = self.pods(nodes, script, **options)
        pod = pods[f"job-{index}"]

        def peers(host: str) -> PodView | None:
            name = host.split(".")[0]
            return None if name in gone else pods.get(name)

        outcome = self.model.run(pod, pod.containers[0], peers)
        lines = [line.text for line in outcome.lines if line.text is not None]
        return Ran(outcome, lines, self.model, pods)

    def launch(self, nodes: t.Sequence[str], debug: str = "INFO", extra: str = "", **options: t.Any) -> Ran:
        gpus = self.model.hardware.nodes[nodes[0]].gpu.gpus_per_node
        return self.run(nodes, LAUNCH.format(debug=debug, extra=extra, gpus=gpus), **options)

    def alone(self, node: str, **options: t.Any) -> Ran:
        return self.run([node], ALONE, **options)
