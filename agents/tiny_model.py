"""A language model of about a million parameters that learns to copy within minutes on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["make_tiny_model"]

_ROPE_THETA: Final = 10_000.0
_SHARPNESS: Final = 7.0
"""Size of the biases of a positional head; with 7 more than 0.98 of its attention is on one token."""


def make_tiny_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Makes a Llama with random weights, the same for the same seed.

    Two things make it learn to copy sooner than usual, which is most of what it needs. Its weights are larger than the
    usual 0.02. And two heads of the first layer begin as positional ones, that look at the token before and the one before
    that: copying takes such heads first ("induction heads", Olsson et al., arXiv 2209.11895), and random weights are slow
    to become them.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=2048,
        initializer_range=0.08,
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": _ROPE_THETA},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    for distance in (1, 2):
        _look_back(model, head=distance - 1, distance=distance)
    return model


def _look_back(model: LlamaForCausalLM, head: int, distance: int) -> None:
    """Makes a head of the first layer attend to the token ``distance`` places before.

    Rotary embeddings turn the query at position m and the key at position n by m and n times a frequency. With constant
    query and key vectors that differ by a turn of ``-distance``, their product is a sum of terms
    ``cos(frequency * (m - n - distance))``, which is largest at that distance.
    """
    import torch

    config = model.config
    width = config.hidden_size // config.num_attention_heads
    frequencies = _ROPE_THETA ** (-torch.arange(width // 2) / (width // 2))
    turn = frequencies * distance
    attention = model.model.layers[0].self_attn
    rows = slice(head * width, (head + 1) * width)
    with torch.no_grad():
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight[rows] *= 0.1
        attention.q_proj.bias[rows] = _SHARPNESS * torch.cat([turn.cos(), -turn.sin()])
        attention.k_proj.bias[rows] = _SHARPNESS * torch.cat([torch.ones(width // 2), torch.zeros(width // 2)])
