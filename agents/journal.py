"""Episodes that ended since the latest checkpoint, kept so that a killed run need not sample them again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cleaner_env.agents.episodes import Episode, EpisodeRequest
from cleaner_env.conversation import encode_conversation
from cleaner_env.errors import DataError
from cleaner_env.wrappers.purifier import PurificationRule, purify_episode
from cleaner_env.wrappers.records import EpisodeRecord, append_records, read_episodes

__all__ = ["EpisodeJournal"]


class EpisodeJournal:
    """A file of finished episodes with their tokens, each found again by the step and the request that it was played for.

    The weights of a step follow from the checkpoint and the episodes since, so what was sampled before the end of a run is
    what its continuation would sample, and a step that was over is learned from without sampling anything.

    Args:
        file: Where episodes are kept, one a line; what it holds is read.
        rule: How episodes are purified.
        max_turns: Assistant turns of an episode.
    """

    def __init__(self, file: Path, rule: PurificationRule, max_turns: int) -> None:
        self._file = file
        self._rule = rule
        self._max_turns = max_turns
        self._known = {_key(record): record for record in _read(file)}

    def add(self, step: int, episode: Episode) -> None:
        """Keeps an episode, unless the infrastructure failed it: the sudden end of this process does not lose it."""
        if episode.valid:
            append_records(self._file, [episode.as_record({"step": step}, tokens=True)])

    def find(self, step: int, request: EpisodeRequest) -> Episode | None:
        """Returns the episode that was played for a request in a step, if it is known."""
        record = self._known.get((step, request.stream, request.index, request.saar))
        return None if record is None else self._restored(record, request)

    def clear(self) -> None:
        """Forgets all, once a checkpoint holds what was learned from them."""
        self._known.clear()
        self._file.unlink(missing_ok=True)

    def _restored(self, record: EpisodeRecord, request: EpisodeRequest) -> Episode | None:
        rule = self._rule if record.purified else PurificationRule(strategy="none")
        assert record.tool_format is not None
        purified = purify_episode(
            record.start, record.turns, rule, tool_format=record.tool_format, max_turns=self._max_turns
        )
        if purified.repair is not None:
            purified.end()
        if encode_conversation(purified.conversation) != encode_conversation(record.conversation):
            return None  # the rule was another
        return Episode(
            request=request,
            conversation=purified.conversation,
            raw_conversation=purified.raw_conversation,
            reward=record.reward,
            info=record.info,
            sampled_tokens=record.labels["sampled_tokens"],
            repairs=tuple(purified.repairs),
            turns=record.turns,
            env_id=record.env_id,
            tool_format=record.tool_format,
            masked_turns=tuple(purified.masked_turns),
            tries=record.labels["tries"],
        )


def _read(file: Path) -> Iterator[EpisodeRecord]:
    if file.exists():
        with suppress(DataError):  # what cannot be read is played again
            yield from read_episodes(file)


def _key(record: EpisodeRecord) -> tuple[object, ...]:
    return record.labels.get("step"), record.stream, record.labels.get("index"), record.purified
