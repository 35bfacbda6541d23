"""Small real models and tokenizers."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cleaner_env.agents.tiny_tokenizer import train_tiny_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    """A tokenizer trained on a few lines, so that most text takes several tokens."""
    return train_tiny_tokenizer(
        ["Compute a.\n```python\na = 1 + 2\nprint(a)\n```\n", "\\boxed{3}", "user\nassistant\ntool\n"] * 3
    )


@pytest.fixture
def random_model(tokenizer):
    """Makes a Llama of random weights, the same for the same seed."""

    def make(seed=0, layers=2):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
            initializer_range=0.3,
        )
        return LlamaForCausalLM(config).eval()

    return make
