"""The environments that ``import cleaner_env`` adds to Gymnasium's registry."""

from __future__ import annotations

from typing import Any, Final

from gymnasium.envs.registration import register, registry

__all__ = ["ENVIRONMENTS", "register_environments"]

ENVIRONMENTS: Final[dict[str, dict[str, Any]]] = {
    "CleanerAIME-v0": {"task": "aime", "tool_format": "hermes", "max_turns": 16},
    "CleanerGPQA-v0": {"task": "gpqa", "tool_format": "hermes", "max_turns": 16},
    "CleanerLiveCodeBench-v0": {"task": "livecodebench", "tool_format": "hermes", "max_turns": 16},
    # Three calls and an answer: one visible failed call costs the episode.
    "CleanerArithmetic-v0": {"task": "arithmetic", "tool_format": "python", "max_turns": 4, "error_detail": "message"},
}
"""Ids and default arguments of `ToolUseEnv`. A version rises whenever prompt, grader or problems change."""


def register_environments() -> None:
    """Registers the environments. Calling it again changes nothing."""
    for env_id, defaults in ENVIRONMENTS.items():
        if env_id not in registry:
            register(id=env_id, entry_point="cleaner_env.env:ToolUseEnv", kwargs=dict(defaults))
