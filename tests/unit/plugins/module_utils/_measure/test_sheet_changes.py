# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Two fact sheets of a node: what rose or changed meanwhile is told at its part, with both values, and nothing is guessed."""

from __future__ import annotations

import copy
import json
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import compared, risen
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.tools import node_facts
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.tools.sheet_changes import changes
from ansible_collections.gpu_cluster.readiness.tests.unit.plugins.module_utils._simulator.world import World

NODE = "gpu-r0-n00"
RUN = "exec python3 -u /etc/readiness/files/node_facts.py"
Sheet = dict[str, t.Any]


def sheet(world: World) -> Sheet:
    return dict(json.loads("\n".join(world.run([NODE], RUN).lines))["node_facts"])


BEFORE = sheet(World(fabric="ib"))


def changed(*path: t.Any, to: t.Any, of: Sheet | None = None) -> Sheet:
    """The sheet with one value changed. path: keys and indices."""
    return edited([(path, to)], of)


def edited(edits: t.Iterable[tuple[t.Any, t.Any]], of: Sheet | None = None) -> Sheet:
    """The sheet with these values at these paths."""
    made = copy.deepcopy(BEFORE if of is None else of)
    for path, value in edits:
        node: t.Any = made
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value
    return made


def told(before: Sheet, after: Sheet) -> list[tuple[str, str | None, str]]:
    return [(item["reason"], item["entity"], item["message"]) for item in changes(before, after, NODE)]


def around(*faults: dict[str, t.Any]) -> list[tuple[str, str | None, str]]:
    """What is told of a simulated node on which one test ran between its sheets."""
    world = World([{"node": NODE, **fault} for fault in faults], fabric="ib")
    before = sheet(world)
    world.alone(NODE)
    return told(before, sheet(world))


def uuid(number: int) -> str:
    return str(BEFORE["gpus"][number]["uuid"])


# --- what the workloads of a simulated cluster leave behind


def test_the_errors_of_an_nvlink_are_told_with_link_gpu_and_both_values() -> None:
    assert around({"kind": "nvlink_errors", "gpu": 2, "link": 3}) == [
        ("Warning", "GPU2", f"during this run: GPU2 ({uuid(2)}): NVLink 3: CRC errors: 0 -> 1412")
    ]


def test_a_memory_error_that_was_not_corrected_convicts_and_so_does_its_xid() -> None:
    found = around({"kind": "memory_error", "gpu": 5})
    assert [item[:2] for item in found] == [("HardwareFailureDetected", "GPU5"), ("Warning", "GPU5"), ("HardwareFailureDetected", "GPU5")]
    assert "memory errors that were not corrected: 0 -> 1" in found[0][2] and "waits for a reset" in found[0][2]
    assert f"during this run: GPU5 ({uuid(5)}): Xid 48 (double-bit ECC error) at 20" in found[2][2]


@pytest.mark.parametrize(
    ("fault", "entity", "words"),
    [
        ({"kind": "nic_slow", "nic": 6}, "mlx5_6", "port 1 of mlx5_6: symbol_error: 0 -> 25"),
        ({"kind": "intermittent"}, "mlx5_0", "link_error_recovery: 0 -> 1"),
        ({"kind": "gpu_slow", "gpu": 4}, "GPU4", "slowed down by heat (hardware): 0 -> 4000000 us"),
        ({"kind": "pcie_slow", "gpu": 1}, "GPU1", "PCIe replays: 0 -> 7"),
    ],
)
def test_a_slow_part_has_counted_why(fault: dict[str, t.Any], entity: str, words: str) -> None:
    ((reason, where, text),) = around(fault)
    assert (reason, where) == ("Warning", entity) and words in text


def test_what_many_gpus_have_in_common_is_told_once_and_hides_nothing_else() -> None:
    mine, common = around({"kind": "node_slow"}, {"kind": "nvlink_errors", "gpu": 7})
    assert mine[1] == "GPU7" and "NVLink 0: CRC errors: 0 -> 1412" in mine[2] and "slowed" not in mine[2]
    shown = "; ".join(f"GPU{gpu}: 0 -> 4000000 us" for gpu in range(4))
    assert common == ("Warning", None, f"during this run: slowed down by heat (hardware): {shown}; and 4 more")


