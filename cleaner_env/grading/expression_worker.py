r"""Compares expressions in a process that may be killed at any time. Reads JSON lines, answers ``true`` or ``false``.

What is equal:

* The structure is read from the text. Tuples and intervals are equal part by part, brackets included; sets and lists, in
  any order and of equal size, repetitions counted. ``\pm`` makes two of a part. Inequalities and words joined by ``and``
  are not those joined by ``or``.
* Each part is read by the parser of Math-Verify, nothing left out: a text that it reads only in part equals only itself.
  Its own comparison has tolerances and overlooks capitals; here a decimal is the fraction that it writes, so ``0.5`` is one
  half and ``0.333333`` is not one third, and letters are as they are written. Numbers are equal when it can be proved,
  expressions with letters when they agree to fifty digits at points of either sign and several sizes.
* ``i`` is the imaginary unit, unless one of the two has it as an index.
* A percent sign is one hundredth, or a unit that may be left out. ``x = 5`` answers ``5``, and not ``y = 5``; a chain of
  equations holds, or it answers nothing. Two equations or inequalities are equal when they differ by a factor.
* Units may be left out, and do not differ. All other words, ``\approx`` and the base of a numeral (``1011_2``) count.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from cleaner_env.grading.expression_text import clean, connectives, same_words, split, without_unit

__all__ = ["main", "same"]

_MEMORY_BYTES = 2 << 30
_DIGITS = 60
_TOLERANCE_DIGITS = 50
# Values of the letters: of either sign, small and large, and different for each letter.
_POINTS = ((7, 17), (-11, 19), (97, 8), (-311, 9), (2003, 3))
_OPEN_INTERVALS = ("(", "[")
_THOUSANDS = re.compile(r"(?<![0-9,.(\[{])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_NAME = re.compile(
    r"(?:\\text\s*\{[^{}]*\}|\\(?!pi|infty)[A-Za-z]+(?:\s*\{[A-Za-z]+\})?|[A-Za-z]+)(?:_\s*(?:\{[^{}]*\}|\w))?"
    r"\s*(?:\([A-Za-z0-9,\s]*\))?|\([A-Za-z](?:\s*,\s*[A-Za-z])*\)"
)
_COMPARED = re.compile(r"[<>]|\\(?:n?[lg]eq?|[lg]eqslant|[lg]t|neq?)(?![A-Za-z])")
_SETS = re.compile(r"\\(?:cup|cap|setminus|mathbb)(?![A-Za-z])")
_VALUE = re.compile(r"[0-9=\\]")
_SIGN = re.compile(r"\\(?:(p)m|mp)(?![A-Za-z])")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_BASE = re.compile(r"[0-9]\s*_\s*(?:\{([^{}]*)\}|(\w))")
_APPROXIMATE = re.compile(r"\\(?:approx|sim|simeq)(?![A-Za-z])|\u2248")
_INDEX = re.compile(r"_\s*(?:i(?![A-Za-z])|\{(?:[^{}]*[^{}A-Za-z])?i(?![A-Za-z]))")
# Two numbers side by side, what does not print, a number with two points, a date, and the marks of feet and quotations.
_UNREADABLE = re.compile(r"(?<![_^0-9])[0-9]+\s+[0-9]|\\[hv]?phantom|[0-9]\.[0-9]*\.|[0-9]\s*-\s*0[0-9]|['\"]")
# The parser takes I for the imaginary unit, and either gamma for Euler's constant.
_TAKEN = re.compile(r"\\text\s*\{[^{}]*\}|\\?(?P<letter>(?<=\\)[gG]amma(?!\s*[A-Za-z(])|(?<!\\)I)|\\[A-Za-z]+")


def main() -> None:
    """Serves until the end of input. The work is done in a fork, which another takes over from when it is killed."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    same(r"\frac{x}{2}+\sqrt{3}", r"0.5x")  # Imports what is slow, and fills the tables of the parser.
    _write(b"ready\n")
    while True:
        child = os.fork()
        if child == 0:
            _serve()
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            return
        _write(b"false\n")


