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
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cleaner_env.conversation import Conversation, encode_conversation
from cleaner_env.errors import ConfigError, DataError, InfrastructureError
from cleaner_env.wrappers.purification import Turn
from cleaner_env.wrappers.record_schema import RESERVED_KEYS, SCHEMA, read_episode

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

_CHUNK: Final = 1 << 16
_BEGIN: Final = f'{{"schema": {SCHEMA}, '.encode()
"""What every line begins with."""


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
        return cls(**read_episode(value))


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
    is_folder = stat.S_ISDIR(_mode(path))
    file = path / "episodes.jsonl" if is_folder else path
    if not stat.S_ISREG(_mode(file)):
        missing = "has no episodes.jsonl" if is_folder else "does not exist"
        raise ConfigError(f"{path} {missing}; give a run's folder, or a file that RecordEpisodes wrote")
    return file


def read_episodes(path: str | Path) -> Iterator[EpisodeRecord]:
    """Reads episodes one by one. The file is not trusted; a last line that a killed run left unfinished is skipped.

    Raises:
        ConfigError: There is no such file, or it cannot be read.
        DataError: A line is no episode; the message names the file and the line.
    """
    file = episodes_file(path)
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield EpisodeRecord.from_json(_parse(line))
                except (ValueError, RecursionError) as error:
                    unreadable = isinstance(error, (json.JSONDecodeError, UnicodeDecodeError))
                    begun = number > 1 or line[: len(_BEGIN)] == _BEGIN[: len(line)]
                    if unreadable and begun and not line.endswith(b"\n"):
                        return
                    raise DataError(f"{file}:{number}: {_reason(error)}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON ({error.msg}); a file of episodes has one in every line, as RecordEpisodes writes them"
    return str(error)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Checks that episodes may be appended to a file: that its folder exists, and that it holds nothing else.

    Raises:
        ConfigError: They may not.
    """
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise ConfigError(f"the file for episodes must be given by its path, got {path!r:.80}")
    file = Path(path)
    if not stat.S_ISDIR(_mode(file.parent)):
        raise ConfigError(f"{file} lies in a folder that does not exist; make the folder first")
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise ConfigError(f"{file} is no plain file; give the path of a file for episodes, such as episodes.jsonl")
        with file.open("rb") as lines:
            found = lines.read(len(_BEGIN))
    except FileNotFoundError:
        return
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot write episodes to {str(file)!r}: {reason}; give another path") from None
    if not _BEGIN.startswith(found):
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
    file = Path(os.path.realpath(path))  # a link is followed, not replaced
    if _mode(file) and not stat.S_ISREG(_mode(file)):
        raise ConfigError(f"cannot write {path}: it is no plain file")
    scratch = file.with_name(f".{file.name[:40]}.{os.getpid()}")
    try:
        with scratch.open("wb") as pieces:
            pieces.writelines([content] if isinstance(content, bytes) else content)
        scratch.replace(file)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    finally:
        with suppress(OSError):
            scratch.unlink()


def json_line(value: Mapping[str, Any]) -> bytes:
    """Returns an object as one line of strict JSON; what is no JSON value stands as its ``repr``.

    Raises:
        DataError: It is nested too deeply.
    """
    try:
        text = json.dumps(plain_json(value), ensure_ascii=False, allow_nan=False, default=repr)
    except RecursionError:
        raise DataError("an episode cannot be written: a value in it is nested too deeply") from None
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


def _mode(path: Path) -> int:
    """What kind of file a path has, 0 where there is none or can be none of this name."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0


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
