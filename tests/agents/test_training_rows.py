"""Rows for the learner, made from real episodes of a real environment by an engine with random weights."""

import math

import gymnasium as gym
import pytest
import torch

from cleaner_env import SAARWrapper
from cleaner_env.agents.rendering import Renderer
from cleaner_env.agents.rollout import Episode, EpisodeRequest
from cleaner_env.agents.scoring import masked_logprobs
from cleaner_env.agents.training_rows import old_logprobs, training_rows
from cleaner_env.agents.transformers_engine import TransformersEngine
from cleaner_env.conversation import Completion, splice


@pytest.fixture
def completion(tokenizer):
    def make(text):
        pieces = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        ids = [*pieces["input_ids"], tokenizer.eos_token_id]
        return Completion(text, ids, [-9.0] * len(ids), [start for start, _ in pieces["offset_mapping"]] + [len(text)])

    return make


def reference_logprobs(model, ids):
    mask = torch.tensor([[False] + [True] * (len(ids) - 1)])
    with torch.no_grad():
        return [math.nan, *masked_logprobs(model, torch.tensor([ids]), mask).tolist()]


def test_grafted_turns_are_scored_under_the_purified_context(random_model, tokenizer, completion):
    model = random_model()
    engine, renderer = TransformersEngine(model, tokenizer), Renderer(tokenizer)

    failed, fixed = completion("Compute a.\nprnt(a)"), completion("Fix.\nprint(a)")
    joined = splice(failed, len("Compute a.\n"), fixed, len("Fix.\n"))
    start = ({"role": "user", "content": "Let a = 1."}, {"role": "assistant", "content": joined})
    later = ({"role": "tool", "content": "1"}, {"role": "assistant", "content": completion("\\boxed{1}")})
    rows = [renderer.render(start + later), renderer.render((start[0], {"role": "assistant", "content": failed}))]

    values, gaps = old_logprobs(engine, rows, temperature=1.0)

    full = reference_logprobs(model, list(rows[0].token_ids))
    grafted = [position for position, flag in enumerate(rows[0].grafted) if flag]
    assert grafted
    assert [values[0][position] for position in grafted] == pytest.approx([full[p] for p in grafted], abs=1e-4)
    assert gaps == [pytest.approx({position: -9.0 - full[position] for position in grafted}, abs=1e-4), {}]
    untouched = [p for p, action in enumerate(rows[0].action_mask) if action and p not in grafted]
    assert {values[0][position] for position in untouched} == {-9.0}
    assert values[1][:5] == pytest.approx(rows[1].logprobs[:5], nan_ok=True)


@pytest.fixture
def play(completion):
    """Plays what was said with the given strategy, as an episode of the trainer's."""

    def make(strategy, said, reward):
        with SAARWrapper(gym.make("CleanerArithmetic-v0"), strategy=strategy) as env:
            env.reset(seed=0)
            for action in said:
                conversation, *_, info = env.step(completion(action))
            raw = env.raw_conversation
            return Episode(
                EpisodeRequest(0, (0,)), conversation, raw, reward, info, 0, env.repairs, masked_turns=env.masked_turns
            )

    return make


SAID = ("First.\n```python\nprnt(6)\n```", "Second.\n```python\nprint(6)\n```", "\\boxed{6}")


def test_masked_turns_are_left_out_of_the_loss_and_stay_in_the_context(play, random_model, tokenizer):
    engine, renderer = TransformersEngine(random_model(), tokenizer), Renderer(tokenizer)
    (masked, whole), metrics = training_rows(
        [play("mask", SAID, 1.0), play("none", SAID, 0.0)], engine, renderer, temperature=1.0
    )
    assert masked.token_ids == whole.token_ids
    left_out = [i for i, (a, b) in enumerate(zip(masked.action_mask, whole.action_mask, strict=True)) if a != b]
    assert tokenizer.decode([masked.token_ids[i] for i in left_out]) == SAID[0] + tokenizer.eos_token
    assert [masked.action_mask[i] for i in left_out] == [False] * len(left_out)
    assert (masked.advantage, whole.advantage) == pytest.approx((1, -1), abs=1e-4)
    assert metrics["train/telling_groups"] == 1
    assert metrics["graft/tokens"] == 0
    assert math.isnan(metrics["graft/logprob_gap"])


def test_the_gap_of_every_graft_is_noted_in_its_repair(play, random_model, tokenizer):
    engine, renderer = TransformersEngine(random_model(), tokenizer), Renderer(tokenizer)
    said = ("Easy.\n```python\nprint(1)\n```", *SAID[:2], "```python\nzzz\n```", SAID[2])
    episode = play("saar", said, 1.0)
    (row,), metrics = training_rows([episode], engine, renderer, temperature=1.0)
    repaired, abandoned = episode.repairs
    rendered = renderer.render(episode.conversation)
    grafted = [position for position in rendered.turn_span(1) if rendered.grafted[position]]
    assert len(grafted) == metrics["graft/tokens"] > 0
    gap = sum(-9.0 - row.old_logprobs[position] for position in grafted)
    assert repaired.logprob_gap == pytest.approx(gap)
    assert metrics["graft/logprob_gap"] == pytest.approx(gap / len(grafted))
    assert abandoned.logprob_gap is None
