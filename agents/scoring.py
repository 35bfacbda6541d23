"""Log-probabilities of chosen tokens: one computation for engines and for losses, so that their numbers agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from cleaner_env.errors import ConfigError
from cleaner_env.extras import optional_packages

with optional_packages("training"):
    import torch
    from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["check_plain_head", "masked_logprobs"]

CHUNK_LOGITS: Final = 2**26
"""Logits held at a time."""

_LOGIT_TRANSFORMS: Final = ("final_logit_softcapping", "logit_scale", "logits_scaling")


def check_plain_head(model: PreTrainedModel) -> None:
    """Makes sure that the model's logits are its head's output and nothing more.

    Raises:
        ConfigError: The model's configuration rescales or caps logits.
    """
    for name in _LOGIT_TRANSFORMS:
        value = getattr(model.config, name, None)
        if value not in (None, 1):
            raise ConfigError(f"models that transform their logits are not supported, got {name}={value!r}")


def masked_logprobs(
    model: PreTrainedModel,
    ids: torch.Tensor,
    mask: torch.Tensor,
    temperature: float = 1.0,
    context: Mapping[str, Any] | None = None,
) -> torch.Tensor:
    """Computes the log-probabilities of the masked tokens, each given all tokens before it in its row.

    Only the positions before masked tokens go through the language-model head, `CHUNK_LOGITS` logits at a time; where there
    are several chunks, their logits are computed again for the backward pass rather than kept.

    Args:
        model: A causal language model with a plain head (see `check_plain_head`).
        ids: Of shape ``(rows, width)``. Padding, of any id, is on the right, where causal attention does not look.
        mask: Booleans of the same shape; none true in the first column.
        temperature: Divides the logits.
        context: Arguments of the transformer that tell what stands before ``ids``, such as a cache; nothing by default.

    Returns:
        A float32 vector, one entry per true element of ``mask`` in row-major order, in nats.

    Raises:
        ValueError: A first token is masked; nothing predicts it.
    """
    if mask[:, 0].any():
        raise ValueError("the first token of a row has no log-probability; leave it out of the mask")
    transformer: Any = model.base_model
    hidden = transformer(input_ids=ids, **(context or {"use_cache": False})).last_hidden_state[:, :-1][mask[:, 1:]]
    targets = ids[:, 1:][mask[:, 1:]]
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]

    def score(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = head(hidden).float() / temperature
        return -torch.nn.functional.cross_entropy(logits, targets, reduction="none")

    size = max(1, CHUNK_LOGITS // model.config.vocab_size)
    if len(targets) <= size:
        return score(hidden, targets)
    chunks = zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
    return torch.cat([checkpoint(score, *chunk, use_reentrant=False) for chunk in chunks])
