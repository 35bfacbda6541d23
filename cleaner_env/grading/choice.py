r"""Grades a response whose answer is the letter of an option.

A *declaration* is a box, or an ``Answer:`` line, that holds the form of a letter: ``C``, ``(c)``, ``\text{C}``,
``Option C``, ``C is correct``, ``C) the text of the option``. Boxes go before lines, the last declaration wins, and a
letter anywhere else is no choice.

A declaration chooses nothing if it names several options (``AB``, ``A or B``, ``A) 5, B) 6``), denies the one that it names
(``(A) is wrong``), or takes it back (``C. Wait, D``). Other letters may stand in a reason (``A, since B violates parity``)
and in the text of an option (``D) A and B``), which is left out of account where it is known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from cleaner_env.errors import DataError
from cleaner_env.grading.extraction import answer_lines, boxes, peel, without_thinking
from cleaner_env.grading.verdict import Grade

__all__ = ["grade_choice"]

_MAX_CHARACTERS = 2_000
_REASON = r",?\s+(?:because|since|as(?!\s+well)|which|i\.e\.)(?=\s|\Z)"
_CHOICE = re.compile(
    rf"""(?:(?:the\s+)?(?:(?:correct|best|right)\s+)?(?:option|choice|answer|letter)(?:\s+is\b)?(?:\s*:|\s)\s*)?
    (?P<open>[(\["'\u201c])?\s*(?P<letter>[A-Z])\s*
    (?: (?P<close> (?(open)[)\]"'\u201d]|[)\]])+ )[.:]?
      | (?P<stop>[.:])(?=\s|\Z)
      | (?=\s+\()(?!\s+\([^()]*\)\s*[=^+*/_<>])
      | (?=\s[-\u2013\u2014]\s)
      | (?={_REASON})
      | (?=\s+is\s+(?:the\s+)?(?:correct|right|best|answer)\b)
      | [!,;]?\Z
    )
    (?P<rest>.*)""",
    re.ASCII | re.DOTALL | re.IGNORECASE | re.VERBOSE,
)
_COMMANDS = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\s*\{([^{}]*)\}|\\(?:left|right)(?![A-Za-z])|\\[()]|\$|\*\*")
_PARENTHESES = re.compile(r"\([^()]{2,}\)")
_END_OF_STATEMENT = re.compile(rf"{_REASON}|\b(?:whereas|unlike|not|than)\b", re.IGNORECASE)

_START = r"\A[\s,:;.()\[\]!\u2026\u2013\u2014\-]*"
_CLAUSE = r"(?:\A|[.,;:!?\u2026(\u2013\u2014]|(?<!\S)-)\s*(?:(?:no|oh|but|ah)\b[\s,.]*){0,3}"
_END = r"(?=\W*\Z|\s*[.,;:!)])"
_PAUSE = r"(?=\W*\Z|\s*[,.:;!?\u2026\u2013\u2014\-]|\s+(?:no|the|it|that|i)\b)"
_LINK = r"""(?i:or|and|nor|but|also|plus|maybe|possibly|perhaps|even|to|through|as\s+well\s+as)\b\s*
    |(?:[/&+]|[-=]>|\u2192)\s*"""
_WRONG = r"(?:wrong|incorrect|untrue|mistaken)"
_RIGHT = r"(?:the\s+)?(?:correct|right|true|valid|best|better|answer|one)"
_DENIED = re.compile(
    rf"""\A\s*\?
    | {_START}(?:(?:this|that|it|which)\s+)?(?:is|was|seems|looks|must\s+be)\s+(?:\w+ly\s+)?(?:{_WRONG}|false)\b
    | {_START}(?:{_WRONG}|rejected|eliminated|ruled\s+out){_END}
    | {_START}(?:(?:this|that|it|which)\s+)?(?:(?:is|was)\s+)?
      (?:not|never|no\s+longer|isn't|wasn't|(?:cannot|can't|could\s*n[o']t)\s+be)\s+(?:\w+ly\s+)?{_RIGHT}\b
    | \((?:this\s+is\s+)?{_WRONG}\)""",
    re.IGNORECASE | re.VERBOSE,
)
_TAKEN_BACK = re.compile(
    rf"""{_CLAUSE}(?: (?:wait|actually|sorry|apologies|oops|hm+)\b{_PAUSE}
      | (?:scratch|strike)\s+that | never\s*mind | hold\s+on
      | on\s+second\s+thoughts? | let\s+me\s+(?:re|double|check|correct|think|try) | my\s+(?:mistake|bad|error)
      | i\s+(?:changed?\s+my | take\s+(?:that|it)\s+back | made\s+an?\s | was\s+(?:wrong|mistaken) | mean[t\s] | misread
      | erred) | correction\s*[,:\u2013\u2014\-] )""",
    re.IGNORECASE | re.VERBOSE,
)


@lru_cache(maxsize=256)
def _patterns(others: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Returns what says that one of the other letters is the answer: anywhere, and in a statement that is no reason."""
    other = rf"[(\[]?[{others}](?![\w'=^])[)\]]?"
    anywhere = rf"""
        {_START}{other}\W*\Z
      | [.;:\u2026\u2013\u2014]\s+{other}\W*\Z
      | {_START}(?:{_LINK})+{other}(?=\W*\Z|\s*[.,;:!()/&]|\s+(?i:or|and|is|are)\b)
      | {_CLAUSE}(?i:no|wait|actually|sorry|hm+)\b[\s,:;.\u2013\u2014\-]*{other}
      | \b(?i:(?:answer|choice|it)(?:'s|\s+is|\s+(?:should|must)\s+be|\s*:)\s*:?\s*(?:option\s+)?){other}{_END}
      | \b(?i:choose|pick|select|prefer|go(?:ing)?\s+with|switch(?:ing)?\s+to|rather|so|hence|thus|therefore
        |maybe|possibly|perhaps)[\s,]+{other}{_END}
      | {other}\s+(?i:instead)\b"""
    stated = rf"""
        {other}\s+(?i:is|was|looks|seems|(?:must|would|might|may|could)\s+be)\s+(?i:(?!not\b)\w+\s+)?(?i:{_RIGHT}|possible)\b
      | (?<![{others}])(?<![{others}]\))(?<!rest)\s+(?i:is|was)\s+(?i:{_WRONG}|not\s+{_RIGHT})\b"""
    return re.compile(anywhere, re.VERBOSE), re.compile(stated, re.VERBOSE)


@lru_cache(maxsize=256)
def _label(mark: str, others: str) -> re.Pattern[str]:
    """Returns another letter in the form of the first, unless it is the subject of a sentence."""
    bare = rf"(?:\A|[,;.]|\b(?i:and|or))\s*[{others}]\s(?=\()"
    form = {
        "(": rf"(?<!\w)[{others}][)\]]",
        ")": rf"(?<![\w(])[{others}][)\]]",
        ".": rf"(?:\A|[,;.])\s*(?:(?i:and|or)\s+)?[{others}]\.(?=\s+\S)",
        ":": rf"(?<![\w:])[{others}]:(?=\s)",
    }.get(mark, bare)
    verb = "is|are|was|were|has|have|does|do|would|could|can|cannot|can't|fails?|violates?|contradicts?|gives?"
    return re.compile(rf"{form}(?!\s*(?i:{verb})\b)")


@lru_cache(maxsize=256)
def _named(letters: str) -> re.Pattern[str]:
    """Returns what begins with one of the letters, or several, and chooses none."""
    letter = rf"[(\[]?[{letters}](?!\w)[)\]]?"
    return re.compile(
        rf"""(?:(?:not|neither|either|both|never)\s+)?{letter}
        (?=\W*\Z|\s*(?:[,/&;+\-\u2013]|->|\u2192)\s*{letter}|\s+(?:or|and|nor|to|through|as|is|isn't|was)\b)
        | [{letters}]{{2,}}\Z""",
        re.IGNORECASE | re.VERBOSE,
    )


def _declared(text: str, letters: str, options: Sequence[str]) -> str | None:
    """Returns the chosen letter, ``""`` for a choice that is none of ``letters`` or not one, ``None`` for anything else."""
    text = _plain(text[:_MAX_CHARACTERS])
    choice = _CHOICE.fullmatch(text)
    if choice is None:
        return "" if _named(letters).match(text) else None
    letter = choice["letter"].upper()
    if letter not in letters:
        return ""
    comment = _without_option(choice["rest"], _plain(options[letters.index(letter)])) if options else choice["rest"]
    others = letters.replace(letter, "") or "\0"
    mark = "(" if choice["open"] else ")" if choice["close"] else choice["stop"] or ""
    return "" if _is_withdrawn(comment, mark, others if choice["letter"] == letter else others.lower()) else letter


def _plain(text: str) -> str:
    return " ".join(peel(_COMMANDS.sub(lambda match: match[1] or "", peel(text))).split())


def _without_option(comment: str, option: str) -> str:
    """Takes the text of the option off the beginning of what follows its letter."""
    quoted, option = (text.lstrip(" .:)(-\u2013\u2014") for text in (comment, option))
    is_quoted = option and quoted.lower().startswith(option.lower()) and not quoted[len(option) : len(option) + 1].isalnum()
    return quoted[len(option) :] if is_quoted else comment


def _is_withdrawn(comment: str, mark: str, others: str) -> bool:
    """Whether what follows a letter and its mark denies it, takes it back, or names another option."""
    anywhere, stated = _patterns(others)
    if _DENIED.search(comment) or _TAKEN_BACK.search(comment) or anywhere.search(comment):
        return True
    statement = _END_OF_STATEMENT.split(comment, maxsplit=1)[0]
    outside = _PARENTHESES.sub("", statement) if mark in ("(", ")") else statement
    return bool(stated.search(statement) or _label(mark, others).search(outside))


def grade_choice(response: str, gold: str, letters: str = "ABCD", options: Sequence[str] = ()) -> Grade:
    r"""Grades a response whose answer is the letter of an option.

    Args:
        response: The final turn.
        gold: The right letter.
        letters: The letters of all options, in upper case.
        options: The texts of the options, one for each letter; may be left out.

    Raises:
        DataError: ``gold`` is not one of ``letters``, or there is not one option for each letter.

    Example:
        >>> grade_choice("Answer: A\nThat neglects the spin-orbit term.\n**Answer:** **D**", "D")
        Grade(verdict='correct', extracted='D')
        >>> grade_choice("ANSWER: None of the above", "A").verdict
        'no_answer'
        >>> grade_choice("Answer: A. Wait, D is correct.", "A").verdict
        'no_answer'
    """
    if len(gold) != 1 or gold not in letters:
        raise DataError(f"the reference answer must be one of the letters {letters}, got {gold[:80]!r}")
    if options and len(options) != len(letters):
        raise DataError(f"there must be one option for each of the letters {letters}, got {len(options)}")
    visible = without_thinking(response)
    for declarations in (boxes(visible), answer_lines(visible)):
        for declaration in reversed(declarations):
            letter = _declared(declaration, letters, options)
            if letter is not None:
                return Grade("correct" if letter == gold else "incorrect", letter) if letter else Grade("no_answer")
    return Grade("no_answer")
