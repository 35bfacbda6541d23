"""The engine over a transformers model in this process, on CPU or GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cleaner_env.agents.decoding import DecodingBatch, Row, cache_argument, similar_lengths, with_prefixes
from cleaner_env.agents.detokenize import Detokenizer
from cleaner_env.agents.engine import Sampling
from cleaner_env.agents.prefix_store import PrefixStore
from cleaner_env.agents.rendering import Renderer
from cleaner_env.agents.scoring import check_plain_head, masked_logprobs
from cleaner_env.agents.shared_batch import SharedBatch
from cleaner_env.conversation import Completion
from cleaner_env.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["TransformersEngine"]


@dataclass
class _Part:
    """A sequence that is scored from a token on, with what is known of it."""

    token_ids: Sequence[int]
    start: int
    states: torch.Tensor | None
    known_tokens: int


class TransformersEngine:
    """Implements `cleaner_env.agents.engine.Engine`.

    Args:
        model: A causal language model with full attention. It is used as it is, on its device and in its precision; where a
            trainer changes its weights in place, the engine sees them at once.
        tokenizer: Its tokenizer, with a chat template.
        batch_size: Most turns generated at a time.
        batch_tokens: Most tokens, padding included, that are read at a time.
        prefix_cache_mb: Memory for the keys and values of what was read before, in MiB. A prompt that goes on from it, such
            as the next turn of an episode, is read from where it differs. 0 keeps nothing.

    Attributes:
        prefixes: What was read before; forgotten once the weights have changed.
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
        prefix_cache_mb: int = 2048,
    ) -> None:
        if batch_size < 1 or batch_tokens < 1:
            raise ConfigError(f"batch sizes must be positive, got batch_size={batch_size!r}, batch_tokens={batch_tokens!r}")
        if prefix_cache_mb < 0:
            raise ConfigError(f"prefix_cache_mb must not be negative, got {prefix_cache_mb!r}; 0 keeps nothing")
        check_plain_head(model)
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.batch_tokens = batch_tokens
        self._end_ids = Renderer(tokenizer).end_ids
        self._detokenizer = Detokenizer(tokenizer)
        self.context_length: int | None = getattr(model.config, "max_position_embeddings", None)
        self.prefixes = PrefixStore(prefix_cache_mb * 2**20)
        self._version = -1
        self._model_lock = threading.Lock()
        self._shared = SharedBatch(self._batch, batch_size, self._evaluating)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        generators: Sequence[np.random.Generator] | None = None,
    ) -> list[Completion]:
        """See `Engine.generate`. Calls of several threads share one running batch.

        A turn that fills the model's context ends there, with ``finish_reason="length"``.

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
            rows.append(Row(prompt, limit, generators[index] if generators is not None else None))
        self._shared.run(rows, sampling)
        return [self._completion(row) for row in rows]

    def _batch(self, sampling: Sampling) -> DecodingBatch:
        return DecodingBatch(
            self.model, sampling, self.prefixes, partial(self._finish_reason, sampling.stop), self.batch_tokens
        )

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Lets the model read as it is after training, and forgets what it read with other weights."""
        with self._model_lock:
            version = sum(weight._version for weight in self.model.parameters())
            if version != self._version:
                self.prefixes.clear()
                self._version = version
            if not self.model.training:
                yield
                return
            self.model.train(False)
            try:
                yield
            finally:
                self.model.train(True)

    def _finish_reason(self, stop: tuple[str, ...], row: Row) -> str | None:
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

    def _tail(self, row: Row, characters: int) -> str:
        """Returns the text of the last tokens, enough to hold ``characters`` that the very last one completed."""
        return self._detokenizer.decode(row.token_ids[-4 * characters - 4 :])

    def _completion(self, row: Row) -> Completion:
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
        with self._evaluating():
            # The token before the first one that is scored is read again: its output is what predicts it.
            known = [self.prefixes.longest(ids[: start - 1]) for ids, start in zip(sequences, starts, strict=True)]
            parts = [
                _Part(ids, start, states, 0 if states is None else states.shape[3])
                for ids, start, states in zip(sequences, starts, known, strict=True)
            ]
            to_read = {number: len(part.token_ids) - part.known_tokens for number, part in enumerate(parts)}
            for numbers in similar_lengths(to_read, self.batch_tokens):
                values = self._score([parts[number] for number in numbers], temperature)
                for number, part_values in zip(numbers, values, strict=True):
                    scores[number] = part_values
        return scores

    def _score(self, parts: Sequence[_Part], temperature: float) -> list[list[float]]:
        device = self.model.device
        shape = len(parts), max(len(part.token_ids) - part.known_tokens for part in parts)
        ids, mask, read = np.zeros(shape, np.int64), np.zeros(shape, bool), np.zeros(shape, bool)
        for row, part in enumerate(parts):
            length = len(part.token_ids) - part.known_tokens
            ids[row, :length] = part.token_ids[part.known_tokens :]
            mask[row, part.start - part.known_tokens : length] = True
            read[row, :length] = True
        context: dict[str, Any] = {}
        if any(part.known_tokens for part in parts):
            cache, filled = with_prefixes(self.model, [part.states for part in parts], shape[1])
            filled = torch.cat([filled, torch.from_numpy(read).to(device)], dim=1)
            context = {
                cache_argument(type(self.model.base_model).forward): cache,
                "attention_mask": filled.long(),
                "position_ids": (filled.cumsum(-1) - 1).clamp(min=0)[:, -shape[1] :],
                "use_cache": True,
            }
        inputs = torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)
        values = masked_logprobs(self.model, *inputs, temperature, context)
        return [part_values.tolist() for part_values in torch.split(values, mask.sum(1).tolist())]

    def update_weights(self, state: Mapping[str, torch.Tensor]) -> None:
        """See `Engine.update_weights`.

        Raises:
            ConfigError: The names or shapes are not the model's.
            UsageError: Turns are being generated, which would go on with other weights than they began with.
        """
        if self._shared.in_use:
            raise UsageError("the weights cannot change while turns are being generated; wait for them")
        try:
            self.model.load_state_dict(dict(state))
        except RuntimeError as error:
            raise ConfigError(f"these weights do not fit the model: {' '.join(str(error).split())[:300]}") from None
        finally:
            self.prefixes.clear()
