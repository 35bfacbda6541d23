"""Episodes with a real environment and a real sandbox; the turns are written by a script that tokenises what it says."""

import random
import threading
import time

import gymnasium as gym
import pytest

from cleaner_env.agents.engine import Sampling
from cleaner_env.agents.episodes import EpisodeRequest
from cleaner_env.agents.rendering import Renderer
from cleaner_env.agents.rollout import run_episodes
from cleaner_env.agents.summary import summarise
from cleaner_env.errors import InfrastructureError, SandboxError
from cleaner_env.sandbox import make_sandbox
from cleaner_env.wrappers import SAARWrapper


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


@pytest.fixture
def run(scripted_engine, tokenizer):
    def run(envs, requests, context_tokens=2000, engine=None, **options):
        engine = engine or scripted_engine(tokenizer)
        return run_episodes(envs, requests, engine, Renderer(tokenizer), Sampling(max_tokens=40), context_tokens, **options)

    return run


@pytest.mark.parametrize("deterministic", [True, False])
def test_purified_and_raw_episodes_of_one_batch(run, envs, deterministic, scripted_engine, tokenizer):
    requests = [EpisodeRequest(index=i, stream=(i,), group=i // 2, saar=i % 2 == 0) for i in range(7)]
    engine = scripted_engine(tokenizer)
    ended = []
    episodes = run(envs, requests, engine=engine, deterministic=deterministic, on_finished=ended.append)
    assert [episode.request for episode in episodes] == requests
    assert sorted(map(id, ended)) == sorted(map(id, episodes))
    assert max(engine.batches) == (3 if deterministic else 1)
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


def test_equal_streams_give_equal_episodes(run, envs):
    requests = [EpisodeRequest(index=i, stream=(i,), saar=True) for i in range(4)]
    first, second = ([episode.as_record() for episode in run(envs, requests)] for _ in range(2))
    assert first == second


def test_a_full_context_ends_the_episode(run, envs):
    (episode,) = run(envs, [EpisodeRequest(index=0, stream=(0,))], context_tokens=60)
    assert episode.info["stop_condition"] == "context_length"
    assert episode.sampled_tokens == 0


class Tool(gym.Wrapper):
    """Does something before each step; a copy is another tool of the same kind."""

    def __init__(self, env, before):
        super().__init__(env)
        self.before = before

    def step(self, action):
        self.before(self)
        return self.env.step(action)


def tools(sandbox, count, before, wrap=SAARWrapper):
    return [wrap(Tool(gym.make("CleanerArithmetic-v0", sandbox=sandbox), before)) for _ in range(count)]


def test_lockstep_asks_for_the_same_batches_whatever_takes_how_long(run, scripted_engine, tokenizer):
    class Engine(scripted_engine):
        def generate(self, prompts, sampling, generators=None):
            self.batches.append([tuple(prompt) for prompt in prompts])
            return [self._turn(prompt) for prompt in prompts]

    requests = [EpisodeRequest(index=i, stream=(i,), saar=i % 3 == 0) for i in range(9)]
    batches = []
    for seed in range(3):
        delays = random.Random(seed)
        envs = tools("local", 4, lambda tool, delays=delays: time.sleep(delays.random() * 0.02))
        engine = Engine(tokenizer)
        run(envs, requests, engine=engine)
        batches.append(engine.batches)
        for env in envs:
            env.close()
    assert batches[0] == batches[1] == batches[2]
    assert max(map(len, batches[0])) == 4


def test_free_episodes_do_not_wait_for_a_slow_tool(run):
    others = threading.Semaphore(0)

    def wait_for_five_episodes(tool):
        if tool is slow:
            assert all(others.acquire(timeout=60) for _ in range(5))

    envs = tools("local", 2, wait_for_five_episodes)
    slow = envs[0].env
    requests = [EpisodeRequest(index=i, stream=(i,)) for i in range(6)]
    waited = run(envs, requests, deterministic=False, on_finished=lambda _: others.release(9))
    assert [episode.valid for episode in waited] == [True] * 6
    for env in envs:
        env.close()


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_episode_that_the_infrastructure_fails_is_begun_again(run, envs, deterministic):
    requests = [EpisodeRequest(index=i, stream=(i,), saar=True) for i in range(5)]
    undisturbed = run(envs, requests)
    steps = iter(range(100))

    def fail(tool):
        if next(steps) in (0, 8, 9):  # an episode takes seven steps
            raise SandboxError("gone")

    failing = tools("local", 1, fail)
    episodes = run(failing, requests, deterministic=deterministic)
    assert [episode.tries for episode in episodes] == [2, 3, 1, 1, 1]
    without_tries = [{**episode.as_record(), "tries": 1} for episode in episodes]
    assert without_tries == [episode.as_record() for episode in undisturbed]
    failing[0].close()


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_episode_that_hangs_is_given_up_and_its_environment_replaced(run, deterministic):
    hung, released = [], threading.Event()

    def hang(tool):
        if not hung:
            hung.append(tool)
            released.wait(60)

    # Copies of the environment have to share what makes one of them hang, so it is the function's own.
    envs = tools("local", 2, _Shared(hang))
    before = list(envs)
    requests = [EpisodeRequest(index=i, stream=(i,), group=i // 2, saar=True) for i in range(6)]
    episodes = run(envs, requests, deterministic=deterministic, step_s=3.0)
    released.set()
    assert [episode.valid for episode in episodes].count(False) == 1
    (lost,) = [episode for episode in episodes if not episode.valid]
    assert lost.info["problem_id"].endswith(f"-{lost.request.index}")
    assert lost.as_record()["info"]["stop_condition"] == "infrastructure_error"
    assert sum(old is not new for old, new in zip(before, envs, strict=True)) == 1
    assert summarise(episodes).infrastructure_errors == 1
    assert all(episode.valid for episode in run(envs, requests, deterministic=deterministic))
    for env in envs:
        env.close()


class _Shared:
    """A function that is itself in copies of what holds it."""

    def __init__(self, function):
        self.function = function

    def __call__(self, tool):
        self.function(tool)

    def __deepcopy__(self, memo):
        return self


def test_an_environment_that_cannot_be_replaced_is_done_without(run, sandbox):
    hung, released = [], threading.Event()

    def hang(tool):
        if not hung:
            hung.append(tool)
            released.wait(60)

    requests = [EpisodeRequest(index=i, stream=(i,)) for i in range(4)]
    envs = tools(sandbox, 2, hang)
    episodes = run(envs, requests, step_s=2.0)
    assert [episode.valid for episode in episodes].count(False) == 1
    hung.clear()
    with pytest.raises(InfrastructureError, match="no environment is left: all had a step that took longer than 2 s"):
        run(tools(sandbox, 1, hang), requests, step_s=2.0)
    released.set()


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_fault_ends_the_rollout_and_its_threads(run, envs, deterministic, scripted_engine, tokenizer):
    class Faulty(scripted_engine):
        def generate(self, prompts, sampling, generators=None):
            self.batches.append(len(prompts))
            if len(self.batches) > 4:
                raise RuntimeError("a fault")
            return [self._turn(prompt) for prompt in prompts]

    requests = [EpisodeRequest(index=i, stream=(i,)) for i in range(6)]
    with pytest.raises(RuntimeError, match="a fault"):
        run(envs, requests, engine=Faulty(tokenizer), deterministic=deterministic)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("episodes-")]
    assert all(episode.valid for episode in run(envs, requests, deterministic=deterministic))


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_engine_that_is_down_loses_its_episodes_only(run, envs, deterministic, scripted_engine, tokenizer):
    class Down(scripted_engine):
        def generate(self, prompts, sampling, generators=None):
            self.batches.append(len(prompts))
            if len(self.batches) in (2, 3):
                raise InfrastructureError("the engine restarts")
            return [self._turn(prompt) for prompt in prompts]

    requests = [EpisodeRequest(index=i, stream=(i,)) for i in range(6)]
    episodes = run(envs, requests, engine=Down(tokenizer), deterministic=deterministic, retries=3)
    assert all(episode.valid for episode in episodes)
    assert max(episode.tries for episode in episodes) > 1


def test_an_outage_makes_an_episode_invalid(run):
    sandbox = make_sandbox("local")
    env = SAARWrapper(gym.make("CleanerArithmetic-v0", sandbox=sandbox))
    sandbox.close()
    (episode,) = run([env], [EpisodeRequest(index=0, stream=(0,), saar=True)])
    assert not episode.valid
    assert episode.reward == 0
    assert episode.tries == 3


def test_purified_episodes_need_the_wrapper(run, sandbox):
    env = gym.make("CleanerArithmetic-v0", sandbox=sandbox)
    with pytest.raises(ValueError, match="SAARWrapper"):
        run([env], [EpisodeRequest(index=0, stream=(0,), saar=True)])
    env.close()


def test_no_environment_is_an_error(run):
    with pytest.raises(ValueError, match="at least one"):
        run([], [])
