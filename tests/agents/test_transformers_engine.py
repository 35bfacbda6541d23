from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from cleaner_env.agents.engine import Sampling
from cleaner_env.agents.transformers_engine import TransformersEngine
from cleaner_env.errors import ConfigError, UsageError


def model_of(architecture: str, vocabulary_size: int, **options: Any) -> Any:
    """A small model whose random weights are large enough for its choices to be far from uniform."""
    torch.manual_seed(0)
    common: dict[str, Any] = {
        "vocab_size": vocabulary_size,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **options,
    }
    if architecture == "gpt2":
        return GPT2LMHeadModel(GPT2Config(n_embd=48, n_layer=2, n_head=4, n_positions=128, **common)).eval()
    config_class, model_class = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "mistral": (MistralConfig, MistralForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    }[architecture]
    config = config_class(
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        **common,
    )
    return model_class(config).eval()


@pytest.fixture(params=["llama", "gpt2", "qwen2"])
def model(request: pytest.FixtureRequest, tokenizer: Any) -> Any:
    return model_of(request.param, len(tokenizer))


@pytest.fixture
def llama(tokenizer: Any) -> Any:
    return model_of("llama", len(tokenizer))


TEXTS = ["You can run Python.", "Let a = 1 + 2. Find a. Let b = a.", "x", "print(1)", "print(1)"]


def generators(count: int, seed: int = 0) -> list[np.random.Generator]:
    return [np.random.default_rng([seed, number]) for number in range(count)]


def prompts_of(tokenizer: Any) -> list[list[int]]:
    return [tokenizer(text).input_ids for text in TEXTS]


def test_greedy_turns_are_those_of_transformers_generate(model: Any, tokenizer: Any) -> None:
    prompts = prompts_of(tokenizer)
    turns = TransformersEngine(model, tokenizer).generate(prompts, Sampling(max_tokens=40, temperature=0))
    for prompt, turn in zip(prompts, turns, strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False, pad_token_id=0
        )
        assert list(turn.token_ids) == expected[0, len(prompt) :].tolist()
    assert len({turn.token_ids for turn in turns}) == len(TEXTS) - 1


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("top_p", [1.0, 0.6])
def test_logprobs_are_those_of_a_full_forward_pass(model: Any, tokenizer: Any, temperature: float, top_p: float) -> None:
    prompts = prompts_of(tokenizer)
    engine = TransformersEngine(model, tokenizer)
    sampling = Sampling(max_tokens=30, temperature=temperature, top_p=top_p)
    turns = engine.generate(prompts, sampling, generators(len(prompts)))
    sequences = [[*prompt, *turn.token_ids] for prompt, turn in zip(prompts, turns, strict=True)]
    scored = engine.logprobs(sequences, [len(prompt) for prompt in prompts], temperature)
    for prompt, turn, sequence, scores in zip(prompts, turns, sequences, scored, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([sequence])).logits[0, len(prompt) - 1 : -1].float()
        expected = torch.log_softmax(logits / temperature, -1).gather(-1, torch.tensor(turn.token_ids)[:, None])[:, 0]
        np.testing.assert_allclose(turn.logprobs, expected, atol=1e-4)
        np.testing.assert_allclose(scores, expected, atol=1e-4)


def test_a_row_does_not_depend_on_its_batch(llama: Any, tokenizer: Any) -> None:
    prompts = prompts_of(tokenizer)
    sampling = Sampling(max_tokens=30)
    together = TransformersEngine(llama, tokenizer).generate(prompts, sampling, generators(len(prompts)))
    in_pairs = TransformersEngine(llama, tokenizer, batch_size=2).generate(prompts, sampling, generators(len(prompts)))
    alone = [
        TransformersEngine(llama, tokenizer).generate([prompt], sampling, [generator])[0]
        for prompt, generator in zip(prompts, generators(len(prompts)), strict=True)
    ]
    assert [turn.token_ids for turn in together] == [turn.token_ids for turn in alone]
    assert [turn.token_ids for turn in in_pairs] == [turn.token_ids for turn in alone]
    assert together[3].token_ids != together[4].token_ids, "one prompt, two streams"


