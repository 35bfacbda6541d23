"""Grades a response whose answer is a Python program, by running it against tests in a sandbox.

The last closed Python block is the answer. `cleaner_env.grading.judge` runs it, one fresh process per test.

* Programs read standard input and are judged by standard output.
* Functions are called with JSON arguments, one to a line of the input, as a method of ``Solution`` where that is defined,
  else by name. Names that such problems take for granted (``List``, ``deque``, ``inf``, ...) are in scope, what is printed
  is ignored, a tuple equals the JSON list, and integers may have any number of digits.

`cleaner_env.grading.comparison` says what counts as equal, `cleaner_env.grading.checkers` what else a problem may declare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cleaner_env.errors import InfrastructureError
from cleaner_env.grading.code_tests import CodeTest, CodeTests
from cleaner_env.grading.extraction import python_blocks, without_thinking
from cleaner_env.grading.judge import Judge, TestResult
from cleaner_env.grading.verdict import Grade

if TYPE_CHECKING:
    from cleaner_env.sandbox.protocol import Sandbox

__all__ = ["CodeTest", "CodeTests", "JudgeMode", "Judgement", "grade_code", "judge_code"]

JudgeMode: TypeAlias = Literal["strict", "livecodebench"]
"""``strict`` runs programs as Python does; ``livecodebench`` does what LiveCodeBench's own judge does, its quirks included,
for figures that can be compared with published ones."""


@dataclass(frozen=True)
class Judgement:
    """A grade, and how each test went.

    Attributes:
        grade: What `grade_code` returns.
        results: One result per test; empty where no program was run.
    """

    grade: Grade
    results: tuple[TestResult, ...] = ()

    @property
    def status(self) -> str:
        """The status of the first test that failed, ``AC`` where none did, ``NO_CODE`` where there is no program."""
        if not self.results:
            return "NO_CODE" if self.grade.verdict != "infrastructure_error" else "infrastructure_error"
        return next((result.status for result in self.results if result.status not in ("AC", "skipped")), "AC")

    @property
    def passed(self) -> int:
        """How many tests passed."""
        return sum(result.status == "AC" for result in self.results)


def grade_code(
    response: str,
    gold: CodeTests | str | Mapping[str, Any],
    sandbox: Sandbox,
    total_limit_s: float = 120.0,
    workers: int = 1,
) -> Grade:
    """Grades a response whose answer is a Python program. The first test that fails ends it.

    Args:
        response: The final turn.
        gold: The tests, also as the JSON of `CodeTests.to_json`, or that JSON decoded.
        sandbox: Where the program runs.
        total_limit_s: Seconds on the clock for all tests together; a program that needs more is incorrect.
        workers: Tests run at a time.

    Returns:
        A `Grade` whose ``extracted`` is the program. A response without a Python block is ``no_answer``; one whose only
        block is cut off is ``incorrect``; ``infrastructure_error`` where the sandbox failed.

    Raises:
        DataError: ``gold`` is malformed.
    """
    return judge_code(response, gold, sandbox, total_limit_s=total_limit_s, workers=workers).grade


def judge_code(
    response: str,
    gold: CodeTests | str | Mapping[str, Any],
    sandbox: Sandbox,
    *,
    mode: JudgeMode = "strict",
    total_limit_s: float = 120.0,
    workers: int = 1,
    stop_early: bool = True,
    judge: Judge | None = None,
) -> Judgement:
    """Grades a response as `grade_code` does, and says how each test went.

    Args:
        response: The final turn.
        gold: The tests, as for `grade_code`.
        sandbox: Where the program runs.
        mode: See `JudgeMode`.
        total_limit_s: Seconds on the clock for all tests together.
        workers: Tests run at a time.
        stop_early: Skip the rest when a test has failed.
        judge: A judge on that sandbox to use, instead of one that lives as long as this call.

    Raises:
        DataError: ``gold`` is malformed.
    """
    if not isinstance(gold, CodeTests):
        gold = CodeTests.from_json(gold) if isinstance(gold, str) else CodeTests.from_mapping(gold)
    compatible = mode == "livecodebench"
    if compatible:
        code = _livecodebench_block(response)
        if not code.strip():
            return Judgement(Grade("incorrect"))
    else:
        blocks = python_blocks(without_thinking(response))
        if not blocks.closed:
            return Judgement(Grade("incorrect" if blocks.unclosed else "no_answer"))
        code = blocks.closed[-1].removeprefix("\ufeff")
    options = {"total_limit_s": total_limit_s, "stop_early": stop_early, "compatible": compatible}
    try:
        if judge is not None:
            results = judge.run(code, gold, **options)  # type: ignore[arg-type]
        else:
            with Judge(sandbox, workers) as own:
                results = own.run(code, gold, **options)  # type: ignore[arg-type]
    except InfrastructureError:
        return Judgement(Grade("infrastructure_error", code))
    correct = all(result.status == "AC" for result in results)
    return Judgement(Grade("correct" if correct else "incorrect", code), tuple(results))


def _livecodebench_block(response: str) -> str:
    """Returns what lies between the last two lines that hold a fence, as LiveCodeBench does."""
    lines = response.split("\n")
    fences = [number for number, line in enumerate(lines) if "```" in line]
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) >= 2 else ""
