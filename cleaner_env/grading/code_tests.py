"""The tests of a programming problem."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any, Final

from cleaner_env.errors import DataError
from cleaner_env.grading.checkers import check_checker
from cleaner_env.grading.comparison import read_json

__all__ = ["CodeTest", "CodeTests", "read_arguments"]

_LIMITS: Final = {"time_limit_s": (0.01, 3600), "memory_mb": (1, 2**20)}


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
        time_limit_s: Seconds on the clock for one test, 0.01 to 3600.
        memory_mb: MiB of memory for one test, 1 to 1048576.
        checker: How outputs of programs are compared: the name of one of `cleaner_env.grading.checkers.CHECKERS`, or the
            source of a function ``check(input, output, expected)`` for problems with several right outputs.

    Raises:
        DataError: There is no test, a limit is no number in its range, the function's name is no identifier, a functional
            test is not JSON, there is no such checker, or a function has one.
    """

    tests: tuple[CodeTest, ...]
    function: str | None = None
    time_limit_s: float = 4.0
    memory_mb: int = 512
    checker: str = "exact"

    def __post_init__(self) -> None:
        if not self.tests:
            raise DataError("a programming problem needs at least one test, got none")
        for name, (least, most) in _LIMITS.items():
            value = getattr(self, name)
            if type(value) not in (int, float) or not least <= value <= most:
                raise DataError(f"{name} must be a number from {least} to {most}, got {_shown(value)}")
        check_checker(self.checker)
        if self.function is None:
            return
        if not isinstance(self.function, str) or not self.function.isidentifier() or iskeyword(self.function):
            raise DataError(f"the function to call must be an identifier, got {_shown(self.function)}")
        if self.checker != "exact":
            raise DataError(f"values of functions are compared as JSON, without a checker; got {_shown(self.checker)}")
        for number, test in enumerate(self.tests, 1):
            try:
                read_arguments(test)
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
                document.get("checker", cls.checker),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f'tests must be {{"tests": [{{"input": ..., "output": ...}}, ...]}}: {error!r}') from None

    def to_json(self) -> str:
        """Returns the tests as the JSON that `Problem.answer` holds."""
        tests = [{"input": test.input, "output": test.output} for test in self.tests]
        limits = {"time_limit_s": self.time_limit_s, "memory_mb": self.memory_mb}
        checker = {} if self.checker == "exact" else {"checker": self.checker}
        return json.dumps({"fn_name": self.function, "tests": tests, **limits, **checker}, ensure_ascii=False)


def read_arguments(test: CodeTest) -> list[Any]:
    """Returns the arguments of a functional test, which are JSON, one to a line.

    Raises:
        ValueError: A line is not JSON.
        RecursionError: It is too deeply nested.
    """
    return [read_json(line) for line in test.input.split("\n") if line.strip()]


def _shown(value: object) -> str:
    try:
        return repr(value)[:80]
    except ValueError:
        return "an integer of thousands of digits"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise DataError(f"input and output of a test must be text, got {_shown(value)}")
    return value
