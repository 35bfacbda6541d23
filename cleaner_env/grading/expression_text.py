r"""Reads what is text in an answer: its dress, its words and its units. What is mathematics is left to the parser.

Nothing that makes another answer is dropped here: a prime becomes part of a name, and only units that are known as such
come off. A word that is none stays, and is then a factor that the other answer lacks.
"""

from __future__ import annotations

import re
from typing import Final

from cleaner_env.grading.extraction import peel

__all__ = ["clean", "connectives", "same_words", "split", "without_unit"]

_CHARACTERS: Final = str.maketrans(
    {
        **{"\u2212": "-", "\u00b7": r"\cdot ", "\u22c5": r"\cdot ", "\u00d7": r"\times ", "\u00f7": r"\div "},
        **{"\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\ne ", "\u222a": r"\cup ", "\u2208": r"\in "},
        **{"\u221e": r"\infty ", "\u03c0": r"\pi ", "\u00b0": r"^\circ", "\u00b2": "^2", "\u00b3": "^3"},
        **{"\u2032": "'", "\u2019": "'", "\u2026": r"\ldots ", "$": "", "\u20ac": "", "\u00a3": "", "\u00a5": ""},
    }
)
_SPACED_THOUSANDS: Final = re.compile(r"(?<=[0-9])(?:\\,|\\ |\u2009)(?=[0-9]{3}(?![0-9]))")
_NOISE: Final = re.compile(
    r"\\(?:left|right|bigl|bigr|Bigl|Bigr|big|Big|limits|displaystyle)(?![A-Za-z])\.?|(?<!\\)\\[,;:! ]|\\q?quad\b|~"
)
_TEXT: Final = r"\\(?:text|textrm|textbf|textit|texttt|textnormal|mbox|mathrm|mathbf|mathsf|mathtt|mathit|emph)\s*"
_SINGLE: Final = re.compile(rf"(?P<index>_\s*\{{?\s*)?{_TEXT}\{{\s*(?P<text>[^{{}}A-Za-z]*|[A-Za-z])\s*\}}")
_REPEATING: Final = re.compile(r"(?P<whole>[0-9]*)\.(?P<once>[0-9]*)\\overline\s*\{(?P<again>[0-9]+)\}")
_SCIENTIFIC: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]{1,3})")
_MIXED: Final = re.compile(r"(?<![0-9.])([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)(?![0-9.])")
_SEPARATOR_WORDS: Final = re.compile(r"\\text\s*\{\s*,?\s*(or|and)\s*\}|(?<=\s)(or|and)(?=\s)")
_PLAIN_NAMES: Final = re.compile(r"(?<![A-Za-z\\])(?<!text\{)(sqrt|pi|infinity|sin|cos|tan|ln|log|exp)(?![A-Za-z])")
_ROOT: Final = re.compile(r"\\sqrt\s*\(([^()]*)\)")
_PRIME_COMMANDS: Final = re.compile(r"\^\s*(?:\{\s*((?:\\prime\s*)+)\}|(\\prime)(?![A-Za-z]))")
_PRIMED: Final = re.compile(r"(\\[A-Za-z]+|[A-Za-z])\s*(?:_\s*(?:\{([^{}]*)\}|(\w)))?('+)")
_TRANSPOSED: Final = re.compile(r"(?<!matrix\})\^\s*(?:T(?![A-Za-z])|\{\s*(?:T|\\top)\s*\}|\\top(?![A-Za-z]))")

_WORDS: Final = re.compile(r"[^\W\d_]+(?:(?:[\s\-]|,\s)[^\W\d_]+)*")
_QUOTES: Final = "\"'`\u201c\u201d\u2018\u2019 "
_MARK: Final = re.compile(_TEXT + r"\{|\\operatorname\s*\{")
_SURE_LETTERS: Final = 4
_SHORT_WORDS: Final = ("yes", "no")

