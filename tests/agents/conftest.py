"""Small real models and tokenizers."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cleaner_env.agents.tiny_tokenizer import train_tiny_tokenizer
from cleaner_env.conversation import Completion


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


class _ScriptedEngine:
    """Fails at every first call, mends what it is shown, and answers after three calls."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.batches = []

    def generate(self, prompts, sampling, generators=None):
        self.batches.append(len(prompts))
        return [self._turn(prompt) for prompt in prompts]

    def _turn(self, prompt):
        text = self.tokenizer.decode(prompt)
        if text.rstrip().endswith("is not defined<|im_end|>\n<|im_start|>assistant"):
            return self._completion("Fix.\n```python\nprint(7)\n```")
        if text.count("<|im_start|>tool") >= 3:
            return self._completion("\\boxed{7}")
        return self._completion("Go.\n```python\nprnt(7)\n```")

    def _completion(self, text):
        pieces = self.tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        ids = [*pieces["input_ids"], self.tokenizer.eos_token_id]
        offsets = [start for start, _ in pieces["offset_mapping"]] + [len(text)]
        return Completion(text, ids, [-1.0] * len(ids), offsets)


@pytest.fixture(scope="session")
def scripted_engine():
    """The class of an engine whose turns are written by a script that tokenises what it says."""
    return _ScriptedEngine
