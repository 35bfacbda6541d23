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
                     (spent in ``step``; ``null`` in runs and evaluations, whose lines depend on seeds alone)
conversation         the final history; of a purified episode, the purified one
repairs              what purification did: objects with ``turn`` (assistant turns before the failed one in the final
                     history), ``raw_turns`` (how many of ``turns`` it took up), ``attempts``, ``outcome``
                     (``"shallow"``, ``"deep"``, ``"failed"``, ``"abandoned"``, ``null`` where the episode ended
                     first), ``similarity``, ``hidden_tokens`` (sampled, and in the history no more) and
                     ``logprob_gap`` (`Repair`; ``null`` where no agent measured it)
reward               the sum of the episode's rewards
terminated,          as in Gymnasium; neither where the episode was given up before its end
truncated
info                 the last ``info`` (`cleaner_env.env`); what is no JSON value in it, as its ``repr``
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
from cleaner_env.errors import ConfigError, DataError, InfrastructureError
from cleaner_env.wrappers.purification import Turn

if TYPE_CHECKING:
    from cleaner_env.wrappers.saar import Repair

__all__ = [
    "RESERVED_KEYS",
    "SCHEMA",
    "EpisodeRecord",
    "append_records",
    "check_writable",
    "describe_repair",
    "episodes_file",
    "json_line",
    "plain_json",
    "read_episodes",
    "write_whole",
]

SCHEMA: Final = 2
_CHUNK: Final = 1 << 16


@dataclass(frozen=True)
class EpisodeRecord:
    """One episode; the fields are the keys of a line, `labels` the keys that its writer added.

    Example:
        >>> start = ({"role": "user", "content": "What is 6 * 7?"},)
        >>> said = ({"role": "assistant", "content": "42"},)
        >>> record = EpisodeRecord("p-1", "exam", start=start, turns=(Turn("42"),), conversation=start + said)
        >>> EpisodeRecord.from_json(json.loads(json_line(record.as_json()))) == record
        True
    """

    problem_id: str | None
    dataset: str | None
    start: Conversation
    turns: tuple[Turn, ...]
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
        _check_schema(value.get("schema"))
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
            labels={name: item for name, item in value.items() if name not in RESERVED_KEYS},
        )


def describe_repair(repair: Repair) -> dict[str, Any]:
    """Returns an entry of ``repairs``."""
    return {
        "turn": repair.turn_before,
        "raw_turns": len(repair.failures) + (repair.correction is not None),
        "attempts": repair.attempts,
        "outcome": repair.outcome,
        "similarity": repair.similarity,
        "hidden_tokens": repair.hidden_tokens,
        "logprob_gap": repair.logprob_gap,
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


def check_writable(path: str | os.PathLike[str]) -> None:
    """Checks that episodes may be appended to a file: that its folder exists, and that it holds nothing else.

    Raises:
        ConfigError: They may not.
    """
    file = Path(path)
    if not file.parent.is_dir():
        raise ConfigError(f"{file} lies in a folder that does not exist; make the folder first")
    if not file.exists():
        return
    if not file.is_file():
        raise ConfigError(f"{file} is no plain file; give the path of a file for episodes, such as episodes.jsonl")
    begin = f'{{"schema": {SCHEMA}, '.encode()
    with file.open("rb") as lines:
        found = lines.read(len(begin))
    if not begin.startswith(found):
        raise ConfigError(f"{file} holds something other than episodes of schema {SCHEMA}; choose another file, or move it")


def append_records(path: str | os.PathLike[str], records: Iterable[Mapping[str, Any]]) -> None:
    """Appends objects as whole lines, which the end of this process, however sudden, does not touch any more.

    Raises:
        InfrastructureError: The file cannot be written, as when the disk is full; what was in it is still there.
    """
    content = b"".join(map(json_line, records))
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _append(descriptor, content)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InfrastructureError(f"cannot append episodes to {os.fspath(path)}: {error.strerror}") from error


def write_whole(path: str | os.PathLike[str], content: bytes | Iterable[bytes]) -> None:
    """Writes a file that appears when it is complete, or not at all; a file that is there is replaced.

    Raises:
        ConfigError: It cannot be written.
    """
    file = Path(path).resolve()  # a link is followed, not replaced
    if file.exists() and not file.is_file():
        raise ConfigError(f"cannot write {path}: it is no plain file")
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with scratch.open("wb") as pieces:
            pieces.writelines([content] if isinstance(content, bytes) else content)
        scratch.replace(file)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    finally:
        scratch.unlink(missing_ok=True)


def json_line(value: Mapping[str, Any]) -> bytes:
    """Returns an object as one line of strict JSON; what is no JSON value stands as its ``repr``."""
    text = json.dumps(plain_json(value), ensure_ascii=False, allow_nan=False, default=repr)
    return (text + "\n").encode("utf-8", errors="backslashreplace")  # a lone surrogate becomes its JSON escape


def plain_json(value: Any) -> Any:
    """Returns JSON values: NumPy's and torch's numbers and arrays as Python's, NaN and infinities as ``None``."""
    if isinstance(value, Mapping):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    if hasattr(value, "tolist"):
        return plain_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _append(descriptor: int, content: bytes) -> None:
    """Appends to a locked file, or leaves it as it is, without what a killed writer left behind its last line."""
    size = os.fstat(descriptor).st_size
    rest = _after_last_newline(descriptor, size)
    if rest and _is_json(rest):
        content = b"\n" + content  # an episode that only lacks its newline, as editors leave it
    elif rest:
        size -= len(rest)
        os.ftruncate(descriptor, size)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    except BaseException:
        os.ftruncate(descriptor, size)
        raise


def _after_last_newline(descriptor: int, size: int) -> bytes:
    rest = b""
    while len(rest) < size:
        begin = max(0, size - len(rest) - _CHUNK)
        chunk = os.pread(descriptor, size - len(rest) - begin, begin)
        _, newline, after = chunk.rpartition(b"\n")
        rest = after + rest
        if newline:
            break
    return rest


def _is_json(line: bytes) -> bool:
    try:
        _parse(line)
    except (ValueError, RecursionError):
        return False
    return True


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
RESERVED_KEYS: Final = frozenset({"schema", *_KEYS})
"""The names that a writer's own keys cannot have."""
_OUTCOMES: Final = ("shallow", "deep", "failed", "abandoned", None)


def _check_schema(schema: Any) -> None:
    if schema == SCHEMA:
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
