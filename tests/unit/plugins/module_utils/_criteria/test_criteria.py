# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Criteria: what is refused before a GPU minute is spent, and what an expression may never turn into a pass."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria import cel, cel_eval, cel_types, criteria

METRICS = {
    "bus_bandwidth": {"type": "number", "unit": "GB/s"},
    "bus_bandwidth_peak": {"type": "number", "unit": "GB/s"},
    "samples": "int",
    "transport": "string",
    "data_correct": "bool",
}
VALUES = {"bus_bandwidth": 900.0, "bus_bandwidth_peak": 910.0, "samples": 3, "transport": "ib", "data_correct": True}


def judged(expression, values=None):
    return criteria.evaluate(criteria.compile_criteria([expression], {}, METRICS)[0], VALUES if values is None else values)


@pytest.mark.parametrize(
    ("expression", "passed"),
    [
        ("measured.bus_bandwidth >= 900", True),
        ("measured.bus_bandwidth > 900", False),
        ("measured.bus_bandwidth == 900", True),
        ("900 <= measured.bus_bandwidth", True),
        ("900u == measured.bus_bandwidth", True),
        ("measured.bus_bandwidth in [900]", True),
        ("measured.bus_bandwidth in [900.5, 1]", False),
        ("measured.samples == 3.0", True),
        ("measured.samples >= 2.5", True),
        ("measured.samples * 2 == 6", True),
        ("measured.bus_bandwidth * 2.0 > 1799", True),
        ("measured.bus_bandwidth -1.0 > 3", True),
        ("-measured.samples < 0", True),
        ("measured.samples / 2 == 1", True),
        ("-7 / 2 == -3 && -7 % 2 == -1 && measured.samples > 0", True),
        ("measured['bus_bandwidth'] >= 900 && measured.bus_bandwidth < 1000", True),
        ("measured.transport == 'ib'", True),
        ("measured.transport in ['roce', \"ib\"]", True),
        ("measured.transport.startsWith('i') && measured.transport.size() == 2", True),
        ("measured.data_correct", True),
        ("!measured.data_correct", False),
        ("measured.samples > 5 ? measured.bus_bandwidth > 1.0 : measured.bus_bandwidth > 1000.0", False),
        ("[1, 2, 3].exists(x, x == measured.samples)", True),
        ("[1, 2].all(x, x < measured.samples) && [3].exists_one(x, x == measured.samples)", True),
        ("double(measured.samples) * 1.5 == 4.5", True),
        ("has(measured.samples) && measured.samples == 3", True),
        ("measured.bus_bandwidth >= 4e2 // a comment", True),
        ("0x10 > measured.samples", True),
        (r"measured.transport != '\x69\u0062' || measured.transport == r'ib'", True),
    ],
)
def test_expression_means_what_cel_says(expression, passed):
    result = judged(expression)
    assert result["status"] == ("passed" if passed else "failed")
    assert result["passed"] is passed


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("measured.bus_bandwith >= 400", "Did you mean bus_bandwidth"),
        ("bus_bandwidth >= 400", "Write measured.bus_bandwidth"),
        ("value >= 400", "unknown variable value"),
        ("measured.bus_bandwidth >= '400'", "cannot compare a number with a text"),
        ("measured.transport > 3", "without quotes"),
        ("measured.transport == 3", "never equal"),
        ("measured.bus_bandwidth * 2 > 100", "same type on both sides"),
        ("measured.bus_bandwidth + measured.samples > 1", "same type on both sides"),
        ("measured.bus_bandwidth % 2.0 == 0.0", "must be"),
        ("measured.bus_bandwidth", "must be true or false"),
        ("measured.bus_bandwidth && true", "each side of &&"),
        ("measured.samples ? true : false", "before ?"),
        ("measured.data_correct == null", "nothing (null)"),
        ("measured.bus_bandwidth >=", "not complete at column"),
        ("(measured.bus_bandwidth > 3", "bracket is not closed"),
        ("measured.bus_bandwidth => 400", "Write >= and <="),
        ("measured.bus_bandwidth = 400", "Compare with =="),
        ("measured.bus_bandwidth > 4 and true", "Write && for and"),
        ("measured.?bus_bandwidth > 4", "Optional access is not supported"),
        ("measured.transport.matches('.*')", "matches() is not supported"),
        ("frobnicate(measured.samples) > 1", "unknown function frobnicate()"),
        ("measured > 3", "name one of its fields"),
        ("measured.bus_bandwidth in 900", "in needs a list"),
        ("measured.transport in [900]", "never in a list"),
        ("measured.samples > 99999999999999999999", "does not fit 64 bits"),
        ("measured.bus_bandwidth > 1e999", "too large"),
        ("b'x' == b'x' && measured.data_correct", "bytes are not supported"),
        ("measured.transport == '\\q'", "unknown escape"),
        ("true", "looks at no measured value"),
        ("1 < 2", "looks at no measured value"),
        ("", "empty"),
        ("   ", "empty"),
        ("!" * 80 + "measured.data_correct", "nested deeper"),
        ("measured.samples > 1 || " * 200 + "true", "at most 2048"),
    ],
)
def test_bad_expression_is_refused_with_its_place(expression, said):
    with pytest.raises(InputError) as raised:
        criteria.compile_criteria(["measured.samples > 0", expression], {}, METRICS, place="categories[2]")
    assert raised.value.place == "categories[2].criteria[1]"
    assert said in raised.value.render()


