"""Episodes that are kept until a checkpoint, and found again."""

from dataclasses import replace

import gymnasium as gym
import pytest

from cleaner_env.agents.engine import Sampling
from cleaner_env.agents.episodes import EpisodeRequest
from cleaner_env.agents.journal import EpisodeJournal
from cleaner_env.agents.rendering import Renderer
from cleaner_env.agents.rollout import run_episodes
from cleaner_env.agents.training_rows import training_rows
from cleaner_env.agents.transformers_engine import TransformersEngine
from cleaner_env.conversation import encode_conversation
from cleaner_env.wrappers import SAARWrapper
from cleaner_env.wrappers.purifier import PurificationRule

REQUESTS = [EpisodeRequest(index=i, stream=(3, i), group=i // 2, saar=i % 2 == 0) for i in range(4)]


def play(engine, tokenizer, strategy="saar", max_turns=16, context_tokens=2000):
    env = SAARWrapper(gym.make("CleanerArithmetic-v0", sandbox="local", max_turns=max_turns), strategy=strategy)
    sampling = Sampling(max_tokens=40)
    with env:
        return run_episodes([env], REQUESTS, engine, Renderer(tokenizer), sampling, context_tokens), env.rule


@pytest.mark.parametrize(
    ("strategy", "max_turns", "context_tokens"),
    [("saar", 16, 2000), ("mask", 16, 2000), ("deep", 16, 2000), ("saar", 2, 2000), ("saar", 16, 140), ("saar", 16, 240)],
)
def test_a_new_process_finds_the_episodes_as_they_were(
    tokenizer, scripted_engine, random_model, tmp_path, strategy, max_turns, context_tokens
):
    episodes, rule = play(scripted_engine(tokenizer), tokenizer, strategy, max_turns, context_tokens)
    journal = EpisodeJournal(tmp_path / "journal.jsonl", rule, max_turns)
    for episode in episodes:
        journal.add(7, episode)
    again = EpisodeJournal(tmp_path / "journal.jsonl", rule, max_turns)
    found = [again.find(7, request) for request in REQUESTS]
    for episode, kept in zip(episodes, found, strict=True):
        assert kept.as_record(tokens=True) == episode.as_record(tokens=True)
        assert encode_conversation(kept.raw_conversation) == encode_conversation(episode.raw_conversation)
        assert kept.masked_turns == episode.masked_turns
        assert [repair.failures for repair in kept.repairs] == [
            [replace(turn, seconds=None) for turn in repair.failures] for repair in episode.repairs
        ]
    engine = TransformersEngine(random_model(), tokenizer)
    rows = [training_rows(played, engine, Renderer(tokenizer), 1.0)[0] for played in (episodes, found)]
    for ours, theirs in zip(*rows, strict=True):
        assert list(ours.token_ids) == list(theirs.token_ids)
        assert list(ours.action_mask) == list(theirs.action_mask)


def test_what_was_not_played_is_not_found(tokenizer, scripted_engine, tmp_path):
    episodes, rule = play(scripted_engine(tokenizer), tokenizer)
    file = tmp_path / "journal.jsonl"
    journal = EpisodeJournal(file, rule, 16)
    assert journal.find(0, REQUESTS[0]) is None
    journal.add(0, episodes[0])
    journal.add(0, replace(episodes[1], info={**episodes[1].info, "stop_condition": "infrastructure_error"}))
    known = EpisodeJournal(file, rule, 16)
    assert known.find(0, REQUESTS[0]) is not None
    assert known.find(0, REQUESTS[1]) is None
    assert known.find(1, REQUESTS[0]) is None
    assert known.find(0, replace(REQUESTS[0], saar=False)) is None
    assert known.find(0, replace(REQUESTS[0], index=1)) is None
    assert EpisodeJournal(file, PurificationRule(strategy="mask"), 16).find(0, REQUESTS[0]) is None
    with file.open("ab") as lines:
        lines.write(b'{"schema": 2, "half a li')
    assert EpisodeJournal(file, rule, 16).find(0, REQUESTS[0]) is not None
    known.clear()
    assert known.find(0, REQUESTS[0]) is None
    assert not file.exists()
    assert EpisodeJournal(file, rule, 16).find(0, REQUESTS[0]) is None
