"""The small model that training begins with by default: it can use the tool, but carelessly.

As in the paper, reinforcement learning begins with a model that was fine-tuned on traces of tool use. These traces are
written by a program, with the messages of the real environment and errors that its sandbox really gave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import numpy as np

from cleaner_env.agents.cold_start_traces import (
    MISTAKES,
    Carelessness,
    Trace,
    correct_code,
    write_answer_drill,
    write_call_drill,
    write_trace,
)
from cleaner_env.agents.models import check_new_directory, save_model
from cleaner_env.agents.rendering import Renderer
from cleaner_env.agents.sft import SFTConfig, SFTExample, SFTProgress, conversation_example, sft
from cleaner_env.agents.tiny_model import make_tiny_model
from cleaner_env.agents.tiny_tokenizer import train_tiny_tokenizer
from cleaner_env.conversation import Conversation
from cleaner_env.env import ToolUseEnv
from cleaner_env.errors import SandboxError
from cleaner_env.tasks.arithmetic import Step
from cleaner_env.tool_calls import ToolFormat

__all__ = ["RECIPE", "ColdStartConfig", "make_cold_start", "write_traces"]

RECIPE: Final = 1
"""Rises whenever the same seed would give another model, so that models kept from earlier releases are not taken for it."""

_PURIFIED_CALLS: Final = (0.3, 0.25, 0.25, 0.2)
"""How often a trace begins with 0, 1, 2 or 3 calls that read as purified."""


@dataclass(frozen=True)
class ColdStartConfig:
    """How the model is made.

    Attributes:
        drills: Exercises in copying, of each of two kinds, learned first.
        traces: Episodes, learned after them.
        carelessness: How often the calls of the traces fail.
        sft: How all are learned, drills before traces.
    """

    drills: int = 1700
    traces: int = 2000
    carelessness: Carelessness = field(default_factory=Carelessness)
    sft: SFTConfig = field(default_factory=lambda: SFTConfig(learning_rate=3e-3, batch_tokens=1280))


def make_cold_start(
    directory: str | Path,
    seed: int = 0,
    callback: Callable[[SFTProgress], None] | None = None,
    config: ColdStartConfig | None = None,
    sandbox: str = "auto",
) -> Path:
    """Trains the model and saves it with its tokenizer as an ordinary model directory.

    Takes one to two minutes on two cores. The directory appears only once it is whole.

    Args:
        directory: Where to save it; must not exist.
        seed: Everything random follows from it.
        callback: Called after each optimiser step.
        config: Options.
        sandbox: Backend that the mistakes are tried in.

    Returns:
        The directory.

    Raises:
        ConfigError: The directory exists.
        SandboxError: The sandbox failed.
    """
    check_new_directory(directory)
    config = config or ColdStartConfig()
    rng = np.random.default_rng(seed)
    traces = write_traces(config.traces, config.carelessness, rng, sandbox)
    call_drills = [write_call_drill(rng) for _ in range(config.drills)]
    answer_drills = [write_answer_drill(rng) for _ in range(config.drills)]
    tokenizer = train_tiny_tokenizer(
        [message["content"] for trace in traces for message in trace.conversation]
        + [text for drill in call_drills for text in drill]
        + ["system\nuser\nassistant\ntool"] * len(traces)
    )
    renderer = Renderer(tokenizer)
    model = make_tiny_model(tokenizer, seed)
    stages = [
        [_call_drill_example(*drill, tokenizer) for drill in call_drills]
        + [conversation_example(drill, renderer) for drill in answer_drills],
        [conversation_example(trace.conversation, renderer, trace.learn) for trace in traces],
    ]
    sft(model, stages, config.sft, rng, callback)
    return save_model(directory, model, tokenizer)


def write_traces(count: int, carelessness: Carelessness, rng: np.random.Generator, sandbox: str = "auto") -> list[Trace]:
    """Writes traces on the training problems of CleanerArithmetic-v0.

    Raises:
        SandboxError: The sandbox failed.
    """
    wrapped = gym.make("CleanerArithmetic-v0", split="train", sandbox=sandbox, disable_env_checker=True)
    env: Any = wrapped.unwrapped
    try:
        observations: dict[tuple[str, str], str] = {}

        def observe(mistake: str, step: Step) -> str:
            if (mistake, step.variable) not in observations:
                observations[mistake, step.variable] = _observe_mistake(env, mistake, step.variable)
            return observations[mistake, step.variable]

        return [_trace_of_problem(env, index, observe, carelessness, rng) for index in range(count)]
    finally:
        wrapped.close()


def _trace_of_problem(
    env: ToolUseEnv,
    index: int,
    observe: Callable[[str, Step], str],
    carelessness: Carelessness,
    rng: np.random.Generator,
) -> Trace:
    opening, _ = env.reset(options={"index": index})
    purified = int(rng.choice(len(_PURIFIED_CALLS), p=_PURIFIED_CALLS))
    return write_trace(opening, env.problem.metadata["steps"], purified, observe, env.tool_format, carelessness, rng)


def _observe_mistake(env: ToolUseEnv, mistake: str, variable: str) -> str:
    """Makes a mistake in a call that defines a variable, after the calls before it, and returns what the tool says.

    The text depends on the kind of mistake and the variable, not on the numbers.
    """
    conversation, _ = env.reset(options={"index": 0})
    for step in env.problem.metadata["steps"]:
        wrong = step.variable == variable
        conversation = _call(env, MISTAKES[mistake](step) if wrong else correct_code(step), env.tool_format)
        if wrong:
            break
    return conversation[-1]["content"]


def _call(env: ToolUseEnv, code: str, tool_format: ToolFormat) -> Conversation:
    conversation, _, _, _, info = env.step(tool_format.render("", code))
    if info["stop_condition"] == "infrastructure_error":
        raise SandboxError("the sandbox failed while the cold start tried out mistakes; try `cleaner doctor`")
    return conversation


def _call_drill_example(read: str, write: str, tokenizer: Any) -> SFTExample:
    before, after = (tokenizer(text, add_special_tokens=False).input_ids for text in (read, write))
    return SFTExample((*before, *after), (False,) * len(before) + (True,) * len(after))
