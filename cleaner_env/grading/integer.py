r"""Grades a response whose answer is one integer, as in the AIME.

The answer is the last closed box, else the last ``Answer:`` line; a number elsewhere in the text is no answer. Whole
integers are compared: no tolerance, no suffix match.

What an integer may be dressed in: math delimiters and emphasis, ``\text{}`` or ``\mathbf{}`` and their like, leading zeros,
a sign, thousands groups (``1,016``, ``1{,}016``, ``1\,016``), zeros after a decimal point, a unit behind it (``^\circ``,
``\%``, ``\text{cm}^2``, a few words), a dollar sign before it, brackets, and the left side of an equation
(``m+n=16``, ``x=16``). Everything else, an unevaluated expression included, is another answer. Digits are ASCII, or its
full-width forms.
"""

from __future__ import annotations

import re

from cleaner_env.errors import DataError
from cleaner_env.grading.extraction import answer_lines, boxes, peel, without_thinking
from cleaner_env.grading.verdict import Grade

__all__ = ["grade_integer", "parse_integer"]

_MAX_CHARACTERS = 300
_MAX_UNIT_CHARACTERS = 60
_MAX_BRACKETS = 10

_SPACES = re.compile(r"\\[,;: ]|\\q?quad\b|(?<=.)~|\\!")
_TEXT = re.compile(r"\\(?:text|textrm|mathrm|mbox)\s*\{([A-Za-z\s]*)\}")
_ARGUMENTS = re.compile(r"\([A-Za-z0-9\s,]*\)")
_EQUATION = re.compile(r"[A-Za-z0-9+\-*/^(){}_|'\\\s.]+")
_NO_EQUATION = re.compile(
    r"\\(?:neq?|leq?|geq?|text|l?or|pm|mp|approx|sim|equiv|mbox|newline|hspace)\b|\\\\|\b(?:or|and|not|if)\b", re.IGNORECASE
)
_TWO_EQUATIONS = re.compile(r"[A-Za-z0-9]\s+[A-Za-z]")
_NUMBER = re.compile(
    r"""(?P<sign>[+-]?)\s*
    (?: \\?\$ | \\text\s*\{\s*\\?\$\s*\} )?\s*
    (?P<digits> [0-9]{1,3}(?:,[0-9]{3})+ | [0-9]{1,3}(?:\u2009[0-9]{3})+ | [0-9]+ )
    (?:\.0*)?(?![0-9.,])""",
    re.VERBOSE,
)
_POWER = r"(?:\^\s*(?:\{\s*[23]\s*\}|[23])|[\u00b2\u00b3])?"
_UNIT = re.compile(
    rf"""\s*(?:
        (?: \^\s*\{{?\s*\\circ\s*\}}? | \\degree | \u00b0 )(?:\s*[CFK](?![A-Za-z]))? | \\?%
      | \\(?:text|textrm|mathrm|mbox)\s*\{{\s*[A-Za-z][A-Za-z\s.\-/]*{_POWER}\s*\}}{_POWER}
      | (?<=\s)[A-Za-z]{{2,}}(?:[\s\-]+[A-Za-z]+)*{_POWER}
    )\s*""",
    re.VERBOSE,
)
# Words that make another number, or no number, of the one before them, and letters that are no word.
_NO_UNIT = re.compile(
    r"illi(?:on|ard)|dozen|\b(?:ten|hundred|thousand|gross|score|lakh|crore|googol)s?\b"
    r"|\b(?:half|halves|(?:third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|twelfth|hundredth|thousandth)s?"
    r"|st|nd|rd|th|point|(?:double|triple)d?|twice|thrice|squared|cubed|raised|inverse|factorial|choose|permute|negative"
    r"|mod|modulo|plus|minus|times|over|divided|to|or|and|not|is|isn|wrong|incorrect|more|less|fewer|short|than|at|off"
    r"|if|but|nor|base|log|ln|lg|exp|sqrt|sin|cos|tan|cot|csc|sinh|cosh|tanh|arcsin|arccos|arctan|gcd|lcm"
    r"|alpha|beta|gamma|delta|epsilon|theta|lambda|mu|pi|rho|sigma|tau|phi|chi|psi|omega)\b"
    r"|^\s+(?!cm|mm|km|nm|dm|in|ft|yd|mi|mg|kg|lb|oz|ml|dl|cl|ms|ns|hr|hz|eV|kJ|kN|kW|kV|pt)[a-z]{2}(?![A-Za-z])",
    re.IGNORECASE,
)


