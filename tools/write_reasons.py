# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Write docs/reasons.md from the table in plugins/module_utils/_causes/reasons.py.

Run it (python tools/write_reasons.py) after changing the table; a unit test compares the two.
"""

from __future__ import annotations

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from plugins.module_utils._causes.reasons import as_markdown  # noqa: E402


def main() -> None:
    """Write the page."""
    (ROOT / "docs/reasons.md").write_text(as_markdown(), encoding="utf-8")


if __name__ == "__main__":
    main()
