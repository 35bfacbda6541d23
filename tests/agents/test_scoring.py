import pytest
import torch

from cleaner_env.agents import scoring
from cleaner_env.agents.scoring import masked_logprobs


def reference(model, ids, mask, temperature):
    logprobs = torch.log_softmax(model(input_ids=ids).logits[:, :-1] / temperature, dim=-1)
    return logprobs.gather(-1, ids[:, 1:, None]).squeeze(-1)[mask[:, 1:]]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("chunk", [scoring.CHUNK_LOGITS, 2000])
def test_scores_and_gradients_are_those_of_the_whole_forward_pass(random_model, monkeypatch, temperature, chunk):
    monkeypatch.setattr(scoring, "CHUNK_LOGITS", chunk)
    model = random_model()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, model.config.vocab_size, (3, 20), generator=generator)
    mask = torch.rand(3, 20, generator=generator) < 0.5
    mask[:, 0] = False
    gradients = []
    for score in (masked_logprobs, reference):
        model.zero_grad()
        scores = score(model, ids, mask, temperature)
        (scores * torch.arange(len(scores))).sum().backward()
        gradients.append((scores.detach(), [parameter.grad.clone() for parameter in model.parameters()]))
    (ours, our_gradients), (theirs, their_gradients) = gradients
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(our_gradients, their_gradients, atol=1e-3, rtol=1e-4)


def test_padding_on_the_right_changes_nothing(random_model):
    model = random_model()
    ids = torch.tensor([[5, 6, 7, 8]])
    mask = torch.tensor([[False, False, True, True]])
    padded = torch.nn.functional.pad(ids, (0, 3))
    with torch.no_grad():
        alone = masked_logprobs(model, ids, mask)
        beside = masked_logprobs(model, padded, torch.nn.functional.pad(mask, (0, 3)))
    torch.testing.assert_close(alone, beside)


def test_a_first_token_cannot_be_scored(random_model):
    with pytest.raises(ValueError, match="first token"):
        masked_logprobs(random_model(), torch.tensor([[1, 2]]), torch.tensor([[True, True]]))
