"""Conversations, and assistant turns that remember how they were sampled.

A conversation is a tuple of ``{"role": ..., "content": ...}`` messages, the form that every chat template takes. An
assistant turn is a ``str``; an engine returns it as a `Completion`, a ``str`` that carries its token ids and their
log-probabilities, so that an agent never has to tokenise again what it sampled itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isnan, nan
from typing import Any, Final, TypeAlias

__all__ = [
    "UNSAMPLED",
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

UNSAMPLED: Final = -1
"""Stands among a `Completion`'s token ids for a stretch of its text that no sampled id covers, made by `splice`."""


def copy_conversation(conversation: Sequence[Message]) -> Conversation:
    """Returns a conversation with fresh message dicts (the strings, being immutable, are shared)."""
    return tuple(dict(message) for message in conversation)


class Completion(str):
    """An assistant turn together with the tokens it was sampled as.

    It is a ``str`` everywhere a ``str`` is wanted, and it survives pickling, copying and vector environments. Operations
    that make a new string (slicing, ``+``) give a plain ``str``: only `splice` keeps tokens.

    Args:
        text: The turn, without the end-of-turn marker.
        token_ids: The ``n`` sampled ids, the end-of-turn token included where one was sampled, and `UNSAMPLED` where a
            stretch of text has yet to be tokenised.
        logprobs: ``n`` natural log-probabilities, each under the context that its token was sampled in; NaN for
            `UNSAMPLED`.
        offsets: ``n`` non-decreasing character offsets into ``text``, where each token starts. A token that adds no text,
            such as the end-of-turn token, has the offset of whatever follows it. A token that starts inside a character
            has the offset of the token before it, so that the ids can be divided wherever the offsets rise.
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
    """Joins ``keep[:keep_end]`` and ``take[take_start:]`` and keeps the ids that both were sampled as.

    The tokens of ``keep`` stay as they are, those of ``take`` become grafted. Where both cuts fall between tokens, the
    tokens are joined there. Where a token straddles a cut, as when ``"\\n\\n<"`` was sampled as one, there are two rules:

    1. The join moves right to the first place that is a token border in both turns, as far as the text behind the two cuts
       is the same. Two calls begin alike, with ``<tool_call>`` or a fence, so this is the rule that nearly always applies.
       Every token is then a sampled one, the straddling one of ``keep`` included.
    2. Where there is no such place, whole tokens of ``keep`` before its cut and whole tokens of ``take`` behind its cut
       stay, and the characters left between them become one `UNSAMPLED` token. Whoever renders the turn tokenises them;
       their tokens are grafted actions without a sampled log-probability.

    Args:
        keep: The turn whose beginning stays.
        keep_end: Characters of ``keep`` that stay.
        take: The turn whose end is taken.
        take_start: Character of ``take`` at which the taken part begins.

    Returns:
        A `Completion`, or a plain ``str`` where one of the turns is one: no ids were sampled for part of the text, and the
        agent tokenises all of it.

    Example:
        >>> old = Completion("a <x>", token_ids=(1, 2, 3), logprobs=(-1.0, -1.0, -1.0), offsets=(0, 1, 3))
        >>> new = Completion("b:<y>", token_ids=(4, 5, 6, 7), logprobs=(-2.0, -2.0, -2.0, -2.0), offsets=(0, 2, 3, 4))
        >>> joined = splice(old, 2, new, 2)  # token 2 of the old turn is " <": the turns are joined behind it
        >>> joined, joined.token_ids, joined.grafted
        ('a <y>', (1, 2, 6, 7), (False, False, True, True))
        >>> bridged = splice(old, 2, new, 3)
        >>> bridged, bridged.token_ids, bridged.offsets
        ('a y>', (1, -1, 6, 7), (0, 1, 2, 3))
    """
    text = str(keep)[:keep_end] + str(take)[take_start:]
    if not isinstance(keep, Completion) or not isinstance(take, Completion):
        return text
    shift = keep_end - take_start
    alike = _length_alike(str(keep)[keep_end:], str(take)[take_start:])
    borders = _borders(keep), {border + shift for border in _borders(take)}
    head_end = tail_start = min((x for x in borders[0] & borders[1] if keep_end <= x <= keep_end + alike), default=-1)
    if head_end < 0:
        head_end = max((x for x in borders[0] if x <= keep_end), default=0)
        tail_start = min(x for x in borders[1] if x >= keep_end)
    head = sum(offset < head_end for offset in keep.offsets)
    tail = sum(offset + shift < tail_start for offset in take.offsets)
    bridge = int(head_end < tail_start)
    return Completion(
        text,
        keep.token_ids[:head] + (UNSAMPLED,) * bridge + take.token_ids[tail:],
        keep.logprobs[:head] + (nan,) * bridge + take.logprobs[tail:],
        keep.offsets[:head] + (head_end,) * bridge + tuple(offset + shift for offset in take.offsets[tail:]),
        keep.grafted[:head] + (True,) * (bridge + len(take.token_ids) - tail),
        take.finish_reason,
    )


def _length_alike(first: str, second: str) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((position for position, (left, right) in pairs if left != right), min(len(first), len(second)))


def _borders(turn: Completion) -> set[int]:
    return {*turn.offsets, len(turn)}


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


_LISTS: Final[dict[str, tuple[type, ...]]] = {
    "token_ids": (int,),
    "logprobs": (float, int, type(None)),
    "offsets": (int,),
    "grafted": (bool,),
}


def _encode_content(content: str) -> str | dict[str, object]:
    if not isinstance(content, Completion):
        return content
    return {
        "text": str(content),
        "token_ids": list(content.token_ids),
        "logprobs": [None if isnan(value) else value for value in content.logprobs],
        "offsets": list(content.offsets),
        "grafted": list(content.grafted),
        "finish_reason": content.finish_reason,
    }


def _decode_content(value: str | Mapping[str, Any]) -> str:
    if isinstance(value, str):
        return value
    for name, types in _LISTS.items():
        if not isinstance(value[name], list) or not all(type(item) in types for item in value[name]):
            kinds = " or ".join("null" if kind is type(None) else kind.__name__ for kind in types)
            raise ValueError(f"{name} must be a list of {kinds}, got {value[name]!r:.40}")
    for name in ("text", "finish_reason"):
        if not isinstance(value[name], str):
            raise ValueError(f"{name} must be a str, got {value[name]!r:.40}")
    try:
        logprobs = [nan if item is None else float(item) for item in value["logprobs"]]
    except OverflowError:
        raise ValueError("logprobs must be numbers that a float can hold") from None
    return Completion(**{**value, "logprobs": logprobs})
