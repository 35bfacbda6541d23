"""Turns that several threads ask an engine for at the same time."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from cleaner_env.agents.decoding import DecodingBatch, Row
from cleaner_env.agents.engine import Sampling
from cleaner_env.agents.transformers_engine import TransformersEngine
from cleaner_env.errors import UsageError


@pytest.fixture
def model(random_model: Any) -> Any:
    return random_model()


def prompts_of(tokenizer: Any, count: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(3, len(tokenizer), size=5 + 3 * number).tolist() for number in range(count)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_turns_of_concurrent_calls_are_those_of_single_ones(model: Any, tokenizer: Any, temperature: float) -> None:
    sampling = Sampling(max_tokens=24, temperature=temperature)
    prompts = prompts_of(tokenizer, 24)
    alone = [
        TransformersEngine(model, tokenizer).generate([prompt], sampling, [np.random.default_rng(number)])[0]
        for number, prompt in enumerate(prompts)
    ]
    engine = TransformersEngine(model, tokenizer, batch_size=7)

    def ask(number: int) -> Any:
        return engine.generate([prompts[number]], sampling, [np.random.default_rng(number)])[0]

    with ThreadPoolExecutor(12) as threads:
        together = list(threads.map(ask, range(len(prompts))))
    assert [turn.token_ids for turn in together] == [turn.token_ids for turn in alone]
    for ours, theirs in zip(together, alone, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    assert len({len(turn.token_ids) for turn in alone}) > 1


def test_calls_share_batches(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    step = DecodingBatch.step

    def counted(batch: DecodingBatch) -> list[Row]:
        sizes.append(len(batch))
        return step(batch)

    monkeypatch.setattr(DecodingBatch, "step", counted)
    engine = TransformersEngine(model, tokenizer)
    sampling = Sampling(max_tokens=40, temperature=0.0)
    together = threading.Barrier(6)

    def ask(prompt: list[int]) -> None:
        together.wait()
        engine.generate([prompt], sampling)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(ask, prompts_of(tokenizer, 6)))
    assert max(sizes) == 6


def test_calls_with_other_sampling_wait_for_an_empty_batch(model: Any, tokenizer: Any) -> None:
    prompts = prompts_of(tokenizer, 12)
    samplings = [Sampling(max_tokens=5 + number, temperature=0.0) for number in range(3)]
    alone = [
        TransformersEngine(model, tokenizer).generate([prompt], samplings[number % 3])[0].token_ids
        for number, prompt in enumerate(prompts)
    ]
    engine = TransformersEngine(model, tokenizer)
    with ThreadPoolExecutor(12) as threads:
        asked = [threads.submit(engine.generate, [prompt], samplings[n % 3]) for n, prompt in enumerate(prompts)]
        assert [turns.result()[0].token_ids for turns in asked] == alone


def test_what_ends_the_batch_ends_every_call_and_none_after_it(model: Any, tokenizer: Any) -> None:
    engine = TransformersEngine(model, tokenizer)
    prompts = prompts_of(tokenizer, 6)
    sampling = Sampling(max_tokens=30, temperature=0.0)
    together = threading.Barrier(6)

    def ask(prompt: list[int]) -> Any:
        together.wait()
        return engine.generate([prompt], sampling)

    with ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(ask, [*prompt, 10**6] if n == 3 else prompt) for n, prompt in enumerate(prompts)]
        failed = [turns.exception(timeout=60) for turns in asked]
    assert failed[3] is not None
    assert len(engine.generate(prompts, sampling)) == 6


def test_weights_do_not_change_under_a_turn(model: Any, tokenizer: Any) -> None:
    engine = TransformersEngine(model, tokenizer)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    began = threading.Event()

    class Generator:
        """Tells when sampling is under way."""

        def random(self) -> float:
            began.set()
            time.sleep(0.005)
            return 0.5

    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(engine.generate, [[5, 6]], Sampling(max_tokens=200), [Generator()])  # type: ignore[list-item]
        assert began.wait(60)
        with pytest.raises(UsageError, match="while turns are being generated"):
            engine.update_weights(state)
        asked.result()
    engine.update_weights(state)


def test_a_caller_that_is_interrupted_leaves_the_batch_to_the_others(model: Any, tokenizer: Any) -> None:
    engine = TransformersEngine(model, tokenizer)
    began = threading.Event()

    class Generator:
        def random(self) -> float:
            began.set()
            time.sleep(0.005)
            return 0.5

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with ThreadPoolExecutor(1) as threads:
            other = threads.submit(engine.generate, [[5, 6]], Sampling(max_tokens=300), [Generator()])  # type: ignore[list-item]
            assert began.wait(60)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                engine.generate([[7, 8]], Sampling(max_tokens=400), [Generator()])  # type: ignore[list-item]
            assert not other.done()
            assert len(other.result(timeout=60)[0].token_ids) > 100
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(engine.generate([[7, 8]], Sampling(max_tokens=4, temperature=0.0))) == 1
