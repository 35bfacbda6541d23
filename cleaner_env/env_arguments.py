"""Checks of the arguments of `ToolUseEnv`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from cleaner_env.errors import ConfigError
from cleaner_env.sandbox import Limits
from cleaner_env.tasks import Task

__all__ = ["check_arguments"]


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


def _require(condition: bool, rule: str, value: object) -> None:
    if not condition:
        raise ConfigError(f"{rule}, got {value!r:.80}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
