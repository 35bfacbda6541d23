import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.agents.grpo_config import ImportanceConfig, LearnerConfig, LossConfig
from cleaner_env.agents.learner import Learner, TrainingRow, learning_rate_share
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


def gradient(learner, rows):
    """The gradient of one update of all rows, which is not scaled down."""
    learner.update(rows, np.random.default_rng(0))
    return torch.cat([parameter.grad.flatten() for parameter in learner.model.parameters()])


def config_of(loss=None, **options):
    return LearnerConfig(warmup_steps=0, max_grad_norm=1e9, loss=loss or LossConfig(), **options)


LOSSES = [
    LossConfig(),
    LossConfig(aggregation="sequence-mean", clip_high=0.2, dual_clip=None),
    LossConfig(aggregation="constant", constant_tokens=20),
    LossConfig(ratio="sequence", aggregation="sequence-mean"),
    LossConfig(objective="cispo"),
    LossConfig(reference_kl=0.1),
]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("old", ["rollout", "learner"])
def test_any_microbatching_gives_the_same_gradient(random_model, loss, old):
    importance = ImportanceConfig(old, correction="none" if old == "rollout" else "truncate", level="token")
    moved = [replace(row, old_logprobs=[value - 0.2 for value in row.old_logprobs]) for row in some_rows(random_model())]
    gradients = []
    for tokens in (1, 45, 10_000):
        config = config_of(loss, microbatch_tokens=tokens, importance=importance)
        gradients.append(gradient(Learner(random_model(), config, reference=random_model(1)), moved))
    assert gradients[0].norm() > 0.01
    for other in gradients[1:]:
        assert (gradients[0] - other).norm() < 1e-5 * gradients[0].norm()


def some_rows(model):
    *rows, last = rows_of(model, [1.0, -0.5, 0.0, 2.0, -1.0])
    varied = np.linspace(-1, 1, len(last.token_ids), dtype=np.float32)
    return [*rows, replace(last, advantage=varied, counted=False)]


def test_the_gradient_is_that_of_a_plain_computation(random_model):
    model, rows = random_model(), rows_of(random_model(), [1.0, -0.5])
    scored = [masked_logprobs(model, torch.tensor([row.token_ids]), torch.tensor([row.action_mask])) for row in rows]
    # Fresh rows: the gradient of the ratio is that of the log-probability.
    loss = -sum(row.advantage * values.mean() for row, values in zip(rows, scored, strict=True)) / 2
    loss.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    found = gradient(Learner(random_model(), config_of(LossConfig(aggregation="sequence-mean"))), rows)
    assert (found - expected).norm() < 1e-5 * expected.norm()


def test_a_row_may_have_an_advantage_for_each_token(random_model):
    model = random_model()
    (row,) = rows_of(model, [1.0])
    advantage = np.zeros(len(row.token_ids), np.float32)
    advantage[-1] = 3.0
    learner = Learner(model, config_of(learning_rate=1e-3))
    metrics = learner.update([replace(row, advantage=advantage)], np.random.default_rng(0))
    assert metrics["loss"] == pytest.approx(-3.0 / sum(row.action_mask), abs=1e-5)


def test_rows_that_do_not_count_are_learned_from_beside_the_mean(random_model):
    def loss(**options):
        model = random_model()
        first, second = rows_of(model, [1.0, -0.5])
        rows = [first, replace(second, **options)]
        return rows, Learner(model, config_of()).update(rows, np.random.default_rng(0))["loss"]

    rows, value = loss(counted=False)
    lengths = [sum(row.action_mask) for row in rows]
    assert value == pytest.approx((-1.0 * lengths[0] + 0.5 * lengths[1]) / lengths[0], abs=1e-4)


def test_checkpointed_layers_give_the_same_gradient_and_hold_less(random_model):
    def measure(checkpointing):
        model = random_model(layers=4)
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = 0.5  # acts in training mode, which the model must not be in
        rows = rows_of(model, [1.0, -0.5])
        learner = Learner(model, config_of(gradient_checkpointing=checkpointing))
        saved = set()

        def pack(tensor):
            saved.add(tensor.untyped_storage().data_ptr())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            found = gradient(learner, rows)
        return found, len(saved)

    (whole, kept), (again, less) = measure(False), measure(True)
    assert torch.equal(whole, again)
    assert less < kept / 2


def test_a_checkpointed_model_still_generates_with_a_cache(random_model, tokenizer):
    model = random_model()
    expected = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=5, do_sample=False)
    Learner(model, config_of(learning_rate=1e-9, gradient_checkpointing=True)).update(
        rows_of(model, [1.0]), np.random.default_rng(0)
    )
    assert torch.equal(model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=5, do_sample=False), expected)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_low_precision_gives_nearly_the_same_gradient_in_float32(random_model, precision):
    rows = rows_of(random_model(), [1.0, -0.5, 2.0])
    learner = Learner(random_model(), config_of(autocast=precision))
    with torch.no_grad():
        ids, mask = torch.tensor([rows[0].token_ids]), torch.tensor([rows[0].action_mask])
        assert learner._logprobs(learner.model, ids, mask).dtype == torch.float32
    exact, found = gradient(Learner(random_model(), config_of()), rows), gradient(learner, rows)
    assert found.dtype == torch.float32
    assert 0 < (exact - found).norm() < 0.05 * exact.norm()


def test_float16_takes_no_step_where_its_gradient_overflows(random_model):
    model = random_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    learner = Learner(model, config_of(autocast="float16"))
    scale = learner.scaler.get_scale()
    metrics = learner.update(rows_of(model, [1e6]), np.random.default_rng(0))
    assert not np.isfinite(metrics["grad_norm"])
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    assert learner.scaler.get_scale() == scale / 2
    twin = Learner(random_model(), config_of(autocast="float16"))
    twin.load_state_dict(learner.state_dict())
    assert twin.scaler.get_scale() == scale / 2


