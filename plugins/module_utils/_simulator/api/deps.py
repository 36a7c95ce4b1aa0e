# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The third-party packages the simulator needs, imported in one guarded place.

Without them this module still imports (tools that only load every file need that) and require() says what is missing.
"""

from __future__ import annotations

from ..._common.errors import InputError

try:
    import aiohttp
    import jsonschema_rs
    import orjson
    from aiohttp import web
except ImportError as error:
    aiohttp = jsonschema_rs = orjson = web = None  # type: ignore[assignment]
    MISSING: str = str(error)
else:
    MISSING = ""

__all__ = ["MISSING", "aiohttp", "jsonschema_rs", "orjson", "require", "web"]


def require() -> None:
    """Raise InputError when a package of the simulator is not installed."""
    if MISSING:
        raise InputError(
            f"the simulated cluster cannot start: {MISSING}",
            hint="Install the simulator's packages: pip install aiohttp orjson jsonschema-rs kubernetes-validate",
        )