def _serve() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["time_limit_s"])
        try:
            equal = same(request["answer"], request["gold"])
        except Exception:  # Whatever a foreign parser does with a foreign text, it is no proof of equality.
            equal = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write(b"true\n" if equal else b"false\n")


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def same(answer: str, gold: str) -> bool:
    r"""Whether two expressions are equal, by the rules of this module.

    Example:
        >>> same(r"(-\infty,4]", r"(-\infty, 4]"), same("2, 1", r"\{1, 2\}"), same("1", r"\{1, 2\}"), same("(2,1)", "(1,2)")
        (True, True, False, False)
    """
    left, right = _with_plain_numbers(clean(answer), clean(gold))
    joined = [connectives(text) for text in (answer, gold)]
    if all(joined) and joined[0] != joined[1] and (_COMPARED.search(left + right) or not _VALUE.search(left + right)):
        return False
    if left == right:
        return bool(left)
    if any(parts is not None and not parts[0] for parts in (_parts(left), _parts(right))):
        return _same_structure(left, right)
    words = same_words(answer, gold)
    return _same_equation(left, right) if words is None else words


def _with_plain_numbers(left: str, right: str) -> tuple[str, str]:
    """Takes commas out of thousands; beside a list they separate its members, unless one would begin with a zero."""
    plain = [_THOUSANDS.sub(lambda number: number[0].replace(",", ""), text) for text in (left, right)]
    is_list = ["," in text and ",0" not in text for text in (left, right)]
    return left if is_list[0] and "," in right else plain[0], right if is_list[1] and "," in left else plain[1]


def _same_equation(answer: str, gold: str) -> bool:
    """Compares what equations say of the same name; a side without an equation says it of any."""
    chains = [split(text, "=") or [text] for text in (answer, gold)]
    if len(chains[0]) == len(chains[1]) == 1:
        return _same_measure(answer, gold)
    found, gold_found = (_assignment(chain) for chain in chains)
    if found is None or gold_found is None:
        return False
    (label, value), (gold_label, gold_value) = found, gold_found
    named = _NAME.fullmatch(gold_label)
    if not gold_label or (named and (not label or "".join(label.split()) == "".join(gold_label.split()))):
        return same(value, gold_value)
    solved = named and not _symbols(gold_value)
    return bool(label) and not solved and all(len(chain) == 2 for chain in chains) and _same_part(answer, gold)


def _assignment(chain: Sequence[str]) -> tuple[str, str] | None:
    """Returns a name and its value, ``None`` where a chain of equations does not hold. A lone value has no name."""
    if len(chain) == 1:
        return "", chain[0]
    if _NAME.fullmatch(chain[-1]) and not _NAME.fullmatch(chain[0]):
        chain = [chain[-1], *chain[:-1]]
    numbers = [member for member in chain if not _NAME.fullmatch(member) and _is_number(member)]
    if not all(same(number, numbers[-1]) for number in numbers[:-1]):
        return None
    return chain[0], chain[-1]


def _is_number(text: str) -> bool:
    try:
        return not _symbols(without_unit(text)[0])
    except Exception:  # Not read, so not known to be a number.
        return False


def _same_measure(answer: str, gold: str) -> bool:
    """Compares quantities. A unit may be left out, a percent sign as a unit or as one hundredth."""
    (left, unit), (right, gold_unit) = without_unit(answer), without_unit(gold)
    if (left, right) == (answer, gold):
        return _same_structure(left, right)
    if "%" in (unit, gold_unit) and unit != gold_unit:
        if unit and gold_unit:
            return False
        percent, other = (left, right) if unit else (right, left)
        return same(percent, other) or same(f"\\frac{{{percent}}}{{100}}", other)
    return (not unit or not gold_unit or unit == gold_unit) and same(left, right)


def _same_structure(left: str, right: str) -> bool:
    first, second = _parts(left), _parts(right)
    if first is None and second is None:
        return _same_part(left, right)
    if first is None or second is None:
        return bool(_SETS.search(left + right)) and _same_part(left, right)
    if first[0] != second[0] or len(first[1]) != len(second[1]):
        return False
    if first[0]:
        return all(same(x, y) for x, y in zip(first[1], second[1], strict=True))
    return _same_members(first[1], second[1], same)


