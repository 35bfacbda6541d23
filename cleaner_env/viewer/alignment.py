"""Puts what was said next to what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cleaner_env.conversation import Conversation, Message
from cleaner_env.wrappers.purification import Turn
from cleaner_env.wrappers.records import EpisodeRecord

__all__ = ["Row", "align"]


@dataclass(frozen=True)
class Row:
    """Turns that belong together.

    Attributes:
        raw: What was said: one turn, or a failed turn with the corrections of it.
        purified: The messages that stand for it in the final history; none where it left no trace.
        repair: The entry of `EpisodeRecord.repairs`, ``None`` where nothing was repaired.
    """

    raw: tuple[Turn, ...]
    purified: Conversation
    repair: dict[str, Any] | None = None


def align(record: EpisodeRecord) -> list[Row]:
    r"""Pairs the turns of an episode with those of its final history.

    Every turn and every message after the start stands in exactly one row, in order, whatever the record says of repairs.

    Example:
        >>> say = lambda text: {"role": "assistant", "content": text}
        >>> record = EpisodeRecord(
        ...     "p", "exam", (), (Turn("wrong"), Turn("right"), Turn("42")),
        ...     (say("right"), say("42")), repairs=({"turn": 0, "raw_turns": 2, "outcome": "deep"},))
        >>> [(len(row.raw), row.purified[0]["content"]) for row in align(record)]
        [(2, 'right'), (1, '42')]
    """
    purified = _turns(record.conversation[len(record.start) :])
    repairs = {repair["turn"]: repair for repair in record.repairs}
    rows: list[Row] = []
    taken = 0
    while taken < len(record.turns) or len(rows) < len(purified):
        repair = repairs.get(len(rows))
        count = max(1, repair["raw_turns"]) if repair else 1
        stands = purified[len(rows)] if len(rows) < len(purified) else ()
        rows.append(Row(record.turns[taken : taken + count], stands, repair))
        taken += count
    return rows


def _turns(messages: Sequence[Message]) -> list[Conversation]:
    """Divides messages before every assistant's one."""
    turns: list[Conversation] = []
    for message in messages:
        if message["role"] == "assistant" or not turns:
            turns.append((message,))
        else:
            turns[-1] = (*turns[-1], message)
    return turns