def test_a_command_that_failed_the_second_time_is_told_once_for_all_gpus() -> None:
    after = edited([(("gpus", gpu, "nvlinks", "counters"), {}) for gpu in range(8)])
    ((reason, entity, text),) = told(BEFORE, after)
    assert (reason, entity) == ("Warning", None) and text.startswith("GPU0, GPU1, GPU2") and "not compared" in text


def test_a_healthy_node_has_nothing_to_tell_after_a_test_and_reading_wears_nothing() -> None:
    assert around() == []
    world = World([{"kind": "memory_error", "node": NODE}])
    assert told(sheet(world), sheet(world)) == []


# --- counters


CONVICTING = [("ecc", "uncorrectable"), ("ecc", "uncorrectable_ever")]
NOTED = [
    ("ecc", "correctable"),
    ("ecc", "correctable_ever"),
    ("remapped_rows", "correctable"),
    ("remapped_rows", "uncorrectable"),
    ("pcie", "replays"),
    ("slowed_us", "hw_power_brake"),
    ("slowed_us", "sw_therm_slowdown"),
    ("nvlinks", "counters", "17", "replay_errors"),
]
COUNTERS = [*CONVICTING, *NOTED]


@pytest.mark.parametrize("path", COUNTERS)
def test_a_counter_that_rose_is_told_at_its_gpu(path: tuple[str, ...]) -> None:
    before = changed("gpus", 3, *path, to=5)
    ((reason, entity, text),) = told(before, changed("gpus", 3, *path, to=9))
    assert reason == ("HardwareFailureDetected" if path in CONVICTING else "Warning")
    assert entity == "GPU3" and "5 -> 9" in text and uuid(3) in text and text.startswith("during this run")


@pytest.mark.parametrize("path", COUNTERS)
@pytest.mark.parametrize("unknown", [None, "N/A", -1, True, [3]])
def test_a_counter_that_one_sheet_lacks_is_told_and_never_a_rise(path: tuple[str, ...], unknown: t.Any) -> None:
    for before, after, side in ((unknown, 9, "before"), (9, unknown, "after")):
        ((reason, entity, text),) = told(changed("gpus", 3, *path, to=before), changed("gpus", 3, *path, to=after))
        assert (reason, entity) == ("Warning", "GPU3")
        assert "not compared" in text and f"the sheet from {side}" in text and "->" not in text


@pytest.mark.parametrize("path", COUNTERS)
def test_a_counter_that_went_backwards_was_reset_and_its_rise_is_not_known(path: tuple[str, ...]) -> None:
    ((reason, _entity, text),) = told(changed("gpus", 0, *path, to=9), changed("gpus", 0, *path, to=2))
    assert reason == "Warning" and "9 -> 2" in text and "not known" in text


def test_the_power_limit_of_a_gpu_is_its_normal_life() -> None:
    assert told(BEFORE, changed("gpus", 0, "slowed_us", "sw_power_cap", to=10**9)) == []


def test_a_restart_is_told_and_what_it_clears_is_not_compared() -> None:
    after = changed("host", "boot_id", to="another")
    for path, rise in ((("ecc", "uncorrectable"), 3), (("pcie", "replays"), 8), (("nvlinks", "counters", "0", "crc_errors"), 9)):
        after = changed("gpus", 1, *path, to=rise, of=after)
    after = changed("nics", 0, "ports", 0, "counters", "symbol_error", to=4, of=after)
    ((reason, entity, text),) = told(BEFORE, after)
    assert (reason, entity) == ("Warning", None) and "it restarted" in text and "another" in text
    found = told(BEFORE, changed("gpus", 1, "ecc", "uncorrectable_ever", to=1, of=after))
    assert [item[0] for item in found] == ["Warning", "HardwareFailureDetected"], "what a restart does not clear still counts"


# --- what is no longer as it was


def test_a_lost_gpu_convicts_its_node() -> None:
    after = copy.deepcopy(BEFORE)
    gone = after["gpus"].pop(4)
    ((reason, entity, text),) = told(BEFORE, after)
    assert (reason, entity) == ("HardwareFailureDetected", "GPU4") and gone["uuid"] in text and "lost" in text


def test_another_gpu_in_its_place_may_be_the_scheduler_s_choice() -> None:
    found = told(BEFORE, changed("gpus", 4, "uuid", to="GPU-other"))
    assert {item[0] for item in found} == {"Warning"} and "GPU-other" in found[1][2] and uuid(4) in found[0][2]


