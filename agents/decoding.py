"""Sampling of many turns token by token: finished ones leave the batch, new ones enter it while the others go on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from transformers.cache_utils import DynamicCache

from cleaner_env.agents.engine import Sampling
from cleaner_env.agents.kv_cache import begin_cache, have_one_shape, join_caches, keeps_all_states, row_states
from cleaner_env.agents.prefix_store import PrefixStore

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["DecodingBatch", "Row", "cache_argument", "similar_lengths", "with_prefixes"]

_KEPT_SHARE: Final = 0.75
"""Dropping rows copies the cache, so finished rows are dropped once no more than this share of rows goes on."""


@dataclass(eq=False)
class Row:
    """A turn that is being sampled.

    Attributes:
        prompt: Token ids before the turn.
        limit: Most tokens of the turn.
        generator: Its random stream; may be ``None`` where greedy.
        token_ids: The turn so far.
        logprobs: Of these tokens, at the sampling temperature.
        finish_reason: Why it ended, ``None`` while it goes on.
    """

    prompt: Sequence[int]
    limit: int
    generator: np.random.Generator | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass
class _Part:
    """Rows that go through the model together.

    Attributes:
        rows: The turns.
        cache: The states of all but the last token of each.
        filled: Of shape ``(rows, slots)``, which slots of the cache hold a token of the row.
        position: Of shape ``(rows, 1)``, the position of the last token.
        logits: Of shape ``(rows, vocabulary)``, in float32, after the last token.
    """

    rows: list[Row]
    cache: DynamicCache
    filled: torch.Tensor
    position: torch.Tensor
    logits: torch.Tensor


class DecodingBatch:
    """Turns that a model samples at the same time.

    Args:
        model: The model.
        sampling: How the turns are sampled.
        prefixes: Where the states of prompts are looked up, and those of finished turns are kept.
        finish_reason: Says after each token whether a turn is over, and why.
        batch_tokens: Most tokens, padding included, of prompts that are read at a time.

    Attributes:
        can_grow: Whether rows can be admitted while others go on; not with layers that forget tokens, such as those with a
            sliding window.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        sampling: Sampling,
        prefixes: PrefixStore,
        finish_reason: Callable[[Row], str | None],
        batch_tokens: int,
    ) -> None:
        self._model = model
        self._sampling = sampling
        self._prefixes = prefixes
        self._finish_reason = finish_reason
        self._batch_tokens = batch_tokens
        self._part: _Part | None = None
        self.can_grow = keeps_all_states(model.config)

    def __len__(self) -> int:
        """How many rows the batch holds, finished ones that were not dropped yet included."""
        return len(self._part.rows) if self._part else 0

    @torch.inference_mode()
    def admit(self, rows: Sequence[Row]) -> None:
        """Reads the prompts of new rows and takes the rows in."""
        # Rollouts of one problem begin with one prompt, which is read once.
        by_prompt: dict[tuple[int, ...], list[Row]] = {}
        for row in rows:
            by_prompt.setdefault(tuple(row.prompt), []).append(row)
        known = {prompt: self._prefixes.longest(prompt[:-1]) for prompt in by_prompt}
        to_read = {prompt: len(prompt) - _length(states) for prompt, states in known.items()}
        groups = similar_lengths(to_read, self._batch_tokens) if self.can_grow else [list(to_read)]
        parts = [self._read({prompt: known[prompt] for prompt in prompts}, by_prompt) for prompts in groups]
        self._part = self._joined([self._part, *parts] if self._part else parts)

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """Samples one token for each row, and returns the rows that it finished."""
        part = self._part
        if part is None:
            return []
        chosen, logprobs = _sample(part.logits, part.rows, self._sampling)
        finished = []
        for number, (row, token, logprob) in enumerate(zip(part.rows, chosen.tolist(), logprobs.tolist(), strict=True)):
            if row.finish_reason is None:
                row.token_ids.append(token)
                row.logprobs.append(logprob)
                row.finish_reason = self._finish_reason(row)
                if row.finish_reason is not None:
                    finished.append(row)
                    self._keep(part, number)
        going = [number for number, row in enumerate(part.rows) if row.finish_reason is None]
        if not going:
            self._part = None
            return finished
        if len(going) <= _KEPT_SHARE * len(part.rows):
            kept = torch.tensor(going, device=chosen.device)
            part, chosen = _selected(part, kept), chosen[kept]
        filled = torch.cat([part.filled, part.filled.new_ones(len(part.rows), 1)], dim=1)
        position = part.position + 1
        logits = self._logits(chosen[:, None], filled, position, part.cache)
        self._part = _Part(part.rows, part.cache, filled, position, logits)
        return finished

    def _read(
        self, known: dict[tuple[int, ...], torch.Tensor | None], by_prompt: dict[tuple[int, ...], list[Row]]
    ) -> _Part:
        prompts, device = list(known), self._model.device
        suffixes = [prompt[_length(states) :] for prompt, states in known.items()]
        width = max(map(len, suffixes))
        cache, filled = with_prefixes(self._model, list(known.values()), width)
        ids = torch.tensor([[0] * (width - len(suffix)) + [*suffix] for suffix in suffixes], device=device)
        used = torch.tensor([[False] * (width - len(suffix)) + [True] * len(suffix) for suffix in suffixes], device=device)
        filled = torch.cat([filled, used], dim=1)
        positions = (filled.cumsum(-1) - 1).clamp(min=0)[:, -width:]
        logits = self._logits(ids, filled, positions, cache)
        part = _Part([], cache, filled, positions[:, -1:], logits)
        copies = [number for number, prompt in enumerate(prompts) for _ in by_prompt[prompt]]
        if len(copies) > len(prompts):
            part = _selected(part, torch.tensor(copies, device=device))
        part.rows = [row for prompt in prompts for row in by_prompt[prompt]]
        return part

    def _logits(
        self, ids: torch.Tensor, filled: torch.Tensor, positions: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        """Returns the float32 logits after the last token of each row."""
        transformer: Any = self._model.base_model
        head: Any = self._model.get_output_embeddings()  # type: ignore[no-untyped-call]
        mask = None if bool(filled.all()) else filled.long()
        arguments = {cache_argument(type(transformer).forward): cache, "use_cache": True}
        output = transformer(input_ids=ids, attention_mask=mask, position_ids=positions, **arguments)
        logits: torch.Tensor = head(output.last_hidden_state[:, -1]).float()
        return logits

    def _joined(self, parts: Sequence[_Part]) -> _Part:
        if len(parts) == 1:
            return parts[0]
        width = max(part.filled.shape[1] for part in parts)
        return _Part(
            rows=[row for part in parts for row in part.rows],
            cache=join_caches(self._model.config, [part.cache for part in parts]),
            filled=torch.cat([_widened(part.filled, width) for part in parts]),
            position=torch.cat([part.position for part in parts]),
            logits=torch.cat([part.logits for part in parts]),
        )

    def _keep(self, part: _Part, number: int) -> None:
        """Keeps the states of a finished row; its last token has none yet."""
        if self._prefixes.max_bytes and self.can_grow and have_one_shape(part.cache):
            row = part.rows[number]
            slots = part.filled[number].nonzero()[:, 0]
            self._prefixes.add([*row.prompt, *row.token_ids[:-1]], row_states(part.cache, number, slots))


def with_prefixes(
    model: PreTrainedModel, known: Sequence[torch.Tensor | None], more: int
) -> tuple[DynamicCache, torch.Tensor]:
    """Returns a cache that begins with known states, and which of its slots are filled, of shape ``(rows, slots)``."""
    cache, slots = begin_cache(model.config, known, more)
    lengths = torch.tensor([_length(states) for states in known], device=model.device)
    return cache, torch.arange(slots, device=model.device) >= slots - lengths[:, None]


@lru_cache
def cache_argument(forward: Callable[..., Any]) -> str:
    """The name of the argument for the cache of a model class's ``forward``; versions of transformers differ in it."""
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def similar_lengths(lengths: dict[Any, int], tokens: int) -> Iterator[list[Any]]:
    """Groups keys by length: none less than half of the longest in its group, and groups of limited size.

    Args:
        lengths: The length of each key.
        tokens: Most tokens of a group, all padded to the longest; a group has one key at least.

    Example:
        >>> list(similar_lengths({"a": 10, "b": 100, "c": 9, "d": 90}, tokens=1000))
        [['b', 'd'], ['a', 'c']]
    """
    group: list[Any] = []
    for key in sorted(lengths, key=lambda key: -lengths[key]):
        if group and (2 * lengths[key] < lengths[group[0]] or (len(group) + 1) * lengths[group[0]] > tokens):
            yield group
            group = []
        group.append(key)
    if group:
        yield group


def _length(states: torch.Tensor | None) -> int:
    return 0 if states is None else states.shape[3]


def _widened(filled: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(filled, (width - filled.shape[1], 0), value=False)


def _selected(part: _Part, kept: torch.Tensor) -> _Part:
    part.cache.batch_select_indices(kept)
    rows = [part.rows[number] for number in kept.tolist()] if part.rows else []
    return _Part(rows, part.cache, part.filled[kept], part.position[kept], part.logits[kept])


def _sample(logits: torch.Tensor, rows: Sequence[Row], sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws a token for each row by inverting its cumulative distribution; finished rows take anything.

    The log-probabilities are those at the sampling temperature (at 1 where greedy), before top-p.
    """
    distributions = torch.log_softmax(logits / (sampling.temperature or 1.0), dim=-1)
    if sampling.temperature == 0:
        chosen = distributions.argmax(-1)
    else:
        uniforms = [0.0 if row.finish_reason else row.generator.random() for row in rows if row.generator is not None]
        probabilities, order = distributions.exp().double(), None
        if sampling.top_p < 1:
            probabilities, order = probabilities.sort(dim=-1, descending=True, stable=True)
            before = probabilities.cumsum(-1) - probabilities
            probabilities = probabilities * (before < sampling.top_p)
        cumulative = probabilities.cumsum(-1)
        points = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None] * cumulative[:, -1:]
        chosen = torch.searchsorted(cumulative, points, right=True)
        if order is not None:
            chosen = order.gather(-1, chosen)
        chosen = chosen[:, 0]
    return chosen, distributions.gather(-1, chosen[:, None])[:, 0]
