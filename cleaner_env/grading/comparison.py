"""Compares what a program wrote, or a function returned, with what was expected.

Output is compared line by line; blank lines around it and spaces around a line do not count. Within a line, words separated
by space must be equal, upper and lower case told apart, except that two decimal numbers are equal when their exact values
are (``0.50`` and ``0.5``); there is no tolerance. Space is that of ASCII; a no-break space is part of a word.

Values are JSON. Numbers are compared exactly, unless the expected one is written with a fraction: then a difference of 1e-5
or of one part in 1e9 is allowed. Booleans equal booleans only.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from string import whitespace
from typing import Any

__all__ = ["lines", "read_json", "same_output", "same_value", "words"]

_WORD = re.compile(r"\S+", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


def same_output(actual: str, expected: str) -> bool:
    """Whether two outputs say the same.

    Example:
        >>> same_output("0.50\\n3 2.0", "0.5\\n3 2\\n"), same_output("YES", "Yes"), same_output("1 2", "1\\n2")
        (True, False, False)
    """
    actual_lines, expected_lines = lines(actual), lines(expected)
    return len(actual_lines) == len(expected_lines) and all(
        left == right or _same_words(words(left), words(right))
        for left, right in zip(actual_lines, expected_lines, strict=True)
    )


def lines(text: str) -> list[str]:
    """Returns the lines of an output, without space around each and blank lines around all."""
    return [line.strip(whitespace) for line in text.strip(whitespace).split("\n")]


def words(line: str) -> list[str]:
    """Returns what space separates in a line."""
    return _WORD.findall(line)


def _same_words(actual: list[str], expected: list[str]) -> bool:
    return len(actual) == len(expected) and all(
        left == right or (_DECIMAL.fullmatch(left) and _DECIMAL.fullmatch(right) and Decimal(left) == Decimal(right))
        for left, right in zip(actual, expected, strict=True)
    )


def same_value(actual: Any, expected: Any) -> bool:
    """Whether two values that `read_json` gave are the same.

    Example:
        >>> same_value(read_json("[0.30000000000000004]"), read_json("[0.3]")), same_value(True, read_json("1"))
        (True, False)
    """
    if isinstance(expected, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(expected)
            and all(same_value(left, right) for left, right in zip(actual, expected, strict=True))
        )
    if isinstance(expected, dict):
        return (
            isinstance(actual, dict)
            and actual.keys() == expected.keys()
            and all(same_value(actual[key], expected[key]) for key in expected)
        )
    if isinstance(expected, Decimal) and isinstance(actual, Decimal):
        return actual == expected or _is_close(actual, expected)
    return type(actual) is type(expected) and bool(actual == expected)


def _is_close(actual: Decimal, expected: Decimal) -> bool:
    if int(expected.as_tuple().exponent) >= 0:
        return False
    try:
        return abs(actual - expected) <= max(Decimal("1e-5"), abs(expected) * Decimal("1e-9"))
    except ArithmeticError:  # beyond the range of Decimal
        return False


def read_json(text: str) -> Any:
    """Reads JSON with exact numbers.

    Raises:
        ValueError: The text is not JSON, or holds NaN, an infinity or an exponent of more than four digits.
        RecursionError: It is too deeply nested.
    """

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON number")

    return json.loads(text, parse_int=Decimal, parse_float=_decimal, parse_constant=refuse)


def _decimal(text: str) -> Decimal:
    if not _DECIMAL.fullmatch(text):
        raise ValueError("a number is out of range")
    return Decimal(text)
