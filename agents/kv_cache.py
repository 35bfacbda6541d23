"""Key-value caches that tokens are added to without copying, that begin with what is known, and that can be joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from transformers import PretrainedConfig
from transformers.cache_utils import DynamicCache, DynamicLayer

__all__ = ["begin_cache", "have_one_shape", "join_caches", "keeps_all_states", "make_cache", "row_states"]

_ROOM: Final = 64
"""Tokens that a full cache is enlarged by."""


class _RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keeps room for the tokens to come; ``keys`` and ``values`` are views of the part in use."""

    _rooms: list[torch.Tensor] | None = None

    def begin(self, rooms: list[torch.Tensor], length: int) -> None:
        """Takes tensors that hold the states of ``length`` tokens and, behind them, room for more."""
        self.lazy_initialization(*rooms)
        self._use(rooms, length)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        del args, kwargs
        added = key_states, value_states
        length = self.get_seq_length()
        end = length + key_states.shape[-2]
        if not self.is_initialized:
            self.lazy_initialization(*added)
        rooms = self._rooms
        if rooms is None or end > rooms[0].shape[-2]:
            rooms = [states.new_empty(*states.shape[:-2], end + _ROOM, states.shape[-1]) for states in added]
            if length:
                for room, states in zip(rooms, (self.keys, self.values), strict=True):
                    assert states is not None
                    room[..., :length, :] = states
        for room, states in zip(rooms, added, strict=True):
            room[..., length:end, :] = states
        return self._use(rooms, end)

    def _use(self, rooms: list[torch.Tensor], length: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (room[..., :length, :] for room in rooms)
        self._rooms, self.keys, self.values = rooms, keys, values
        return keys, values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        super().batch_select_indices(indices)
        self._rooms = None


def make_cache(config: PretrainedConfig) -> DynamicCache:
    """Makes an empty cache that suits a model.

    Layers with a sliding window or a recurrent state are those of transformers.
    """
    cache = DynamicCache(config=config)
    for number, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            cache.layers[number] = _RoomyLayer()  # type: ignore[no-untyped-call]
    return cache


def keeps_all_states(config: PretrainedConfig) -> bool:
    """Whether every layer of a model keeps the states of all tokens, which is what the functions below need."""
    return all(type(layer) is _RoomyLayer for layer in make_cache(config).layers)


def have_one_shape(cache: DynamicCache) -> bool:
    """Whether the keys and values of all layers have the same shape, which `row_states` needs."""
    return len({states.shape for layer in cache.layers for states in _states(layer)}) == 1


def row_states(cache: DynamicCache, row: int, slots: torch.Tensor) -> torch.Tensor:
    """Copies the states of a row out of a cache.

    Args:
        cache: One whose states `have_one_shape`.
        row: The row's number.
        slots: Which of its slots, as indices.

    Returns:
        Of shape ``(layers, 2, heads, slots, head size)``, keys before values.
    """
    layers = [torch.stack([states[row] for states in _states(layer)]) for layer in cache.layers]
    return torch.stack([layer[:, :, slots] for layer in layers])


def begin_cache(config: PretrainedConfig, known: Sequence[torch.Tensor | None], more: int) -> tuple[DynamicCache, int]:
    """Makes a cache whose rows begin with known states, aligned on the right.

    Args:
        config: The model's.
        known: The states of each row, as `row_states` gives them; ``None`` for none.
        more: Tokens that are to be added first, which there is room for.

    Returns:
        The cache and how many slots it holds; a row with fewer states has its first slots empty.
    """
    cache = make_cache(config)
    longest = max((states for states in known if states is not None), key=lambda states: states.shape[3], default=None)
    if longest is None:
        return cache, 0
    layers, kinds, heads, length, size = longest.shape
    block = longest.new_zeros(layers, kinds, len(known), heads, length + more + _ROOM, size)
    for row, states in enumerate(known):
        if states is not None:
            block[:, :, row, :, length - states.shape[3] : length] = states
    for layer, rooms in zip(cache.layers, block, strict=True):
        assert isinstance(layer, _RoomyLayer)
        layer.begin([*rooms], length)
    return cache, length


def join_caches(config: PretrainedConfig, caches: Sequence[DynamicCache]) -> DynamicCache:
    """Puts the rows of caches into one, aligned on the right."""
    width = max(cache.get_seq_length() for cache in caches)
    joined = make_cache(config)
    for number, layer in enumerate(joined.layers):
        assert isinstance(layer, _RoomyLayer)
        parts = [_states(cache.layers[number]) for cache in caches]
        rooms = [_aligned([part[kind] for part in parts], width) for kind in range(2)]
        layer.begin(rooms, width)
    return joined


def _aligned(parts: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    rows, (_, heads, _, size) = sum(len(part) for part in parts), parts[0].shape
    room = parts[0].new_zeros(rows, heads, width + _ROOM, size)
    first = 0
    for part in parts:
        room[first : first + len(part), :, width - part.shape[2] : width] = part
        first += len(part)
    return room


def _states(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return layer.keys, layer.values
