# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Write docs/reasons.md from the table in plugins/module_utils/_causes/reasons.py.

Run it (python tools/write_reasons.py) after changing the table; a unit test compares the two.
"""

from __future__ import annotations

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main() -> None:
    """Load the table by its path (it imports nothing of the collection) and write the page."""
    spec = importlib.util.spec_from_file_location("reasons", ROOT / "plugins/module_utils/_causes/reasons.py")
    if spec is None or spec.loader is None:
        raise SystemExit("plugins/module_utils/_causes/reasons.py cannot be loaded")
    reasons = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reasons)
    (ROOT / "docs/reasons.md").write_text(reasons.as_markdown(), encoding="utf-8")


if __name__ == "__main__":
    main()