_UNIT_TAIL: Final = re.compile(
    r"""(?P<value>.*?[0-9A-Za-z)}\]!|])\s*(?P<unit>
        \\text\s*\{[^{}]*\} (?: \s* (?: \\text\s*\{[^{}]*\} | \^\s*\{?\s*-?[1-4]\s*\}? | / | \\cdot ) )*
      | (?<=\s)[A-Za-z]{2,}(?:[\s/\-]+[A-Za-z]+)*(?:\s*\^\s*\{?\s*[23]\s*\}?)?
      | \^\s*\{?\s*\\circ\s*\}?\s*(?:\\text\s*\{\s*[CF]\s*\}|[CF])? | \\degree
    )""",
    re.VERBOSE | re.DOTALL,
)
_PERCENT: Final = re.compile(r"(?P<value>.*?\S)\s*(?:\\?%|\\text\s*\{\s*(?:percent|\\?%)\s*\}|(?<=\s)percent)", re.DOTALL)
# Names that mean the same measure, the first for all. Prefixes are written out: a letter too many is another word.
_MEASURE_NAMES: Final = (
    "m meter metre, cm centimeter centimetre, mm millimeter millimetre, km kilometer kilometre, nm nanometer, dm, "
    "in inch inche, ft foot feet, yd yard, mi mile, g gram gm, kg kilogram, mg milligram, lb lbs pound, oz ounce, "
    "s sec second, ms millisecond, min minute, h hr hrs hour, day, week, month, year yr yrs, L l liter litre, "
    "mL ml milliliter millilitre, gal gallon, N newton, J joule, kJ kilojoule, W watt, kW kilowatt, V volt, "
    "A amp ampere, Pa pascal, kPa, atm, Hz hertz, kHz, MHz, K kelvin, C Celsius, F Fahrenheit, mol mole, eV, keV, MeV, "
    "T tesla, rad radian, deg degree, mph, kph kmph, rpm, dollar USD, cent, unit, acre, hectare"
)
_MEASURES: Final = {name: names.split()[0] for names in _MEASURE_NAMES.split(", ") for name in names.split()}
_PEOPLE: Final = frozenset({"people", "men", "women", "children", "person"})
_NO_UNIT: Final = re.compile(
    r"[a-z]*(?:hundred|thousand|illion|illiard|dozen|hal(?:f|ve)|third|quarter|score"
    r"|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|teen|tie|hundred|thousand|illion)th)s?|tens|ones"
    r"|is|was|has|does|less|plus|minus|times|fails|this|thus|its|unless|always|perhaps|as|yes|equals|means|us"
    r"|not|no|nor|or|and|are|were|be|but|if|than|then|more|fewer|most|least|about|approximately|around|nearly|almost|only"
    r"|too|isn|aren|wrong|incorrect|invalid|false|rejected|extraneous|discarded|impossible|except|base|mod|modulo"
    r"|squares?|cubes?|factorials?|roots?|digits?|percents?|twice|binary|octal|decimals?",
    re.IGNORECASE,
)


def clean(text: str) -> str:
    r"""Writes an answer in the one way that the rules are written for.

    Delimiters, spacing and fonts come off; Unicode, repeating decimals and the names of functions are written as LaTeX; a
    word between alternatives becomes a comma.

    Example:
        >>> clean(r"\left(\dfrac12,\; 0.1\overline{6}\right]"), clean("2 1/2"), clean(r"f'(x)")
        ('(\\frac12, \\frac{15}{90} ]', '2\\frac{1}{2}', 'f_{prime}(x)')
    """
    text = _SPACED_THOUSANDS.sub("", peel(text).replace("{,}", ",").replace("\\$", ""))
    text = _NOISE.sub(" ", text.translate(_CHARACTERS))
    if "matrix" not in text:
        text = re.sub(r"\\\\(?=[A-Za-z])", r"\\", text)
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text.replace("\\varnothing", "\\emptyset"))
    text = re.sub(_TEXT + r"(?=\{)", r"\\text", _SINGLE.sub(_single, text))
    text = re.sub(r"\\(?:dots|cdots|dotsc)(?![A-Za-z])|\.{3}", r"\\ldots ", text)
    text = text.replace("\\langle", "(").replace("\\rangle", ")")
    text = re.sub(r"\\in(?![A-Za-z])", "=", text)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", _REPEATING.sub(_fraction, text))
    text = _PLAIN_NAMES.sub(lambda name: "\\infty " if name[0] == "infinity" else f"\\{name[0]} ", text)
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    text = _PRIME_COMMANDS.sub(lambda primes: "'" * primes[0].count("prime"), text)
    text = _TRANSPOSED.sub("^{(T)}", _PRIMED.sub(_primed, text))
    text = " ".join(_SEPARATOR_WORDS.sub(" , ", text).split()).removesuffix(".").strip().removeprefix("+")
    scientific = _SCIENTIFIC.fullmatch(text)
    return f"{scientific[1]} \\times 10^{{{scientific[2]}}}" if scientific else text


def connectives(text: str) -> set[str]:
    """Returns which of ``and`` and ``or`` stand between the parts of an answer."""
    spaced = re.sub(_TEXT + r"(?=\{)", r"\\text", f" {peel(text)} ")
    return {match[1] or match[2] for match in _SEPARATOR_WORDS.finditer(spaced)}


