"""Recorded episodes: one schema for training runs, evaluations and `RecordEpisodes`, as JSON Lines.

A line is one episode, an object with these keys. Writers may add keys of their own, which readers find in
`EpisodeRecord.labels`: a training run has ``step``, ``phase``, ``index``, ``group`` and ``sampled_tokens``.

===================  ========================================================================================
schema               2; rises when a key changes its meaning
env_id, tool_format  the registered environment, ``null`` where there is none; how calls are written
problem_id, dataset  what was asked, as in ``info``
seed, stream         what ``reset`` was given; the seeds of everything random in the episode. Either may be ``null``
purified             whether failed calls were to be purified
start                the messages that the episode began with
turns                everything the assistant said, in order: objects with ``action``, ``observation`` (the content of
                     the tool message, ``null`` where there is none), ``tool_status``, ``error_type`` and ``seconds``
                     (spent in ``step``, ``null`` where they were not measured)
conversation         the final history; of a purified episode, the purified one
repairs              what purification did: objects with ``turn`` (assistant turns before the failed one in the final
                     history), ``raw_turns`` (how many of ``turns`` it took up), ``attempts``, ``outcome``
                     (``"shallow"``, ``"deep"``, ``"failed"``, ``"abandoned"``, ``null`` where the episode ended
                     first) and ``similarity``
reward               the sum of the episode's rewards
terminated,          as in Gymnasium; neither where the episode was given up before its end
truncated
info                 the last ``info`` (`cleaner_env.env`)
===================  ========================================================================================

A message is ``{"role", "content"}``. An action or a content is text, or, where tokens were asked for, the object that
`encode_conversation` makes of a `Completion`. NaN and infinities, which JSON lacks, are written as ``null``.

Whole lines are appended under a lock, so that processes may share a file. What a killed process left unfinished at the end
is skipped by readers and removed by the next writer.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cleaner_env.conversation import Conversation, decode_conversation, encode_conversation
from cleaner_env.errors import ConfigError, DataError
from cleaner_env.wrappers.purification import Turn

if TYPE_CHECKING:
    from cleaner_env.wrappers.saar import Repair

__all__ = [
    "SCHEMA",
    "EpisodeRecord",
    "RecordedTurn",
    "append_records",
    "check_writable",
    "describe_repair",
    "episodes_file",
    "json_line",
    "read_episodes",
    "write_whole",
]

SCHEMA: Final = 2
_LONGEST_TAIL: Final = 1 << 16


RecordedTurn = Turn


@dataclass(frozen=True)
class EpisodeRecord:
    """One episode; the fields are the keys of a line, `labels` the keys that its writer added.

    Example:
        >>> start = ({"role": "user", "content": "What is 6 * 7?"},)
        >>> said = ({"role": "assistant", "content": "42"},)
        >>> record = EpisodeRecord("p-1", "exam", start=start, turns=(RecordedTurn("42"),), conversation=start + said)
        >>> EpisodeRecord.from_json(json.loads(json_line(record.as_json()))) == record
        True
    """

    problem_id: str | None
    dataset: str | None
    start: Conversation
    turns: tuple[RecordedTurn, ...]
    conversation: Conversation
    env_id: str | None = None
    tool_format: str | None = None
    seed: int | None = None
    stream: tuple[int, ...] | None = None
    purified: bool = False
    repairs: tuple[dict[str, Any], ...] = ()
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether the episode was played to its end."""
        return self.terminated or self.truncated

    def as_json(self, tokens: bool = False) -> dict[str, Any]:
        """Returns the line's object.

        Args:
            tokens: Whether token ids and log-probabilities of completions are kept. They are several times the text.
        """
        messages = encode_conversation if tokens else _texts
        actions = messages(tuple({"role": "assistant", "content": turn.action} for turn in self.turns))
        return {
            "schema": SCHEMA,
            **self.labels,
            "env_id": self.env_id,
            "tool_format": self.tool_format,
            "problem_id": self.problem_id,
            "dataset": self.dataset,
            "seed": self.seed,
            "stream": None if self.stream is None else list(self.stream),
            "purified": self.purified,
            "start": _texts(self.start),
            "turns": [
                {
                    "action": action["content"],
                    "observation": turn.observation,
                    "tool_status": turn.tool_status,
                    "error_type": turn.error_type,
                    "seconds": turn.seconds,
                }
                for action, turn in zip(actions, self.turns, strict=True)
            ],
            "conversation": messages(self.conversation),
            "repairs": list(self.repairs),
            "reward": self.reward,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "info": self.info,
        }

    @classmethod
    def from_json(cls, value: Any) -> EpisodeRecord:
        """Checks an object and takes it in.

        Raises:
            ValueError: It is no episode of this schema; the message names the key.
        """
        if not isinstance(value, dict):
            raise ValueError("an episode must be a JSON object")
        schema = value.get("schema")
        if schema != SCHEMA:
            told = "written by an older version, " if isinstance(schema, int) and schema < SCHEMA else ""
            raise ValueError(f"{told}schema {schema!r:.40}, and this version reads schema {SCHEMA}; play the run again")
        keys = {name: _checked(value, name, *_KEYS[name]) for name in _KEYS}
        for name in ("start", "conversation"):
            keys[name] = _conversation(keys[name], name)
        turns = tuple(_turn(turn, f"turns[{position}]") for position, turn in enumerate(keys.pop("turns")))
        repairs = tuple(_repair(repair, f"repairs[{position}]") for position, repair in enumerate(keys.pop("repairs")))
        stream = keys.pop("stream")
        return cls(
            **keys,
            turns=turns,
            repairs=repairs,
            stream=None if stream is None else tuple(stream),
            labels={name: item for name, item in value.items() if name not in _KEYS and name != "schema"},
        )


