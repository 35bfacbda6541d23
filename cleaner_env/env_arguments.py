"""Checks of the arguments of `ToolUseEnv` and of its ``reset``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from cleaner_env.errors import ConfigError
from cleaner_env.sandbox import Limits
from cleaner_env.tasks import Dataset, Problem, Task

__all__ = ["check_arguments", "checked_options", "choose_problem"]


def check_arguments(arguments: Mapping[str, Any], render_modes: Sequence[str]) -> None:
    """Checks the arguments that are not checked where they are used.

    Args:
        arguments: All arguments, by name.
        render_modes: The render modes that there are.

    Raises:
        ConfigError: One is out of range or of the wrong kind.
    """
    task, sandbox, limits = arguments["task"], arguments["sandbox"], arguments["limits"]
    _require(isinstance(task, (str, Task)), "task must be the name of a task or a Task", task)
    named_or_open = isinstance(sandbox, str) or callable(getattr(sandbox, "open", None))
    _require(named_or_open, "sandbox must be the name of a backend or a Sandbox", sandbox)
    _require(limits is None or isinstance(limits, Limits), "limits must be a Limits, such as Limits(wall_s=4)", limits)
    max_turns, seconds, reward = arguments["max_turns"], arguments["time_limit_s"], arguments["reward"]
    _require(_is_whole(max_turns) and max_turns >= 1, "max_turns must be a positive int", max_turns)
    _require(seconds is None or (_is_number(seconds) and seconds > 0), "time_limit_s must be positive or None", seconds)
    pair = isinstance(reward, Sequence) and len(reward) == 2 and all(_is_number(value) for value in reward)
    _require(pair and all(isfinite(value) for value in reward), "reward must be the pair (wrong, right) of numbers", reward)
    detail, characters, render_mode = (arguments[name] for name in ("error_detail", "max_output_chars", "render_mode"))
    _require(detail in ("traceback", "message"), "error_detail must be 'traceback' or 'message'", detail)
    _require(_is_whole(characters) and characters >= 100, "max_output_chars must be an int of at least 100", characters)
    _require(render_mode in (None, *render_modes), f"render_mode must be None or one of {list(render_modes)}", render_mode)


def checked_options(options: object) -> dict[str, Any]:
    """Returns a copy of the options of ``reset``.

    Raises:
        ConfigError: They are no mapping.
    """
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(f'options must be a dict such as {{"index": 0}} or None, got {options!r:.80}')
    return dict(options or {})


def choose_problem(dataset: Dataset, options: Mapping[str, Any], generator: np.random.Generator) -> Problem:
    """Returns the problem that the options of ``reset`` name, or one that is drawn.

    Raises:
        ConfigError: No problem has this index or id.
    """
    problems = dataset.problems
    if "problem_id" in options:
        wanted = options["problem_id"]
        found = next((problem for problem in problems if problem.id == wanted), None)
        if found is None:
            raise ConfigError(f"no problem has the id {wanted!r} in {dataset.name} ({len(problems)} problems)")
        return found
    if "index" in options:
        index = options["index"]
        if isinstance(index, bool) or not isinstance(index, (int, np.integer)) or not 0 <= index < len(problems):
            raise ConfigError(f"options['index'] must be an int from 0 to {len(problems) - 1}, got {index!r}")
        return problems[int(index)]
    return problems[int(generator.integers(len(problems)))]


def _require(condition: bool, rule: str, value: object) -> None:
    if not condition:
        raise ConfigError(f"{rule}, got {value!r:.80}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
