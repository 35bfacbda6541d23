"""Runs the cases in ``cases.jsonl``: faults that sandboxes had in practice, each with what has to happen instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cleaner_env.sandbox import Execution, Limits, Sandbox

CASES = [json.loads(line) for line in Path(__file__).with_name("cases.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: dict[str, Any], sandbox: Sandbox, processes) -> None:
    expect = case["expect"]
    limits = Limits(**case["limits"])
    if "skip_if_missing" in expect and not has_module(sandbox, expect["skip_if_missing"]):
        pytest.skip(f"{expect['skip_if_missing']} is not installed in the sandbox")
    if case["mode"] == "script":
        if case["id"] == "s31" and sandbox.describe()["network"] != "closed":
            pytest.skip("the network is open here, and the sandbox says so")
        check(sandbox.run_script(case["code"], case["stdin"], limits), expect, {})
    else:
        codes = case["code"] if isinstance(case["code"], list) else [case["code"]]
        with sandbox.open() as session:
            captured: dict[str, str] = {}
            for code, cell in zip(codes, expect.get("cells", [expect]), strict=True):
                names = session.run("sorted(globals())").value
                execution = session.run(code, case["stdin"], limits)
                check(execution, cell, captured)
                if cell.get("rolled_back"):
                    assert session.run("sorted(globals())").value == names
            if expect.get("session_alive"):
                assert session.run("1 + 1").value == "2"
    for text, count in expect.get("processes_left_matching", {}).items():
        assert len(processes(text)) == count


def check(execution: Execution, expect: dict[str, Any], captured: dict[str, str]) -> None:
    text = str(execution)
    if "status" in expect:
        assert execution.status == expect["status"], text
    if "status_in" in expect:
        assert execution.status in expect["status_in"], text
    assert execution.status not in expect.get("not_status", []), text
    if "stdout" in expect:
        assert execution.stdout == expect["stdout"].format(**captured), text
    assert expect.get("stdout_contains", "") in execution.stdout
    for stream in ("stdout", "stderr"):
        if f"{stream}_bytes" in expect:
            assert len(getattr(execution, stream).encode()) == expect[f"{stream}_bytes"]
    if "exception" in expect:
        assert execution.exception is not None
        assert execution.exception.name == expect["exception"]
    for name in ("exit_code", "signal"):
        if name in expect:
            assert getattr(execution, name) == expect[name], text
    if expect.get("no_forged_value"):
        assert execution.value is None
    if expect.get("duration_not_from_stdout"):
        assert execution.duration_s > 0.000_001
    if "max_wall_s" in expect:
        assert execution.duration_s < 10 * expect["max_wall_s"]  # It does not hang; how quick it is depends on the machine.
    if "capture_stdout_as" in expect:
        captured[expect["capture_stdout_as"]] = execution.stdout


def has_module(sandbox: Sandbox, name: str) -> bool:
    with sandbox.open() as session:
        return session.run(f"import importlib.util; importlib.util.find_spec({name!r}) is not None").value == "True"