def split(text: str, separator: str = ",") -> list[str] | None:
    """Splits at a character outside all brackets; ``None`` where brackets do not match or a part is empty.

    Example:
        >>> split("(1,2), 3"), split("1,"), split("(a,b)=(1,2)", "=")
        (['(1,2)', '3'], None, ['(a,b)', '(1,2)'])
    """
    depth, start, members = 0, 0, []
    for place, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return None
        elif character == separator and not depth and text[max(place - 1, 0)] not in "<>!:":
            members.append(text[start:place].strip())
            start = place + 1
    members.append(text[start:].strip())
    return members if not depth and all(members) else None


def same_words(answer: str, gold: str) -> bool | None:
    r"""Compares two answers in words, capitals aside; ``None`` where they may be products of letters.

    Words are what stands in ``\text{}`` or its like, runs of four letters or more, ``yes`` and ``no``. Three capitals or
    more are a name, and its letters keep their order.

    Example:
        >>> same_words(r"\text{North}", "north"), same_words("BAC", "ABC"), same_words("ab", "ba")
        (True, False, None)
    """
    texts = [" ".join(peel(text).strip(_QUOTES).split()) for text in (answer, gold)]
    if not all(_WORDS.fullmatch(text) and re.search(r"[^\W\d_]{2}", text) for text in texts):
        return None
    folded = [text.casefold() for text in texts]
    longest = max(len(word) for text in texts for word in re.split(r"[\s,\-]+", text))
    if longest >= _SURE_LETTERS or _MARK.search(answer) or _MARK.search(gold) or any(w in _SHORT_WORDS for w in folded):
        return folded[0] == folded[1]
    return texts[0] == texts[1] if all(re.fullmatch("[A-Z]{3,}", text) for text in texts) else None


def without_unit(text: str) -> tuple[str, str]:
    r"""Returns a clean text without the unit behind it, and the unit: empty for none, and for things that are counted.

    Example:
        >>> [without_unit(text) for text in (r"5\text{ cm}^2", r"3 \text{ apples}", r"3\text{ tenths}", r"5\%")]
        [('5', 'cm^2'), ('3', ''), ('3\\text{ tenths}', ''), ('5', '%')]
    """
    percent = _PERCENT.fullmatch(text)
    if percent:
        return percent["value"], "%"
    tail = _UNIT_TAIL.fullmatch(text)
    unit = _unit(tail["unit"]) if tail else None
    return (tail["value"].strip(), unit) if tail and unit is not None else (text, "")


def _unit(text: str) -> str | None:
    """Returns the one name of a unit, an empty one for things that are counted, and ``None`` for what is no unit."""
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)
    if "circ" in text or "degree" in text:
        return "deg" + "".join(re.findall("[CF]$", text.strip()))
    text = re.sub(r"[\s{}]+", " ", re.sub(r"\s*\^\s*\{?\s*(-?[0-9])\s*\}?", r"^\1", text.replace("\\cdot", " "))).strip()
    powers = re.sub(r"\b(?:square|sq\.?) (\w+)", r"\1^2", re.sub(r"\b(?:cubic|cu\.?) (\w+)", r"\1^3", text))
    parts = re.split(r"\s*(/)\s*|\s+(per)\s+|\s+|(?<=[a-z])-(?=[a-z])", powers)
    names = [_measure(part) for part in parts[::3]]
    if None not in names:
        return " ".join("/" if part in ("/", "per") else _measure(part) or "" for part in parts if part)
    words = re.findall(r"[A-Za-z]+", text)
    counted = any(word in _PEOPLE or (len(word) > 2 and word.endswith("s")) for word in words)
    is_plain = re.fullmatch(r"[A-Za-z\s\-/.,()']+", text) is not None
    return "" if counted and is_plain and not any(_NO_UNIT.fullmatch(word) for word in words) else None


def _measure(text: str) -> str | None:
    name, caret, power = text.partition("^")
    for form in (name, name.lower(), name.removesuffix("s"), name.lower().removesuffix("s")):
        if form in _MEASURES and (form == name or len(name) > 2):
            return _MEASURES[form] + caret + power
    return None


def _single(styled: re.Match[str]) -> str:
    """Takes the font off a letter, unless it may be a unit."""
    index, letter = styled["index"] or "", styled["text"]
    return styled[0] if letter in _MEASURES and not index else f"{index} {letter}"


def _fraction(repeating: re.Match[str]) -> str:
    """Writes a repeating decimal as a fraction."""
    whole, once, again = repeating["whole"], repeating["once"], repeating["again"]
    numerator = int(f"{whole}{once}{again}") - int(f"0{whole}{once}")
    return f"\\frac{{{numerator}}}{{{'9' * len(again)}{'0' * len(once)}}}"


def _primed(name: re.Match[str]) -> str:
    return f"{name[1]}_{{{name[2] or name[3] or ''}{'prime' * len(name[4])}}}"
