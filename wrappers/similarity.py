"""How alike two pieces of code are: what decides between a shallow and a deep replacement.

==============  =================================================================================================
name            what is compared, always as ``2 * matches / (length of both)`` over the longest matching blocks
==============  =================================================================================================
``characters``  the characters of the code (the default)
``tokens``      its Python tokens, so that a longer name weighs no more than a short one
``lines``       its lines, stripped of indentation and trailing space
``ast``         its syntax tree, so that comments, layout and the names that the code itself gives do not count
``reference``   the characters of the whole call as JSON, with difflib's junk heuristic, as the authors' code does
==============  =================================================================================================

Code that does not tokenise or parse, as failed code often does not, is compared by ``characters`` instead.
"""

from __future__ import annotations

import ast
import io
import json
import tokenize
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any, Final, TypeAlias

from cleaner_env.errors import ConfigError

try:
    # The same algorithm in C++, with the same values.
    from cydifflib import SequenceMatcher as FastSequenceMatcher
except ImportError:
    FastSequenceMatcher = SequenceMatcher

__all__ = [
    "SIMILARITIES",
    "Similarity",
    "ast_similarity",
    "code_similarity",
    "get_similarity",
    "is_similar",
    "line_similarity",
    "reference_similarity",
    "token_similarity",
]

Similarity: TypeAlias = Callable[[str, str], float]
"""A function of two pieces of code: 1 for equal ones, 0 for ones with nothing in common."""

_LAYOUT: Final = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_GIVEN_ELSEWHERE: Final[dict[type, str]] = {
    ast.Attribute: "attr",
    ast.ImportFrom: "module",
    ast.alias: "name",
    ast.keyword: "arg",
}
"""Where a node of a syntax tree has a name that the code does not choose."""


def code_similarity(first: str, second: str) -> float:
    """Compares two pieces of code by their characters: `difflib.SequenceMatcher.ratio` without junk detection.

    With junk detection a consistent renaming of variables in 500 characters of code scores 0.4, without it 0.9.

    Example:
        >>> code_similarity("print(x)", "print(y)"), code_similarity("", "")
        (0.875, 1.0)
    """
    return _ratio(first, second)


def is_similar(first: str, second: str, threshold: float) -> bool:
    """Whether `code_similarity` reaches a threshold, told from lengths or counts of characters where those suffice.

    Both bound the similarity from above (`difflib.SequenceMatcher.real_quick_ratio`, ``quick_ratio``) and take linear time,
    where the similarity itself takes quadratic time.

    Example:
        >>> is_similar("print(x)", "print(y)", 0.5), is_similar("x" * 10_000, "y" * 10_000, 0.1)
        (True, False)
    """
    matcher = FastSequenceMatcher(None, first, second, autojunk=False)
    bounds_and_ratio = matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio
    return all(bound() >= threshold for bound in bounds_and_ratio)


def token_similarity(first: str, second: str) -> float:
    """Compares two pieces of code by their Python tokens, comments and layout left out.

    Example:
        >>> token_similarity("x = a + 1", "x = some_long_name + 1")
        0.8
    """
    old, new = _tokens(first), _tokens(second)
    return code_similarity(first, second) if old is None or new is None else _ratio(old, new)


def line_similarity(first: str, second: str) -> float:
    r"""Compares two pieces of code by their lines, blank ones left out.

    Example:
        >>> line_similarity("x = 1\nprint(x)", "x = 2\n\nif x:\n    print(x)")
        0.4
    """
    old, new = ([line.strip() for line in code.splitlines() if line.strip()] for code in (first, second))
    return _ratio(old, new)


def ast_similarity(first: str, second: str) -> float:
    """Compares two pieces of code by their syntax trees, walked depth first.

    Names of variables, functions and classes are left out; those of attributes, modules, what is imported from them and
    keyword arguments count.

    Example:
        >>> ast_similarity("total = 1  # one", "t=1"), ast_similarity("f(1)", "f(") == code_similarity("f(1)", "f(")
        (1.0, True)
    """
    old, new = _nodes(first), _nodes(second)
    return code_similarity(first, second) if old is None or new is None else _ratio(old, new)


def reference_similarity(first: str, second: str) -> float:
    """Compares two calls as the reference implementation of arXiv 2601.15141 does, for comparisons with its results.

    The JSON around the code makes any two short calls look alike, and junk detection makes long ones look different.

    Example:
        >>> round(code_similarity("print(2)", "x = [1]"), 2), round(reference_similarity("print(2)", "x = [1]"), 2)
        (0.0, 0.88)
    """
    old, new = (json.dumps({"name": "code_interpreter", "arguments": {"code": code}}) for code in (first, second))
    return SequenceMatcher(None, old, new).ratio()


SIMILARITIES: Final[dict[str, Similarity]] = {
    "characters": code_similarity,
    "tokens": token_similarity,
    "lines": line_similarity,
    "ast": ast_similarity,
    "reference": reference_similarity,
}


def get_similarity(similarity: str | Similarity) -> Similarity:
    """Looks a similarity up by name; a function is returned as it is.

    Raises:
        ConfigError: No similarity has this name, or it is neither a name nor a function.

    Example:
        >>> get_similarity("lines") is line_similarity, get_similarity(max) is max
        (True, True)
    """
    if isinstance(similarity, str) and similarity in SIMILARITIES:
        return SIMILARITIES[similarity]
    if isinstance(similarity, str) or not callable(similarity):
        raise ConfigError(
            f"similarity must be one of {', '.join(SIMILARITIES)} or a function of two pieces of code, "
            f"got {similarity!r:.80}"
        )
    return similarity


def _ratio(first: Sequence[str], second: Sequence[str]) -> float:
    if first == second:  # as when a model repeats itself; comparing takes quadratic time
        return 1.0
    return float(FastSequenceMatcher(None, first, second, autojunk=False).ratio())


def _tokens(code: str) -> list[str] | None:
    try:
        found = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError):
        return None
    return [token.string for token in found if token.type not in _LAYOUT]


def _nodes(code: str) -> list[str] | None:
    try:
        tree = ast.parse(code)
        return list(_walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _walk(node: Any) -> list[str]:
    nodes = [type(node).__name__]
    if isinstance(node, ast.Constant):
        nodes.append(repr(node.value))
    name = _GIVEN_ELSEWHERE.get(type(node))
    if name:
        nodes.append(str(getattr(node, name)))
    for child in ast.iter_child_nodes(node):
        nodes += _walk(child)
    return nodes
