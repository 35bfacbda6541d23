"""The built-in programming problems, one TOML file each, with a reference solution and plausible wrong ones."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import resources
from typing import Any

from cleaner_env.grading.code_tests import CodeTest, CodeTests

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Program", "programs"]


@dataclass(frozen=True)
class Program:
    """One programming problem.

    Attributes:
        id: Unique among the built-in problems.
        difficulty: ``"easy"``, ``"medium"`` or ``"hard"``.
        prompt: What is asked.
        starter_code: What the function looks like; empty for programs that read standard input.
        tests: Inputs, and the outputs of the reference solution.
        reference: A right solution.
        wrong: Solutions with a plausible mistake, by that mistake.
    """

    id: str
    difficulty: str
    prompt: str
    starter_code: str
    tests: CodeTests
    reference: str
    wrong: dict[str, str]


def programs() -> list[Program]:
    """Returns the built-in problems, by name."""
    files = (file for file in resources.files(__name__).iterdir() if file.name.endswith(".toml"))
    return [
        _program(file.name.removesuffix(".toml"), tomllib.loads(file.read_text(encoding="utf-8")))
        for file in sorted(files, key=lambda file: file.name)
    ]


def _program(name: str, document: dict[str, Any]) -> Program:
    tests = tuple(CodeTest(test["input"], test["output"]) for test in document["tests"])
    return Program(
        f"builtin-livecodebench-{name}",
        document["difficulty"],
        document["prompt"].strip(),
        document.get("starter_code", ""),
        CodeTests(tests, document.get("function"), checker=document.get("checker", "exact")),
        document["reference"],
        {solution["mistake"]: solution["code"] for solution in document["wrong"]},
    )
