"""The trainer over a real engine and a real sandbox, with a model of random weights where its skill does not matter."""

import json
import math
import os
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from cleaner_env.agents.batches import problem_indices, train_requests
from cleaner_env.agents.grpo import (
    EvaluationConfig,
    GRPOConfig,
    GRPOTrainer,
    LearnerConfig,
    LossConfig,
    RolloutConfig,
    SAARConfig,
    check_environments,
)
from cleaner_env.agents.grpo_config import EnvironmentConfig
from cleaner_env.agents.models import load_model
from cleaner_env.agents.run_folder import RunFolder, load_trainer_state
from cleaner_env.agents.scoring import masked_logprobs
from cleaner_env.errors import ConfigError, DataError


@pytest.fixture
def config(tmp_path):
    return GRPOConfig(
        deterministic=True,
        steps=2,
        runs=str(tmp_path),
        name="run",
        save_every=1,
        rollout=RolloutConfig(problems=2, group_size=4, turn_tokens=12, context_tokens=300, concurrency=5),
        evaluation=EvaluationConfig(every=1, episodes=3),
    )


@pytest.fixture
def make_trainer(random_model, tokenizer):
    trainers = []

    def make(config):
        trainers.append(GRPOTrainer(config, random_model(), tokenizer))
        return trainers[-1]

    yield make
    for trainer in trainers:
        trainer.close()


def metrics_of(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("speed/")} for line in lines]


def test_a_run_leaves_everything_behind(make_trainer, config):
    folder = make_trainer(config).run()
    assert [line["step"] for line in metrics_of(folder)] == [0, 1, 2]
    assert all("eval/success" in line for line in metrics_of(folder))
    episodes = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    train = [episode for episode in episodes if episode["phase"] == "train"]
    assert len(train) == 2 * 2 * 4
    assert len(episodes) == len(train) + 3 * 3
    for step in (1, 2):
        for group in (0, 1):
            members = [e for e in train if e["step"] == step and e["group"] == group]
            assert len({e["info"]["problem_id"] for e in members}) == 1
            assert sum(e["purified"] for e in members) == 2
    assert not any(episode["purified"] for episode in episodes if episode["phase"] == "eval")
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "config.toml").exists()
    assert list((folder / "tensorboard").iterdir())
    model = AutoModelForCausalLM.from_pretrained(folder / "checkpoints" / "step-000002")
    assert model.config.hidden_size == 32


