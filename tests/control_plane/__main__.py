# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A genuine control plane with simulated nodes until Ctrl-C: `make control-plane`. Prints KUBECONFIG=<path> when it is ready."""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import signal
import sys

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware.definition import load

from . import agents, build, managers
from .children import INTERRUPTED, ChildFailed
from .launcher import ControlPlane


def main() -> int:
    parser = argparse.ArgumentParser(prog="control-plane", description=__doc__)
    parser.add_argument("--definition", help="of the simulated nodes (default: 64 healthy H100 nodes)")
    parser.add_argument("--kubeconfig", required=True, type=pathlib.Path, help="file to write, removed at the end")
    parser.add_argument("--audit", type=pathlib.Path, help="where the audit log is copied to at the end")
    parser.add_argument("--node-grace", type=float, default=40, help="seconds of silence after which a node is lost (default: %(default)s)")
    parser.add_argument("--jobset-and-trainer", action="store_true", help="run the JobSet and the Trainer manager too")
    options = parser.parse_args()
    # From the first moment on, a signal becomes an exception that passes through every "finally".
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        _run(options)
    except KeyboardInterrupt:
        return 0
    except InputError as error:
        print(f"error: {error.render()}", file=sys.stderr)
        return 2
    except build.Unavailable as error:
        print(f"no control plane: {error}", file=sys.stderr)
        return build.CANNOT
    except (ChildFailed, build.BuildFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _interrupt(_number: int, _frame: object) -> None:
    INTERRUPTED.set()
    raise KeyboardInterrupt


def _run(options: argparse.Namespace) -> None:
    definition = load(options.definition)
    with ControlPlane(node_grace_s=options.node_grace) as plane:
        if options.jobset_and_trainer:
            managers.start(plane)
        kubeconfig = options.kubeconfig.absolute()
        kubeconfig.parent.mkdir(parents=True, exist_ok=True)

        def ready() -> None:
            kubeconfig.write_bytes(plane.kubeconfig.read_bytes())
            kubeconfig.chmod(0o600)
            print(f"KUBECONFIG={kubeconfig}", flush=True)
            memory = plane.memory_mb()
            print(f"{plane.url}, started in {plane.start_s:.1f} s, {sum(memory.values())} MB; Ctrl-C stops", flush=True)

        try:
            tls = agents.log_tls(plane.serving, str(plane.authority.certificate))
            asyncio.run(agents.serve(str(plane.kubeconfig), definition, tls, ready))
        finally:
            kubeconfig.unlink(missing_ok=True)
            if options.audit and plane.audit.exists():
                options.audit.write_bytes(plane.audit.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