def _parts(text: str) -> tuple[str, list[str]] | None:
    """Returns brackets and members of a tuple, an interval or a set (brackets empty), ``None`` for anything else."""
    brackets, inner = "", text
    if text.startswith("\\{") and text.endswith("\\}"):
        inner = text[2:-2]
        members = split(inner)
        return None if members is None else ("", _signed(members))
    if text[:1] in _OPEN_INTERVALS and text[-1:] in (")", "]"):
        brackets, inner = text[0] + text[-1], text[1:-1]
    members = split(inner)
    if brackets and members is None:
        brackets, members = "", split(text)
    if members and not brackets:
        members = _signed(members)
    if members is None or len(members) < 2:
        return None
    return brackets, members


def _signed(members: Sequence[str]) -> list[str]:
    r"""Writes members with ``\pm`` twice."""
    return [
        _SIGN.sub(signs, member).strip().removeprefix("+").strip()
        for member in members
        for signs in ((_upper, _lower) if _SIGN.search(member) else (_upper,))
    ]


def _upper(sign: re.Match[str]) -> str:
    return "+" if sign[1] == "p" else "-"


def _lower(sign: re.Match[str]) -> str:
    return "-" if sign[1] == "p" else "+"


def _same_members(left: Sequence[Any], right: Sequence[Any], equal: Callable[[Any, Any], bool]) -> bool:
    unmatched = list(right)
    for member in left:
        match = next((place for place, other in enumerate(unmatched) if equal(member, other)), None)
        if match is None:
            return False
        del unmatched[match]
    return not unmatched


def _same_part(answer: str, gold: str) -> bool:
    bases = ["".join((match[1] or match[2]).split()) if (match := _BASE.search(text)) else "" for text in (answer, gold)]
    if (bases[0] and bases[0] != bases[1]) or (_APPROXIMATE.search(answer) and not _APPROXIMATE.search(gold)):
        return False
    sides = [_parse(text) for text in (answer, gold)]
    if not _INDEX.search(answer) and not _INDEX.search(gold):
        sides = [_with_imaginary_unit(side) for side in sides]
    return _equal(*sides)


@lru_cache(maxsize=256)
def _parse(text: str) -> Any:
    """Reads a text whole, decimals as the fractions that they write."""
    import sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy  # type: ignore[import-untyped]
    from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex  # type: ignore[import-untyped]

    if _UNREADABLE.search(text):
        raise ValueError(text)
    text = _TAKEN.sub(lambda taken: f"\\mathit{{{taken['letter']}}}" if taken["letter"] else taken[0], text)
    rules = NormalizationConfig(basic_latex=False, units=False, malformed_operators=True, nits=True, boxed="none")
    text = normalize_latex(text, rules)
    if not _is_read_whole(text):
        raise ValueError(text)
    letters = ConversionConfig(lowercase_symbols=False)
    parsed = latex2sympy(text, is_real=True, normalization_config=None, conversion_config=letters)
    if isinstance(parsed, sympy.MatrixBase):
        return parsed.applyfunc(_exact)
    return _exact(parsed)


def _is_read_whole(text: str) -> bool:
    r"""Whether no command is skipped or cut in two (``\pmod`` is no ``\pm``)."""
    from antlr4 import InputStream  # type: ignore[import-untyped]
    from latex2sympy2_extended.antlr_parser import PSLexer  # type: ignore[import-untyped]

    lexer = PSLexer(InputStream(text))
    lexer.removeErrorListeners()
    spans = [(token.start, token.stop) for token in lexer.getAllTokens()]
    commands = [(command.start(), command.end() - 1) for command in _COMMAND.finditer(text)]
    return all(any(start <= first and last <= stop for start, stop in spans) for first, last in commands)


def _symbols(text: str) -> set[Any]:
    return set(_with_imaginary_unit(_parse(text)).free_symbols)


def _exact(expression: Any) -> Any:
    import sympy

    return expression.replace(lambda part: isinstance(part, sympy.Float), lambda part: sympy.Rational(str(part)))


def _with_imaginary_unit(expression: Any) -> Any:
    import sympy

    return expression.subs(sympy.Symbol("i", real=True), sympy.I)


