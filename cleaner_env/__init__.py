"""Tool-use LLM tasks as Gymnasium environments, purified episodes, and agents that learn from them.

Importing the package registers the environments; everything else is imported when it is first used, so that
``import cleaner_env`` costs no more than ``import gymnasium``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cleaner_env.registration import register_environments

if TYPE_CHECKING:
    from cleaner_env.conversation import Completion, Conversation, Message
    from cleaner_env.env import ToolUseEnv
    from cleaner_env.wrappers.saar import SAARWrapper

__version__ = "0.1.0"

__all__ = ["Completion", "Conversation", "Message", "SAARWrapper", "ToolUseEnv", "__version__"]

_HOMES = {
    "Completion": "cleaner_env.conversation",
    "Conversation": "cleaner_env.conversation",
    "Message": "cleaner_env.conversation",
    "SAARWrapper": "cleaner_env.wrappers.saar",
    "ToolUseEnv": "cleaner_env.env",
}

register_environments()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
