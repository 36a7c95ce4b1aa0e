# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Run a simulated cluster in the foreground until Ctrl-C.

    python -m ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator --definition FILE --kubeconfig PATH

Prints `KUBECONFIG=PATH` when the cluster is ready. Exit codes: 0 stopped as asked, 1 could not run, 2 wrong input.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import errno
import json
import logging
import os
import signal
import sys
import threading
import typing as t
from collections.abc import Sequence
from pathlib import Path

from .._common.errors import InputError, ReadinessError
from .event_loop import run_loop
from .hardware.definition import Definition, load


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="simulated-cluster", description="A simulated GPU cluster with a Kubernetes API, until Ctrl-C.")
    parser.add_argument("--definition", metavar="FILE", help="YAML or JSON definition of the cluster (default: 64 healthy H100 nodes)")
    parser.add_argument("--kubeconfig", metavar="PATH", default="simulated.kubeconfig", help="kubeconfig to write (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port of the API server (default: any free one)")
    parser.add_argument("--time-scale", type=float, help="simulated seconds per real second, instead of the definition's")
    parser.add_argument("--audit", metavar="FILE", help="write one JSON line per API request")
    parser.add_argument("--check", action="store_true", help="only check the definition")
    parser.add_argument("--lifeline", action="store_true", help="stop when standard input is closed: with the program that holds it")
    parser.add_argument("--verbose", action="store_true", help="log what the parts of the cluster do")
    for name in ("--state-file", "--token", "--digest"):  # set by the launcher, to find this process again
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        definition = _definition(options)
        if options.check:
            _say(f"{options.definition or 'the default definition'} is valid: {len(definition.node_names())} GPU nodes")
            return 0
        _run(options, definition)
    except InputError as error:
        _say(f"error: {error.render()}", sys.stderr)
        return 2
    except OSError as error:
        text = f"port {options.port} is already in use; take another --port, or none" if error.errno == errno.EADDRINUSE else str(error)
        _say(f"error: {text}", sys.stderr)
        return 1
    except ReadinessError as error:
        _say(f"error: {error}", sys.stderr)
        return 1
    return 0


def _say(text: str, stream: t.TextIO | None = None) -> None:
    """One line for the user, at once: who waits for it reads from a pipe."""
    stream = stream or sys.stdout
    stream.write(f"{text}\n")
    stream.flush()


def _definition(options: argparse.Namespace) -> Definition:
    definition = load(options.definition)
    if options.time_scale is None:
        return definition
    if not 0 < options.time_scale <= 1e6:
        raise InputError(f"must be a number above 0 to 1000000, not {options.time_scale:g}", place="--time-scale")
    return dataclasses.replace(definition, time_scale=options.time_scale)


def _run(options: argparse.Namespace, definition: Definition) -> None:
    run_loop(_serve(options, definition))


async def _serve(options: argparse.Namespace, definition: Definition) -> int:
    from .cluster import simulated_cluster

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    if options.lifeline:
        _watch_stdin(loop, stopping)
    kubeconfig = Path(options.kubeconfig).absolute()
    async with simulated_cluster(definition, port=options.port, audit_path=options.audit) as cluster:
        cluster.write_kubeconfig(str(kubeconfig))
        try:
            if options.state_file:
                _write_state(options, str(kubeconfig), cluster.nodes)
            _say(f"KUBECONFIG={kubeconfig}")
            scale = f"{definition.time_scale:g} simulated seconds per second"
            _say(f"{cluster.nodes} nodes at {cluster.server.url}, {scale}; Ctrl-C stops")
            await stopping.wait()
        finally:
            kubeconfig.unlink(missing_ok=True)
            if options.state_file:
                Path(options.state_file).unlink(missing_ok=True)
    return 0


def _write_state(options: argparse.Namespace, kubeconfig: str, nodes: int) -> None:
    """Tell the launcher that the cluster is ready. Written whole or not at all."""
    state = {"pid": os.getpid(), "token": options.token, "kubeconfig": kubeconfig, "nodes": nodes, "digest": options.digest}
    temporary = Path(f"{options.state_file}.{os.getpid()}")
    temporary.write_text(json.dumps(state), encoding="utf-8")
    temporary.replace(options.state_file)


def _watch_stdin(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """Set the event when standard input ends. A thread, because not every kind of standard input can be polled."""

    def wait() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        loop.call_soon_threadsafe(stopping.set)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


if __name__ == "__main__":
    raise SystemExit(main())
