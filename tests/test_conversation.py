import copy
import json
import pickle
from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.conversation import (
    UNSAMPLED,
    Completion,
    copy_conversation,
    decode_conversation,
    encode_conversation,
    splice,
)


@st.composite
def completions(draw):
    pieces = draw(st.lists(st.text(max_size=4), max_size=8))
    offsets, position = [], 0
    for piece in pieces:
        offsets.append(position)
        position += len(piece)
    n = len(pieces)
    return Completion(
        "".join(pieces),
        draw(st.lists(st.integers(0, 10**6), min_size=n, max_size=n)),
        draw(st.lists(st.floats(-50, 0), min_size=n, max_size=n)),
        offsets,
    )


def token_pieces(turn):
    ends = (*turn.offsets, len(turn))[1:]
    return [(token, str(turn)[start:end]) for token, start, end in zip(turn.token_ids, turn.offsets, ends, strict=True)]


@given(completions())
def test_a_completion_survives_pickle_copy_and_json(turn):
    for twin in (
        pickle.loads(pickle.dumps(turn)),
        copy.deepcopy(turn),
        decode_conversation(json.loads(json.dumps(encode_conversation([{"role": "assistant", "content": turn}]))))[0][
            "content"
        ],
    ):
        assert type(twin) is Completion
        assert str(twin) == str(turn)
        assert vars(twin) == vars(turn)


@given(completions(), completions(), st.data())
def test_splicing_at_token_borders_keeps_every_sampled_token(keep, take, data):
    head = data.draw(st.integers(0, len(keep.token_ids)))
    tail = data.draw(st.integers(0, len(take.token_ids)))
    end = (*keep.offsets, len(keep))[head]
    start = (*take.offsets, len(take))[tail]

    joined = splice(keep, end, take, start)

    assert joined == str(keep)[:end] + str(take)[start:]
    assert isinstance(joined, Completion)
    kept = [pair for pair, offset in zip(token_pieces(keep), keep.offsets, strict=True) if offset < end]
    taken = [pair for pair, offset in zip(token_pieces(take), take.offsets, strict=True) if offset >= start]
    assert token_pieces(joined) == kept + taken
    assert joined.grafted == (False,) * len(kept) + (True,) * len(taken)


def test_a_straddling_token_moves_the_join_into_what_both_turns_go_on_with():
    keep = Completion("ab\n<call>x", (1, 2, 3, 4), [-1.0] * 4, (0, 2, 4, 9))
    take = Completion("c <call>yz", (6, 7, 8, 9, 0), [-2.0] * 5, (0, 1, 6, 8, 10))
    joined = splice(keep, 3, take, 2)  # "\n<" and " <cal" straddle; only behind "<call>" do both have a border
    assert (joined, joined.token_ids) == ("ab\n<call>yz", (1, 2, 3, 9, 0))
    assert joined.offsets == (0, 2, 4, 9, 11)
    assert joined.grafted == (False, False, False, True, True)


@given(completions(), completions(), st.data())
def test_any_cut_keeps_whole_tokens_and_the_text(keep, take, data):
    end, start = data.draw(st.integers(0, len(keep))), data.draw(st.integers(0, len(take)))

    joined = splice(keep, end, take, start)

    assert joined == str(keep)[:end] + str(take)[start:]
    pieces, original = token_pieces(joined), (token_pieces(keep), token_pieces(take))
    assert "".join(piece for _, piece in pieces) == str(joined)
    head = sum(not flag for flag in joined.grafted)
    tail = len(pieces) - head - joined.token_ids.count(UNSAMPLED)
    assert pieces[:head] == original[0][:head]
    assert pieces[len(pieces) - tail :] == original[1][len(original[1]) - tail :]
    assert joined.token_ids.count(UNSAMPLED) <= 1
    again = splice(joined, len(joined), take, len(take))
    assert again == joined


def test_what_no_sampled_id_covers_is_marked_and_survives_json():
    keep = Completion("abcd", (1, 2), (-1.0, -1.0), (0, 2))
    take = Completion("wxyz", (3, 4, 0), (-1.0, -1.0, -1.0), (0, 2, 4))
    for end, start, text, ids, offsets in (
        (1, 2, "ayz", (UNSAMPLED, 4, 0), (0, 1, 3)),
        (2, 3, "abz", (1, UNSAMPLED, 0), (0, 2, 3)),
        (3, 1, "abcxyz", (1, UNSAMPLED, 4, 0), (0, 2, 4, 6)),
    ):
        joined = splice(keep, end, take, start)
        assert (joined, joined.token_ids, joined.offsets) == (text, ids, offsets)
        assert isnan(joined.logprobs[ids.index(UNSAMPLED)])
        encoded = json.dumps(encode_conversation([{"role": "assistant", "content": joined}]), allow_nan=False)
        for twin in (decode_conversation(json.loads(encoded))[0]["content"], pickle.loads(pickle.dumps(joined))):
            assert (twin, twin.token_ids, twin.grafted) == (joined, ids, joined.grafted)
            assert repr(twin.logprobs) == repr(joined.logprobs)


def test_plain_strings_splice_to_plain_strings():
    assert splice("reason code", 7, "other fixed", 6) == "reason fixed"


@pytest.mark.parametrize(
    ("ids", "logprobs", "offsets"),
    [((1,), (), (0,)), ((1, 2), (-1.0, -1.0), (1, 0)), ((1,), (-1.0,), (9,)), ((1,), (-1.0,), (-1,))],
)
def test_inconsistent_tokens_are_refused(ids, logprobs, offsets):
    with pytest.raises(ValueError, match=r"length|offsets"):
        Completion("ab", ids, logprobs, offsets)


def test_marking_as_graft_leaves_the_original_alone():
    turn = Completion("ab", (1, 2), (-1.0, -2.0), (0, 1), finish_reason="length")
    graft = turn.as_graft()
    assert graft.grafted == (True, True)
    assert turn.grafted == (False, False)
    assert (str(graft), graft.token_ids, graft.logprobs, graft.finish_reason) == ("ab", (1, 2), (-1.0, -2.0), "length")


def test_copied_messages_are_fresh():
    original = ({"role": "user", "content": "hi"},)
    twin = copy_conversation(original)
    twin[0]["content"] = "changed"
    assert original[0]["content"] == "hi"


def test_decoding_nonsense_is_a_clear_error():
    with pytest.raises(ValueError, match="not an encoded conversation"):
        decode_conversation([{"role": "user"}])
