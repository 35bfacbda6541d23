"""The states of token sequences that a model has read before, to be found by the beginning of new ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

__all__ = ["PrefixStore"]

_BLOCK: Final = 16
"""Tokens by which beginnings are looked up; a match is then extended token by token."""


@dataclass(frozen=True, eq=False)
class _Entry:
    token_ids: tuple[int, ...]
    states: torch.Tensor
    keys: tuple[int, ...]


class PrefixStore:
    """Keeps states of the sequences used last, within a limit of memory.

    Sequences are looked up by a hash chained over blocks of 16 tokens, so a look-up costs time in proportion to the
    sequence alone, whatever is stored. What a hash finds is compared token by token.

    Args:
        max_bytes: Memory for states; 0 keeps nothing.

    Example:
        >>> store = PrefixStore(max_bytes=10**6)
        >>> ids = list(range(40))
        >>> store.add(ids, torch.zeros(2, 2, 1, 40, 4))
        >>> known = store.longest([*ids[:35], 7, 7])
        >>> known.shape
        torch.Size([2, 2, 1, 35, 4])
        >>> store.longest([7, 7]) is None
        True
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._by_block: dict[int, _Entry] = {}
        self._entries: OrderedDict[_Entry, None] = OrderedDict()

    def add(self, token_ids: Sequence[int], states: torch.Tensor) -> None:
        """Keeps the states of a sequence, in place of those of one that it goes on from.

        Args:
            token_ids: The sequence.
            states: As `row_states` gives them, one slot per token.
        """
        size = states.numel() * states.element_size()
        keys = _block_keys(token_ids)
        if not keys or size > self.max_bytes:
            return
        before = self._find(token_ids, keys)
        if before is not None:
            shared = _in_common(before.token_ids, token_ids)
            if shared == len(token_ids):
                self._entries.move_to_end(before)
                return
            if shared == len(before.token_ids):
                self._drop(before)
        entry = _Entry(tuple(token_ids), states, keys)
        while self.bytes + size > self.max_bytes:
            self._drop(next(iter(self._entries)))
        self._entries[entry] = None
        self._by_block |= dict.fromkeys(keys, entry)
        self.bytes += size

    def longest(self, token_ids: Sequence[int]) -> torch.Tensor | None:
        """Returns the states of the longest known beginning of a sequence, all of it at most; ``None`` for none.

        Beginnings of fewer than 16 tokens are not looked for.
        """
        entry = self._find(token_ids, _block_keys(token_ids))
        if entry is None:
            return None
        self._entries.move_to_end(entry)
        return entry.states[:, :, :, : _in_common(entry.token_ids, token_ids)]

    def clear(self) -> None:
        """Forgets everything."""
        self._entries.clear()
        self._by_block.clear()
        self.bytes = 0

    def _find(self, token_ids: Sequence[int], keys: Sequence[int]) -> _Entry | None:
        for number in range(len(keys), 0, -1):
            entry = self._by_block.get(keys[number - 1])
            if entry is not None and _in_common(entry.token_ids, token_ids) >= number * _BLOCK:
                return entry
        return None

    def _drop(self, entry: _Entry) -> None:
        del self._entries[entry]
        self.bytes -= entry.states.numel() * entry.states.element_size()
        for key in entry.keys:
            if self._by_block.get(key) is entry:
                del self._by_block[key]


def _block_keys(token_ids: Sequence[int]) -> tuple[int, ...]:
    keys, key = [], 0
    for end in range(_BLOCK, len(token_ids) + 1, _BLOCK):
        key = hash((key, *token_ids[end - _BLOCK : end]))
        keys.append(key)
    return tuple(keys)


def _in_common(first: Sequence[int], second: Sequence[int]) -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count