@pytest.mark.parametrize(("wrong", "place"), [(5, "criteria[0]"), (None, "criteria[0]"), (["x"], "criteria[0]")])
def test_expression_that_is_no_text(wrong, place):
    with pytest.raises(InputError) as raised:
        criteria.compile_criteria([wrong], {}, METRICS)
    assert raised.value.place == place


def test_criteria_that_are_no_list():
    with pytest.raises(InputError, match="expected a list"):
        criteria.compile_criteria("measured.samples > 1", {}, METRICS)
    with pytest.raises(InputError, match="expected a mapping"):
        criteria.compile_criteria([], ["value > 1"], METRICS)


def test_the_caret_points_at_the_place():
    with pytest.raises(InputError) as raised:
        criteria.compile_criteria(["measured.samples > 0 && measured.nope > 1"], {}, METRICS)
    shown, caret = raised.value.hint.splitlines()[-2:]
    assert shown[caret.index("^") :].startswith("measured.nope")


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "expression",
    [
        "measured.bus_bandwidth < 5",
        "!(measured.bus_bandwidth < 5)",
        "!has(measured.bus_bandwidth) || true",
        "true || measured.bus_bandwidth > 1.0",
    ],
)
def test_what_was_not_measured_never_passes(missing, expression):
    result = judged(expression, {**VALUES, "bus_bandwidth": missing})
    assert result["status"] == "unmeasured"
    assert result["passed"] is False
    assert result["measured"] is None
    assert "bus_bandwidth" in result["message"]


def test_absent_metric_is_unmeasured():
    assert judged("measured.bus_bandwidth >= 1", {})["status"] == "unmeasured"


@pytest.mark.parametrize(
    "expression",
    [
        "measured.bus_bandwidth / 0.0 > 1.0",
        "measured.samples / 0 > 1",
        "measured.samples * 9223372036854775807 > 1",
        "1e308 * measured.bus_bandwidth > 1.0",
    ],
)
def test_what_cannot_be_computed_never_passes(expression):
    result = judged(expression)
    assert result["status"] == "error"
    assert result["passed"] is False
    assert result["error"]


def test_an_error_decides_nothing_when_the_other_side_does():
    assert judged("measured.samples / 0 > 1 || measured.samples == 3")["passed"] is True
    assert judged("measured.samples / 0 > 1 && measured.samples == 4")["status"] == "failed"
    assert judged("measured.samples / 0 > 1 && measured.samples == 3")["status"] == "error"


def test_value_limit_and_margin_stand_side_by_side():
    result = judged("measured.bus_bandwidth >= 1000")
    assert (result["measured"], result["op"], result["limit"], result["unit"]) == (900.0, ">=", 1000, "GB/s")
    assert result["margin"] == pytest.approx(-0.1)
    assert "-10.0%" in result["message"]


def test_a_range_leads_with_the_nearer_limit():
    result = judged("measured.bus_bandwidth >= 100 && measured.bus_bandwidth <= 1000.0")
    assert [(limit["op"], limit["limit"]) for limit in result["limits"]] == [(">=", 100), ("<=", 1000.0)]
    assert (result["op"], result["limit"]) == ("<=", 1000.0)
    assert result["margin"] == pytest.approx(0.1)


def test_limit_written_on_the_left_and_as_a_sum():
    result = judged("4.0 * 100.0 <= measured.bus_bandwidth")
    assert (result["op"], result["limit"]) == (">=", 400.0)


def test_a_limit_of_zero_has_no_margin():
    result = judged("measured.bus_bandwidth > 0")
    assert result["passed"] is True
    assert result["margin"] is None


@pytest.mark.parametrize(
    ("expression", "passed"),
    [
        ("value == 900", True),
        ("900 <= value", True),
        ("value in [900]", True),
        ("value >= 900 && value <= 1200", True),
        ("value * 2.0 > 1800.0", False),
    ],
)
def test_nvcre_thresholds(expression, passed):
    compiled = criteria.compile_criteria([], {"busBandwidthGBps": expression}, METRICS)
    result = criteria.evaluate(compiled[0], VALUES)
    assert (result["passed"], result["key"], result["metric"]) == (passed, "busBandwidthGBps", "bus_bandwidth")


