"""Conversations as token ids, never tokenised twice.

A turn that was sampled keeps exactly the ids it was sampled as; the few characters between the tokens of two spliced turns
that no sampled id covers are tokenised by themselves. What a chat template puts between two turns is rendered
against a dummy history, so it does not depend on what came before: a template that drops old thinking blocks, or that adds
a newline after the end-of-turn token, changes nothing in tokens that are already there. So the prompt of every turn is a
prefix of the prompt of the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from math import nan
from typing import TYPE_CHECKING, Any, Final

from cleaner_env.conversation import UNSAMPLED, Completion, Message
from cleaner_env.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["RenderedConversation", "Renderer"]

_MARK: Final = "\u2e24mark\u2e25"
_ZERO_WIDTH_SPACE: Final = "\u200b"


@dataclass(frozen=True)
class RenderedConversation:
    """A conversation as ``n`` tokens.

    Attributes:
        token_ids: The ids.
        action_mask: True for the tokens of the assistant's turns. An end-of-turn token that had to be added to a sampled
            turn, because a stop string or the token limit ended it, was not the model's choice and is false.
        logprobs: The log-probabilities that sampled tokens came with; NaN for all others.
        grafted: True for the tokens that purification moved to another context than they were sampled in, or that it put
            between two spliced turns (see `cleaner_env.conversation.splice`). The latter belong to the purified turn like
            the others and are actions.
        turn_starts: Position of the first token of each of the assistant's turns.
    """

    token_ids: tuple[int, ...]
    action_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    grafted: tuple[bool, ...]
    turn_starts: tuple[int, ...] = ()

    def turn_span(self, turn: int) -> range:
        """Returns the positions of an assistant turn, counted from 0, and of the observation that follows it."""
        return range(self.turn_starts[turn], (*self.turn_starts, len(self.token_ids))[turn + 1])


class Renderer:
    """Renders conversations with a tokenizer's chat template.

    A template without a tool role gets tool messages as the user's, one without a system role gets the system message in
    front of the user's. Special tokens spelled out in the text of system, user and tool messages are broken up, so that
    text cannot end a turn or begin one.

    Args:
        tokenizer: A tokenizer with a chat template.

    Attributes:
        end_of_turn_id: The id that ends an assistant's turn.

    Raises:
        ConfigError: The tokenizer has no chat template, or the template does not show the content of messages.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.chat_template:
            raise ConfigError(
                "the tokenizer has no chat template; use an instruction-tuned model or set tokenizer.chat_template"
            )
        self.tokenizer = tokenizer
        # Many tokenizers list only some of their special tokens by name; all of them are parsed where they stand in a text.
        specials = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
        specials |= {str(token): i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._specials = tuple(sorted(specials, key=len, reverse=True))
        user, assistant = {"role": "user", "content": "x"}, {"role": "assistant", "content": _MARK}
        self._tool_role = "tool" if self._shows([user, assistant, {"role": "tool", "content": _MARK * 2}]) else "user"
        self._has_system_role = self._shows([{"role": "system", "content": _MARK}, user])
        tail = self._encode(self._after_mark([], generate=False))
        self.end_of_turn_id: int = next((i for i in tail if i in specials.values()), tokenizer.eos_token_id)
        self._opening = lru_cache(maxsize=4096)(self._opening_ids)
        self._between = lru_cache(maxsize=4096)(self._between_ids)

    def prompt_ids(self, conversation: Sequence[Message]) -> list[int]:
        """Returns the ids to generate the next assistant turn from.

        Raises:
            UsageError: The conversation is empty.
        """
        return list(self._render(conversation, for_generation=True).token_ids)

    def render(self, conversation: Sequence[Message]) -> RenderedConversation:
        """Renders a whole conversation, up to the end of its last assistant turn.

        What follows that turn, such as the last tool output of a truncated episode, no action depends on; it is left out.

        Raises:
            UsageError: The conversation is empty.
        """
        return self._render(conversation, for_generation=False)

    def _render(self, conversation: Sequence[Message], for_generation: bool) -> RenderedConversation:
        turns = [number for number, message in enumerate(conversation) if message["role"] == "assistant"]
        first = turns[0] if turns else len(conversation)
        if first == 0:
            raise UsageError("a conversation must begin with a system or user message, before the first assistant turn")
        parts = [_observation(self._opening(_frozen(conversation[:first])))]
        for turn, next_turn in zip(turns, [*turns[1:], None], strict=False):
            parts.append(self._turn(conversation[turn]["content"]))
            if next_turn is not None or for_generation:
                parts.append(_observation(self._between(_frozen(conversation[turn + 1 : next_turn]))))
        # The turns are every second part, behind what opens the conversation.
        ends = list(accumulate(len(part.token_ids) for part in parts))
        return replace(_joined(parts), turn_starts=tuple(ends[:-1:2]))

    def _turn(self, turn: str) -> RenderedConversation:
        if not isinstance(turn, Completion):
            ids = (*self._encode(turn, split_special_tokens=True), self.end_of_turn_id)
            return RenderedConversation(ids, (True,) * len(ids), (nan,) * len(ids), (False,) * len(ids))
        if UNSAMPLED in turn.token_ids:
            parts = [self._token(turn, number) for number in range(len(turn.token_ids))]
        else:
            parts = [RenderedConversation(turn.token_ids, (True,) * len(turn.token_ids), turn.logprobs, turn.grafted)]
        if not turn.token_ids or turn.token_ids[-1] not in self.end_ids:
            parts.append(_observation((self.end_of_turn_id,)))
        return _joined(parts)

    def _token(self, turn: Completion, number: int) -> RenderedConversation:
        ids: tuple[int, ...] = (turn.token_ids[number],)
        if ids == (UNSAMPLED,):
            ids = self._within(str(turn)[slice(*(*turn.offsets, len(turn))[number : number + 2])])
        return RenderedConversation(
            ids, (True,) * len(ids), (turn.logprobs[number],) * len(ids), (turn.grafted[number],) * len(ids)
        )

    def _within(self, text: str) -> tuple[int, ...]:
        """Tokenises text as it stands inside a turn: SentencePiece would put a space before text that begins one."""
        before = self._encode(_MARK)
        ids = self._encode(_MARK + text, split_special_tokens=True)
        return ids[len(before) :] if ids[: len(before)] == before else self._encode(text, split_special_tokens=True)

    @property
    def end_ids(self) -> frozenset[int]:
        """The ids that end a generated turn."""
        return frozenset({self.end_of_turn_id, self.tokenizer.eos_token_id} - {None})

    def _opening_ids(self, messages: tuple[tuple[str, str], ...]) -> tuple[int, ...]:
        return self._encode(self._template(self._adapted(messages), generate=True))

    def _between_ids(self, messages: tuple[tuple[str, str], ...]) -> tuple[int, ...]:
        """What stands between a turn's end-of-turn token and the beginning of the next turn."""
        ids = self._encode(self._after_mark(self._adapted(messages), generate=True))
        end = ids.index(self.end_of_turn_id) if self.end_of_turn_id in ids else -1
        return ids[end + 1 :]

    def _after_mark(self, messages: list[Message], generate: bool) -> str:
        history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _MARK}]
        text = self._template([*history, *messages], generate)
        if _MARK not in text:
            raise ConfigError("the chat template does not show the content of assistant messages")
        return text.split(_MARK, 1)[1]

    def _adapted(self, messages: tuple[tuple[str, str], ...]) -> list[Message]:
        adapted: list[Message] = []
        for role, content in messages:
            role = self._tool_role if role == "tool" else role
            content = self._without_specials(content)
            if adapted and adapted[-1]["role"] == "system" and role == "user" and not self._has_system_role:
                adapted[-1] = {"role": "user", "content": f"{adapted[-1]['content']}\n\n{content}"}
            else:
                adapted.append({"role": role, "content": content})
        return adapted

    def _without_specials(self, content: str) -> str:
        for special in self._specials:
            if special in content:
                content = content.replace(special, special[0] + _ZERO_WIDTH_SPACE + special[1:])
        return content

    def _shows(self, messages: list[Message]) -> bool:
        from jinja2 import TemplateError

        try:
            text = self._template(messages, generate=True)
        except TemplateError:
            return False
        return all(message["content"] in text for message in messages)

    def _template(self, messages: list[Message], generate: bool) -> str:
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate))

    def _encode(self, text: str, **options: Any) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False, **options)["input_ids"])


def _observation(ids: tuple[int, ...]) -> RenderedConversation:
    return RenderedConversation(ids, (False,) * len(ids), (nan,) * len(ids), (False,) * len(ids))


def _joined(parts: Sequence[RenderedConversation]) -> RenderedConversation:
    return RenderedConversation(
        tuple(i for part in parts for i in part.token_ids),
        tuple(i for part in parts for i in part.action_mask),
        tuple(i for part in parts for i in part.logprobs),
        tuple(i for part in parts for i in part.grafted),
    )


def _frozen(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    return tuple((message["role"], message["content"]) for message in messages)