def parse_integer(text: str) -> int | None:
    r"""Reads an integer in any accepted dress; ``None`` where the text is anything else.

    Example:
        >>> [parse_integer(text) for text in (r"\text{016}", r"16^\circ", "1{,}016", "m+n = 16", "9^9", "1, 6", "16.5")]
        [16, 16, 1016, 16, None, None, None]
    """
    if len(text) > _MAX_CHARACTERS:
        return None
    text = text.replace("{,}", ",").replace(r"\!", "").replace("\u2212", "-").replace(r"\,", "\u2009")
    text = re.sub(r"(?<![0-9])\u2009|\u2009(?![0-9])", " ", text)
    text = _last_member(peel(_SPACES.sub(" ", peel(text))))
    number = _NUMBER.match(text)
    if number is None or not _is_unit(text[number.end() :]):
        return None
    return int(number["sign"] + number["digits"].replace(",", "").replace("\u2009", ""))


def _last_member(text: str) -> str:
    """Returns the right side of an equation, brackets taken off."""
    left, equals, right = text.rpartition("=")
    left = _ARGUMENTS.sub("()", _TEXT.sub(r"\1", left))
    members_between = left.split("=")[1:]
    if (
        equals
        and _EQUATION.fullmatch(left.replace("=", ""))
        and not _NO_EQUATION.search(left)
        and not any(_TWO_EQUATIONS.search(member) for member in members_between)
    ):
        text = peel(right)
    text = text.replace(r"\left", "").replace(r"\right", "").strip()
    for _ in range(_MAX_BRACKETS):
        if not (text.startswith("(") and text.endswith(")")):
            break
        text = peel(text[1:-1])
    return text


def _is_unit(text: str) -> bool:
    """Whether what follows a number is nothing, or one or two units such as a degree sign and a letter for the scale."""
    if not text.strip():
        return True
    first = _UNIT.match(text)
    rest = text[first.end() :] if first else ""
    is_form = first is not None and (not rest or _UNIT.fullmatch(rest) is not None)
    return is_form and len(text) <= _MAX_UNIT_CHARACTERS and not _NO_UNIT.search(text)


def grade_integer(response: str, gold: str | int) -> Grade:
    r"""Grades a response whose answer is one integer.

    Args:
        response: The final turn.
        gold: The integer, in any accepted dress.

    Returns:
        A `Grade` whose ``extracted`` is the integer in plain digits, or the declared text where that is no integer.

    Raises:
        DataError: ``gold`` is not an integer.

    Example:
        >>> grade_integer("First \\boxed{84}, corrected: \\boxed{96}", "84")
        Grade(verdict='incorrect', extracted='96')
        >>> grade_integer("It is 84, I think.", "84")
        Grade(verdict='no_answer', extracted=None)
    """
    expected = parse_integer(str(gold))
    if expected is None:
        raise DataError(f"the reference answer must be an integer, got {str(gold)[:80]!r}")
    visible = without_thinking(response)
    declared = boxes(visible)[-1:] or answer_lines(visible)[-1:]
    if not declared or not declared[0]:
        return Grade("no_answer")
    value = parse_integer(declared[0])
    if value is None:
        return Grade("incorrect", declared[0][:_MAX_CHARACTERS])
    return Grade("correct" if value == expected else "incorrect", str(value))
