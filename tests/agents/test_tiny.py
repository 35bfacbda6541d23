from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cleaner_env.agents.cold_start import ColdStartConfig, make_cold_start, write_traces
from cleaner_env.agents.cold_start_traces import MISTAKES, Carelessness, correct_code, write_answer_drill, write_call_drill
from cleaner_env.agents.models import load_model
from cleaner_env.agents.tiny_model import make_tiny_model
from cleaner_env.agents.tiny_tokenizer import train_tiny_tokenizer
from cleaner_env.errors import ConfigError

SMALL = ColdStartConfig(drills=8, traces=8)


@given(text=st.text(max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_survives_the_tokenizer(text: str, tokenizer: Any) -> None:
    ids = tokenizer(text, split_special_tokens=True).input_ids
    assert tokenizer.decode(ids) == text


def test_digits_names_and_phrases_are_pieces_of_their_own() -> None:
    text = "Find b, given:\na = 37 ** 5\nb = a - 7\nprint(b)\nYou can run Python"
    tokenizer = train_tiny_tokenizer([text] * 5)
    pieces = [tokenizer.decode([i]) for i in tokenizer(text).input_ids]
    assert pieces == [
        *("Find b", ", ", "given", ":", "\n"),
        *("a = ", "3", "7", " ** ", "5", "\n"),
        *("b = ", "a - ", "7", "\n"),
        *("print", "(", "b", ")", "\n"),
        "You can run Python",
    ]


def test_the_tokenizer_is_the_same_in_every_process() -> None:
    code = (
        "from cleaner_env.agents.tiny_tokenizer import train_tiny_tokenizer as train;"
        "print(train(['ab abc bcd cde def', 'abc cab bac'] * 3, 300).backend_tokenizer.to_str())"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout for _ in range(3)
    }
    assert len(runs) == 1


def test_the_model_has_about_a_million_parameters_and_a_seed(tokenizer: Any) -> None:
    one, same, other = (make_tiny_model(tokenizer, seed) for seed in (0, 0, 1))
    assert 0.7e6 < sum(parameter.numel() for parameter in one.parameters()) < 1.3e6
    assert torch.equal(one.lm_head.weight, same.lm_head.weight)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


def test_making_a_model_leaves_the_global_generator_alone(tokenizer: Any) -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    make_tiny_model(tokenizer, 0)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("carelessness", [Carelessness(), Carelessness(first_attempt=0.5, repair=0.4, rewritten=0.5)])
def test_the_environment_answers_as_the_traces_say(carelessness: Carelessness) -> None:
    """Every trace, its purified calls included, is played again in the real environment and sandbox."""
    traces = write_traces(12, carelessness, np.random.default_rng(0))
    env = gym.make("CleanerArithmetic-v0", max_turns=100, disable_env_checker=True)
    calls = errors = 0
    for index, trace in enumerate(traces):
        conversation, _ = env.reset(options={"index": index})
        reward = 0.0
        for message in trace.conversation[len(conversation) :]:
            if message["role"] == "assistant":
                conversation, reward, _, _, info = env.step(message["content"])
                calls += info["tool_called"]
                errors += info["tool_status"] == "error"
        assert conversation == trace.conversation
        assert reward == 1.0
    env.close()
    assert calls >= 3 * len(traces)
    assert errors > len(traces) / 2


def test_every_mistake_fails_in_every_step() -> None:
    env: Any = gym.make("CleanerArithmetic-v0", max_turns=100, disable_env_checker=True)
    env.reset(options={"index": 0})
    for step in env.unwrapped.problem.metadata["steps"]:
        for mistake in MISTAKES.values():
            _, _, _, _, info = env.step(f"```python\n{mistake(step)}\n```")
            assert info["tool_status"] == "error", mistake(step)
        _, _, _, _, info = env.step(f"```python\n{correct_code(step)}\n```")
        assert info["tool_status"] == "ok"
    env.close()


def test_only_calls_after_the_purified_ones_are_learned() -> None:
    traces = write_traces(60, Carelessness(), np.random.default_rng(1))
    for trace in traces:
        turns = [message["content"] for message in trace.conversation if message["role"] == "assistant"]
        assert len(turns) == len(trace.learn)
        assert list(trace.learn) == sorted(trace.learn)
        assert trace.learn[-1]
    assert {trace.learn.count(False) for trace in traces} == {0, 1, 2, 3}


def test_drills_hold_what_is_to_be_copied() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        read, write = write_call_drill(rng)
        definitions = read.splitlines()[1:]
        assert 3 <= len(definitions) <= 8
        assert all(f"```python\n{definition}\nprint({definition[0]})\n```" in write for definition in definitions)
        drill = write_answer_drill(rng)
        for output, answer in zip(drill[::2], drill[1::2], strict=True):
            assert answer["content"] == f"\\boxed{{{output['content']}}}"


def test_a_cold_start_is_an_ordinary_model_directory(tmp_path: Path) -> None:
    seen = []
    made = make_cold_start(tmp_path / "models" / "tiny", 3, seen.append, SMALL)
    assert made == tmp_path / "models" / "tiny"
    assert [path.name for path in made.parent.iterdir()] == ["tiny"], "nothing unfinished is left"
    model, tokenizer = load_model(made)
    assert seen[-1].step == seen[-1].steps == len(seen)
    again, _ = load_model(make_cold_start(tmp_path / "again", 3, config=SMALL))
    other, _ = load_model(make_cold_start(tmp_path / "other", 4, config=SMALL))
    assert torch.equal(model.get_input_embeddings().weight, again.get_input_embeddings().weight)
    assert not torch.equal(model.get_input_embeddings().weight, other.get_input_embeddings().weight)
    assert tokenizer.decode(tokenizer("print(a)").input_ids) == "print(a)"


def test_what_exists_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        make_cold_start(tmp_path)


def test_an_interrupted_cold_start_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_cold_start(tmp_path / "tiny", callback=interrupt, config=SMALL)
    assert list(tmp_path.iterdir()) == []