def describe_repair(repair: Repair) -> dict[str, Any]:
    """Returns an entry of ``repairs``."""
    return {
        "turn": repair.turn_before,
        "raw_turns": len(repair.failures) + (repair.correction is not None),
        "attempts": repair.attempts,
        "outcome": repair.outcome,
        "similarity": repair.similarity,
    }


def episodes_file(path: str | Path) -> Path:
    """Returns the file with a run's episodes.

    Args:
        path: The file, or the folder of a run that has an ``episodes.jsonl``.

    Raises:
        ConfigError: There is none.
    """
    path = Path(path)
    file = path / "episodes.jsonl" if path.is_dir() else path
    if not file.is_file():
        missing = "has no episodes.jsonl" if path.is_dir() else "does not exist"
        raise ConfigError(f"{path} {missing}; give a run's folder, or a file that RecordEpisodes wrote")
    return file


def read_episodes(path: str | Path) -> Iterator[EpisodeRecord]:
    """Reads episodes one by one. The file is not trusted; a last line that a killed run left unfinished is skipped.

    Raises:
        ConfigError: There is no such file.
        DataError: A line is no episode; the message names the file and the line.
    """
    file = episodes_file(path)
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield EpisodeRecord.from_json(_parse(line))
            except (ValueError, RecursionError) as error:
                if not line.endswith(b"\n") and isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
                    return
                reason = "nested too deeply" if isinstance(error, RecursionError) else error
                raise DataError(f"{file}:{number}: {reason}") from None


def check_writable(path: str | Path) -> None:
    """Checks that episodes may be appended to a file: that its folder exists, and that it holds nothing else.

    Raises:
        ConfigError: They may not.
    """
    file = Path(path)
    if file.is_dir() or not file.parent.is_dir():
        reason = "is a folder" if file.is_dir() else "lies in a folder that does not exist"
        raise ConfigError(f"{file} {reason}; give the path of a file for episodes, such as episodes.jsonl")
    if not file.exists():
        return
    with file.open("rb") as lines:
        begins = lines.read(16)
    if begins and not f'{{"schema": {SCHEMA}, '.encode().startswith(begins[:13]):
        raise ConfigError(f"{file} exists and holds no episodes of schema {SCHEMA}; choose another file")


def append_records(path: str | Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Appends objects as whole lines, which the end of this process, however sudden, does not touch any more.

    Raises:
        OSError: The file cannot be written; it is as it was before.
    """
    content = b"".join(map(json_line, records))
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = _drop_unfinished_line(descriptor)
        try:
            written = 0
            while written < len(content):
                written += os.write(descriptor, content[written:])
        except BaseException:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def write_whole(path: str | Path, content: bytes) -> None:
    """Writes a file that appears when it is complete, or not at all; one that is there is replaced.

    Raises:
        ConfigError: It cannot be written.
    """
    file = Path(path)
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        scratch.write_bytes(content)
        scratch.replace(file)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from None
    finally:
        scratch.unlink(missing_ok=True)


def json_line(value: Mapping[str, Any]) -> bytes:
    """Returns an object as one line of strict JSON."""
    text = json.dumps(_strict(value), ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8", errors="backslashreplace")  # a lone surrogate becomes its JSON escape


def _drop_unfinished_line(descriptor: int) -> int:
    """Cuts off what a killed writer left, none being at work while the lock is held; returns the size of the file."""
    size = end = os.fstat(descriptor).st_size
    while end:
        begin = max(0, end - _LONGEST_TAIL)
        newline = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        end = begin if newline < 0 else begin + newline + 1
        if newline >= 0:
            break
    if end < size:
        os.ftruncate(descriptor, end)
    return end


def _strict(value: Any) -> Any:
    """Returns plain JSON values: NumPy and torch numbers as Python's, NaN and infinities as ``None``."""
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _texts(conversation: Conversation) -> list[dict[str, object]]:
    return [{"role": message["role"], "content": str(message["content"])} for message in conversation]


def _parse(line: bytes) -> Any:
    return json.loads(line.decode("utf-8"), parse_constant=_finite, parse_float=_finite)


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number:.40} is no finite number")
    return value


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
_OUTCOMES: Final = ("shallow", "deep", "failed", "abandoned", None)


def _checked(value: Any, name: str, wanted: str, types: tuple[type, ...], where: str = "") -> Any:
    """Returns a key of an object, where it has one of these types; ``true`` is no number."""
    if not isinstance(value, dict) or name not in value:
        raise ValueError(f"{where or 'the episode'} has no {name!r}")
    item = value[name]
    if not isinstance(item, types) or (isinstance(item, bool) and bool not in types):
        raise ValueError(f"{where + '.' if where else ''}{name} must be {wanted}, got {item!r:.60}")
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


def _turn(value: Any, where: str) -> RecordedTurn:
    action = _checked(value, "action", "text or a completion", (str, dict), where)
    (message,) = _conversation([{"role": "assistant", "content": action}], f"{where}.action")
    texts = (_checked(value, name, "text or null", _TEXT, where) for name in ("observation", "tool_status", "error_type"))
    return RecordedTurn(message["content"], *texts, _checked(value, "seconds", "a number or null", _NUMBER, where))


def _repair(value: Any, where: str) -> dict[str, Any]:
    for name in ("turn", "raw_turns", "attempts"):
        if _checked(value, name, "a whole number", (int,), where) < 0:
            raise ValueError(f"{where}.{name} must not be negative, got {value[name]}")
    _checked(value, "similarity", "a number or null", _NUMBER, where)
    if value.get("outcome", "") not in _OUTCOMES:
        raise ValueError(f"{where}.outcome must be one of {_OUTCOMES}, got {value.get('outcome', '')!r:.60}")
    return dict(value)
