r"""Compares expressions in a process that may be killed at any time. Reads JSON lines, answers ``true`` or ``false``.

What is equal:

* The structure is read from the text. Tuples and intervals are equal part by part, brackets included; sets and lists, in
  any order and of equal size, repetitions counted.
* Each part goes through Math-Verify. Where it says equal, numbers have to be so exactly: a decimal is the fraction that it
  writes, so ``0.5`` is one half and ``0.333333`` is not one third.
* A percent sign is one hundredth, or a unit that may be left out. ``x = 5`` answers ``5``, and not ``y = 5``.
* Units may be left out, and do not differ. Words that make another number (``5 million``), ``\approx`` and the base of a
  numeral (``1011_2``) are not left out of the answer.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["main", "same"]

_MEMORY_BYTES = 2 << 30
_DIGITS = 60
_OPEN_INTERVALS = ("(", "[")
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_NOISE = re.compile(r"\\(?:left|right|bigl|bigr|Bigl|Bigr|big|Big)(?![A-Za-z])\.?|(?<!\\)\\[,;:! ]|\\q?quad\b|~")
_REPEATING = re.compile(r"(?P<whole>[0-9]*)\.(?P<once>[0-9]*)\\overline\s*\{(?P<again>[0-9]+)\}")
_SCIENTIFIC = re.compile(r"([0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]{1,3})")
_BASE = re.compile(r"[0-9]\s*_\s*\{?\s*([0-9]+)")
_APPROXIMATE = re.compile(r"\\(?:approx|sim|simeq)(?![A-Za-z])|\u2248")
_OTHER_NUMBER = re.compile(
    r"\\(?:text|textrm|mbox)\s*\{[^{}]*(?:illi(?:on|ard)|dozen|hundred|thousand|half|third|quarter|squared|cubed|factorial|times)"
)
_UNITS = re.compile(
    r"[0-9}]\s*\\(?:text|mathrm|textrm|mbox)\s*\{\s*((?:[mck\u00b5n]?m|[mk]?g|m?s|m?[lL]|[kM]?J|[kM]?W|[km]?V|h|min)\b[^}]*)\}"
)
_SEPARATOR_WORDS = re.compile(r"\\(?:text|mathrm|mbox)\s*\{\s*,?\s*(?:or|and)\s*\}|\s(?:or|and)\s")
_ASSIGNMENT = re.compile(r"\s*[A-Za-z](?:_\{?[A-Za-z0-9]+\}?)?(?:\([A-Za-z]\))?\s*(?:=|\\in(?![A-Za-z]))\s*")


def main() -> None:
    """Serves until the end of input."""
    from math_verify import parse, verify  # noqa: F401 - the slow part of the start

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            equal = same(request["answer"], request["gold"])
        except Exception:  # Whatever a foreign parser does with a foreign text, it is no proof of equality.
            equal = False
        sys.stdout.write("true\n" if equal else "false\n")
        sys.stdout.flush()


def same(answer: str, gold: str) -> bool:
    r"""Whether two expressions are equal, by the rules of this module.

    Example:
        >>> same(r"(-\infty,4]", r"(-\infty, 4]"), same("2, 1", r"\{1, 2\}"), same("1", r"\{1, 2\}"), same("(2,1)", "(1,2)")
        (True, True, False, False)
    """
    left, right = _clean(answer), _clean(gold)
    if left == right:
        return bool(left)
    first, second = (None if _is_list(text) else _ASSIGNMENT.match(text) for text in (left, right))
    if first and second and "".join(first.group().split()) != "".join(second.group().split()):
        return False
    left, right = left[first.end() :] if first else left, right[second.end() :] if second else right
    if left == right:
        return bool(left)
    return _same_structure(left, right)


def _same_structure(left: str, right: str) -> bool:
    first, second = _parts(left), _parts(right)
    if (first is None) != (second is None):
        return _same_part(left, right) if "pm" in left + right or "cup" in left + right else False
    if first is None or second is None:
        return _same_part(left, right)
    if first[0] != second[0] or len(first[1]) != len(second[1]):
        return False
    if first[0]:
        return all(same(x, y) for x, y in zip(first[1], second[1], strict=True))
    return _same_set(first[1], second[1])


def _clean(text: str) -> str:
    text = _NOISE.sub(" ", text.replace("{,}", ",").replace("\\$", "").replace("$", ""))
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\u2212", "-")
    text = _REPEATING.sub(_fraction, text.replace("\\varnothing", "\\emptyset"))
    text = " ".join(_SEPARATOR_WORDS.sub(" , ", text).split()).removesuffix(".").strip().removeprefix("+")
    scientific = _SCIENTIFIC.fullmatch(text)
    return f"{scientific[1]} \\times 10^{{{scientific[2]}}}" if scientific else text


def _fraction(repeating: re.Match[str]) -> str:
    """Writes a repeating decimal as a fraction."""
    whole, once, again = repeating["whole"], repeating["once"], repeating["again"]
    numerator = int(f"{whole}{once}{again}") - int(f"0{whole}{once}")
    return f"\\frac{{{numerator}}}{{{'9' * len(again)}{'0' * len(once)}}}"


def _parts(text: str) -> tuple[str, list[str]] | None:
    """Returns brackets and members of a tuple, an interval or a set (brackets empty), ``None`` for anything else."""
    if _THOUSANDS.fullmatch(text):
        return None
    brackets, inner = "", text
    if text.startswith("\\{") and text.endswith("\\}"):
        inner = text[2:-2]
        members = _split(inner)
        return None if members is None else ("", members)
    if text[:1] in _OPEN_INTERVALS and text[-1:] in (")", "]"):
        brackets, inner = text[0] + text[-1], text[1:-1]
    members = _split(inner)
    if brackets and members is None:
        brackets, members = "", _split(text)
    if members is None or len(members) < 2:
        return None
    return brackets, members


def _is_list(text: str) -> bool:
    parts = _parts(text)
    return parts is not None and not parts[0]


def _split(text: str) -> list[str] | None:
    """Splits at the commas outside all brackets; ``None`` where brackets do not match or a member is empty."""
    depth, start, members = 0, 0, []
    for place, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return None
        elif character == "," and not depth:
            members.append(text[start:place].strip())
            start = place + 1
    members.append(text[start:].strip())
    return members if not depth and all(members) else None


def _same_set(left: Sequence[str], right: Sequence[str]) -> bool:
    unmatched = list(right)
    for member in left:
        match = next((other for other in unmatched if same(member, other)), None)
        if match is None:
            return False
        unmatched.remove(match)
    return True


def _is_another_kind(answer: str, gold: str) -> bool:
    """Whether an answer says what Math-Verify overlooks: other words or units, another base, that it is not exact."""
    base, units = _BASE.search(answer), [_UNITS.search(text) for text in (answer, gold)]
    gold_base = _BASE.search(gold)
    return bool(
        (_OTHER_NUMBER.search(answer) and not _OTHER_NUMBER.search(gold))
        or (_APPROXIMATE.search(answer) and not _APPROXIMATE.search(gold))
        or (base and (gold_base is None or base[1] != gold_base[1]))
        or (units[0] and units[1] and units[0][1].split() != units[1][1].split())
    )


def _same_part(answer: str, gold: str) -> bool:
    from math_verify import LatexExtractionConfig, parse, verify

    if _is_another_kind(answer, gold):
        return False
    config = [LatexExtractionConfig()]
    first, second = (
        parse(f"${text}$", extraction_config=config, fallback_mode="no_fallback", parsing_timeout=None)
        for text in (answer, gold)
    )
    if not first or not second or isinstance(first[0], str) or isinstance(second[0], str):
        return False
    left, right = _exact(first[0]), _exact(second[0])
    return bool(verify(right, left, timeout_seconds=None)) and _agree(left, right)


def _exact(expression: Any) -> Any:
    """Turns decimals into the fractions that they write."""
    import sympy

    if not hasattr(expression, "replace") or not hasattr(expression, "atoms"):
        return expression
    return expression.replace(lambda part: isinstance(part, sympy.Float), lambda part: sympy.Rational(str(part)))


def _agree(left: Any, right: Any) -> bool:
    """Refuses numbers that are only close, which Math-Verify accepts."""
    import sympy

    if isinstance(left, sympy.FiniteSet) and isinstance(right, sympy.FiniteSet):
        return len(left) == len(right)
    if not all(isinstance(side, sympy.Expr) and not side.free_symbols for side in (left, right)):
        return True
    return any(_is_zero(x - y) for x in _readings(left) for y in _readings(right))


def _readings(expression: Any) -> list[Any]:
    """Returns the value of a number; with a percent sign, also the value without the sign."""
    import sympy

    value = expression.doit()
    signs = expression.atoms(sympy.UnevaluatedExpr)
    return [value, value * 100] if signs else [value]


def _is_zero(difference: Any) -> bool:
    import sympy

    if difference.is_Rational:
        return bool(difference == 0)
    if abs(sympy.N(difference, _DIGITS)) > sympy.Float(10) ** -(_DIGITS // 2):
        return False
    return bool(difference.equals(0)) or sympy.simplify(difference) == 0


if __name__ == "__main__":
    main()
