from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from cleaner_env.agents.engine import Sampling
from cleaner_env.agents.evaluate import DEFAULT_EPISODES, LanguageModel, evaluate
from cleaner_env.agents.models import load_model
from cleaner_env.agents.rendering import Renderer
from cleaner_env.agents.scripted import NoisyOraclePolicy, OraclePolicy
from cleaner_env.agents.summary import summarise
from cleaner_env.agents.transformers_engine import TransformersEngine
from cleaner_env.env import ToolUseEnv
from cleaner_env.errors import ConfigError, DataError
from cleaner_env.sandbox import Execution, make_sandbox
from cleaner_env.tasks.arithmetic import ArithmeticTask

ARITHMETIC = "CleanerArithmetic-v0"


@pytest.fixture(scope="module")
def player(model_directory: Path) -> LanguageModel:
    model, tokenizer = load_model(model_directory)
    return LanguageModel(TransformersEngine(model, tokenizer), Renderer(tokenizer), Sampling(12), 800, parallel_episodes=4)


def test_every_problem_of_a_file_in_order(tmp_path: Path) -> None:
    exam = tmp_path / "exam.jsonl"
    exam.write_text(
        "".join(json.dumps({"id": f"p{i}", "problem": f"What is {i} + 1?", "answer": i + 1}) + "\n" for i in range(7))
    )
    evaluation = evaluate("CleanerAIME-v0", OraclePolicy(), env_options={"dataset": str(exam)})
    assert evaluation.problems == len(evaluation.episodes) == 7
    assert [episode.info["problem_id"] for episode in evaluation.episodes] == [f"p{i}" for i in range(7)]
    assert evaluation.accuracy == 1.0
    assert evaluation.dataset.startswith(f"{exam}@")


def test_more_episodes_than_problems_begin_again() -> None:
    evaluation = evaluate("CleanerGPQA-v0", OraclePolicy(), episodes=30)
    ids = [episode.info["problem_id"] for episode in evaluation.episodes]
    assert len(ids) == 30
    assert ids[evaluation.problems :] == ids[: 30 - evaluation.problems]


def test_a_part_of_a_long_data_set() -> None:
    evaluation = evaluate(ARITHMETIC, OraclePolicy())
    assert len(evaluation.episodes) == DEFAULT_EPISODES
    assert evaluation.problems == 100_000


def test_the_numbers_of_an_evaluation() -> None:
    evaluation = evaluate(ARITHMETIC, NoisyOraclePolicy(1.0, 1.0, calls=1), episodes=6)
    summary = evaluation.summary
    assert (summary.success, summary.reward, summary.no_answer) == (1.0, 1.0, 0)
    assert (summary.first_attempt_error, summary.recovered) == (1.0, 1.0)
    assert (summary.tool_calls, summary.turns) == (2.0, 3.0)
    assert summary.stop_conditions == {"answered": 6}
    assert sum(summary.tool_failure_reasons.values()) == 6


def test_purification_shortens_the_history_and_hides_no_error() -> None:
    off, on = (evaluate(ARITHMETIC, NoisyOraclePolicy(1.0, 1.0, calls=1), episodes=6, saar=saar) for saar in (False, True))
    assert (off.saar, on.saar) == (False, True)
    assert (off.summary.turns, on.summary.turns) == (3.0, 2.0)
    assert off.summary.first_attempt_error == on.summary.first_attempt_error == 1.0
    assert all(episode.repairs for episode in on.episodes)
    assert all(len(episode.raw_conversation) == len(episode.conversation) + 2 for episode in on.episodes)


def test_equal_seeds_give_equal_evaluations() -> None:
    first, again, other = (evaluate(ARITHMETIC, NoisyOraclePolicy(), episodes=8, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.episodes != other.episodes


def test_no_call_is_no_error_rate_and_no_episode_no_success() -> None:
    assert evaluate(ARITHMETIC, OraclePolicy(), episodes=2).summary.first_attempt_error is None
    summary = summarise([])
    assert (summary.episodes, summary.success, summary.reward, summary.turns) == (0, None, None, None)


def test_episodes_that_the_sandbox_failed_are_counted_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with make_sandbox("local") as sandbox:

        class FailingEverySecondTime:
            """A real sandbox whose every second session is lost, as when a machine dies."""

            name = "failing"
            opened = 0

            def open(self) -> Any:
                self.opened += 1
                session = sandbox.open()
                if self.opened % 2 == 0:
                    monkeypatch.setattr(session, "run", lambda *_, **__: Execution("infrastructure_error"), raising=False)
                return session

        gym.register(
            "Failing-v0", lambda **_: ToolUseEnv(ArithmeticTask(), sandbox=FailingEverySecondTime(), tool_format="python")
        )  # type: ignore[arg-type]
        try:
            evaluation = evaluate("Failing-v0", NoisyOraclePolicy(0.0, 1.0), episodes=6)
        finally:
            del gym.registry["Failing-v0"]
    assert evaluation.summary.infrastructure_errors == 3
    assert evaluation.summary.episodes == 3
    assert evaluation.accuracy == 1.0
    assert evaluation.summary.stop_conditions == {"answered": 3, "infrastructure_error": 3}


def test_a_model_plays_and_its_tokens_are_counted(player: LanguageModel) -> None:
    evaluation = evaluate(ARITHMETIC, player, episodes=6, seed=3)
    assert evaluation.summary.episodes == 6
    assert all(episode.sampled_tokens >= 1 for episode in evaluation.episodes)
    assert evaluation.summary.tokens == sum(episode.sampled_tokens for episode in evaluation.episodes) / 6


def test_how_many_play_at_a_time_changes_no_outcome(player: LanguageModel) -> None:
    together = evaluate(ARITHMETIC, player, episodes=5, seed=4)
    alone = evaluate(ARITHMETIC, replace(player, parallel_episodes=1), episodes=5, seed=4)
    assert [episode.conversation for episode in together.episodes] == [episode.conversation for episode in alone.episodes]


def test_wrong_options(player: LanguageModel) -> None:
    for options, message in (
        ({"episodes": 0}, "episodes must be at least 1, got 0"),
        ({"seed": -1}, "seed must not be negative, got -1"),
        ({"env_options": {"max_turn": 1}}, f"{ARITHMETIC} has no such option: .*max_turn"),
        ({"env_options": {"max_turns": 0}}, "max_turns must be a positive int, got 0"),
        ({"saar": True, "saar_options": {"max_retries": -1}}, "max_retries must be an int of at least 0, got -1"),
    ):
        with pytest.raises(ConfigError, match=message):
            evaluate(ARITHMETIC, OraclePolicy(), **options)
    for env_id in ("CleanerChess-v0", "Cleaner AIME", "no_such_package:Env-v0"):
        with pytest.raises(ConfigError, match=f"cannot make the environment '{env_id}'.*this package has CleanerAIME-v0"):
            evaluate(env_id, OraclePolicy())
    with pytest.raises(ConfigError, match="is no tool-use environment of this package"):
        evaluate("CartPole-v1", OraclePolicy())
    with pytest.raises(DataError):
        evaluate("CleanerAIME-v0", OraclePolicy(), env_options={"dataset": "aime1066"})
    with pytest.raises(ConfigError, match="context_tokens must exceed the 12 tokens of a turn, got 12"):
        replace(player, context_tokens=12)
    with pytest.raises(ConfigError, match="parallel_episodes must be at least 1, got 0"):
        replace(player, parallel_episodes=0)
