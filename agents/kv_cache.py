"""A key-value cache to which tokens can be added without copying it."""

from __future__ import annotations

from typing import Any, Final

import torch
from transformers import PretrainedConfig
from transformers.cache_utils import DynamicCache, DynamicLayer

__all__ = ["make_cache"]

_ROOM: Final = 64
"""Tokens that a full cache is enlarged by."""


class _RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keeps room for the tokens to come; ``keys`` and ``values`` are views of the part in use."""

    _rooms: list[torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        del args, kwargs
        added = key_states, value_states
        length = self.get_seq_length()
        end = length + key_states.shape[-2]
        if not self.is_initialized:
            self.lazy_initialization(*added)
        if self._rooms is None or end > self._rooms[0].shape[-2]:
            self._rooms = [states.new_empty(*states.shape[:-2], end + _ROOM, states.shape[-1]) for states in added]
            if length:
                for room, states in zip(self._rooms, (self.keys, self.values), strict=True):
                    assert states is not None
                    room[..., :length, :] = states
        for room, states in zip(self._rooms, added, strict=True):
            room[..., length:end, :] = states
        keys, values = (room[..., :end, :] for room in self._rooms)
        self.keys, self.values = keys, values
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
