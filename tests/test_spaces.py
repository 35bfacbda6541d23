import json
import pickle

import numpy as np
import pytest
from gymnasium.error import CustomSpaceError
from gymnasium.vector.utils import (
    batch_differing_spaces,
    batch_space,
    concatenate,
    create_empty_array,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
    write_to_shared_memory,
)
from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.conversation import Completion
from cleaner_env.spaces import SHARED_BYTES, ConversationSpace, UtteranceSpace

SPACES = [UtteranceSpace, ConversationSpace]


@pytest.mark.parametrize("space_type", SPACES)
def test_samples_are_seeded_contained_and_not_all_alike(space_type):
    space = space_type(seed=3)
    samples = [space.sample() for _ in range(50)]
    assert all(sample in space for sample in samples)
    assert len({repr(sample) for sample in samples}) > 25
    space.seed(3)
    assert [space.sample() for _ in range(50)] == samples


@given(st.text())
def test_any_text_is_an_utterance(text):
    assert text in UtteranceSpace()
    assert ({"role": "user", "content": text},) in ConversationSpace()


@pytest.mark.parametrize(
    "value",
    [None, [], [{"role": "user", "content": "x"}], ({"role": "user"},), ({"role": "user", "content": 1},), ("x",), "x",
     ({"role": "user", "content": "x", "extra": "y"},)],
)  # fmt: skip
def test_other_values_are_no_conversations(value):
    assert value not in ConversationSpace()


@pytest.mark.parametrize("space_type", SPACES)
def test_json_round_trip_equality_repr_and_pickle(space_type):
    space = space_type(seed=1)
    samples = [space.sample() for _ in range(5)]
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(samples)))) == samples
    assert space == space_type(seed=2) == pickle.loads(pickle.dumps(space))
    assert space != object()
    assert repr(space) == f"{space_type.__name__}()"
    assert not space.is_np_flattenable


@pytest.mark.parametrize("space_type", SPACES)
def test_masks_are_refused(space_type):
    with pytest.raises(ValueError, match="mask"):
        space_type().sample(mask=np.ones(3))


@pytest.mark.parametrize("space_type", SPACES)
def test_vector_functions(space_type):
    space = space_type(seed=0)
    batched = batch_space(space, 3)
    samples = batched.sample()
    assert samples in batched
    assert list(iterate(batched, samples)) == list(samples)
    assert concatenate(space, samples, create_empty_array(space, 3)) == tuple(samples)
    assert len(batch_differing_spaces([space, space_type()]).spaces) == 2


def test_shared_memory_is_a_live_view_that_copies_to_a_tuple():
    import copy

    space = ConversationSpace(seed=0)
    memory = create_shared_memory(space, n=2)
    view = read_from_shared_memory(space, memory, n=2)
    assert tuple(view) == ((), ())
    turn = Completion("é", (4, 5), (-0.5, -0.25), (0, 1))
    first = ({"role": "user", "content": "漢\n"}, {"role": "assistant", "content": turn})
    write_to_shared_memory(space, 0, first, memory)
    copied = copy.deepcopy(view)
    write_to_shared_memory(space, 0, first[:1], memory)
    assert copied == (first, ())
    assert copied[0][1]["content"].token_ids == (4, 5)
    assert view[0] == first[:1]
    assert view[:1] == (first[:1],)


def test_a_conversation_too_long_for_shared_memory_says_what_to_do():
    space = ConversationSpace()
    memory = create_shared_memory(space, n=1)
    with pytest.raises(CustomSpaceError, match="shared_memory"):
        write_to_shared_memory(space, 0, ({"role": "user", "content": "x" * SHARED_BYTES},), memory)
