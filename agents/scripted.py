"""Policies that need no model: to try an environment, to test what surrounds it, and as the ends of a scale.

An oracle is told the answer, so that its success measures the environment and its graders, not a model.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from cleaner_env.conversation import Conversation
from cleaner_env.env import ToolUseEnv
from cleaner_env.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from cleaner_env.tasks.base import Problem

__all__ = ["POLICIES", "NoisyOraclePolicy", "OraclePolicy", "Policy", "RandomPolicy", "make_policy"]


class Policy(Protocol):
    """Something that takes the assistant's turns."""

    def begin(self, env: ToolUseEnv, rng: np.random.Generator) -> None:
        """Told before an episode's first turn: the environment, after its reset, and the episode's random stream."""

    def act(self, conversation: Conversation) -> str:
        """Returns the next turn."""


class OraclePolicy:
    """Answers at once, and rightly.

    Example:
        >>> import cleaner_env, gymnasium as gym, numpy as np
        >>> env = gym.make("CleanerArithmetic-v0")
        >>> conversation, info = env.reset(seed=1)
        >>> policy = OraclePolicy()
        >>> policy.begin(env.unwrapped, np.random.default_rng(0))
        >>> *_, info = env.step(policy.act(conversation))
        >>> info["verdict"]
        'correct'
        >>> env.close()
    """

    def begin(self, env: ToolUseEnv, rng: np.random.Generator) -> None:
        del rng
        self._env = env

    def act(self, conversation: Conversation) -> str:
        del conversation
        return right_answer(self._env)


class NoisyOraclePolicy(OraclePolicy):
    """Calls the tool before it answers rightly; some calls fail, and some failures are repaired at the next call.

    A failing call resembles its correction half of the time, so that a purified history has shallow and deep replacements.

    Args:
        error_rate: Probability that a call fails which does not follow a failed one.
        repair_rate: Probability that a call runs which follows a failed one.
        calls: Calls that have to run before the answer.

    Raises:
        ConfigError: A rate lies outside [0, 1], or ``calls`` is negative.
    """

    _DONE: Final = "checked"

    def __init__(self, error_rate: float = 0.5, repair_rate: float = 0.7, calls: int = 1) -> None:
        for name, rate in (("error_rate", error_rate), ("repair_rate", repair_rate)):
            if not 0 <= rate <= 1:
                raise ConfigError(f"{name} must lie in [0, 1], got {rate!r}")
        if calls < 0:
            raise ConfigError(f"calls must not be negative, got {calls!r}")
        self._error_rate = error_rate
        self._repair_rate = repair_rate
        self._calls = calls

    def begin(self, env: ToolUseEnv, rng: np.random.Generator) -> None:
        self._env = env
        self._rng = rng

    def act(self, conversation: Conversation) -> str:
        outputs = [message["content"] for message in conversation if message["role"] == "tool"]
        ran = sum(output.startswith(self._DONE) for output in outputs)
        if ran >= self._calls:
            return right_answer(self._env)
        after_failure = bool(outputs) and not outputs[-1].startswith(self._DONE)
        fails = self._rng.random() < (1 - self._repair_rate if after_failure else self._error_rate)
        code = f"print('{self._DONE}', {ran + 1})"
        if fails:
            code = (
                code.replace("print", "prnt")
                if self._rng.random() < 0.5
                else "import a_module_that_is_not_there as m; m.f()"
            )
        return self._env.tool_format.render("Let me check.\n", code)


class RandomPolicy:
    """Writes random turns: text of any Unicode, calls that run, fail or do not parse, and guesses."""

    _CODE: Final = (
        "print(1)",
        "x = 2\nx",
        "1 / 0",
        "prnt(1)",
        "def",
        "raise ValueError('no')",
        "import sys; sys.exit(3)",
        "",
    )

    def begin(self, env: ToolUseEnv, rng: np.random.Generator) -> None:
        self._env = env
        self._rng = rng

    def act(self, conversation: Conversation) -> str:
        del conversation
        kind = self._rng.integers(4)
        if kind == 0:
            return f"\\boxed{{{self._rng.integers(1000)}}}"
        if kind == 1:
            return f"\\boxed{{{'ABCD'[self._rng.integers(4)]}}}"
        call = self._env.tool_format.render(self._random_text() + "\n", str(self._rng.choice(self._CODE)))
        return call if kind == 2 else call[: self._rng.integers(len(call))]

    def _random_text(self) -> str:
        points = self._rng.integers(0x110000, size=self._rng.integers(20))
        return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)


POLICIES: Final[dict[str, Callable[[], Policy]]] = {
    "oracle": OraclePolicy,
    "noisy": NoisyOraclePolicy,
    "random": RandomPolicy,
}
"""The policies known by name."""


def make_policy(name: str) -> Policy:
    """Makes a policy by name.

    Raises:
        ConfigError: No policy has this name.
    """
    if name not in POLICIES:
        raise ConfigError(f"unknown policy {name!r}; choose one of {', '.join(POLICIES)}")
    return POLICIES[name]()


def right_answer(env: ToolUseEnv) -> str:
    """Returns a final turn that is graded as correct."""
    problem = env.problem
    if env.task.name == "livecodebench":
        return f"```python\n{_program_from_tests(problem)}\n```"
    return f"The answer is \\boxed{{{problem.answer}}}."


def _program_from_tests(problem: Problem) -> str:
    """Returns a program that knows the tests by heart, for a programming problem has no one right answer."""
    reference = json.loads(problem.answer)
    function = reference.get("fn_name")
    if function is None:
        table = {test["input"]: test["output"] for test in reference["tests"]}
        return f"import sys\nprint({table!r}[sys.stdin.read()])"
    table = {_canonical_arguments(test["input"]): test["output"] for test in reference["tests"]}
    return f"import json\n\ndef {function}(*arguments):\n    return json.loads({table!r}[json.dumps(arguments)])"


def _canonical_arguments(lines: str) -> str:
    return json.dumps([json.loads(line) for line in lines.split("\n") if line.strip()])