def test_equal_seeds_give_equal_runs_and_others_do_not(make_trainer, config):
    runs = [
        metrics_of(make_trainer(replace(config, name=name, seed=seed)).run())
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_an_existing_run_is_not_overwritten(make_trainer, config):
    make_trainer(config).run()
    with pytest.raises(ConfigError, match="run"):
        make_trainer(config).run()


def test_a_restored_run_goes_on_as_though_it_had_not_stopped(make_trainer, config, random_model, tokenizer, parity_env):
    learner = LearnerConfig(learning_rate=0.01, warmup_steps=9, minibatches=2)
    rollout = replace(config.rollout, group_size=2, max_batches=3)
    config = replace(config, steps=3, rollout=rollout, learner=learner, env=EnvironmentConfig(id=parity_env))
    whole = make_trainer(replace(config, name="whole")).run()
    part = make_trainer(replace(config, name="part", steps=2)).run()
    with RunFolder.reopen(part) as folder:
        checkpoint = folder.latest_checkpoint()
        with GRPOTrainer(config, *load_model(checkpoint, "float32")) as trainer:
            trainer.restore(load_trainer_state(checkpoint))
            assert trainer.run(resumed=folder) == part
    assert metrics_of(part) == metrics_of(whole)
    assert len({metrics["loss/loss"] for metrics in metrics_of(part)[1:]}) == 3
    weights = [load_file(run / "checkpoints" / "step-000003" / "model.safetensors") for run in (part, whole)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
    with GRPOTrainer(config, random_model(), tokenizer) as trainer:
        trainer.restore(load_trainer_state(part / "checkpoints" / "step-000003"))
        with pytest.raises(ConfigError, match="all steps are taken already, 3; give more, such as steps=6"):
            trainer.run()


def test_purification_sets_in_when_it_is_told_to(make_trainer, config):
    saar = SAARConfig(share=1.0, final_share=0.5, from_step=1)
    folder = make_trainer(replace(config, steps=3, saar=saar)).run()
    episodes = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    counts = [
        sum(episode["purified"] for episode in episodes if (episode["step"], episode["phase"]) == (step, "train"))
        for step in (1, 2, 3)
    ]
    assert counts == [0, 8, 4]


def test_mixing_by_episode_draws_each_one_by_itself(config):
    config = replace(config, saar=SAARConfig(mixing="episode"))
    requests = [request for batch in range(50) for request in train_requests(config, batch, share=0.25, problems=9)]
    counts = {sum(r.saar for r in requests[start : start + 4]) for start in range(0, len(requests), 4)}
    assert counts >= {0, 1, 2, 3}
    assert 0.2 < sum(request.saar for request in requests) / len(requests) < 0.3


def test_dynamic_sampling_collects_until_enough_groups_tell_something(make_trainer, config, parity_env):
    rollout = replace(config.rollout, problems=3, group_size=2, max_batches=6)
    trainer = make_trainer(replace(config, rollout=rollout, env=EnvironmentConfig(id=parity_env)))
    collected = 0
    for _ in range(3):
        episodes, chosen = trainer._collect()
        groups = {number: [e.reward for e in chosen if e.request.group == number] for number in range(18)}
        telling = [rewards for rewards in groups.values() if rewards]
        assert len(telling) == 3
        assert all(sorted(rewards) == [0, 1] for rewards in telling)
        assert len({episode.request.stream for episode in episodes}) == len(episodes)
        collected += len(episodes)
    assert collected == trainer._batches_done * 6 > 3 * 6


def test_dynamic_sampling_is_bounded_and_a_step_without_a_telling_group_changes_nothing(make_trainer, config):
    trainer = make_trainer(replace(config, rollout=replace(config.rollout, max_batches=3)))
    before = [parameter.clone() for parameter in trainer.learner.model.parameters()]
    metrics = trainer.step()
    assert (metrics["train/telling_groups"], metrics["loss/loss"], trainer._batches_done) == (0, 0, 3)
    assert all(map(torch.equal, before, trainer.learner.model.parameters()))


def test_the_policy_is_held_back_by_a_copy_of_what_it_began_as(make_trainer, config, parity_env):
    learner = LearnerConfig(learning_rate=0.01, warmup_steps=0, loss=LossConfig(reference_kl=0.1))
    trainer = make_trainer(replace(config, learner=learner, env=EnvironmentConfig(id=parity_env)))
    assert trainer.step()["loss/reference_kl"] == pytest.approx(0, abs=1e-6)
    assert trainer.step()["loss/reference_kl"] > 1e-5


def test_ctrl_c_ends_the_run_with_a_checkpoint(make_trainer, config):
    trainer = make_trainer(
        replace(config, steps=10_000, save_every=10_000, evaluation=EvaluationConfig(every=10_000, episodes=2))
    )

    before = signal.getsignal(signal.SIGINT)

    def interrupt():
        while trainer.steps_done < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    folder = trainer.run()
    thread.join()
    assert trainer.steps_done < 10_000
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [f"step-{trainer.steps_done:06d}"]
    assert metrics_of(folder)[-1]["step"] == trainer.steps_done
    assert signal.getsignal(signal.SIGINT) is before


def test_the_engine_samples_from_what_the_learner_learned(make_trainer, config):
    trainer = make_trainer(config)
    trainer.step()
    assert trainer.engine.logprobs([[5, 6, 7]], [1]) == [
        pytest.approx(reference_logprobs(trainer.learner.model, [5, 6, 7])[1:], abs=1e-4)
    ]


def reference_logprobs(model, ids):
    mask = torch.tensor([[False] + [True] * (len(ids) - 1)])
    with torch.no_grad():
        return [math.nan, *masked_logprobs(model, torch.tensor([ids]), mask).tolist()]


@given(seed=st.integers(0, 9), count=st.integers(1, 7), problems=st.integers(1, 20))
def test_every_epoch_visits_every_problem_once(seed, count, problems):
    steps = [problem_indices(seed, step, count, problems) for step in range(-(-2 * problems // count))]
    visited = [index for step in steps for index in step]
    for epoch in range(2):
        assert sorted(visited[epoch * problems : (epoch + 1) * problems]) == list(range(problems))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SAARConfig(share=1.1), "share"),
        (lambda: SAARConfig(similarity_threshold=-1), "similarity_threshold"),
        (lambda: SAARConfig(max_retries=-1), "max_retries"),
        (lambda: RolloutConfig(group_size=1), "group_size"),
        (lambda: RolloutConfig(temperature=0), "temperature"),
        (lambda: RolloutConfig(turn_tokens=48, context_tokens=48), "context_tokens must exceed the 48 turn_tokens"),
        (lambda: GRPOConfig(steps=0), "steps"),
        (lambda: GRPOConfig(seed=-1), "seed"),
        (lambda: EvaluationConfig(every=0), "every"),
    ],
)
def test_options_out_of_range_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_unknown_environments_are_refused(random_model, tokenizer, config):
    with pytest.raises(ConfigError, match="CleanerChess-v0"):
        GRPOTrainer(replace(config, env=EnvironmentConfig(id="CleanerChess-v0")), random_model(), tokenizer)


def test_a_context_longer_than_the_models_is_refused(random_model, tokenizer, config):
    rollout = replace(config.rollout, context_tokens=1025)
    with pytest.raises(ConfigError, match="context_tokens must be at most the model's 1024, got 1025"):
        GRPOTrainer(replace(config, rollout=rollout), random_model(), tokenizer)


@pytest.mark.parametrize(
    ("environment", "error", "words"),
    [
        (EnvironmentConfig(id="CartPole-v1"), ConfigError, "CartPole-v1"),
        (EnvironmentConfig(id="no_such_module:Chess-v0"), ConfigError, "no_such_module"),
        (EnvironmentConfig(max_turns=0), ConfigError, "max_turns"),
        (EnvironmentConfig(dataset="nothing"), DataError, "nothing"),
        (EnvironmentConfig(eval_split="dev"), DataError, "dev"),
    ],
)
def test_environments_are_checked_before_anything_costly(environment, error, words, config):
    with pytest.raises(error, match=words):
        check_environments(replace(config, env=environment))
