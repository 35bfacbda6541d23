r"""Grades a response whose answer is a Python program, by running it against tests in a sandbox.

The last closed Python block is the answer. Each test runs in a fresh process. Inputs go into the sandbox; expected outputs
never do: what a program wrote, or a function returned, comes out and is compared here.

* Programs read standard input and are judged by standard output.
* Functions are called with JSON arguments, one to a line of the input, as a method of ``Solution`` where that is defined,
  else by name. Names that such problems take for granted (``List``, ``deque``, ``inf``, ...) are in scope, what is printed
  is ignored, and a tuple equals the JSON list.

`cleaner_env.grading.comparison` says what counts as equal.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from cleaner_env.errors import DataError, InfrastructureError
from cleaner_env.grading.comparison import read_json, same_output, same_value
from cleaner_env.grading.extraction import python_blocks, without_thinking
from cleaner_env.grading.verdict import Grade

if TYPE_CHECKING:
    from cleaner_env.sandbox.protocol import Execution, Limits, Sandbox, Session

__all__ = ["CodeTest", "CodeTests", "grade_code"]

_NAMES_IN_SCOPE: Final = """
from typing import *
import bisect, collections, copy, datetime, functools, heapq, itertools, math, operator, random, re, statistics, string, sys
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cache, cmp_to_key, lru_cache, reduce
from heapq import heapify, heappop, heappush, heappushpop, heapreplace, nlargest, nsmallest
from itertools import accumulate, chain, combinations, groupby, pairwise, permutations, product
from math import ceil, comb, factorial, floor, gcd, inf, isqrt, lcm, log, log2, perm, pi, prod, sqrt
"""
_HEX_LITERAL = re.compile(r"'((?:[0-9a-f]{2})*)'")
_OUTPUT_BYTES: Final = 16 * 2**20
_PIECE: Final = 60_000


@dataclass(frozen=True)
class CodeTest:
    """One test: what goes in and what has to come out.

    Attributes:
        input: Standard input; for functions, JSON arguments, one to a line.
        output: Standard output; for functions, the JSON value.
    """

    input: str
    output: str


@dataclass(frozen=True)
class CodeTests:
    """The tests of a problem: the reference that `grade_code` takes.

    Attributes:
        tests: At least one test.
        function: Name of the function or method to call, ``None`` for programs that read standard input.
        time_limit_s: Seconds on the clock for one test.
        memory_mb: MiB of memory for one test.

    Raises:
        DataError: There is no test, a limit is no positive number, the function's name is no identifier, or a functional
            test is not JSON.
    """

    tests: tuple[CodeTest, ...]
    function: str | None = None
    time_limit_s: float = 4.0
    memory_mb: int = 512

    def __post_init__(self) -> None:
        if not self.tests:
            raise DataError("a programming problem needs at least one test, got none")
        for name in ("time_limit_s", "memory_mb"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise DataError(f"{name} must be a positive number, got {str(value)[:80]!r}")
        if self.function is None:
            return
        if not isinstance(self.function, str) or not self.function.isidentifier():
            raise DataError(f"the function to call must be an identifier, got {str(self.function)[:80]!r}")
        for number, test in enumerate(self.tests, 1):
            try:
                _arguments(test)
                read_json(test.output)
            except (ValueError, RecursionError) as error:
                raise DataError(f"test {number} of function {self.function} is not JSON: {error}") from None

    @classmethod
    def from_json(cls, text: str) -> CodeTests:
        """Reads what `to_json` wrote.

        Raises:
            DataError: The text is something else.
        """
        try:
            return cls.from_mapping(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise error if isinstance(error, DataError) else DataError(f"tests are not JSON: {error}") from None

    @classmethod
    def from_mapping(cls, document: Mapping[str, Any]) -> CodeTests:
        """Reads the decoded form of `to_json`; ``fn_name`` and the limits may be absent, unknown keys are ignored.

        Raises:
            DataError: A key is missing or a value is of the wrong type.
        """
        try:
            return cls(
                tuple(CodeTest(_text(test["input"]), _text(test["output"])) for test in document["tests"]),
                document.get("fn_name"),
                document.get("time_limit_s", cls.time_limit_s),
                document.get("memory_mb", cls.memory_mb),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f'tests must be {{"tests": [{{"input": ..., "output": ...}}, ...]}}: {error!r}') from None

    def to_json(self) -> str:
        """Returns the tests as the JSON that `Problem.answer` holds."""
        tests = [{"input": test.input, "output": test.output} for test in self.tests]
        limits = {"time_limit_s": self.time_limit_s, "memory_mb": self.memory_mb}
        return json.dumps({"fn_name": self.function, "tests": tests, **limits}, ensure_ascii=False)


def grade_code(
    response: str, gold: CodeTests | str | Mapping[str, Any], sandbox: Sandbox, total_limit_s: float = 120.0
) -> Grade:
    """Grades a response whose answer is a Python program. The first test that fails ends it.

    Args:
        response: The final turn.
        gold: The tests, also as the JSON of `CodeTests.to_json`, or that JSON decoded.
        sandbox: Where the program runs.
        total_limit_s: Seconds on the clock for all tests together; a program that needs more is incorrect.

    Returns:
        A `Grade` whose ``extracted`` is the program. A response without a Python block is ``no_answer``; one whose only
        block is cut off is ``incorrect``; ``infrastructure_error`` where the sandbox failed.

    Raises:
        DataError: ``gold`` is malformed.
    """
    if not isinstance(gold, CodeTests):
        gold = CodeTests.from_json(gold) if isinstance(gold, str) else CodeTests.from_mapping(gold)
    blocks = python_blocks(without_thinking(response))
    if not blocks.closed:
        return Grade("incorrect" if blocks.unclosed else "no_answer")
    code = blocks.closed[-1]
    deadline = time.monotonic() + total_limit_s
    try:
        for test in gold.tests:
            left_s = min(gold.time_limit_s, deadline - time.monotonic())
            if left_s <= 0 or not _passes(code, test, gold, left_s, sandbox):
                return Grade("incorrect", code)
    except InfrastructureError:
        return Grade("infrastructure_error", code)
    return Grade("correct", code)


def _passes(code: str, test: CodeTest, gold: CodeTests, wall_s: float, sandbox: Sandbox) -> bool:
    from cleaner_env.sandbox.protocol import Limits

    limits = Limits(wall_s=wall_s, memory_mb=gold.memory_mb, output_bytes=_OUTPUT_BYTES)
    if gold.function is None:
        execution = _checked(sandbox.run_script(code, test.input, limits))
        return execution.ok and same_output(execution.stdout, test.output)
    value = _call(code, gold.function, _arguments(test), limits, sandbox)
    return value is not None and same_value(value[0], read_json(test.output))


def _checked(execution: Execution) -> Execution:
    if execution.status == "infrastructure_error":
        raise InfrastructureError("the sandbox failed while a program was graded")
    return execution


def _call(code: str, function: str, arguments: str, limits: Limits, sandbox: Sandbox) -> tuple[Any] | None:
    """Defines the function in a fresh session and returns what a call returns, ``None`` where there is no JSON value."""
    call = f"(Solution().{function} if 'Solution' in globals() else {function})(*__import__('json').loads({arguments!r}))"
    with sandbox.open() as session:
        _checked(session.run(_NAMES_IN_SCOPE, limits=limits))
        definition = _checked(session.run(code, limits=limits))
        left_s = limits.wall_s - definition.duration_s
        if not definition.ok or left_s <= 0:
            return None
        digits = _returned_digits(session, call, replace(limits, wall_s=left_s))
    try:
        return None if digits is None else (read_json(bytes.fromhex(digits).decode()),)
    except (ValueError, RecursionError):
        return None


def _returned_digits(session: Session, call: str, limits: Limits) -> str | None:
    """Evaluates a call and returns its value as JSON in hexadecimal digits, fetched in pieces that fit into a cell's value.

    Digits need no unescaping here, for what comes out of a sandbox is not trusted.
    """
    cell = f"(__returned := __import__('json').dumps({call}).encode().hex())[:{_PIECE}]"
    pieces: list[str] = []
    while len(pieces) * _PIECE <= _OUTPUT_BYTES:
        execution = _checked(session.run(cell, limits=limits))
        literal = _HEX_LITERAL.fullmatch(execution.value or "")
        if not execution.ok or literal is None:
            return None
        pieces.append(literal.group(1))
        if len(pieces[-1]) < _PIECE:
            return "".join(pieces)
        start = len(pieces) * _PIECE
        cell = f"__returned[{start}:{start + _PIECE}]"
    return None


def _arguments(test: CodeTest) -> str:
    """Returns the arguments as one JSON list."""
    lines = [line for line in test.input.split("\n") if line.strip()]
    for line in lines:
        read_json(line)
    return f"[{','.join(lines)}]"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise DataError(f"input and output of a test must be text, got {str(value)[:80]!r}")
    return value
