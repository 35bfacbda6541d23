"""Checks that a line is an episode of the schema that `cleaner_env.wrappers.records` describes; it is not trusted."""

from __future__ import annotations

import sys
from typing import Any, Final

from cleaner_env.conversation import Conversation, decode_conversation
from cleaner_env.wrappers.purification import Turn

__all__ = ["RESERVED_KEYS", "SCHEMA", "read_episode"]

SCHEMA: Final = 2
_TEXT: Final = (str, type(None))
_WHOLE: Final = (int, type(None))
_NUMBER: Final = (int, float, type(None))
_KEYS: Final[dict[str, tuple[str, tuple[type, ...]]]] = {
    "env_id": ("text or null", _TEXT),
    "tool_format": ("text or null", _TEXT),
    "problem_id": ("text or null", _TEXT),
    "dataset": ("text or null", _TEXT),
    "seed": ("a whole number or null", _WHOLE),
    "stream": ("a list or null", (list, type(None))),
    "purified": ("true or false", (bool,)),
    "start": ("a list of messages", (list,)),
    "turns": ("a list", (list,)),
    "conversation": ("a list of messages", (list,)),
    "repairs": ("a list", (list,)),
    "reward": ("a number", (int, float)),
    "terminated": ("true or false", (bool,)),
    "truncated": ("true or false", (bool,)),
    "info": ("an object", (dict,)),
}
RESERVED_KEYS: Final = frozenset({"schema", *_KEYS})
"""The names that a writer's own keys cannot have."""
_OUTCOMES: Final = ("shallow", "deep", "failed", "abandoned", None)


def read_episode(value: Any) -> dict[str, Any]:
    """Returns the fields of an `EpisodeRecord` from a line's object.

    Raises:
        ValueError: It is no episode of this schema; the message names the key.
    """
    if not isinstance(value, dict):
        raise ValueError("an episode must be a JSON object")
    _check_schema(value.get("schema"))
    fields = {name: _checked(value, name, *_KEYS[name]) for name in _KEYS}
    for name in ("start", "conversation"):
        fields[name] = _conversation(fields[name], name)
    fields["turns"] = tuple(_turn(turn, f"turns[{position}]") for position, turn in enumerate(fields["turns"]))
    fields["repairs"] = tuple(_repair(repair, f"repairs[{number}]") for number, repair in enumerate(fields["repairs"]))
    if fields["stream"] is not None:
        fields["stream"] = tuple(fields["stream"])
    fields["labels"] = {name: item for name, item in value.items() if name not in RESERVED_KEYS}
    return fields


def _check_schema(schema: Any) -> None:
    if type(schema) is int and schema == SCHEMA:
        return
    if not isinstance(schema, int):
        raise ValueError(f"no recorded episode: schema must be {SCHEMA}, got {schema!r:.40}")
    way_out = "record the episodes again" if schema < SCHEMA else "update cleaner-env"
    raise ValueError(f"an episode of schema {schema}, and this version of cleaner-env reads schema {SCHEMA}; {way_out}")


def _checked(value: Any, name: str, wanted: str, types: tuple[type, ...], where: str = "") -> Any:
    """Returns a key of an object, where it has one of these types; ``true`` is no number."""
    if not isinstance(value, dict) or name not in value:
        raise ValueError(f"{where or 'the episode'} has no {name!r}")
    item = value[name]
    if not isinstance(item, types) or (isinstance(item, bool) and bool not in types):
        raise ValueError(f"{where + '.' if where else ''}{name} must be {wanted}, got {item!r:.60}")
    if float in types and isinstance(item, int) and abs(item) > sys.float_info.max:
        raise ValueError(f"{where + '.' if where else ''}{name} must be {wanted}, got one too large for a float")
    return item


def _conversation(value: list[Any], name: str) -> Conversation:
    """Restores messages, whose roles and contents have to be texts."""
    try:
        conversation = decode_conversation(value)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{name} must be a list of messages: {error!s:.80}") from None
    for message in conversation:
        if not isinstance(message["role"], str) or not isinstance(message["content"], str):
            raise ValueError(f"{name} must be messages of texts, got {message!r:.60}")
    return conversation


def _turn(value: Any, where: str) -> Turn:
    action = _checked(value, "action", "text or a completion", (str, dict), where)
    (message,) = _conversation([{"role": "assistant", "content": action}], f"{where}.action")
    observation, status, error = (
        _checked(value, name, "text or null", _TEXT, where) for name in ("observation", "tool_status", "error_type")
    )
    seconds = _checked(value, "seconds", "a number or null", _NUMBER, where)
    return Turn(message["content"], observation, status, error, seconds)


def _repair(value: Any, where: str) -> dict[str, Any]:
    for name in ("turn", "raw_turns", "attempts", "hidden_tokens"):
        if _checked(value, name, "a whole number", (int,), where) < 0:
            raise ValueError(f"{where}.{name} must not be negative, got {value[name]}")
    for name in ("similarity", "logprob_gap"):
        _checked(value, name, "a number or null", _NUMBER, where)
    if value.get("outcome", "") not in _OUTCOMES:
        raise ValueError(f"{where}.outcome must be one of {_OUTCOMES}, got {value.get('outcome', '')!r:.60}")
    return dict(value)