def test_a_sheet_on_which_no_gpu_could_be_read_has_lost_none() -> None:
    assert told(BEFORE, changed("gpus", to=[])) == [] and all(item[0] == "Warning" for item in told(changed("gpus", to=[]), BEFORE))


@pytest.mark.parametrize(
    ("path", "value", "reason", "words"),
    [
        (("gpus", 2, "pcie", "width"), 8, "HardwareFailureDetected", "PCIe lanes: 16, then 8"),
        (("gpus", 2, "nvlinks", "inactive"), [7, 8], "Warning", "NVLinks no longer active: 7, 8"),
        (("gpus", 2, "vbios"), "97", "Warning", "VBIOS"),
        (("gpus", 2, "ecc", "enabled"), False, "Warning", "ECC: on, then off"),
        (("gpus", 2, "remapped_rows", "pending"), True, "HardwareFailureDetected", "waits for a reset"),
        (("driver", "version"), "570.1", "Warning", "GPU driver: 580.95.05, then 570.1"),
        (("nics", 1, "ports", 0, "rate"), "100 Gb/sec (1X NDR)", "Warning", "port 1 of mlx5_1: rate: 400 Gb/sec (4X NDR), then 100"),
        (("nics", 1, "ports", 0, "state"), "DOWN", "Warning", "state: ACTIVE, then DOWN"),
        (("nics", 1, "firmware"), "9", "Warning", "firmware: 28.39.1002, then 9"),
    ],
)
def test_what_changed_is_told_with_both_values(path: tuple[t.Any, ...], value: t.Any, reason: str, words: str) -> None:
    ((said, _entity, text),) = told(BEFORE, changed(*path, to=value))
    assert said == reason and words in text and text.startswith("during this run")


def test_lanes_that_came_back_convict_nobody() -> None:
    assert [item[0] for item in told(changed("gpus", 2, "pcie", "width", to=8), BEFORE)] == ["Warning"]


# --- Xids


def logged(*xids: tuple[float, int], last_s: float | None = 100.0, boot: str = "boot") -> Sheet:
    bus = str(BEFORE["gpus"][6]["bus_id"])[4:-2].lower()
    lines = [{"at_s": at_s, "at": None, "code": code, "bus_id": bus, "line": f"NVRM: Xid (PCI:{bus}): {code}"} for at_s, code in xids]
    return changed("kernel_log", to={"last_s": last_s, "xids": lines}, of=changed("host", "boot_id", to=boot))


def test_an_xid_older_than_the_first_sheet_is_not_new() -> None:
    assert told(logged((50.0, 79)), logged((50.0, 79), (100.0, 48), last_s=200.0)) == []
    ((reason, entity, text),) = told(logged((50.0, 79)), logged((50.0, 79), (150.0, 79), last_s=200.0))
    assert (reason, entity) == ("HardwareFailureDetected", "GPU6") and "Xid 79 (GPU has fallen off the bus)" in text


def test_an_xid_of_a_program_is_noted_once_with_its_number_of_times() -> None:
    ((reason, _entity, text),) = told(logged(), logged((101.0, 31), (102.0, 31), (103.0, 31)))
    assert reason == "Warning" and "Xid 31 (memory page fault of a program), 3 times" in text
    assert told(logged(), logged((101.0, 999)))[0][0] == "Warning", "an Xid that is not in the table decides nothing"


def test_after_a_restart_all_xids_are_new() -> None:
    found = told(logged(last_s=9000.0), logged((5.0, 79), boot="other"))
    assert [item[0] for item in found] == ["Warning", "HardwareFailureDetected"]


def test_xids_of_a_log_that_could_not_be_read_before_are_not_known_to_be_new() -> None:
    for before in (changed("kernel_log", to=None, of=logged()), logged(last_s=None), changed("host", "boot_id", to=None, of=logged())):
        ((reason, _entity, text),) = told(before, logged((150.0, 79)))
        assert reason == "Warning" and "Xid 79" in text and "not known" in text
    assert told(logged((1.0, 79)), changed("kernel_log", to=None, of=logged())) == []


# --- properties

