import io

import numpy as np
import pytest
import torch

from cleaner_env.agents.grpo_config import LearnerConfig
from cleaner_env.agents.learner import Learner, TrainingRow
from cleaner_env.agents.scoring import masked_logprobs
from cleaner_env.errors import ConfigError


def rows_of(model, advantages, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for advantage in advantages:
        ids = rng.integers(0, model.config.vocab_size, int(rng.integers(8, 20))).tolist()
        mask = [False] * 4 + [True] * (len(ids) - 4)
        with torch.no_grad():
            scores = masked_logprobs(model, torch.tensor([ids]), torch.tensor([mask]))
        rows.append(TrainingRow(ids, mask, [float("nan")] * 4 + scores.tolist(), advantage))
    return rows


def mean_logprob(model, row):
    with torch.no_grad():
        return masked_logprobs(model, torch.tensor([row.token_ids]), torch.tensor([row.action_mask])).mean().item()


def test_better_episodes_become_likelier_and_worse_ones_less_likely(random_model):
    model = random_model()
    rows = rows_of(model, [1.0, -1.0])
    before = [mean_logprob(model, row) for row in rows]
    learner = Learner(model, LearnerConfig(learning_rate=1e-3, warmup_steps=0))
    metrics = learner.update(rows, np.random.default_rng(0))
    after = [mean_logprob(model, row) for row in rows]
    assert after[0] > before[0]
    assert after[1] < before[1]
    assert metrics["grad_norm"] > 0
    assert learner.updates == 1


def test_the_update_does_not_depend_on_how_rows_are_batched(random_model):
    def weights(**options):
        model = random_model()
        learner = Learner(model, LearnerConfig(warmup_steps=0, **options))
        learner.update(rows_of(model, [1.0, -0.5, 0.0, 2.0, -1.0]), np.random.default_rng(0))
        return [parameter.detach() for parameter in model.parameters()]

    # Adam's first step is the sign of the gradient, so weights whose gradient is nearly 0 may differ by a step.
    for one, other in zip(weights(microbatch_tokens=1), weights(microbatch_tokens=10_000), strict=True):
        assert (one - other).abs().mean() < 1e-5


def test_rows_without_advantage_weigh_in_the_token_mean(random_model):
    def loss(advantages):
        model = random_model()
        return Learner(model, LearnerConfig(warmup_steps=0)).update(rows_of(model, advantages), np.random.default_rng(0))[
            "loss"
        ]

    alone, diluted = loss([1.0]), loss([1.0, 0.0, 0.0])
    # The loss of fresh rows is minus the advantage, averaged over all action tokens.
    assert alone == pytest.approx(-1.0, abs=1e-5)
    lengths = [sum(row.action_mask) for row in rows_of(random_model(), [1.0, 0.0, 0.0])]
    assert diluted == pytest.approx(-lengths[0] / sum(lengths), abs=1e-5)


def test_nothing_happens_where_no_episode_differs(random_model):
    model = random_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    learner = Learner(model, LearnerConfig(weight_decay=0.1))
    assert learner.update(rows_of(model, [0.0, 0.0]), np.random.default_rng(0)) == {"loss": 0.0, "grad_norm": 0.0}
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_a_restored_learner_goes_on_to_the_same_weights(random_model):
    model = random_model()
    learner = Learner(model, LearnerConfig(minibatches=2))
    learner.update(rows_of(model, [1.0, -1.0, 0.5]), np.random.default_rng(0))
    twin_model = random_model()
    twin_model.load_state_dict(model.state_dict())
    twin = Learner(twin_model, LearnerConfig(minibatches=2))
    saved = io.BytesIO()
    torch.save(learner.state_dict(), saved)
    saved.seek(0)
    twin.load_state_dict(torch.load(saved, weights_only=True))
    rows = rows_of(model, [1.0, -1.0, 0.5], seed=1)
    for one in (learner, twin):
        one.update(rows, np.random.default_rng(1))
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), twin_model.parameters(), strict=True))
    assert twin.updates == learner.updates == 4


@pytest.mark.parametrize(
    "options",
    [{"learning_rate": 0}, {"minibatches": 0}, {"max_grad_norm": -1}, {"warmup_steps": -1}, {"microbatch_tokens": 0}],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        LearnerConfig(**options)


def test_what_the_loss_reports_does_not_depend_on_rows_without_advantage(random_model):
    def surprisal(advantages):
        model = random_model()
        rows = rows_of(model, advantages)
        return Learner(model, LearnerConfig(warmup_steps=0)).update(rows, np.random.default_rng(0))["surprisal"]

    assert surprisal([1.0]) == pytest.approx(-mean_logprob(random_model(), rows_of(random_model(), [1.0])[0]), abs=1e-5)
    assert surprisal([1.0, 0.0, 0.0]) == pytest.approx(surprisal([1.0]))
