# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What `ansible-doc -t role` says of a role is what its defaults do, and every role wants the same Ansible."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())


def load(role: str, name: str) -> t.Any:
    return yaml.safe_load((ROOT / "roles" / role / name).read_text(encoding="utf-8"))


def is_template(value: t.Any) -> bool:
    return isinstance(value, str) and "{{" in value


@pytest.mark.parametrize("role", ROLES)
def test_the_documented_defaults_of_a_role_are_its_defaults(role: str) -> None:
    """A default that is computed from other variables has no value to document; what it is computed from stands in its description."""
    options = load(role, "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    defaults = load(role, "defaults/main.yml")
    assert {name for name, option in options.items() if not option.get("required")} == set(defaults)
    fixed = {name: value for name, value in defaults.items() if not is_template(value) and value is not None}
    assert {name: option["default"] for name, option in options.items() if "default" in option} == fixed
    computed = [name for name, value in defaults.items() if is_template(value)]
    assert [name for name in computed if "default" not in str(options[name]["description"])] == []


def test_every_role_wants_the_ansible_that_the_collection_wants() -> None:
    least = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text(encoding="utf-8"))["requires_ansible"]
    assert {f">={load(role, 'meta/main.yml')['galaxy_info']['min_ansible_version']}.0" for role in ROLES} == {least}


def test_every_role_has_the_same_author_in_the_same_place() -> None:
    assert len({load(role, "meta/main.yml")["galaxy_info"]["author"] for role in ROLES}) == 1
    assert [role for role in ROLES if "author" in load(role, "meta/argument_specs.yml")["argument_specs"]["main"]] == []
