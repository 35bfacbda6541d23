"""Rows for the learner, made from real episodes of a real environment by an engine with random weights."""

import math
from dataclasses import replace

import gymnasium as gym
import pytest
import torch

from cleaner_env import SAARWrapper
from cleaner_env.agents.episodes import Episode, EpisodeRequest
from cleaner_env.agents.grpo_config import AdvantageConfig
from cleaner_env.agents.rendering import Renderer
from cleaner_env.agents.scoring import masked_logprobs
from cleaner_env.agents.training_rows import old_logprobs, training_rows
from cleaner_env.agents.transformers_engine import TransformersEngine
from cleaner_env.conversation import Completion, splice
from cleaner_env.wrappers.recording import take_turn


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
    """Plays what was said with the given strategy, as an episode of the trainer's; the last turn is the right answer."""

    def make(strategy, said, reward=1.0, answer=None, group=0):
        with SAARWrapper(gym.make("CleanerArithmetic-v0", max_turns=8), strategy=strategy) as env:
            env.reset(seed=0)
            turns = []
            for action in (*said, answer or f"\\boxed{{{env.tool_env.problem.answer}}}"):
                (conversation, *_, info), turn = take_turn(env, completion(action))
                turns.append(turn)
            return Episode(
                EpisodeRequest(0, (0,), group),
                conversation,
                env.raw_conversation,
                reward,
                info,
                0,
                env.repairs,
                tuple(turns),
                tool_format=env.tool_env.tool_format.name,
                masked_turns=env.masked_turns,
            )

    return make


FAILED = "First.\n```python\nprnt(6)\n```"
FIXED = "Second.\n```python\nprint(6)\n```"


@pytest.fixture
def rows_of(random_model, tokenizer):
    """Makes rows of episodes, and a renderer to look for turns in them."""

    def make(episodes, *options, **more):
        engine, renderer = TransformersEngine(random_model(), tokenizer), Renderer(tokenizer)
        return (*training_rows(episodes, engine, renderer, 1.0, *options, **more), renderer)

    return make


def said_in(row, tokenizer, wanted):
    """The text of the tokens that satisfy a predicate of their position."""
    return tokenizer.decode([token for position, token in enumerate(row.token_ids) if wanted(position)])


def test_masked_turns_are_left_out_of_the_loss_and_stay_in_the_context(play, rows_of, tokenizer):
    (masked, whole), metrics, _ = rows_of([play("mask", (FAILED, FIXED)), play("none", (FAILED, FIXED), 0.0)])
    assert masked.token_ids == whole.token_ids
    left_out = [i for i, (a, b) in enumerate(zip(masked.action_mask, whole.action_mask, strict=True)) if a != b]
    assert tokenizer.decode([masked.token_ids[i] for i in left_out]) == FAILED + tokenizer.eos_token
    assert [masked.action_mask[i] for i in left_out] == [False] * len(left_out)
    assert masked.advantage == pytest.approx(1, abs=1e-4)
    assert whole.advantage == pytest.approx(-1, abs=1e-4)
    assert metrics["graft/tokens"] == 0
    assert math.isnan(metrics["graft/logprob_gap"])


def test_the_gap_of_every_graft_is_noted_in_its_repair(play, rows_of):
    said = ("Easy.\n```python\nprint(1)\n```", FAILED, FIXED, "```python\nzzz\n```")
    episode = play("saar", said)
    (row,), metrics, renderer = rows_of([episode])
    repaired, abandoned = episode.repairs
    rendered = renderer.render(episode.conversation)
    grafted = [position for position in rendered.turn_span(1) if rendered.grafted[position]]
    assert len(grafted) == metrics["graft/tokens"] > 0
    gap = sum(-9.0 - row.old_logprobs[position] for position in grafted)
    assert repaired.logprob_gap == pytest.approx(gap)
    assert metrics["graft/logprob_gap"] == pytest.approx(gap / len(grafted))
    assert abandoned.logprob_gap is None


def test_the_ablation_takes_grafts_for_what_they_were_sampled_as(play, rows_of):
    episode = play("saar", (FAILED, FIXED))
    (right,), metrics, renderer = rows_of([episode])
    (wrong,), same, _ = rows_of([episode], grafts="raw")
    rendered = renderer.render(episode.conversation)
    moved = [position for position in rendered.turn_span(0) if rendered.grafted[position]]
    sampled = [position for position, value in enumerate(rendered.logprobs) if not math.isnan(value)]
    assert moved
    assert set(moved) < set(sampled)
    assert {wrong.old_logprobs[position] for position in sampled} == {-9.0}
    assert all(right.old_logprobs[position] != -9.0 for position in moved)
    assert metrics == pytest.approx(same)  # the gap is measured either way
    for row, expected in ((right, set(moved)), (wrong, set())):
        assert {position for position, flag in enumerate(row.grafted) if flag and row.action_mask[position]} == expected


