from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.viewer import align
from cleaner_env.wrappers.purification import Turn
from cleaner_env.wrappers.records import EpisodeRecord

MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["assistant", "tool", "user"]), "content": st.text(max_size=3)}),
    max_size=8,
)
REPAIRS = st.lists(st.fixed_dictionaries({"turn": st.integers(0, 9), "raw_turns": st.integers(0, 4)}), max_size=4)


def say(text):
    return {"role": "assistant", "content": text}


def answer(text):
    return {"role": "tool", "content": text}


@given(st.lists(st.text(max_size=3), max_size=8), MESSAGES, REPAIRS, st.integers(0, 9))
def test_every_turn_and_every_message_stands_in_one_row_whatever_the_record_says(said, messages, repairs, started):
    turns = tuple(map(Turn, said))
    start = tuple(messages[:started])
    rows = align(EpisodeRecord("p", "exam", start, turns, tuple(messages), repairs=tuple(repairs)))
    assert tuple(turn for row in rows for turn in row.raw) == turns
    assert [message for row in rows for message in row.purified] == messages[len(start) :]
    assert all(row.raw or row.purified for row in rows)


def test_repairs_take_up_their_turns():
    turns = tuple(map(Turn, ("ok", "bad", "worse", "good", "bad", "answer")))
    conversation = (say("ok"), answer("1"), say("good"), answer("2"), say("bad"), answer("3"), say("answer"))
    repairs = ({"turn": 1, "raw_turns": 3, "outcome": "deep"}, {"turn": 2, "raw_turns": 1, "outcome": "abandoned"})
    rows = align(EpisodeRecord("p", "exam", (), turns, conversation, repairs=repairs))
    assert [[turn.action for turn in row.raw] for row in rows] == [["ok"], ["bad", "worse", "good"], ["bad"], ["answer"]]
    assert [row.purified for row in rows] == [conversation[:2], conversation[2:4], conversation[4:6], conversation[6:]]
    assert [row.repair and row.repair["outcome"] for row in rows] == [None, "deep", "abandoned", None]


def test_an_answer_that_came_too_late_has_a_row_without_a_trace():
    (first, late) = align(EpisodeRecord("p", "exam", (), (Turn("call"), Turn("late")), (say("call"), answer("1"))))
    assert (first.purified, late.raw, late.purified) == ((say("call"), answer("1")), (Turn("late"),), ())