def _equal(left: Any, right: Any) -> bool:
    """Whether two objects of the parser are equal."""
    import sympy
    from latex2sympy2_extended.logic import And  # type: ignore[import-untyped]

    if isinstance(left, sympy.MatrixBase) and isinstance(right, sympy.MatrixBase):
        return left.shape == right.shape and all(_equal(x, y) for x, y in zip(left.flat(), right.flat(), strict=True))
    if isinstance(left, sympy.FiniteSet | sympy.Tuple) and isinstance(right, sympy.FiniteSet | sympy.Tuple):
        return _same_members(left.args, right.args, _equal)
    if isinstance(left, sympy.Set) and isinstance(right, sympy.Set):
        left, right = left.doit(), right.doit()
        return bool(left == right or left.symmetric_difference(right) == sympy.S.EmptySet)
    logical = (sympy.core.relational.Relational, And)
    if isinstance(left, logical) and isinstance(right, logical):
        return _same_members(_relations(left), _relations(right), _proportional)
    if not isinstance(left, sympy.Expr) or not isinstance(right, sympy.Expr):
        return False
    left, right = _prepared(left), _prepared(right)
    if left == right:
        return left not in (sympy.nan, sympy.zoo)
    if not left.free_symbols and not right.free_symbols:
        return _is_zero(left - right)
    pairs = _values(left, right)
    return all(_close(x, y) for x, y in pairs) if len(pairs) > 1 else bool(sympy.simplify(left - right) == 0)


def _relations(relation: Any) -> list[tuple[str, Any]]:
    """Returns each relation as ``<``, ``<=``, ``==`` or ``!=`` and what it compares with zero."""
    if not hasattr(relation, "rel_op"):
        return [pair for part in relation.args for pair in _relations(part)]
    difference, sign = relation.lhs - relation.rhs, relation.rel_op
    return [(sign.replace(">", "<"), -difference)] if sign.startswith(">") else [(sign, difference)]


def _proportional(left: tuple[str, Any], right: tuple[str, Any]) -> bool:
    """Whether two relations differ by a constant factor, positive in an inequality."""
    import sympy

    sides = [_prepared(side) for side in (left[1], right[1])]
    if left[0] != right[0] or not sides[0].free_symbols:
        return False
    pairs = [pair for pair in _values(*sides) if all(abs(value) > sympy.Float(10) ** -_DIGITS for value in pair)]
    return (
        len(pairs) > 1
        and all(_close(x * pairs[0][1], y * pairs[0][0]) for x, y in pairs)
        and (not left[0].startswith("<") or bool(sympy.re(pairs[0][0] / pairs[0][1]) > 0))
    )


def _prepared(expression: Any) -> Any:
    """Carries out what cannot be evaluated at a point, and takes values of unknown functions for letters."""
    import sympy
    from sympy.core.function import AppliedUndef

    steps = (sympy.Derivative, sympy.Integral, sympy.Limit, sympy.Sum, sympy.Product, sympy.UnevaluatedExpr)
    expression = expression.replace(lambda part: isinstance(part, steps), lambda part: part.doit())
    return expression.replace(lambda part: isinstance(part, AppliedUndef), lambda part: sympy.Symbol(str(part), real=True))


def _values(left: Any, right: Any) -> list[tuple[Any, Any]]:
    """Returns both values at each point where both have one."""
    import sympy

    letters = sorted(left.free_symbols | right.free_symbols, key=str)
    pairs = []
    for number, (numerator, denominator) in enumerate(_POINTS):
        point = {
            letter: sympy.Rational(numerator * (-1) ** (place * number), denominator + 2 * place)
            for place, letter in enumerate(letters)
        }
        pair = tuple(side.evalf(_DIGITS, subs=point) for side in (left, right))
        if all(side.is_number and side.is_finite for side in pair):
            pairs.append(pair)
    return pairs


def _close(left: Any, right: Any) -> bool:
    import sympy

    scale = max(abs(left), abs(right), sympy.Float(10) ** -_DIGITS)
    return bool(abs(left - right) <= scale * sympy.Float(10) ** -_TOLERANCE_DIGITS)


def _is_zero(difference: Any) -> bool:
    import sympy

    if abs(sympy.N(difference, _DIGITS)) > sympy.Float(10) ** -(_DIGITS // 2):
        return False
    difference = difference.doit()
    if difference.is_Rational:
        return bool(difference == 0)
    return bool(difference.equals(0)) or sympy.simplify(difference) == 0


if __name__ == "__main__":
    main()
