"""Ways to compare outputs where a problem has several right ones.

A checker is declared with the problem, by name, or as the source of ``check(input, output, expected)``. A source runs in a
sandbox of its own, which the judged program never enters, for data files are no more to be trusted than programs are.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final

from cleaner_env.errors import DataError, InfrastructureError
from cleaner_env.grading.comparison import lines, same_output, words

if TYPE_CHECKING:
    from cleaner_env.sandbox.protocol import Sandbox

__all__ = ["CHECKERS", "check_checker", "livecodebench_output", "passes"]

_SOURCE_MARK: Final = "def check("
_TOLERANCE: Final = "tolerance:"


def _any_line_order(actual: str, expected: str) -> bool:
    return same_output("\n".join(sorted(lines(actual))), "\n".join(sorted(lines(expected))))


def _any_word_order(actual: str, expected: str) -> bool:
    left, right = lines(actual), lines(expected)
    return len(left) == len(right) and all(
        same_output(" ".join(sorted(words(a))), " ".join(sorted(words(b)))) for a, b in zip(left, right, strict=True)
    )


def _any_case(actual: str, expected: str) -> bool:
    return same_output(actual.casefold(), expected.casefold())


CHECKERS: Final[dict[str, Callable[[str, str], bool]]] = {
    "exact": same_output,
    "any_line_order": _any_line_order,
    "any_word_order": _any_word_order,
    "any_case": _any_case,
}
"""The named checkers: ``(actual, expected) -> bool``. Besides them there is ``tolerance:X``, under which numbers may differ
by X, absolutely or relative to the expected one."""


def check_checker(checker: object) -> None:
    """Refuses what is neither a name nor a source.

    Raises:
        DataError: There is no such checker, or its source does not define ``check`` with three parameters.
    """
    if isinstance(checker, str) and _SOURCE_MARK in checker:
        _check_source(checker)
        return
    if isinstance(checker, str) and (checker in CHECKERS or _tolerance(checker) is not None):
        return
    names = ", ".join(CHECKERS)
    raise DataError(
        f"unknown checker {str(checker)[:80]!r}; choose one of {names}, tolerance:X, or give the source of check(input, "
        "output, expected)"
    )


def _check_source(source: str) -> None:
    try:
        tree = ast.parse(source)
        compile(tree, "checker", "exec", 0, True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"the source of the checker cannot be compiled: {error}") from None
    found = [node.args for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    if not found or not _takes_three(found[-1]):
        raise DataError(f"the source of the checker must define check(input, output, expected), got {source[:80]!r}")


def _takes_three(parameters: ast.arguments) -> bool:
    """Whether a function can be called with three arguments."""
    most = len(parameters.posonlyargs) + len(parameters.args)
    least = most - len(parameters.defaults)
    return least <= 3 and (most >= 3 or parameters.vararg is not None) and None not in parameters.kw_defaults


def passes(checker: str, given: str, actual: str, expected: str, sandbox: Sandbox) -> bool:
    """Whether an output is right.

    Raises:
        InfrastructureError: The sandbox failed while a source ran.

    Example:
        >>> passes("any_line_order", "", "b\\na", "a\\nb", 0), passes("tolerance:1e-6", "", "0.3333333", "0.3333334", 0)
        (True, True)
    """
    if checker in CHECKERS:
        return CHECKERS[checker](actual, expected)
    tolerance = _tolerance(checker)
    if tolerance is not None:
        return _close_output(actual, expected, tolerance)
    source = f"{checker}\nimport json as _json\ncheck(*_json.loads({json.dumps([given, actual, expected])!r})) is True"
    with sandbox.open() as session:
        execution = session.run(source)
    if execution.status == "infrastructure_error":
        raise InfrastructureError("the sandbox failed while a checker ran")
    return execution.ok and execution.value == "True"


def livecodebench_output(actual: str, expected: str) -> bool:
    """Compares as LiveCodeBench does: equal lines, or lines that are all numbers with equal decimal values.

    Example:
        >>> livecodebench_output("3 2.0", "3 2"), livecodebench_output("x 2.0", "x 2"), livecodebench_output("a  b", "a b")
        (True, False, False)
    """
    left, right = ([line.strip() for line in text.strip().split("\n")] for text in (actual, expected))
    return len(left) == len(right) and all(
        a == b or (_decimals(a) is not None and _decimals(a) == _decimals(b)) for a, b in zip(left, right, strict=True)
    )


def _decimals(line: str) -> list[Decimal] | None:
    try:
        numbers = [Decimal(word) for word in line.split()]
    except (InvalidOperation, ValueError):
        return None
    return None if any(number.is_snan() for number in numbers) else numbers  # Such a number cannot even be compared.


def _tolerance(checker: str) -> float | None:
    if not checker.startswith(_TOLERANCE):
        return None
    try:
        value = float(checker.removeprefix(_TOLERANCE))
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


def _close_output(actual: str, expected: str, tolerance: float) -> bool:
    left, right = ([words(line) for line in lines(text)] for text in (actual, expected))
    return len(left) == len(right) and all(
        len(a) == len(b) and all(_close(x, y, tolerance) for x, y in zip(a, b, strict=True))
        for a, b in zip(left, right, strict=True)
    )


def _close(actual: str, expected: str, tolerance: float) -> bool:
    if actual == expected:
        return True
    if "_" in actual:  # Python's own way to write thousands.
        return False
    try:
        x, y = float(actual), float(expected)
    except ValueError:
        return False
    return math.isfinite(x) and math.isfinite(y) and abs(x - y) <= tolerance * max(1.0, abs(y))
