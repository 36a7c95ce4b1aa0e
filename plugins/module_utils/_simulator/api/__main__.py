# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Run the API server alone until SIGINT or SIGTERM.

    python -m ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api --kubeconfig PATH [--port N]

Prints `KUBECONFIG=PATH` when the server answers.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import typing as t

from ..event_loop import run_loop
from ..kubeconfig import write_kubeconfig
from .server import ApiServer


async def _serve(arguments: argparse.Namespace) -> int:
    server = ApiServer(port=arguments.port, version=arguments.version, audit_path=arguments.audit)
    await server.start()
    write_kubeconfig(arguments.kubeconfig, server.url, server.token)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    sys.stdout.write(f"KUBECONFIG={arguments.kubeconfig}\n")
    sys.stdout.flush()
    await stop.wait()
    await server.stop()
    return 0


def main(arguments: t.Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(description="A simulated Kubernetes API server.")
    parser.add_argument("--kubeconfig", required=True, help="where to write the kubeconfig")
    parser.add_argument("--port", type=int, default=0, help="the port to listen on; 0 takes a free one")
    parser.add_argument("--version", default="v1.36.3", help="the Kubernetes version to report")
    parser.add_argument("--audit", help="a file that gets one JSON line per request")
    return run_loop(_serve(parser.parse_args(arguments)))


if __name__ == "__main__":
    raise SystemExit(main())