VALUES = st.one_of(st.none(), st.integers(0, 5), st.just("N/A"))
OF_A_PORT = ("nics", 2, "ports", 0, "counters", "link_downed")
SPOTS = st.sampled_from([OF_A_PORT, *(("gpus", gpu, *path) for gpu in (0, 7) for path in COUNTERS)])
CHANGES = st.lists(st.tuples(SPOTS, VALUES), max_size=8)


@given(CHANGES)
def test_equal_sheets_say_nothing(edits: list[tuple[t.Any, t.Any]]) -> None:
    assert changes(edited(edits), edited(edits), NODE) == []


@given(CHANGES, CHANGES, st.randoms(use_true_random=False))
def test_the_order_of_parts_makes_no_difference(first: list[t.Any], second: list[t.Any], chance: t.Any) -> None:
    before, after = edited(first), edited(second)
    mixed = copy.deepcopy(after)
    for key in ("gpus", "nics"):
        chance.shuffle(mixed[key])
    assert changes(before, mixed, NODE) == changes(before, after, NODE)


@given(CHANGES, CHANGES)
def test_a_rise_has_two_numbers_and_is_one(first: list[t.Any], second: list[t.Any]) -> None:
    before, after = edited(first), edited(second)
    told_of = [item for item in changes(before, after, NODE) if "backwards" not in item["message"]]
    rises = [line for item in told_of for line in item["evidence"] if " -> " in line]
    assert all(item["message"].startswith("during this run") for item in told_of if any(" -> " in line for line in item["evidence"]))
    for line in rises:
        old, new = line.rpartition(": ")[2].removesuffix(" us").split(" -> ")
        assert int(old) < int(new)
    known = [path for path, _value in second if isinstance(_at(before, path), int) and isinstance(_at(after, path), int)]
    assert len(rises) == len({path for path in known if _at(after, path) > _at(before, path)})


def _at(node: t.Any, path: tuple[t.Any, ...]) -> t.Any:
    for key in path:
        node = node[key]
    return node


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(sorted(BEFORE["gpus"][0])), inner, max_size=4)),
    max_leaves=8,
)
SHAPES = st.fixed_dictionaries({}, optional={key: st.one_of(JSON, st.lists(JSON, max_size=2)) for key in BEFORE})


@given(SHAPES, SHAPES)
def test_sheets_of_any_shape_break_nothing(before: Sheet, after: Sheet) -> None:
    assert all(item["reason"] in ("Warning", "HardwareFailureDetected") for item in changes(before, after, NODE))


# --- in the measurements of a category


def measured(facts: Sheet, **context: t.Any) -> t.Any:
    return node_facts.parse(json.dumps({"node_facts": facts}), {"exit_code": 0, "nodes": [NODE], "expected_gpus": 8, **context})


def second(before: t.Any, after: t.Any) -> t.Any:
    return risen("node_facts", "c01", {NODE: before}, {"g": after}, {"g": NODE})["g"]


def test_what_came_up_and_convicts_is_the_verdict_of_the_second_sheet() -> None:
    lost = copy.deepcopy(BEFORE)
    lost["gpus"].pop()
    assert measured(lost)["verdict"] == "LogIncomplete"
    made = second(measured(BEFORE), measured(lost))
    assert (made["verdict"], made["complete"]) == ("HardwareFailureDetected", False) and "GPU7" in made["reason"]
    assert [item.get("since") for item in made["findings"]] == ["c01"]


def test_what_the_first_sheet_noted_is_not_told_again() -> None:
    odd = changed("gpus", 0, "nvlinks", "inactive", to=[4])
    assert len(measured(odd)["findings"]) == 1
    made = second(measured(odd), measured(odd))
    assert (made["verdict"], made["complete"], made["findings"]) == (None, True, [])


def test_a_note_changes_no_verdict() -> None:
    made = second(measured(BEFORE), measured(changed("gpus", 0, "pcie", "replays", to=4)))
    assert (made["verdict"], made["complete"], made["findings"][0]["reason"]) == (None, True, "Warning")


def test_a_node_without_a_first_sheet_is_told_so() -> None:
    made = second(None, measured(BEFORE))
    assert made["verdict"] is None and "no fact sheet of this node from before" in made["findings"][0]["message"]
    assert second(measured(BEFORE), None) is None
    cut = node_facts.parse("", {"exit_code": 0})
    assert second(measured(BEFORE), cut)["verdict"] == "NoMeasurement"
    assert compared("node_facts", {"g": made}, {"g": NODE})["g"]["verdict"] is None