def test_episodes_near_the_limit_are_worth_less_than_others(play, rows_of):
    short, long = play("none", ()), play("none", (FAILED, FIXED))
    plain, _, renderer = rows_of([short, long])
    assert [float(row.advantage.max()) for row in plain] == [0, 0]
    length = len(renderer.render(long.conversation).token_ids)
    config = AdvantageConfig(scale="none", overlong_buffer=10, overlong_penalty=0.6)
    shaped, _, _ = rows_of([short, long], config, context_tokens=length + 5)
    assert [float(row.advantage.max()) for row in shaped] == pytest.approx([0.15, -0.15])


def test_failed_first_attempts_are_penalised_where_the_episode_succeeded(play, rows_of, tokenizer):
    said = ("```python\nprint(1)\n```", FAILED, "```python\nzzz\n```", FIXED)
    config = AdvantageConfig(first_error_penalty=0.25)
    (row,), _, renderer = rows_of([play("none", said)], config)
    penalised = renderer.render(play("none", said).conversation).turn_span(1)
    assert tokenizer.decode([row.token_ids[i] for i in penalised if row.action_mask[i]]) == FAILED + tokenizer.eos_token
    expected = [-0.25 if position in penalised else 0.0 for position in range(len(row.token_ids))]
    assert row.advantage.tolist() == expected

    lost = play("none", said, answer="\\boxed{-1}")
    assert lost.info["verdict"] == "incorrect"
    rewritten = play("saar", said[:1] + said[3:])
    purified = play("saar", (FAILED, FIXED))
    for row in rows_of([lost, rewritten, purified], config)[0]:
        assert not row.advantage.any()


def test_gated_pairs_add_the_failed_call_and_favour_what_replaced_it(play, rows_of, tokenizer):
    said = ("Easy.\n```python\nprint(1)\n```", FAILED, FIXED)
    episode = play("saar", said)
    (row, failed), metrics, renderer = rows_of([episode], AdvantageConfig(pair_weight=1.0))
    span = renderer.render(episode.conversation).turn_span(1)
    assert row.advantage.tolist() == [0.5 if position in span else 0.0 for position in range(len(row.token_ids))]
    assert metrics["train/pairs"] == 1
    assert row.counted
    assert not failed.counted
    assert failed.advantage == -1.0
    assert said_in(failed, tokenizer, lambda i: failed.action_mask[i]) == FAILED[len("First.\n") :]
    assert said_in(failed, tokenizer, lambda i: True).endswith(FAILED + tokenizer.eos_token)
    # On-policy: the same prefix, and the log-probabilities that the call was sampled with.
    assert failed.token_ids[: span.start] == row.token_ids[: span.start]
    assert {failed.old_logprobs[i] for i, chosen in enumerate(failed.action_mask) if chosen} == {-9.0}


def test_there_is_no_pair_without_a_repair_or_without_success(play, rows_of):
    config = AdvantageConfig(pair_weight=1.0)
    lost = play("saar", (FAILED, FIXED), answer="\\boxed{-1}")
    abandoned, raw = play("saar", (FAILED,)), play("none", (FAILED, FIXED))
    rows, metrics, _ = rows_of([lost, abandoned, raw], config)
    assert len(rows) == 3
    assert metrics["train/pairs"] == 0
    assert not any(row.advantage.any() for row in rows)


def test_a_pair_without_sampled_tokens_is_scored_like_any_other_text(random_model, tokenizer, play, rows_of):
    episode = play("saar", (FAILED, FIXED))
    (repair,) = episode.repairs
    repair.failures[0] = replace(repair.failures[0], action=str(FAILED))
    (_, failed), _, _ = rows_of([episode], AdvantageConfig(pair_weight=1.0))
    assert said_in(failed, tokenizer, lambda i: failed.action_mask[i]) == FAILED
    full = reference_logprobs(random_model(), list(failed.token_ids))
    chosen = [position for position, flag in enumerate(failed.action_mask) if flag]
    assert [failed.old_logprobs[i] for i in chosen] == pytest.approx([full[i] for i in chosen], abs=1e-4)
