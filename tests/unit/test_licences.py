# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Who takes files out of the collection reads in each of them under which licence, and it is the right one.

Plugins outside `module_utils` run inside Ansible and are GPL-3.0-or-later, and so is whatever imports them; everything else is Apache-2.0.
`reuse lint` proves that every file has a licence, these tests prove which.
"""

from __future__ import annotations

import ast
import pathlib
import re

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
APACHE, GPL = "Apache-2.0", "GPL-3.0-or-later"
NOTICE = "# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)\n"
# In two pieces, so that this line is no header of its own.
TAG = "# SPDX-License-" + "Identifier: "
PLUGINS = "ansible_collections.gpu_cluster.readiness.plugins."
# Not written by us: recorded logs and what tools leave.
FOREIGN = ("cases", "output", "__pycache__")


def files(folder: str, *suffixes: str) -> list[str]:
    """Paths below the root, of files with content."""
    found = [path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.suffix in suffixes and path.stat().st_size]
    return sorted(str(path) for path in found if not set(path.parts) & set(FOREIGN))


def source(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def head(name: str) -> str:
    return source(name)[:1000]


def licence(name: str) -> str:
    """The licence that the header names; empty where it names none, or several."""
    named = re.findall(rf"(?m)^{TAG}(\S+)$", head(name))
    return named[0] if len(named) == 1 else ""


def imports_plugins(text: str) -> bool:
    """Whether the file imports a plugin, or anything of `plugins/` that is not in module_utils."""
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [f"{alias.name}." for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names += [f"{node.module}.{alias.name}." for alias in node.names]
    rooms = {name.removeprefix(PLUGINS).split(".")[0] for name in names if name.startswith(PLUGINS)}
    return bool(rooms - {"", "module_utils"})


def test_a_plugin_is_gpl_and_says_so_twice() -> None:
    plugins = [name for name in files("plugins", ".py", ".yml") if not name.startswith("plugins/module_utils/")]
    assert plugins
    assert [name for name in plugins if licence(name) != GPL or f"{NOTICE}{TAG}{GPL}\n" not in head(name)] == []


def test_what_plugins_share_stays_apache_and_imports_no_gpl_file() -> None:
    shared = files("plugins/module_utils", ".py")
    assert shared
    assert [name for name in shared if licence(name) != APACHE or imports_plugins(source(name))] == []


def test_a_test_has_the_licence_of_what_it_imports() -> None:
    others = [*files("tests", ".py"), *files("tools", ".py")]
    due = {name: GPL if imports_plugins(source(name)) else APACHE for name in others}
    assert set(due.values()) == {APACHE, GPL}
    assert [name for name in others if licence(name) != due[name]] == []


def test_every_way_to_import_a_plugin_is_seen() -> None:
    assert imports_plugins(f"import {PLUGINS}filter.nccl")
    assert imports_plugins(f"from {PLUGINS[:-1]} import filter")
    assert imports_plugins(f"def late():\n    from {PLUGINS}plugin_utils._action import ReadinessAction")
    assert not imports_plugins(f"from {PLUGINS}module_utils._common import plain")
    assert not imports_plugins(f"from {PLUGINS[:-1]} import module_utils")


def test_the_whole_text_of_both_licences_is_there_and_galaxy_names_both() -> None:
    texts = {path.stem: path.read_bytes() for path in (ROOT / "LICENSES").iterdir()}
    assert sorted(texts) == sorted([APACHE, GPL])
    assert (ROOT / "LICENSE").read_bytes() == texts[APACHE]
    assert (ROOT / "COPYING").read_bytes() == texts[GPL]
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))
    assert sorted(galaxy["license"]) == sorted(texts)
