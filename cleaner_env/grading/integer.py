r"""Grades a response whose answer is one integer, as in the AIME.

The answer is the last closed box, else the last ``Answer:`` line; a number elsewhere in the text is no answer. A box
declares what it holds, whatever the sentence around it says: ``not \boxed{7}`` declares 7. Whole integers are compared: no
tolerance, no suffix match.

What an integer may be dressed in: math delimiters and emphasis, ``\text{}`` or ``\mathbf{}`` and their like, leading zeros,
a sign, thousands groups (``1,016``, ``1{,}016``, ``1\,016``), zeros after a decimal point, a sign of currency, brackets, an
equation that it ends or begins (``m+n=16``, ``16=x``), and a unit behind it: ``^\circ``, ``\%``, ``\text{cm}^2``, or a
phrase with a noun in the plural (``16 ordered pairs``). A phrase with a word that denies, doubts, scales or divides the
number is no unit. Everything else, an unevaluated expression included, is another answer. Digits are ASCII, or its
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
_MEMBER = re.compile(r"[A-Za-z0-9+\-*/^(){}_|'\\\s.]+")
_NO_MEMBER = re.compile(
    r"\\(?:neq?|leq?|geq?|text|l?or|pm|mp|approx|sim|equiv|mbox|newline|hspace)\b|\\\\|\b(?:or|and|not|if)\b", re.IGNORECASE
)
_TWO_EQUATIONS = re.compile(r"[A-Za-z0-9]\s+[A-Za-z]")
_CURRENCY = r"(?:\\?\$|[\u20ac\u00a3\u00a5\u20b9])"
_NUMBER = re.compile(
    rf"""(?P<sign>[+-]?)\s*
    (?: {_CURRENCY} | \\text\s*\{{\s*{_CURRENCY}\s*\}} )?\s*
    (?P<digits> [1-9][0-9]{{0,2}}(?:,[0-9]{{3}})+ | [1-9][0-9]{{0,2}}(?:\u2009[0-9]{{3}})+ | [0-9]+ )
    (?:\.0*)?(?![0-9.,])""",
    re.VERBOSE,
)
_POWER = r"(?:\^\s*(?:\{\s*[23]\s*\}|[23])|[\u00b2\u00b3])?"
_ROMAN = r"\\(?:text|textrm|mathrm|mbox)\s*\{"
_UNIT = re.compile(
    rf"""\s*(?:
        (?: \^\s*\{{?\s*\\circ\s*\}}? | \\degree | \u00b0 )(?:\s*(?:[CFK](?![A-Za-z])|{_ROMAN}\s*[CFK]\s*\}}))?
      | \\?% | {_CURRENCY}
      | {_ROMAN}(?P<text>\s*[A-Za-z][A-Za-z\s.\-/]*){_POWER}\s*\}}{_POWER}
      | (?P<words>(?<=\s)[A-Za-z]{{2,}}(?:[\s\-]+[A-Za-z]+)*){_POWER}
    )\s*""",
    re.VERBOSE,
)
_WORD = re.compile(r"[A-Za-z]+")
_SYMBOL = re.compile(
    r"""[cmkdn]?m | [mk]?g | [mn]?s | h | [mcd]?[lL] | [kM]?J | k?[NWV] | [kM]?Hz | hz | [kM]?eV | k?Pa | in | ft | yd | mi
    | lbs? | oz | mins? | secs? | hrs? | yrs? | pts? | sq | cu | mph | kph | kmh | rpm | deg | rad | mol | bit
    | USD | EUR | GBP""",
    re.VERBOSE,
)
_NOUN = re.compile(
    r"""[a-z]{2,}[^sui\W]s  # a plural, unlike "less", "plus" and "this"
    | feet | (?:wo)?men | people | children | vertices | dice | percent | total | (?:centi|milli|kilo)?met(?:re|er)
    | (?:kilo)?gram | lit(?:re|er) | inch | foot | yard | mile | minute | hour | day | week | month | year | unit | degree
    | radian | dollar | cent | euro | yen | yuan""",
    re.IGNORECASE | re.VERBOSE,
)
_SINGULAR = re.compile(r"[a-z]{4,}|way|set|man|boy", re.IGNORECASE)
_NUMERAL = r"""(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen
    |(?:twen|thir|for|fif|six|seven|eigh|nine)ty)"""
_NTH = r"(?:third|quarter|fourth|(?:fif|six|seven|eigh|nin|ten|eleven|twelf|\w+teen|\w+tie|hundred|thousand|\w+illion)th)"
# Words that make another number, or no answer, of the number before them.
_NO_UNIT = re.compile(
    rf"""\A\s*{_NUMERAL}\b(?!-) | \b(?:
        {_NUMERAL}e?s | {_NTH}s? | half | halves | \w*illi(?:on|ard)s? | dozens? | ten | hundreds? | thousands? | myriads?
      | gross | scores? | lakhs? | crores? | googols? | st | nd | rd | th | point | (?:double|triple)d? | twice | thrice
      | squared | cubed | raised | inverse | factorial | choose | permute | negative | mod | modulo | plus | minus | times
      | over | divided | root | sqrt | log | exp | (?:arc)?(?:sin|cos|tan) | (?:sin|cos|tan)h | gcd | lcm
      | alpha | beta | gamma | delta | epsilon | theta | lambda | sigma | omega
      | base | binary | ternary | octal | decimal | hex(?:adecimal)? | repeating | recurring
      | not? | none | nor | never | without | except | exclud(?:ed|ing) | is | are | was | were | be | does | has
      | wrong | incorrect | false | invalid | impossible | extraneous | rejected | discarded | cancell?ed | retracted
      | fail(?:s|ed)? | seems | appears | looks | exceeds | needs | misses | lacks | contradicts | violates | overcounts
      | to | or | and | more | less | fewer | greater | short | than | at | off | too | if | but | unless | rather
      | approx(?:imately)? | almost | nearly | about | around | roughly | circa | maybe | perhaps | possibly | probably
      | likely | rounded | sometimes | always
    )\b""",
    re.IGNORECASE | re.VERBOSE,
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
    values = [_value(member) for member in _members(peel(_SPACES.sub(" ", peel(text))))]
    found = {value for value in values if value is not None}
    return found.pop() if len(found) == 1 and (values[0] is not None or values[-1] is not None) else None


def _members(text: str) -> list[str]:
    """Returns the sides of an equation, or of a chain of them; a text that is none is its own only member."""
    if "=" not in text:
        return [text]
    members = [peel(member) for member in text.split("=")]
    for place, member in enumerate(members):
        side = _ARGUMENTS.sub("()", _TEXT.sub(r"\1", member))
        is_expression = _MEMBER.fullmatch(side) and side.count("|") % 2 == 0 and not _NO_MEMBER.search(side)
        if _value(member) is None and (not is_expression or (place and _TWO_EQUATIONS.search(side))):
            return [text]
    return members


def _value(text: str) -> int | None:
    """Reads an integer with a sign, brackets and a unit."""
    text = text.replace(r"\left", "").replace(r"\right", "").strip()
    for _ in range(_MAX_BRACKETS):
        if not (text.startswith("(") and text.endswith(")")):
            break
        text = peel(text[1:-1])
    number = _NUMBER.match(text)
    if number is None:
        return None
    value = int(number["sign"] + number["digits"].replace(",", "").replace("\u2009", ""))
    return value if _is_unit(text[number.end() :], abs(value) == 1) else None


def _is_unit(text: str, singular: bool) -> bool:
    """Whether what follows a number is nothing, or one or two units such as a degree sign and a letter for the scale."""
    if not text.strip():
        return True
    first = _UNIT.match(text)
    if first is None or len(text) > _MAX_UNIT_CHARACTERS:
        return False
    second = _UNIT.fullmatch(text, first.end())
    if second is None and first.end() < len(text):
        return False
    units = [first, second] if second else [first]
    phrase = " ".join(unit["text"] or unit["words"] or "" for unit in units)
    return not phrase.strip() or _is_phrase(phrase, singular)


def _is_phrase(text: str, singular: bool) -> bool:
    """Whether words name what is counted or measured."""
    words = _WORD.findall(text)
    nouns = (_SYMBOL, _NOUN, _SINGULAR) if singular else (_SYMBOL, _NOUN)
    return (
        all(len(word) > 1 or _SYMBOL.fullmatch(word) for word in words)
        and any(noun.fullmatch(word) for noun in nouns for word in words)
        and not _NO_UNIT.search(text)
    )


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
