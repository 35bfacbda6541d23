"""Small public failures of other graders; each case says where it was found and what goes wrong there."""

import json
import time
from pathlib import Path

import pytest

from cleaner_env.grading import CodeTests, grade_choice, grade_expression, grade_integer, judge_code
from cleaner_env.grading.integer import parse_integer
from cleaner_env.sandbox import make_sandbox

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases.jsonl").read_text().splitlines()]


def of_kind(kind):
    return [pytest.param(case, id=case["id"]) for case in CASES if case["kind"] == kind]


@pytest.fixture(scope="module")
def sandbox():
    with make_sandbox("local") as opened:
        yield opened


@pytest.mark.parametrize("case", of_kind("choice"))
def test_choice(case):
    assert grade_choice(case["response"], case["gold"]).verdict == case["expected"]


@pytest.mark.parametrize("case", [case for case in of_kind("math") if parse_integer(case.values[0]["gold"]) is not None])
def test_integer(case):
    assert grade_integer(case["response"], case["gold"]).verdict == case["expected"]


@pytest.mark.parametrize("case", of_kind("math"))
def test_expression(case):
    pytest.importorskip("math_verify")
    grade_expression(r"\boxed{\frac{1}{2}}", "0.5")  # Started; the limit is for the comparison.
    begun = time.monotonic()
    assert grade_expression(case["response"], case["gold"], time_limit_s=2.0).verdict == case["expected"]
    if "time_limit_s" in case:
        assert time.monotonic() - begun < 10 * case["time_limit_s"]  # It ends at all; the machine may be busy.


@pytest.mark.parametrize("case", of_kind("code"))
def test_code(case, sandbox):
    judgement = judge_code(case["response"], CodeTests.from_mapping(case["gold"]), sandbox)
    assert (judgement.grade.verdict, judgement.status) == (case["expected"], case["expected_status"])
