"""Builds the page of ``cleaner view``.

The page is one file: markup, style, script and data. Its content security policy allows this one script and this one style
by their hashes and nothing else, no network included. Episode text is hostile: it lies in the page as JSON in which no
character can end the element, and the script writes it as text nodes only.

Texts are stored once and referred to by number, since a run says the same things many times: the system message, and every
turn that purification left alone.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Iterable
from importlib.resources import files
from typing import Any, Final

from cleaner_env.conversation import Conversation
from cleaner_env.tool_calls import TOOL_FORMATS, ToolFormat
from cleaner_env.viewer.alignment import Row, align
from cleaner_env.wrappers.purification import Turn
from cleaner_env.wrappers.records import EpisodeRecord

__all__ = ["build_page"]


def build_page(records: Iterable[EpisodeRecord], title: str) -> str:
    """Returns a page that shows episodes, pure ASCII.

    Args:
        records: The episodes.
        title: What the page is called, such as the run's path.

    Example:
        >>> said = ({"role": "assistant", "content": "</script>"},)
        >>> page = build_page([EpisodeRecord("p-1", "exam", (), (Turn("</script>"),), said)], "a run")
        >>> page.count("</script>"), "a run" in page
        (2, True)
    """
    texts = _Texts()
    episodes = [_episode(record, texts) for record in records]
    data = {"texts": texts.all, "episodes": episodes}
    style, script = _part("page.css"), "".join(map(_part, ("difference.js", "episode.js", "page.js")))
    parts = {
        "TITLE": html.escape(_printable(title)).encode("ascii", "xmlcharrefreplace").decode("ascii"),
        "POLICY": (
            f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
            "base-uri 'none'; form-action 'none'"
        ),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": _json(data),
    }
    pieces = _part("page.html").split("@@")
    return "".join(parts[piece] if position % 2 else piece for position, piece in enumerate(pieces))


_SHOWN_OF_REPAIRS: Final = ("outcome", "similarity", "attempts", "hidden_tokens", "logprob_gap")


class _Texts:
    """Numbers texts, equal ones alike."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str | None) -> int:
        """The number of a text, -1 for none."""
        return -1 if text is None else self._numbers.setdefault(str(text), len(self._numbers))

    @property
    def all(self) -> list[str]:
        """The texts, each at its number."""
        return list(self._numbers)


def _episode(record: EpisodeRecord, texts: _Texts) -> dict[str, Any]:
    info = record.info
    tool_format = TOOL_FORMATS.get(record.tool_format or "")
    seconds = [turn.seconds for turn in record.turns if turn.seconds is not None]
    total = sum(seconds)
    return {
        "problem": record.problem_id or "",
        "result": _result(record),
        "purified": record.purified,
        "reward": record.reward,
        "labels": _scalars(record.labels),
        "facts": _scalars(
            {
                "environment": record.env_id,
                "data set": record.dataset,
                "seed": record.seed,
                "stream": None if record.stream is None else ", ".join(map(str, record.stream)),
                "end": info.get("stop_condition") or (None if record.finished else "given up"),
                "answer": info.get("extracted_answer"),
                "tool calls": info.get("tool_calls"),
                "tool errors": info.get("tool_errors"),
                "hidden tokens": _saar(info).get("hidden_tokens"),
                "seconds in steps": round(total, 3) if seconds and math.isfinite(total) else None,
            }
        ),
        "start": _messages(record.start, texts),
        "rows": [_row(row, texts, tool_format) for row in align(record)],
    }


def _scalars(facts: dict[str, Any]) -> dict[str, Any]:
    """What can be shown in a line: others may have put anything there."""
    return {name: fact for name, fact in facts.items() if isinstance(fact, (str, int, float))}


def _saar(info: dict[str, Any]) -> dict[str, Any]:
    saar = info.get("saar")
    return saar if isinstance(saar, dict) else {}


def _result(record: EpisodeRecord) -> str:
    if not record.finished:
        return "unfinished"
    verdict = record.info.get("verdict")
    return verdict if isinstance(verdict, str) else "unknown"


def _row(row: Row, texts: _Texts, tool_format: ToolFormat | None) -> dict[str, Any]:
    repair = row.repair and {name: row.repair.get(name) for name in _SHOWN_OF_REPAIRS}
    raw = [[_said(turn.action, texts, tool_format), *_answered(turn, texts)] for turn in row.raw]
    purified = [
        [message["role"], _said(message["content"], texts, tool_format if message["role"] == "assistant" else None)]
        for message in row.purified
    ]
    return {"raw": raw, "purified": purified, "repair": repair}


def _said(text: str, texts: _Texts, tool_format: ToolFormat | None) -> list[int]:
    """A text and, where it calls the tool, the reasoning before the call and the code of it, as numbers."""
    parsed = tool_format.parse(str(text)) if tool_format else None
    if parsed is None or parsed.code is None:
        return [texts.number(text)]
    return [texts.number(text), texts.number(parsed.reasoning), texts.number(parsed.code)]


def _answered(turn: Turn, texts: _Texts) -> list[Any]:
    return [texts.number(turn.observation), turn.tool_status, turn.error_type, turn.seconds]


def _messages(conversation: Conversation, texts: _Texts) -> list[list[Any]]:
    return [[message["role"], texts.number(message["content"])] for message in conversation]


def _part(name: str) -> str:
    return files("cleaner_env.viewer").joinpath(name).read_text(encoding="ascii")


def _hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode("utf-8")).digest()).decode("ascii")


def _json(value: Any) -> str:
    """ASCII JSON that may stand in a script element: it has no `<`, so nothing in it opens or ends one."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
