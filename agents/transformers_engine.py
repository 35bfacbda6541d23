"""The engine over a transformers model in this process, on CPU or GPU."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cleaner_env.agents.detokenize import Detokenizer
from cleaner_env.agents.engine import Sampling
from cleaner_env.agents.kv_cache import make_cache
from cleaner_env.agents.rendering import Renderer
from cleaner_env.agents.scoring import check_plain_head, masked_logprobs
from cleaner_env.conversation import Completion
from cleaner_env.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["TransformersEngine"]


@dataclass
class _Row:
    """A turn that is being sampled."""

    index: int
    limit: int
    generator: np.random.Generator | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None


class TransformersEngine:
    """Implements `cleaner_env.agents.engine.Engine`.

    Args:
        model: A causal language model with full attention. It is used as it is, on its device and in its precision; where a
            trainer changes its weights in place, the engine sees them at once.
        tokenizer: Its tokenizer, with a chat template.
        batch_size: Most turns generated at a time.
        batch_tokens: Most tokens, padding included, scored at a time.

    Attributes:
        context_length: Most tokens of prompt and turn together that the model takes; ``None`` where it does not say.

    Raises:
        ConfigError: A size is not positive, the model transforms its logits, or the tokenizer has no chat template.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        batch_size: int = 128,
        batch_tokens: int = 16_384,
    ) -> None:
        if batch_size < 1 or batch_tokens < 1:
            raise ConfigError(f"batch sizes must be positive, got batch_size={batch_size!r}, batch_tokens={batch_tokens!r}")
        check_plain_head(model)
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.batch_tokens = batch_tokens
        self._end_ids = Renderer(tokenizer).end_ids
        self._detokenizer = Detokenizer(tokenizer)
        self.context_length: int | None = getattr(model.config, "max_position_embeddings", None)
        transformer: Any = model.base_model
        # transformers renamed this argument in the course of version 5.
        parameters = inspect.signature(transformer.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        generators: Sequence[np.random.Generator] | None = None,
    ) -> list[Completion]:
        """See `Engine.generate`. A turn that fills the model's context ends there, with ``finish_reason="length"``.

        Raises:
            UsageError: A prompt is empty or leaves no room in the model's context, or generators are missing.
        """
        if sampling.temperature > 0 and (generators is None or len(generators) != len(prompts)):
            given = "none" if generators is None else len(generators)
            raise UsageError(f"sampling {len(prompts)} prompts needs as many generators, got {given}")
        rows = []
        for index, prompt in enumerate(prompts):
            limit = sampling.max_tokens
            if self.context_length is not None:
                limit = min(limit, self.context_length - len(prompt))
            if not prompt or limit < 1:
                raise UsageError(
                    f"prompt {index} has {len(prompt)} tokens; it must have at least 1 and leave room in a context of "
                    f"{self.context_length}"
                )
            rows.append(_Row(index, limit, generators[index] if generators is not None else None))
        # Prompts of similar length share a batch, so that little is padded.
        by_length = sorted(rows, key=lambda row: len(prompts[row.index]))
        was_training = self.model.training
        self.model.train(False)
        for start in range(0, len(rows), self.batch_size):
            batch = by_length[start : start + self.batch_size]
            self._generate_batch([prompts[row.index] for row in batch], batch, sampling)
        self.model.train(was_training)
        return [self._completion(row) for row in rows]

    @torch.inference_mode()
    def _generate_batch(self, prompts: Sequence[Sequence[int]], rows: list[_Row], sampling: Sampling) -> None:
        # Rollouts of one problem begin with one prompt: it is run once and its keys and values are copied.
        distinct = {tuple(prompt): number for number, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in distinct], device=self.model.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * (len(p) + sampling.max_tokens) for p in distinct])
        mask = mask.to(self.model.device)
        positions = (mask[:, :width].cumsum(-1) - 1).clamp(min=0)
        cache = make_cache(self.model.config)
        copies = torch.tensor([distinct[tuple(prompt)] for prompt in prompts], device=self.model.device)
        padded = len({len(prompt) for prompt in distinct}) > 1
        logits = self._forward(ids, mask[:, :width] if padded else None, positions, cache)[copies]
        cache.batch_select_indices(copies)
        mask, position = mask[copies], positions[copies, -1:]
        alive = list(rows)
        while True:
            chosen, logprobs = self._sample(logits, alive, sampling)
            for row, token, logprob in zip(alive, chosen.tolist(), logprobs.tolist(), strict=True):
                if row.finish_reason is None:
                    row.token_ids.append(token)
                    row.logprobs.append(logprob)
                    row.finish_reason = self._finish_reason(row, sampling.stop)
            going = [number for number, row in enumerate(alive) if row.finish_reason is None]
            if not going:
                return
            # Dropping rows copies the cache, so finished rows are dropped several at a time.
            if len(going) <= 0.75 * len(alive):
                kept = torch.tensor(going, device=self.model.device)
                cache.batch_select_indices(kept)
                chosen, mask, position = chosen[kept], mask[kept], position[kept]
                alive = [alive[number] for number in going]
            width += 1
            position = position + 1
            logits = self._forward(chosen[:, None], mask[:, :width] if padded else None, position, cache)

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor, cache: object
    ) -> torch.Tensor:
        """Returns the float32 logits after the last token of each row."""
        transformer: Any = self.model.base_model
        head: Any = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        arguments = {self._cache_argument: cache, "use_cache": True}
        output = transformer(input_ids=ids, attention_mask=mask, position_ids=positions, **arguments)
        logits: torch.Tensor = head(output.last_hidden_state[:, -1]).float()
        return logits

    def _sample(self, logits: torch.Tensor, rows: Sequence[_Row], sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws a token for each row by inverting its cumulative distribution; finished rows take anything."""
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

    def _finish_reason(self, row: _Row, stop: tuple[str, ...]) -> str | None:
        last = row.token_ids[-1]
        if last in self._end_ids:
            return "stop"
        if any(self._may_complete(string, last) and string in self._tail(row, len(string)) for string in stop):
            return "stop"
        return "length" if len(row.token_ids) >= row.limit else None

    def _may_complete(self, stop: str, token_id: int) -> bool:
        """Whether a token can be the one that completes a stop string, judged cheaply."""
        end = stop[-1]
        return end == " " or not end.isascii() or end in self._detokenizer.piece(token_id)

    def _tail(self, row: _Row, characters: int) -> str:
        """Returns the text of the last tokens, enough to hold ``characters`` that the very last one completed."""
        return self._detokenizer.decode(row.token_ids[-4 * characters - 4 :])

    def _completion(self, row: _Row) -> Completion:
        assert row.finish_reason is not None
        ended = row.token_ids[-1] in self._end_ids
        text, offsets = self._detokenizer.locate(row.token_ids[:-1] if ended else row.token_ids)
        return Completion(
            text,
            row.token_ids,
            row.logprobs,
            (*offsets, len(text)) if ended else offsets,
            finish_reason=row.finish_reason,
        )

    @torch.inference_mode()
    def logprobs(
        self, sequences: Sequence[Sequence[int]], starts: Sequence[int], temperature: float = 1.0
    ) -> list[list[float]]:
        """See `Engine.logprobs`.

        Raises:
            UsageError: There is not one start per sequence, or a start lies outside its sequence.
        """
        if len(sequences) != len(starts):
            raise UsageError(f"{len(sequences)} sequences need as many starts, got {len(starts)}")
        for number, (sequence, start) in enumerate(zip(sequences, starts, strict=True)):
            if not 1 <= start <= len(sequence):
                raise UsageError(f"starts[{number}] must be 1 to {len(sequence)}, got {start}")
        scores: list[list[float]] = [[] for _ in sequences]
        was_training = self.model.training
        self.model.train(False)
        for batch in self._scoring_batches(sequences):
            shape = (len(batch), max(len(sequences[number]) for number in batch))
            ids, mask = np.zeros(shape, np.int64), np.zeros(shape, bool)
            for row, number in enumerate(batch):
                ids[row, : len(sequences[number])] = sequences[number]
                mask[row, starts[number] : len(sequences[number])] = True
            device = self.model.device
            values = masked_logprobs(
                self.model, torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device), temperature
            )
            for number, part in zip(batch, torch.split(values, mask.sum(-1).tolist()), strict=True):
                scores[number] = part.tolist()
        self.model.train(was_training)
        return scores

    def _scoring_batches(self, sequences: Sequence[Sequence[int]]) -> list[list[int]]:
        batches: list[list[int]] = []
        for number in sorted(range(len(sequences)), key=lambda number: len(sequences[number])):
            if not batches or (len(batches[-1]) + 1) * len(sequences[number]) > self.batch_tokens:
                batches.append([])
            batches[-1].append(number)
        return batches

    def update_weights(self, state: Mapping[str, torch.Tensor]) -> None:
        """See `Engine.update_weights`.

        Raises:
            ConfigError: The names or shapes are not the model's.
        """
        try:
            self.model.load_state_dict(dict(state))
        except RuntimeError as error:
            raise ConfigError(f"these weights do not fit the model: {' '.join(str(error).split())[:300]}") from None