def test_the_reference_holds_the_policy_back(random_model):
    def far(weight):
        model = random_model()
        learner = Learner(model, config_of(LossConfig(reference_kl=weight), learning_rate=1e-3), reference=random_model())
        rows = rows_of(model, [1.0, -1.0])
        for _ in range(20):
            metrics = learner.update(rows, np.random.default_rng(0))
        return metrics.get("reference_kl", -1), mean_logprob(model, rows[0])

    free, held = far(0.0), far(10.0)
    assert free[0] == -1
    assert 0 < held[0] < 1
    assert held[1] < free[1]


def test_where_there_is_a_reference_rows_without_advantage_are_learned_from(random_model):
    learner = Learner(random_model(), config_of(LossConfig(reference_kl=0.1)), reference=random_model(1))
    metrics = learner.update(rows_of(learner.model, [0.0, 0.0]), np.random.default_rng(0))
    assert metrics["loss"] == pytest.approx(0.1 * metrics["reference_kl"])
    assert metrics["grad_norm"] > 0


def test_old_logprobs_of_the_learners_own_replace_those_of_the_rollout(random_model):
    rows = rows_of(random_model(), [1.0, -0.5])
    off = [replace(row, old_logprobs=[value - 1.0 for value in row.old_logprobs]) for row in rows]
    learner = Learner(random_model(), config_of(importance=ImportanceConfig("learner")))
    found = learner.update(off, np.random.default_rng(0))
    exact = Learner(random_model(), config_of()).update(rows, np.random.default_rng(0))
    # The rollout was one nat off: E[r - 1 - log r] = e - 1 - 1 at every token.
    assert found.pop("rollout_kl") == pytest.approx(np.exp(1.0) - 2, rel=1e-3)
    assert found == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize(
    ("correction", "expected"), [("none", [1, 1, 1]), ("truncate", [2, 1, 1 / np.e]), ("mask", [0, 1, 0])]
)
def test_tokens_that_the_rollout_saw_otherwise_weigh_otherwise(random_model, correction, expected):
    """Of three tokens the rollout found one e times less likely, one as likely but in another context, one e times more."""
    (row,) = rows_of(random_model(), [1.0])
    mask = [False] * (len(row.token_ids) - 3) + [True] * 3
    old = [*row.old_logprobs[:-3], *(np.array(row.old_logprobs[-3:]) - [1.0, 1.0, -1.0])]
    grafted = [*[False] * (len(old) - 2), True, False]
    bounds = {"low": 0.5} if correction == "mask" else {}
    learner = Learner(random_model(), config_of(importance=ImportanceConfig("learner", correction=correction, **bounds)))
    metrics = learner.update([replace(row, action_mask=mask, old_logprobs=old, grafted=grafted)], np.random.default_rng(0))
    # A fresh token's loss is minus its advantage, here 1, times its weight.
    assert metrics["loss"] == pytest.approx(-np.mean(expected), abs=1e-3)
    assert metrics.get("importance", 1.0) == pytest.approx(np.mean(expected), abs=1e-3)


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.8, 0.6, 0.4, 0.2]),
        ("cosine", [0.5, 1, 1, 0.2 + 0.4 * (1 + 2**-0.5), 0.6, 0.2 + 0.4 * (1 - 2**-0.5), 0.2]),
    ],
)
def test_the_learning_rate_follows_its_schedule(random_model, schedule, shares):
    config = LearnerConfig(learning_rate=1e-4, warmup_steps=2, schedule=schedule, final_share=0.2)
    learner = Learner(random_model(), config, total_updates=6)
    rates = []
    for _ in range(8):
        learner.update(rows_of(learner.model, [1.0]), np.random.default_rng(0))
        rates.append(learner.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1e-4 * share for share in (*shares, shares[-1])])


@given(
    st.integers(0, 50),
    st.integers(0, 20),
    st.integers(1, 40),
    st.sampled_from(["constant", "linear", "cosine"]),
    st.floats(0, 1),
)
def test_a_schedule_rises_once_and_never_again(update, warmup, total, schedule, final):
    config = LearnerConfig(warmup_steps=warmup, schedule=schedule, final_share=final)
    now, then = (learning_rate_share(number, config, total) for number in (update, update + 1))
    assert 0 <= now <= 1
    assert now <= then if update + 1 < warmup else then <= max(now, 1.0)
    if update >= warmup:
        assert then <= now
        assert now >= (final if schedule != "constant" else 1) - 1e-12


def test_what_a_learner_needs_and_was_not_given_is_named(random_model):
    with pytest.raises(ConfigError, match=r"loss\.reference_kl=0\.1 needs a reference model"):
        Learner(random_model(), config_of(LossConfig(reference_kl=0.1)))
    with pytest.raises(ConfigError, match="schedule='cosine' needs total_updates"):
        Learner(random_model(), LearnerConfig(schedule="cosine"))
    without_layers = random_model(layers=0)
    with pytest.raises(ConfigError, match="LlamaForCausalLM does not support gradient_checkpointing"):
        Learner(without_layers, LearnerConfig(gradient_checkpointing=True))


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


def test_what_the_loss_reports_does_not_depend_on_rows_without_advantage(random_model):
    def surprisal(advantages):
        model = random_model()
        rows = rows_of(model, advantages)
        return Learner(model, LearnerConfig(warmup_steps=0)).update(rows, np.random.default_rng(0))["surprisal"]

    assert surprisal([1.0]) == pytest.approx(-mean_logprob(random_model(), rows_of(random_model(), [1.0])[0]), abs=1e-5)
    assert surprisal([1.0, 0.0, 0.0]) == pytest.approx(surprisal([1.0]))
