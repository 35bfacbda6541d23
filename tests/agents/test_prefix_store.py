from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cleaner_env.agents.prefix_store import PrefixStore

TOKEN_BYTES = 2 * 2 * 4  # two layers, keys and values, one head of size 1, float32

sequences = st.lists(
    st.builds(
        lambda stem, length, tail: [*range(stem, stem + length), *tail],
        st.integers(0, 2),
        st.integers(0, 50),
        st.lists(st.integers(0, 1), max_size=20),
    ),
    min_size=1,
    max_size=12,
)


def states_of(token_ids: list[int]) -> torch.Tensor:
    """States that tell which token they are of and where it stood."""
    values = torch.tensor([1000.0 * place + token for place, token in enumerate(token_ids)])
    return values.expand(2, 2, 1, -1)[..., None].clone()


def common(first: list[int], second: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))


@settings(max_examples=300)
@given(sequences, st.lists(st.integers(0, 1), max_size=20))
def test_the_longest_known_beginning_is_found(known: list[list[int]], tail: list[int]) -> None:
    store = PrefixStore(max_bytes=10**9)
    for sequence in known:
        store.add(sequence, states_of(sequence))
    for sequence in known:
        asked = [*sequence[: len(sequence) // 2], *tail]
        found = store.longest(asked)
        best = max(common(sequence, asked) for sequence in known)
        if found is None:
            assert best < 16
        else:
            # Of those that share as many whole blocks, any may be found.
            assert found.shape[3] <= best
            assert found.shape[3] // 16 == best // 16
            assert torch.equal(found, states_of(asked)[:, :, :, : found.shape[3]])


@settings(max_examples=200)
@given(sequences, st.integers(0, 200 * TOKEN_BYTES))
def test_the_memory_limit_holds(known: list[list[int]], max_bytes: int) -> None:
    store = PrefixStore(max_bytes)
    for sequence in known:
        store.add(sequence, states_of(sequence))
        assert 0 <= store.bytes <= max_bytes
    last = known[-1]
    if len(last) >= 16 and len(last) * TOKEN_BYTES <= max_bytes:
        found = store.longest(last)
        assert found is not None
        assert found.shape[3] == len(last)
    store.clear()
    assert store.bytes == 0
    assert store.longest(last) is None


def test_what_was_used_last_stays() -> None:
    first, second, third = ([start, *range(39)] for start in (100, 200, 300))
    store = PrefixStore(max_bytes=80 * TOKEN_BYTES)
    store.add(first, states_of(first))
    store.add(second, states_of(second))
    assert store.longest(first) is not None
    store.add(third, states_of(third))
    assert [store.longest(sequence) is not None for sequence in (first, second, third)] == [True, False, True]


def test_a_sequence_takes_the_place_of_what_it_goes_on_from() -> None:
    store = PrefixStore(max_bytes=10**9)
    turns = [list(range(length)) for length in (20, 40, 40, 30)]
    held = []
    for sequence in turns:
        store.add(sequence, states_of(sequence))
        held.append(store.bytes // TOKEN_BYTES)
    assert held == [20, 40, 40, 40]
