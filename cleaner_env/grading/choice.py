r"""Grades a response whose answer is the letter of an option.

A *declaration* is a box, or an ``Answer:`` line, that holds the form of a letter: ``C``, ``(c)``, ``\text{C}``,
``Option C``, ``C) the text of the option``; or of several (``AB``, ``A or B``), which choose none; nor does one that is
taken back on the same line (``C. No wait, D``). Boxes go before lines, the last declaration wins, and a letter anywhere
else is no choice.
"""

from __future__ import annotations

import re

from cleaner_env.errors import DataError
from cleaner_env.grading.extraction import answer_lines, boxes, peel, without_thinking
from cleaner_env.grading.verdict import Grade

__all__ = ["grade_choice"]

_MAX_CHARACTERS = 2_000
_CHOICE = re.compile(
    r"""(?:(?:the\s+)?(?:(?:correct|best|right)\s+)?(?:option|choice|answer|letter)(?:\s+is\b)?(?:\s*:|\s)\s*)?
    [(\["'\u201c]?\s*(?P<letter>[A-Z])\s*
    (?: [)\]\u201d]+[.:]?
      | ["']+[.:]?(?![A-Za-z])
      | [.:](?=\s|\Z)
      | (?=\s*\()
      | (?=\s[-\u2013\u2014]\s)
      | (?=,?\s+(?:because|since|as|which|i\.e\.)(?:\s|\Z))
      | [!,;]?\Z
    )
    (?P<rest>.*)""",
    re.ASCII | re.DOTALL | re.IGNORECASE | re.VERBOSE,
)
_CONTINUED = re.compile(
    r"(?!,?\s+(?:because|since|as|which|i\.e\.)(?:\s|\Z))[\s()\[\].,:\-\u2013\u2014]*"
    r"(?:(?:or|and|nor)\b|[/&,]|[A-Za-z][)\].\s]*\Z)",
    re.IGNORECASE,
)
_RETRACTED = re.compile(
    r"(?:\b[Ww]ait|\b[Aa]ctually|\b[Cc]orrection|\b[Ss]orry|\b[Oo]r\s+rather|\b[Nn]o|->|\u2192)[\s,:.\u2013\u2014-]*"
    r"\(?[A-Z][).\s]*\Z"
    r"|\bor\s+[A-Z]\)|^\s*\((?:incorrect|wrong)\)"
)
_SEVERAL = re.compile(
    r"[(\[]?[A-Z][)\].]?(?:(?:\s*(?:,|/|&|;|\bor\b|\band\b)\s*)+[(\[]?[A-Z][)\].]?|[A-Z])+", re.IGNORECASE
)
_COMMANDS = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\s*\{([^{}]*)\}|\\(?:left|right)(?![A-Za-z])")


def _declared(text: str, letters: str) -> str | None:
    """Returns the chosen letter, ``""`` for a choice that is none of ``letters`` or several, ``None`` for anything else."""
    text = _COMMANDS.sub(lambda match: match[1] or "", peel(text[:_MAX_CHARACTERS]))
    text = peel(text.replace("**", ""))
    choice = _CHOICE.fullmatch(text)
    if choice and _RETRACTED.search(choice["rest"]):
        return ""
    if choice and not _CONTINUED.match(choice["rest"]):
        letter = choice["letter"].upper()
        return letter if letter in letters else ""
    several = _SEVERAL.fullmatch(text)
    named = set(re.findall(r"\b[A-Z]+\b", text.upper())) - {"OR", "AND"} if several else set()
    return "" if several and set("".join(named)) <= set(letters) else None


def grade_choice(response: str, gold: str, letters: str = "ABCD") -> Grade:
    r"""Grades a response whose answer is the letter of an option.

    Args:
        response: The final turn.
        gold: The right letter.
        letters: The letters of all options, in upper case.

    Raises:
        DataError: ``gold`` is not one of ``letters``.

    Example:
        >>> grade_choice("Answer: A\nThat neglects the spin-orbit term.\n**Answer:** **D**", "D")
        Grade(verdict='correct', extracted='D')
        >>> grade_choice("ANSWER: None of the above", "A").verdict
        'no_answer'
    """
    if len(gold) != 1 or gold not in letters:
        raise DataError(f"the reference answer must be one of the letters {letters}, got {gold[:80]!r}")
    visible = without_thinking(response)
    for declarations in (boxes(visible), answer_lines(visible)):
        for declaration in reversed(declarations):
            letter = _declared(declaration, letters)
            if letter is not None:
                return Grade("correct" if letter == gold else "incorrect", letter) if letter else Grade("no_answer")
    return Grade("no_answer")
