"""Spaces for language: one assistant turn, and a whole conversation.

Gymnasium's own ``Text`` has a fixed alphabet and refuses the empty string; these take any Unicode. Both are registered with
Gymnasium's vector functions, so that ``gym.make_vec`` works in ``sync`` and in ``async`` mode.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from types import ModuleType
from typing import Any, Final

import numpy as np
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Space, Tuple
from gymnasium.vector.utils import (
    batch_differing_spaces,
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)

from cleaner_env.conversation import (
    Conversation,
    decode_conversation,
    encode_conversation,
)

__all__ = ["ConversationSpace", "UtteranceSpace"]

SHARED_BYTES: Final = 1 << 20
"""Bytes of shared memory per environment of an asynchronous vector environment."""

_SAMPLE_ALPHABET: Final = "abcxyz ABC 012 +-=()\n\t.,:;!?'\"\\{}<>äß€λ漢🙂"
_LENGTH_BYTES: Final = 8


class UtteranceSpace(Space[str]):
    r"""All strings: what an assistant may write in one turn.

    Args:
        seed: Seed of `sample`.

    Example:
        >>> space = UtteranceSpace(seed=0)
        >>> "" in space, "any\ntext 漢" in space, b"bytes" in space
        (True, True, False)
    """

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Always false: strings have no fixed length."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Draws a random string of at most 32 characters.

        Raises:
            ValueError: A mask or probability is given; this space has none.
        """
        _refuse_masks(mask, probability)
        length = int(self.np_random.integers(0, 33))
        return "".join(_SAMPLE_ALPHABET[i] for i in self.np_random.integers(0, len(_SAMPLE_ALPHABET), length))

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a ``str``."""
        return isinstance(x, str)

    def to_jsonable(self, sample_n: Iterable[str]) -> list[Any]:
        """Turns samples into plain JSON values."""
        return [message["content"] for message in encode_conversation([{"role": "", "content": x} for x in sample_n])]

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """Restores samples from what `to_jsonable` made."""
        return [message["content"] for message in decode_conversation([{"role": "", "content": x} for x in sample_n])]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UtteranceSpace)

    def __repr__(self) -> str:
        return "UtteranceSpace()"


class ConversationSpace(Space[Conversation]):
    """All conversations: tuples of ``{"role": str, "content": str}`` messages.

    Args:
        seed: Seed of `sample`.

    Example:
        >>> space = ConversationSpace(seed=0)
        >>> ({"role": "user", "content": "hi"},) in space, ({"role": "user"},) in space
        (True, False)
    """

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Always false: conversations have no fixed length."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> Conversation:
        """Draws a random conversation of one to four messages.

        Raises:
            ValueError: A mask or probability is given; this space has none.
        """
        _refuse_masks(mask, probability)
        utterances = UtteranceSpace(seed=self.np_random)
        roles = ("user", "assistant", "tool", "assistant")[: int(self.np_random.integers(1, 5))]
        return tuple({"role": role, "content": utterances.sample()} for role in roles)

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a tuple of messages with exactly the keys ``role`` and ``content``, both strings."""
        return isinstance(x, tuple) and all(
            isinstance(message, dict)
            and message.keys() == {"role", "content"}
            and all(isinstance(value, str) for value in message.values())
            for message in x
        )

    def to_jsonable(self, sample_n: Iterable[Conversation]) -> list[Any]:
        """Turns samples into plain JSON values."""
        return [encode_conversation(conversation) for conversation in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[Conversation]:
        """Restores samples from what `to_jsonable` made."""
        return [decode_conversation(conversation) for conversation in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConversationSpace)

    def __repr__(self) -> str:
        return "ConversationSpace()"


def _refuse_masks(mask: Any, probability: Any) -> None:
    if mask is not None or probability is not None:
        raise ValueError("text spaces take neither a mask nor a probability")


def _batch_differing(spaces: Sequence[Space[Any]]) -> Tuple[Any]:
    return Tuple([deepcopy(space) for space in spaces], seed=deepcopy(spaces[0].np_random))


for _space in (UtteranceSpace, ConversationSpace):
    # Gymnasium dispatches on the type of the elements, which its own annotation does not say.
    batch_differing_spaces.register(_space, _batch_differing)


class _SharedConversations(Sequence[Any]):
    """A live view of the observations that worker processes wrote.

    Gymnasium reads shared memory once and afterwards only deep-copies what it read, so the view must decode when it is
    copied or looked at, not when it is made.
    """

    def __init__(self, slots: Sequence[Any]) -> None:
        self._slots = slots

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self)[index]
        slot = memoryview(self._slots[index]).cast("B")
        length = int.from_bytes(slot[:_LENGTH_BYTES], "little")
        return decode_conversation(json.loads(bytes(slot[_LENGTH_BYTES : _LENGTH_BYTES + length]) or b"[]"))

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[Any, ...]:
        return tuple(self)


@create_shared_memory.register(ConversationSpace)
def _create_shared(space: ConversationSpace, n: int = 1, ctx: ModuleType | None = None) -> list[Any]:
    import multiprocessing

    context: Any = ctx or multiprocessing
    return [context.RawArray("B", SHARED_BYTES) for _ in range(n)]


@read_from_shared_memory.register(ConversationSpace)
def _read_shared(space: ConversationSpace, shared_memory: Sequence[Any], n: int = 1) -> _SharedConversations:
    return _SharedConversations(shared_memory)


@write_to_shared_memory.register(ConversationSpace)
def _write_shared(space: ConversationSpace, index: int, value: Conversation, shared_memory: Sequence[Any]) -> None:
    payload = json.dumps(encode_conversation(value)).encode()
    if len(payload) + _LENGTH_BYTES > SHARED_BYTES:
        raise CustomSpaceError(
            f"a conversation of {len(payload)} bytes does not fit the {SHARED_BYTES} bytes of shared memory; "
            'make the vector environment with vector_kwargs={"shared_memory": False}'
        )
    slot = memoryview(shared_memory[index]).cast("B")
    slot[_LENGTH_BYTES : _LENGTH_BYTES + len(payload)] = payload
    slot[:_LENGTH_BYTES] = len(payload).to_bytes(_LENGTH_BYTES, "little")
