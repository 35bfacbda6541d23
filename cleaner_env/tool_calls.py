r"""Splits an assistant turn into reasoning and a tool call, for each way of writing a call.

Two formats are known by name:

* ``"hermes"``: ``<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "..."}}\n</tool_call>``, what Qwen and
  Hermes models are trained on;
* ``"python"``: a closed block fenced with three backticks and the word ``python``.

What counts as a call, in both: text inside ``<think>...</think>`` is thinking, not a call; so is what follows a ``<think>``
that is never closed, and what comes before a ``</think>`` that was never opened, for templates that open it in the prompt.
Between the beginning and the end of a call these tags are part of its code.
A turn makes one call: a second one, an unclosed one or one that does not parse makes the turn *malformed*, which the model
is told as a tool error and may correct. What follows the call in its turn is kept as text and has no effect. A turn without
a call is a final answer.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from cleaner_env.errors import ConfigError

__all__ = ["TOOL_FORMATS", "ParsedTurn", "ToolFormat", "get_tool_format", "strip_thinking"]

TOOL_NAME: Final = "code_interpreter"
_THOUGHT: Final = re.compile("<think>.*?(?:</think>|\\Z)", re.DOTALL)


@dataclass(frozen=True)
class ParsedTurn:
    """An assistant turn, taken apart.

    Attributes:
        text: The whole turn.
        code: The code to run, ``None`` where the turn has no well-formed call.
        call_start: Character at which the call begins; the length of the text where there is none.
        malformed: What is wrong with the call, ``None`` where it is fine or there is none.
    """

    text: str
    code: str | None
    call_start: int
    malformed: str | None = None

    @property
    def reasoning(self) -> str:
        """The text before the call."""
        return self.text[: self.call_start]

    @property
    def call_text(self) -> str:
        """The call as it was written, and what follows it."""
        return self.text[self.call_start :]

    @property
    def has_call(self) -> bool:
        """Whether the turn tries to call the tool, well-formed or not."""
        return self.code is not None or self.malformed is not None


def strip_thinking(text: str, opening: re.Pattern[str], closing: re.Pattern[str]) -> str:
    """Blanks out thinking with spaces, so that positions in the text stay what they were. Takes linear time.

    Args:
        text: A turn.
        opening: What begins a call. A tag behind it is part of the call.
        closing: What ends a call.
    """
    if "</think>" in text:
        outside = _without_calls(text, opening, closing)
        closed = outside.find("</think>")
        if closed >= 0 and "<think>" not in outside[:closed]:
            end = closed + len("</think>")
            text = " " * end + text[end:]
    blanked = _THOUGHT.sub(_blank, text)
    call = opening.search(blanked)
    return blanked if call is None else blanked[: call.end()] + text[call.end() :]


def _without_calls(text: str, opening: re.Pattern[str], closing: re.Pattern[str]) -> str:
    """Blanks out every call that is closed before another one begins."""
    begins = list(opening.finditer(text))
    pieces, position = [], 0
    bounds = [*(begin.start() for begin in begins), len(text)]
    for begin, bound in zip(begins, bounds[1:], strict=True):
        end = closing.search(text, begin.end(), bound)
        if end is not None:
            pieces += [text[position : begin.start()], " " * (end.end() - begin.start())]
            position = end.end()
    return "".join((*pieces, text[position:]))


def _blank(found: re.Match[str]) -> str:
    return " " * len(found[0])


class ToolFormat(ABC):
    """A way of writing a tool call.

    Attributes:
        name: The name it is chosen by.
        instructions: What the system message tells the model about it.
        stop: Strings that end a turn when generated.
    """

    name: str
    instructions: str
    stop: tuple[str, ...]

    @abstractmethod
    def parse(self, text: str) -> ParsedTurn:
        """Takes a turn apart. Never raises, whatever the text."""

    @abstractmethod
    def render(self, reasoning: str, code: str) -> str:
        """Writes the turn that calls the tool with ``code`` after ``reasoning``."""


class HermesFormat(ToolFormat):
    """JSON inside ``<tool_call>`` tags."""

    name = "hermes"
    instructions = (
        f"You can run Python with the tool {TOOL_NAME}. Variables persist between calls; print what you want to see. "
        "To call it, write one call per turn in exactly this form and stop:\n"
        "<tool_call>\n"
        f'{{"name": "{TOOL_NAME}", "arguments": {{"code": "print(1 + 1)"}}}}\n'
        "</tool_call>"
    )
    stop = ("</tool_call>",)
    _OPEN: Final = "<tool_call>"
    _CLOSE: Final = "</tool_call>"
    _OPENING: Final = re.compile(_OPEN)
    _CLOSING: Final = re.compile(_CLOSE)

    def parse(self, text: str) -> ParsedTurn:
        visible = strip_thinking(text, self._OPENING, self._CLOSING)
        start = visible.find(self._OPEN)
        if start < 0:
            return ParsedTurn(text, None, len(text))
        end = visible.find(self._CLOSE, start)
        if end < 0:
            return ParsedTurn(text, None, start, "the tool call is not closed with </tool_call>")
        if self._OPEN in visible[end:]:
            return ParsedTurn(text, None, start, "only one tool call is allowed per turn")
        body = text[start + len(self._OPEN) : end]
        code, malformed = _code_of_json_call(body)
        return ParsedTurn(text, code, start, malformed)

    def render(self, reasoning: str, code: str) -> str:
        call = json.dumps({"name": TOOL_NAME, "arguments": {"code": code}}, ensure_ascii=False)
        return f"{reasoning}{self._OPEN}\n{call}\n{self._CLOSE}"


def _code_of_json_call(body: str) -> tuple[str | None, str | None]:
    """Returns the code of a JSON call and what is wrong with it, one of the two ``None``."""
    try:
        call = json.loads(body)
    except (ValueError, RecursionError) as error:
        detail = str(error) if isinstance(error, json.JSONDecodeError) else "too deeply nested or not a number"
        return None, f"the tool call is not valid JSON: {detail}"
    if not isinstance(call, dict):
        return None, 'the tool call must be a JSON object with "name" and "arguments"'
    if call.get("name") != TOOL_NAME:
        return None, f"there is no tool called {str(call.get('name'))[:80]!r}; the only tool is {TOOL_NAME!r}"
    arguments = call.get("arguments")
    code = arguments.get("code") if isinstance(arguments, dict) else None
    if not isinstance(code, str):
        return None, 'the arguments must be {"code": "..."} with the code as a string'
    return code, None


class PythonFenceFormat(ToolFormat):
    """A block fenced with backticks and tagged ``python``."""

    name = "python"
    instructions = (
        "You can run Python. Variables persist between calls; print what you want to see. To run code, write one block per "
        "turn in exactly this form and stop:\n"
        "```python\n"
        "print(1 + 1)\n"
        "```"
    )
    stop = ("\n```\n",)
    _OPEN: Final = re.compile(r"^[ \t]*(```python[ \t]*\r?\n)", re.MULTILINE)
    _CLOSE: Final = re.compile(r"^[ \t]*```[ \t]*\r?$", re.MULTILINE)

    def parse(self, text: str) -> ParsedTurn:
        visible = strip_thinking(text, self._OPEN, self._CLOSE)
        opening = self._OPEN.search(visible)
        if opening is None:
            return ParsedTurn(text, None, len(text))
        start = opening.start(1)
        closing = self._CLOSE.search(visible, opening.end())
        if closing is None:
            return ParsedTurn(text, None, start, "the code block is not closed with ```")
        if self._OPEN.search(visible, closing.end()):
            return ParsedTurn(text, None, start, "only one python block is allowed per turn")
        return ParsedTurn(text, text[opening.end() : closing.start()].rstrip("\r\n"), start)

    def render(self, reasoning: str, code: str) -> str:
        return f"{reasoning}```python\n{code}\n```"


TOOL_FORMATS: Final[dict[str, ToolFormat]] = {
    tool_format.name: tool_format for tool_format in (HermesFormat(), PythonFenceFormat())
}


def get_tool_format(name: str | ToolFormat) -> ToolFormat:
    r"""Looks a format up by name; an instance of `ToolFormat` is returned as it is.

    Raises:
        ConfigError: No format has this name.

    Example:
        >>> turn = get_tool_format("python").parse("Let me see.\n```python\nprint(2)\n```")
        >>> turn.reasoning, turn.code
        ('Let me see.\n', 'print(2)')
    """
    if isinstance(name, ToolFormat):
        return name
    try:
        return TOOL_FORMATS[name]
    except (KeyError, TypeError):
        raise ConfigError(f"unknown tool_format {name!r}; choose one of {', '.join(sorted(TOOL_FORMATS))}") from None
