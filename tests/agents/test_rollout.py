"""Episodes with a real environment and a real sandbox; the turns are written by a script that tokenises what it says."""

import gymnasium as gym
import pytest

from cleaner_env.agents.engine import Sampling
from cleaner_env.agents.episodes import EpisodeRequest
from cleaner_env.agents.rendering import Renderer
from cleaner_env.agents.rollout import run_episodes
from cleaner_env.conversation import Completion
from cleaner_env.sandbox import make_sandbox
from cleaner_env.wrappers import SAARWrapper


class ScriptedEngine:
    """Fails at every first call, mends what it is shown, and answers after three calls."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.batches = []

    def generate(self, prompts, sampling, generators=None):
        self.batches.append(len(prompts))
        return [self._turn(prompt) for prompt in prompts]

    def _turn(self, prompt):
        text = self.tokenizer.decode(prompt)
        if text.rstrip().endswith("is not defined<|im_end|>\n<|im_start|>assistant"):
            return self._completion("Fix.\n```python\nprint(7)\n```")
        if text.count("<|im_start|>tool") >= 3:
            return self._completion("\\boxed{7}")
        return self._completion("Go.\n```python\nprnt(7)\n```")

    def _completion(self, text):
        pieces = self.tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        ids = [*pieces["input_ids"], self.tokenizer.eos_token_id]
        offsets = [start for start, _ in pieces["offset_mapping"]] + [len(text)]
        return Completion(text, ids, [-1.0] * len(ids), offsets)


@pytest.fixture(scope="module")
def sandbox():
    with make_sandbox("local") as sandbox:
        yield sandbox


@pytest.fixture
def envs(sandbox):
    made = [SAARWrapper(gym.make("CleanerArithmetic-v0", sandbox=sandbox)) for _ in range(3)]
    yield made
    for env in made:
        env.close()


def run(envs, tokenizer, requests, context_tokens=2000, engine=None):
    engine = engine or ScriptedEngine(tokenizer)
    return run_episodes(envs, requests, engine, Renderer(tokenizer), Sampling(max_tokens=40), context_tokens)


def test_purified_and_raw_episodes_of_one_batch(envs, tokenizer):
    requests = [EpisodeRequest(index=i, stream=(i,), group=i // 2, saar=i % 2 == 0) for i in range(7)]
    engine = ScriptedEngine(tokenizer)
    episodes = run(envs, tokenizer, requests, engine=engine)
    assert [episode.request for episode in episodes] == requests
    assert max(engine.batches) == 3
    for episode in episodes:
        assert episode.info["problem_id"].endswith(f"-{episode.request.index}")
        assert episode.info["first_attempt_success"] == 0
        calls = [message["content"] for message in episode.conversation if message["role"] == "assistant"]
        if episode.request.saar:
            assert calls == ["Go.\n```python\nprint(7)\n```"] * 3 + ["\\boxed{7}"]
            assert [repair.outcome for repair in episode.repairs] == ["shallow"] * 3
            assert len(episode.raw_conversation) == len(episode.conversation) + 6
            assert episode.info["stop_condition"] == "answered"
        else:
            assert "prnt" in calls[0]
            assert episode.repairs == ()
            assert episode.raw_conversation == episode.conversation
            assert episode.info["stop_condition"] == "max_turns"
    sampled = [sum(len(m["content"].token_ids) for m in e.raw_conversation if m["role"] == "assistant") for e in episodes]
    assert [episode.sampled_tokens for episode in episodes] == sampled


def test_equal_streams_give_equal_episodes(envs, tokenizer):
    requests = [EpisodeRequest(index=i, stream=(i,), saar=True) for i in range(4)]
    first, second = ([episode.as_record() for episode in run(envs, tokenizer, requests)] for _ in range(2))
    assert first == second


def test_a_full_context_ends_the_episode(envs, tokenizer):
    (episode,) = run(envs, tokenizer, [EpisodeRequest(index=0, stream=(0,))], context_tokens=60)
    assert episode.info["stop_condition"] == "context_length"
    assert episode.sampled_tokens == 0


def test_an_outage_makes_an_episode_invalid(tokenizer):
    sandbox = make_sandbox("local")
    env = SAARWrapper(gym.make("CleanerArithmetic-v0", sandbox=sandbox))
    sandbox.close()
    (episode,) = run([env], tokenizer, [EpisodeRequest(index=0, stream=(0,), saar=True)])
    assert not episode.valid
    assert episode.reward == 0


def test_purified_episodes_need_the_wrapper(sandbox, tokenizer):
    env = gym.make("CleanerArithmetic-v0", sandbox=sandbox)
    with pytest.raises(ValueError, match="SAARWrapper"):
        run([env], tokenizer, [EpisodeRequest(index=0, stream=(0,), saar=True)])
    env.close()


def test_no_environment_is_an_error(tokenizer):
    with pytest.raises(ValueError, match="at least one"):
        run([], tokenizer, [])
