"""Log-probabilities of chosen tokens, the same computation for engines and for losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.checkpoint import checkpoint

from cleaner_env.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["check_plain_head", "pad_right", "token_logprobs"]

_LOGIT_TRANSFORMS: Final = ("final_logit_softcapping", "logit_scale", "logits_scaling")


def check_plain_head(model: PreTrainedModel) -> None:
    """Makes sure that the model's logits are its head's output and nothing more.

    Raises:
        ConfigError: The model's configuration rescales or caps logits.
    """
    for name in _LOGIT_TRANSFORMS:
        value = getattr(model.config, name, None)
        if value not in (None, 1, 1.0):
            raise ConfigError(f"models that transform their logits are not supported, got {name}={value!r}")


def pad_right(sequences: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Stacks sequences of ids, shorter ones filled with zeros on the right, where causal attention does not look."""
    width = max(map(len, sequences))
    return torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in sequences], device=device)


def token_logprobs(
    model: PreTrainedModel, ids: torch.Tensor, chosen: torch.Tensor, temperature: float = 1.0, chunk: int = 4096
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes log-probabilities of chosen tokens and the entropy where each was drawn.

    Only the positions before chosen tokens go through the language-model head, ``chunk`` at a time; in training, the
    logits of a chunk are computed again for the backward pass rather than kept.

    Args:
        model: A causal language model with a plain head (see `check_plain_head`).
        ids: ``[batch, width]`` ids, padded on the right.
        chosen: ``[batch, width]`` booleans; the first column must be false.
        temperature: Divides the logits.
        chunk: Positions per chunk.

    Returns:
        Two float32 vectors with one entry per chosen token, row by row: log-probabilities and entropies, both in nats. The
        entropies carry no gradient.
    """
    transformer: Any = model.base_model
    hidden = transformer(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][chosen[:, 1:]]
    targets = ids[:, 1:][chosen[:, 1:]]
    head: Any = model.get_output_embeddings()

    def score(hidden: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        distribution = torch.log_softmax(head(hidden).float() / temperature, dim=-1)
        with torch.no_grad():
            entropies = -(distribution.exp() * distribution).sum(-1)
        return distribution.gather(-1, targets[:, None])[:, 0], entropies

    parts = []
    for part in zip(hidden.split(chunk), targets.split(chunk), strict=True):
        save_memory = torch.is_grad_enabled() and len(hidden) > chunk
        parts.append(checkpoint(score, *part, use_reentrant=False) if save_memory else score(*part))
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)