def test_samples_follow_the_distribution(llama: Any, tokenizer: Any) -> None:
    prompt = tokenizer("print(").input_ids
    count = 4000
    turns = TransformersEngine(llama, tokenizer, batch_size=count).generate(
        [prompt] * count, Sampling(max_tokens=1), generators(count)
    )
    with torch.no_grad():
        probabilities = torch.softmax(llama(torch.tensor([prompt])).logits[0, -1], -1).numpy()
    counts = np.bincount([turn.token_ids[0] for turn in turns], minlength=len(probabilities))
    likely = probabilities > 0.02
    assert likely.sum() > 5
    errors = np.sqrt(probabilities * (1 - probabilities) / count)
    assert (np.abs(counts / count - probabilities) < 5 * errors + 1e-9)[likely].all()


def test_top_p_keeps_the_smallest_nucleus(llama: Any, tokenizer: Any) -> None:
    prompt = tokenizer("print(").input_ids
    turns = TransformersEngine(llama, tokenizer).generate(
        [prompt] * 500, Sampling(max_tokens=1, top_p=0.3), generators(500)
    )
    with torch.no_grad():
        probabilities = torch.softmax(llama(torch.tensor([prompt])).logits[0, -1].double(), -1)
    ranked = probabilities.sort(descending=True)
    size = int((ranked.values.cumsum(0) < 0.3).sum()) + 1
    assert {turn.token_ids[0] for turn in turns} == set(ranked.indices[:size].tolist())


def test_a_stop_string_ends_the_turn_and_stays(llama: Any, tokenizer: Any) -> None:
    engine = TransformersEngine(llama, tokenizer)
    prompts = prompts_of(tokenizer)
    free = engine.generate(prompts, Sampling(max_tokens=40), generators(len(prompts)))
    for number, turn in enumerate(free):
        stop = str(turn)[8:11]
        stopped = engine.generate(prompts, Sampling(max_tokens=40, stop=("never there", stop)), generators(len(prompts)))[
            number
        ]
        assert stop in stopped
        assert stop not in engine._detokenizer.decode(stopped.token_ids[:-1])
        assert stopped.token_ids == turn.token_ids[: len(stopped.token_ids)]
        assert stopped.finish_reason == "stop"


