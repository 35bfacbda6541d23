"""Conversations, and assistant turns that remember how they were sampled.

A conversation is a tuple of ``{"role": ..., "content": ...}`` messages, the form that every chat template takes. An
assistant turn is a ``str``; an engine returns it as a `Completion`, a ``str`` that carries its token ids and their
log-probabilities, so that an agent never has to tokenise again what it sampled itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

__all__ = [
    "Completion",
    "Conversation",
    "Message",
    "copy_conversation",
    "decode_conversation",
    "encode_conversation",
    "splice",
]

Message: TypeAlias = dict[str, str]
Conversation: TypeAlias = tuple[Message, ...]


def copy_conversation(conversation: Sequence[Message]) -> Conversation:
    """Returns a conversation with fresh message dicts (the strings, being immutable, are shared)."""
    return tuple(dict(message) for message in conversation)


class Completion(str):
    """An assistant turn together with the tokens it was sampled as.

    It is a ``str`` everywhere a ``str`` is wanted, and it survives pickling, copying and vector environments. Operations
    that make a new string (slicing, ``+``) give a plain ``str``: only `splice` keeps tokens.

    Args:
        text: The turn, without the end-of-turn marker.
        token_ids: The ``n`` sampled ids, the end-of-turn token included where one was sampled.
        logprobs: ``n`` natural log-probabilities, each under the context that its token was sampled in.
        offsets: ``n`` non-decreasing character offsets into ``text``, where each token starts. A token that adds no text,
            such as the end-of-turn token, has the offset of whatever follows it.
        grafted: ``n`` flags, true where `splice` put a token under another context than it was sampled in, so that its
            log-probability has to be recomputed. Defaults to all false.
        finish_reason: ``"stop"`` where the model or a stop rule ended the turn, ``"length"`` where the token limit did.

    Raises:
        ValueError: The sequences differ in length, or an offset lies outside the text or decreases.

    Example:
        >>> turn = Completion("2+2", token_ids=(7, 9, 7), logprobs=(-0.1, -0.2, -0.3), offsets=(0, 1, 2))
        >>> turn == "2+2", turn.token_ids
        (True, (7, 9, 7))
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    offsets: tuple[int, ...]
    grafted: tuple[bool, ...]
    finish_reason: str

    def __new__(
        cls,
        text: str,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        offsets: Sequence[int],
        grafted: Sequence[bool] | None = None,
        finish_reason: str = "stop",
    ) -> Completion:
        self = super().__new__(cls, text)
        self.token_ids = tuple(token_ids)
        self.logprobs = tuple(logprobs)
        self.offsets = tuple(offsets)
        self.grafted = (False,) * len(self.token_ids) if grafted is None else tuple(grafted)
        self.finish_reason = finish_reason
        lengths = {len(self.token_ids), len(self.logprobs), len(self.offsets), len(self.grafted)}
        if len(lengths) != 1:
            raise ValueError(
                f"token_ids, logprobs, offsets and grafted must have one length, got {len(self.token_ids)}, "
                f"{len(self.logprobs)}, {len(self.offsets)} and {len(self.grafted)}"
            )
        bounds = (0, *self.offsets, len(text))
        if any(left > right for left, right in pairwise(bounds)):
            raise ValueError(f"offsets must rise within the {len(text)} characters of the text, got {self.offsets}")
        return self

    def __getnewargs__(self) -> tuple[object, ...]:  # type: ignore[override]
        return str(self), self.token_ids, self.logprobs, self.offsets, self.grafted, self.finish_reason

    def as_graft(self) -> Completion:
        """Returns the same turn with every token marked as moved to another context."""
        return Completion(
            str(self), self.token_ids, self.logprobs, self.offsets, (True,) * len(self.token_ids), self.finish_reason
        )


def splice(keep: str, keep_end: int, take: str, take_start: int) -> str:
    """Joins ``keep[:keep_end]`` and ``take[take_start:]``, with their tokens where both cuts fall between tokens.

    The tokens of ``keep`` stay as they are, those of ``take`` become grafted. Where a cut would divide a token, or one of
    the two is a plain ``str``, no sampled ids stand for the joined text: the result is then a plain ``str``, which the
    agent tokenises like any other text that it did not sample.

    Args:
        keep: The turn whose beginning stays.
        keep_end: Characters of ``keep`` that stay.
        take: The turn whose end is taken.
        take_start: Character of ``take`` at which the taken part begins.

    Returns:
        A `Completion`, or a plain ``str`` as described.

    Example:
        >>> old = Completion("ab", token_ids=(1, 2, 0), logprobs=(-1.0, -1.0, -1.0), offsets=(0, 1, 2))
        >>> new = Completion("xyz", token_ids=(3, 4, 0), logprobs=(-2.0, -2.0, -2.0), offsets=(0, 1, 3))
        >>> joined = splice(old, 1, new, 1)
        >>> joined, joined.token_ids, joined.grafted
        ('ayz', (1, 4, 0), (False, True, True))
    """
    text = str(keep)[:keep_end] + str(take)[take_start:]
    if not isinstance(keep, Completion) or not isinstance(take, Completion):
        return text
    head = sum(offset < keep_end for offset in keep.offsets)
    tail = sum(offset < take_start for offset in take.offsets)
    if not _is_token_border(keep, keep_end, head) or not _is_token_border(take, take_start, tail):
        return text
    shift = keep_end - take_start
    return Completion(
        text,
        keep.token_ids[:head] + take.token_ids[tail:],
        keep.logprobs[:head] + take.logprobs[tail:],
        keep.offsets[:head] + tuple(offset + shift for offset in take.offsets[tail:]),
        keep.grafted[:head] + (True,) * (len(take.token_ids) - tail),
        take.finish_reason,
    )


def _is_token_border(turn: Completion, position: int, first_token_after: int) -> bool:
    end_of_previous = (*turn.offsets, len(turn))[first_token_after]
    return end_of_previous == position


def encode_conversation(conversation: Sequence[Message]) -> list[dict[str, object]]:
    """Turns a conversation into plain JSON values; `decode_conversation` restores it, completions included."""
    return [{"role": message["role"], "content": _encode_content(message["content"])} for message in conversation]


def decode_conversation(value: Sequence[Mapping[str, Any]]) -> Conversation:
    """Restores what `encode_conversation` made.

    Raises:
        ValueError: The value is no encoded conversation.
    """
    try:
        return tuple({"role": message["role"], "content": _decode_content(message["content"])} for message in value)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not an encoded conversation: {error!r}") from error


def _encode_content(content: str) -> str | dict[str, object]:
    if not isinstance(content, Completion):
        return content
    return {
        "text": str(content),
        "token_ids": list(content.token_ids),
        "logprobs": list(content.logprobs),
        "offsets": list(content.offsets),
        "grafted": list(content.grafted),
        "finish_reason": content.finish_reason,
    }


def _decode_content(value: str | Mapping[str, Any]) -> str:
    return value if isinstance(value, str) else Completion(**value)
