r"""Finds the answers that a response declares: boxes, ``Answer:`` lines and Python blocks.

Every function takes time linear in the length of the text, whatever the text.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

__all__ = ["PythonBlocks", "answer_lines", "boxes", "peel", "python_blocks", "without_thinking"]

_MAX_DECLARATIONS = 100
_THINKING_TAG = re.compile(
    r"""[<\[\u25c1]\|? (?i: (?:(?P<closing>/|end_(?:of_)?)|begin_of_|start_)? (?:seed:)?
    (?:think|thinking|thought|reasoning) ) \s*\|?[>\]\u25b7]""",
    re.VERBOSE,
)
_PYTHON_BLOCK = re.compile(
    r"^[ \t]*`{3,}[ \t]*(?:python3?|py)[ \t]*$.*?(?:^[ \t]*`{3,}[ \t]*$|\Z)", re.DOTALL | re.IGNORECASE | re.MULTILINE
)
_STRING = re.compile(r"(\"{3}|'{3}).*?\1|([\"'])[^\n]*?\2", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACES = re.compile(r"\\{1,2}(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_NOT_BLANK = re.compile(r"\S")
_ANSWER = r"(?:the[ \t]+)?(?:(?:final|correct|best)[ \t]+)?answer"
_ANSWER_LINE = re.compile(rf"^[ \t>#*_`\-]*{_ANSWER}(?:[ \t]+is)?[ \t*_`]*[:\uff1a][ \t*_`]*", re.IGNORECASE | re.MULTILINE)
_LABEL = re.compile(rf"^(?:\\[a-z]+\s*\{{\s*)?{_ANSWER}\s*(?:is\b\s*:?|[:=])\s*", re.IGNORECASE)
_PLEASANTRY = re.compile(r"I hope it is correct\.?\Z")
_STRUCK = re.compile(r"~~.*?~~")
_FENCE = re.compile(r"^([ \t]*)(`{3,})[ \t]*([^`\n]*?)[ \t]*$")
_PYTHON_TAGS = frozenset({"python", "python3", "py"})

_MAX_LAYERS = 20
_MARKDOWN_AND_SPACE = " \t\r\n*_`"
_BLANK = r"\s*_`~\u200b-\u200d\u2060\ufeff"
_LEADING = re.compile(rf"\A(?:[{_BLANK}]|\\\\|\\[,;:! ]|\\\Z|\\q?quad(?![A-Za-z]))+")
_TRAILING_REVERSED = re.compile(rf"\A(?:[,;:! ]\\|dauqq?\\|[\\{_BLANK}])+")
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_OPENINGS = ("$$", r"\[")
_STYLE = re.compile(
    r"^\\(?:(?:(?:display|text)style|large|Large|LARGE|huge|Huge|bf|rm)(?![A-Za-z])|(?:text)?color\s*\{[^{}]*\})"
)
_COMMAND = re.compile(
    r"\\(?:boxed|fbox|text|textbf|textit|textrm|texttt|emph|underline|mathbf|mathrm|mathit|mathsf|mathtt|boldsymbol|bm|mbox)"
    r"\s*\{(.*)\}",
    re.DOTALL,
)


def without_thinking(text: str) -> str:
    """Returns the text without thinking.

    Thinking is ``<think>...</think>``, what follows a tag that is never closed, and what precedes a closing tag that was
    never opened (chat templates that open the block in the prompt leave such text). The names ``thinking``, ``thought`` and
    ``reasoning`` do as well, in upper or lower case, and so do the forms ``[THINK]``, ``<|begin_of_thought|>``,
    ``<|START_THINKING|>``, ``<seed:think>`` and ``\u25c1think\u25b7``. A tag in a string of a Python block is none.

    Example:
        >>> [without_thinking(text) for text in ("<THINKING>17?</THINKING>16", "17?</think>16", "16<think>17")]
        ['16', '16', '16']
    """
    if _THINKING_TAG.search(text) is None:
        return text
    kept: list[str] = []
    start: int | None = 0
    for tag in _THINKING_TAG.finditer(_PYTHON_BLOCK.sub(_without_strings, text)):
        if tag["closing"]:
            if start is not None:
                kept.clear()
            start = tag.end()
        elif start is not None:
            kept.append(text[start : tag.start()])
            start = None
    return "".join(kept) if start is None else "".join(kept) + text[start:]


def _without_strings(block: re.Match[str]) -> str:
    """Blanks the strings of a program, all else staying where it was."""
    return _STRING.sub(lambda string: " " * len(string[0]), block[0])


def boxes(text: str) -> list[str]:
    r"""Returns the contents of the closed ``\boxed{...}`` and ``\fbox{...}``, by the position of their closing brace.

    A box inside another comes before it. An empty box, the form in which instructions mention it, is left out, and so is
    ``\boxed`` without a brace. The backslash may be doubled, as in escaped text. Only the last 100 boxes are returned.

    Example:
        >>> boxes(r"use \boxed{}: first \boxed{84}, then \boxed{\frac{1}{2}}, cut \boxed{9")
        ['84', '\\frac{1}{2}']
    """
    found: deque[tuple[int, int]] = deque(maxlen=_MAX_DECLARATIONS)
    open_braces: list[tuple[bool, int]] = []
    first = _BOX.search(text)
    for match in _BRACES.finditer(text, max(first.start() - 1, 0)) if first else ():
        token = match.group()
        if token == "}":
            if open_braces:
                is_box, start = open_braces.pop()
                if is_box and _NOT_BLANK.search(text, start, match.start()):
                    found.append((start, match.start()))
        elif token.endswith("{") and token != r"\{":
            open_braces.append((token != "{", match.end()))
    return [text[start:end].strip() for start, end in found]


def answer_lines(text: str) -> list[str]:
    """Returns what follows ``Answer:`` (also ``Final answer:``, ``The answer is:``) at the start of a line.

    Where nothing follows on the line, the next line that is not blank is taken; where that only opens a formula, so is the
    one after it. What is struck out (``~~16~~``) is left out; a tilde before the answer is read as \u2248. Only the
    last 100 lines are returned.

    Example:
        >>> answer_lines("Answer: 3\\nNo, wait.\\n**Final Answer:** **61**")
        ['3', '61']
    """
    answers = []
    for match in deque(_ANSWER_LINE.finditer(text), maxlen=_MAX_DECLARATIONS):
        line, _, rest = text[match.end() : match.end() + 2_000].partition("\n")
        if not line.strip():
            line, _, rest = rest.lstrip().partition("\n")
        if line.strip() in _OPENINGS:
            line = rest.lstrip().partition("\n")[0]
        line = _PLEASANTRY.sub("", _STRUCK.sub("", line)).strip(_MARKDOWN_AND_SPACE)
        answers.append(f"\u2248{line[1:]}" if line.startswith("~") else line)
    return answers


def peel(text: str) -> str:
    r"""Takes off the dress around an answer.

    That is math delimiters, emphasis, ``\text{}`` and its like, braces, a full stop, spaces of any kind and the words
    ``the answer is``. At most 20 layers come off. The full-width forms of ASCII, which East Asian text uses, are read as
    ASCII.

    Example:
        >>> peel(r"$\mathbf{\text{016}}$.")
        '016'
    """
    text = text.translate(_FULL_WIDTH)
    for _ in range(_MAX_LAYERS):
        before = text
        text = _without_label(_STYLE.sub("", _without_edges(text)))
        if text.endswith(".") and not text.endswith(".."):
            text = text[:-1]
        for left, right in _DELIMITERS:
            if len(text) > len(left) and text.startswith(left) and text.endswith(right):
                text = text[len(left) : -len(right)]
                break
        command = _COMMAND.fullmatch(text)
        inner = command.group(1) if command else text[1:-1] if text[:1] == "{" and text[-1:] == "}" else None
        if inner is not None and _is_balanced(inner):
            text = inner
        if text == before:
            break
    return text


def _without_edges(text: str) -> str:
    """Takes off space and emphasis; the end is matched backwards, for a search would try every place before it."""
    return _TRAILING_REVERSED.sub("", _LEADING.sub("", text)[::-1])[::-1]


def _without_label(text: str) -> str:
    r"""Takes off ``the answer is`` and ``Answer:``, also as ``\text{Answer:}``."""
    label = _LABEL.match(text)
    if label is None:
        return text
    rest = text[label.end() :]
    if not text.startswith("\\"):
        return rest
    return rest[1:] if rest.startswith("}") else text


def _is_balanced(text: str) -> bool:
    depth = 0
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "}":
            depth -= 1
            if depth < 0:
                return False
        elif token.endswith("{") and token != r"\{":
            depth += 1
    return depth == 0


@dataclass(frozen=True)
class PythonBlocks:
    """The blocks fenced with backticks and tagged as Python.

    Attributes:
        closed: The code of each closed block, in order.
        unclosed: Whether a block was opened that nothing closes.
    """

    closed: tuple[str, ...]
    unclosed: bool


def python_blocks(text: str) -> PythonBlocks:
    r"""Finds the blocks tagged ``python``, ``python3`` or ``py``.

    A fence tagged as Python opens a block wherever it stands, since a block that was cut off may precede it. Code indented
    along with its fence, as in a list, is moved back.

    Example:
        >>> python_blocks("```python\nprint(1)\n```\nwhich prints\n```\n1\n```\n").closed
        ('print(1)\n',)
    """
    closed: list[str] = []
    lines: list[str] = []
    indent, fence, tag = "", "", None
    for line in text.splitlines(keepends=True):
        match = _FENCE.match(line.rstrip("\r\n"))
        info = match.group(3).lower() if match else ""
        if match and info in _PYTHON_TAGS:
            indent, fence, tag, lines = match.group(1), match.group(2), "python", []
        elif match and tag is None:
            indent, fence, tag = match.group(1), match.group(2), info
        elif match and not info and len(match.group(2)) >= len(fence) and len(match.group(1)) <= len(indent) + 3:
            if tag == "python":
                closed.append("".join(lines))
            tag = None
        elif tag == "python":
            lines.append(line.removeprefix(indent))
    return PythonBlocks(tuple(closed), tag == "python")
