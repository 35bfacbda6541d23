"""Recorded episodes as examples for supervised fine-tuning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cleaner_env.agents.rendering import Renderer
from cleaner_env.agents.sft import SFTExample, conversation_example
from cleaner_env.wrappers.records import EpisodeRecord

__all__ = ["KEEP", "episode_examples"]

KEEP = ("correct", "answered", "all")
"""Which episodes are learned from: those with a right answer, with any answer, or all."""


def episode_examples(
    records: Iterable[EpisodeRecord], renderer: Renderer, keep: str = "correct", context_tokens: int | None = None
) -> tuple[list[SFTExample], Counter[str]]:
    """Renders the histories of recorded episodes, purified ones as purified.

    Everything the assistant says in a history is learned, calls that failed and stand in it included: purify with
    ``cleaner replay`` first where they should not.

    Args:
        records: The episodes.
        renderer: Renders them.
        keep: One of `KEEP`.
        context_tokens: Longer histories are left out; ``None`` for no limit.

    Returns:
        The examples, and how many episodes were ``"used"`` and left out as ``"not kept"``, ``"too long"`` or ``"empty"``,
        which is to say that the assistant says nothing in them.
    """
    examples, counts = [], Counter[str]()
    for record in records:
        if not _is_kept(record, keep):
            counts["not kept"] += 1
        elif all(message["role"] != "assistant" for message in record.conversation):
            counts["empty"] += 1
        else:
            example = conversation_example(record.conversation, renderer)
            fits = context_tokens is None or len(example.token_ids) <= context_tokens
            counts["used" if fits else "too long"] += 1
            if fits:
                examples.append(example)
    return examples, counts


def _is_kept(record: EpisodeRecord, keep: str) -> bool:
    return keep == "all" or record.info.get("verdict") in (("correct",) if keep == "correct" else ("correct", "incorrect"))