def test_the_end_of_turn_is_a_token_without_text(llama: Any, tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    with torch.no_grad():
        llama.lm_head.weight[end] = 4 * llama.lm_head.weight[end + 5]
    turns = TransformersEngine(llama, tokenizer).generate(
        prompts_of(tokenizer) * 4, Sampling(max_tokens=60), generators(4 * len(TEXTS))
    )
    ended = [turn for turn in turns if turn.finish_reason == "stop"]
    assert ended
    for turn in ended:
        assert turn.token_ids.index(end) == len(turn.token_ids) - 1
        assert turn.offsets[-1] == len(turn)
        assert tokenizer.eos_token not in turn


def test_length_ends_a_turn_at_the_limit_and_at_the_end_of_the_context(llama: Any, tokenizer: Any) -> None:
    engine = TransformersEngine(llama, tokenizer)
    long_prompt = [5] * 120
    short, long = engine.generate([[5], long_prompt], Sampling(max_tokens=20, temperature=0))
    assert (len(short.token_ids), short.finish_reason) == (20, "length")
    assert (len(long.token_ids), long.finish_reason) == (8, "length")


@given(ids=st.lists(st.integers(3, 319), max_size=100))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_offsets_cut_the_text_where_tokens_do(ids: list[int], tokenizer: Any) -> None:
    from cleaner_env.agents.detokenize import Detokenizer

    detokenizer = Detokenizer(tokenizer)
    text, offsets = detokenizer.locate(ids)
    assert text == detokenizer.decode(ids)
    assert list(offsets) == sorted(offsets)
    for number, offset in enumerate(offsets):
        head, tail = detokenizer.decode(ids[:number]), detokenizer.decode(ids[number:])
        if head + tail == text:
            assert offset == len(head.rstrip("\ufffd"))


def test_tokens_of_a_split_character_begin_where_it_begins(tokenizer: Any) -> None:
    from cleaner_env.agents.detokenize import Detokenizer

    ids = tokenizer("a🙂b").input_ids
    assert len(ids) == 6
    assert Detokenizer(tokenizer).locate(ids) == ("a🙂b", (0, 1, 1, 1, 1, 2))


def test_new_weights_are_seen(tokenizer: Any, llama: Any) -> None:
    from copy import deepcopy

    other = deepcopy(llama)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    engine = TransformersEngine(llama, tokenizer)
    before = engine.logprobs([[5, 6, 7]], [1])
    engine.update_weights(other.state_dict())
    after = engine.logprobs([[5, 6, 7]], [1])
    assert after != before
    assert after == TransformersEngine(other, tokenizer).logprobs([[5, 6, 7]], [1])
    with pytest.raises(ConfigError, match="do not fit the model"):
        engine.update_weights({"nonsense": torch.zeros(1)})


def test_bad_requests_are_named(llama: Any, tokenizer: Any) -> None:
    engine = TransformersEngine(llama, tokenizer)
    with pytest.raises(UsageError, match="2 prompts needs as many generators, got none"):
        engine.generate([[5], [6]], Sampling())
    with pytest.raises(UsageError, match="prompt 1 has 0 tokens"):
        engine.generate([[5], []], Sampling(temperature=0))
    with pytest.raises(UsageError, match="prompt 0 has 128 tokens"):
        engine.generate([[5] * 128], Sampling(temperature=0))
    with pytest.raises(UsageError, match=r"starts\[0\] must be 1 to 2, got 0"):
        engine.logprobs([[5, 6]], [0])
    llama.config.final_logit_softcapping = 30.0
    with pytest.raises(ConfigError, match=r"final_logit_softcapping=30\.0"):
        TransformersEngine(llama, tokenizer)


class TokensRead:
    """Counts the tokens that go through a model."""

    def __init__(self, model: Any) -> None:
        self.count = 0
        model.base_model.register_forward_pre_hook(self._read, with_kwargs=True)

    def _read(self, _: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self.count += kwargs["input_ids"].numel()

    def since(self) -> int:
        count, self.count = self.count, 0
        return count


def conversation(tokenizer: Any, number: int) -> list[int]:
    ids: list[int] = tokenizer(f"Let a = {number} + 2. Find a. You can run Python.").input_ids
    return ids


GREEDY = Sampling(max_tokens=12, temperature=0)


def test_the_next_turn_is_the_one_a_fresh_engine_samples(model: Any, tokenizer: Any) -> None:
    engine = TransformersEngine(model, tokenizer)
    prompts = [conversation(tokenizer, number) for number in (3, 14, 3)]
    read = TokensRead(model)
    for turn_number in range(3):
        turns = engine.generate(prompts, GREEDY)
        tokens = read.since()
        if turn_number:
            # What was said since: the last token of the turn, which was never read, and two more; then the new turn.
            assert tokens <= 3 * 3 + 3 * 12
        fresh = TransformersEngine(model, tokenizer, prefix_cache_mb=0).generate(prompts, GREEDY)
        read.since()
        for turn, expected in zip(turns, fresh, strict=True):
            assert turn.token_ids == expected.token_ids
            assert turn.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
        prompts = [[*prompt, *turn.token_ids, 7, 8] for prompt, turn in zip(prompts, turns, strict=True)]


def test_scores_after_a_known_beginning_are_those_of_the_whole_sequence(model: Any, tokenizer: Any) -> None:
    engine = TransformersEngine(model, tokenizer)
    prompts = [conversation(tokenizer, number) for number in (3, 14)]
    turns = engine.generate(prompts, GREEDY)
    # One sequence goes on after the turn, one leaves it half way, one was never read.
    sequences = [
        [*prompts[0], *turns[0].token_ids, 9, 10, 11, 12],
        [*prompts[1], *turns[1].token_ids[:6], 5, 6, 7],
        [4, 5, 6, 7, 8],
    ]
    starts = [len(sequences[0]) - 4, len(prompts[1]) + 2, 1]
    read = TokensRead(model)
    scores = engine.logprobs(sequences, starts, temperature=0.7)
    assert read.since() <= (4 + 1) + (len(sequences[1]) - starts[1] + 1) + 5 + 10  # and padding
    whole = TransformersEngine(model, tokenizer, prefix_cache_mb=0).logprobs(sequences, starts, temperature=0.7)
    assert [len(values) for values in scores] == [4, len(sequences[1]) - starts[1], 4]
    for values, expected in zip(scores, whole, strict=True):
        assert values == pytest.approx(expected, abs=1e-4)


def test_what_was_read_with_other_weights_is_forgotten(llama: Any, tokenizer: Any) -> None:
    engine = TransformersEngine(llama, tokenizer)
    prompt = conversation(tokenizer, 3)
    turn = engine.generate([prompt], GREEDY)[0]
    following = [*prompt, *turn.token_ids, 7, 8]
    with torch.no_grad():
        for weight in llama.parameters():
            weight.mul_(-1.5)
    expected = TransformersEngine(llama, tokenizer, prefix_cache_mb=0).generate([following], GREEDY)[0]
    assert engine.generate([following], GREEDY)[0].token_ids == expected.token_ids
    assert engine.prefixes.bytes > 0
    engine.update_weights(llama.state_dict())
    assert engine.prefixes.bytes == 0


@pytest.mark.parametrize("batch_size", [1, 2, 3, 8])
@pytest.mark.parametrize("batch_tokens", [16, 16_384])
def test_turns_that_enter_a_running_batch_are_those_sampled_alone(
    model: Any, tokenizer: Any, batch_size: int, batch_tokens: int
) -> None:
    sampling = Sampling(max_tokens=24, temperature=0.8, stop=("e", "a"))
    prompts = prompts_of(tokenizer) * 2
    alone = [
        TransformersEngine(model, tokenizer, prefix_cache_mb=0).generate([prompt], sampling, [generator])[0]
        for prompt, generator in zip(prompts, generators(len(prompts)), strict=True)
    ]
    assert len({len(turn.token_ids) for turn in alone}) > 1, "turns of one length would all leave at once"
    engine = TransformersEngine(model, tokenizer, batch_size, batch_tokens)
    together = engine.generate(prompts, sampling, generators(len(prompts)))
    for turn, expected in zip(together, alone, strict=True):
        assert turn.token_ids == expected.token_ids
        assert turn.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_rollouts_of_one_problem_read_its_prompt_once(llama: Any, tokenizer: Any) -> None:
    prompt = conversation(tokenizer, 3)
    read = TokensRead(llama)
    TransformersEngine(llama, tokenizer).generate([prompt] * 8, Sampling(max_tokens=1), generators(8))
    assert read.since() == len(prompt)


def test_a_sliding_window_is_decoded_without_reuse(tokenizer: Any) -> None:
    model = model_of("mistral", len(tokenizer), sliding_window=8)
    prompts = prompts_of(tokenizer)
    engine = TransformersEngine(model, tokenizer, batch_size=2)
    for prompt, turn in zip(prompts, engine.generate(prompts, GREEDY), strict=True):
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0)
        assert list(turn.token_ids) == expected[0, len(prompt) :].tolist()
    assert engine.prefixes.bytes == 0


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"batch_tokens": 0}, {"prefix_cache_mb": -1}])
def test_bad_sizes_are_named(llama: Any, tokenizer: Any, options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        TransformersEngine(llama, tokenizer, **options)