@pytest.mark.parametrize(
    ("thresholds", "said"),
    [
        ({"busbandwidthGBps": "value > 1"}, "busBandwidthGBps"),
        ({"goodputRatio": "value > 0.5"}, "does not measure goodputRatio"),
        ({"busBandwidthGBps": "measured.bus_bandwidth > 1"}, "unknown variable measured"),
        ({"busBandwidthGBps": "value * 2 > 1"}, "same type"),
        ({"busBandwidthGBps": "1 < 2"}, "does not look at value"),
        ({"busBandwidthGBps": 900}, "must be a text"),
    ],
)
def test_bad_thresholds(thresholds, said):
    with pytest.raises(InputError) as raised:
        criteria.compile_criteria([], thresholds, METRICS)
    assert said in raised.value.render()


def test_user_defined_metrics_are_taken_when_the_kind_is_open():
    compiled = criteria.compile_criteria(["measured.my_rate > 3"], {}, {}, open_metrics=True)[0]
    assert criteria.evaluate(compiled, {"my_rate": 4})["passed"] is True
    assert criteria.evaluate(compiled, {"my_rate": "4"})["status"] == "error"
    assert criteria.evaluate(compiled, {})["status"] == "unmeasured"


def test_a_runaway_expression_ends():
    tens = "[1,2,3,4,5,6,7,8,9,10]"
    nested = f"{tens}.all(a, {tens}.all(b, {tens}.all(c, {tens}.all(d, {tens}.all(e, a + b + c + d + e > 0)))))"
    expression = f"{nested} && measured.data_correct"
    result = judged(expression)
    assert result["status"] == "error"
    assert "steps" in result["error"]


def test_thousands_of_brackets_are_no_crash():
    assert judged("(" * 900 + "measured.data_correct" + ")" * 900)["passed"] is True


@given(st.text(alphabet="measured.bus_andwidth<>=!&|?:()[]'\"0123456789+-*/% {},\\ntrue\n", max_size=60))
def test_any_text_compiles_or_is_refused(text):
    try:
        compiled = criteria.compile_criteria([text], {}, METRICS)
    except InputError as error:
        assert error.place == "criteria[0]"
        return
    assert criteria.evaluate(compiled[0], VALUES)["status"] in ("passed", "failed", "error")
    assert criteria.evaluate(compiled[0], {})["passed"] is False


@given(
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.integers(-(10**9), 10**9),
    st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
)
def test_numbers_compare_across_types_as_numbers(value, limit, sign):
    wanted = {
        "<": value < limit,
        "<=": value <= limit,
        ">": value > limit,
        ">=": value >= limit,
        "==": value == limit,
        "!=": value != limit,
    }[sign]
    assert judged(f"measured.bus_bandwidth {sign} {limit}", {"bus_bandwidth": value})["passed"] is wanted


# The public engine agrees wherever it is right: same types on both sides, no arithmetic of mixed types.
AGREED = [
    "1 + 2 * 3 == 7",
    "2.0 / 4.0 == 0.5",
    "7 / -2 == -3",
    "-7 % 3 == -1",
    "'a' + 'b' == 'ab'",
    "size('abc') == 3",
    "[1, 2] + [3] == [1, 2, 3]",
    "true ? false : true",
    "!(1 > 2) && 2 >= 2 || false",
    "'b' in ['a', 'b']",
    "'abc'.contains('b')",
    "'abc'.endsWith('c')",
    "[1, 2, 3].exists(x, x > 2)",
    "[1, 2, 3].all(x, x > 1)",
    "[1, 2, 3].filter(x, x > 1) == [2, 3]",
    "[1, 2].map(x, x * 2) == [2, 4]",
    "{'a': 1}['a'] == 1",
    "'a' in {'a': 1}",
    "1 / 0 == 1 || true",
    "'a' < 'b'",
    "\"\\u0061\" == 'a'",
    "r'\\n' == '\\\\n'",
    "int('12') == 12",
    "string(12) == '12'",
    "-(3) == -3",
]


@pytest.mark.parametrize("expression", AGREED)
def test_agrees_with_the_public_engine(expression):
    import celpy

    environment = celpy.Environment()
    wanted = bool(environment.program(environment.compile(expression)).evaluate({}))
    tree = cel.parse(expression)
    assert cel_types.check(tree, {}) == "bool"
    assert cel_eval.evaluate(tree, {}) is wanted
