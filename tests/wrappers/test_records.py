"""The file of recorded episodes: what is written comes back, whoever is killed or writes beside."""

import json
import math
import multiprocessing
import signal
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.conversation import Completion
from cleaner_env.errors import ConfigError, DataError, InfrastructureError
from cleaner_env.wrappers.purification import Turn
from cleaner_env.wrappers.records import (
    EpisodeRecord,
    append_records,
    check_writable,
    episodes_file,
    json_line,
    read_episodes,
    write_whole,
)

TEXT = st.text(st.characters(), max_size=20)  # lone surrogates included
NUMBER = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def completions(draw):
    text = draw(TEXT)
    offsets = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    many = len(offsets)
    ids = draw(st.lists(st.integers(-1, 50_000), min_size=many, max_size=many))
    logprobs = draw(st.lists(st.floats(max_value=0, allow_infinity=False, allow_nan=False), min_size=many, max_size=many))
    return Completion(text, ids, logprobs, offsets, draw(st.lists(st.booleans(), min_size=many, max_size=many)), "length")


ACTIONS = TEXT | completions()
TURNS = st.builds(Turn, ACTIONS, TEXT | st.none(), TEXT | st.none(), TEXT | st.none(), NUMBER | st.none())
MESSAGES = st.lists(st.fixed_dictionaries({"role": TEXT, "content": TEXT}), max_size=3).map(tuple)
REPAIRS = st.fixed_dictionaries(
    {
        "turn": st.integers(0, 9),
        "raw_turns": st.integers(0, 9),
        "attempts": st.integers(0, 9),
        "outcome": st.sampled_from(["shallow", "deep", "failed", "abandoned", None]),
        "similarity": NUMBER | st.none(),
        "hidden_tokens": st.integers(0, 9),
        "logprob_gap": NUMBER | st.none(),
    }
)
JSON = st.recursive(
    TEXT | st.none() | st.booleans() | st.integers(-(2**60), 2**60) | NUMBER,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
RECORDS = st.builds(
    EpisodeRecord,
    problem_id=TEXT | st.none(),
    dataset=TEXT,
    start=MESSAGES,
    turns=st.lists(TURNS, max_size=3).map(tuple),
    conversation=MESSAGES,
    env_id=TEXT | st.none(),
    tool_format=TEXT | st.none(),
    seed=st.integers(0, 2**62) | st.none(),
    stream=st.lists(st.integers(0, 2**62), max_size=3).map(tuple) | st.none(),
    purified=st.booleans(),
    repairs=st.lists(REPAIRS, max_size=2).map(tuple),
    reward=NUMBER,
    terminated=st.booleans(),
    truncated=st.booleans(),
    info=st.dictionaries(TEXT, JSON, max_size=3),
    labels=st.dictionaries(TEXT.map("label {}".format), JSON, max_size=2),
)


def record(problem="p-1", text="42"):
    start = ({"role": "user", "content": "What is 6 * 7?"},)
    return EpisodeRecord(
        problem, "exam", start, (Turn(text),), (*start, {"role": "assistant", "content": text}), terminated=True
    )


def line(value, **changes):
    return json.loads(json_line({**value.as_json(), **changes}))


@given(RECORDS)
def test_what_is_written_comes_back(tmp_path_factory, written):
    file = tmp_path_factory.mktemp("records") / "episodes.jsonl"
    append_records(file, [written.as_json(tokens=True)])
    (read,) = read_episodes(file)
    assert read == written
    for before, after in zip(written.turns, read.turns, strict=True):
        assert type(after.action) is type(before.action)
        if isinstance(before.action, Completion):
            assert after.action.__getnewargs__() == before.action.__getnewargs__()


def test_without_tokens_completions_are_texts(tmp_path):
    turn = Completion("42", (1,), (-0.5,), (0,))
    assert line(record(text=turn))["turns"][0]["action"] == "42"
    assert line(record(text=turn))["conversation"][1]["content"] == "42"


def test_numbers_that_json_lacks_are_null_and_arrays_are_lists():
    written = json_line({"nan": math.nan, "far": [-math.inf, np.float32(0.5)], "array": np.arange(2), "thing": {1}})
    assert json.loads(written) == {"nan": None, "far": [None, 0.5], "array": [0, 1], "thing": "{1}"}
    assert b"\n" not in json_line({"text": "a\nb\r\u2028\x85"})[:-1]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"[]\n", "an episode must be a JSON object"),
        (b"\n", "no JSON .Expecting value.; a file of episodes has one in every line"),
        (b'{"schema": 2.0}\n', "no recorded episode: schema must be 2, got 2.0"),
        (b'{"schema": true}\n', "an episode of schema True"),
        (
            b'{"schema": 1, "raw_conversation": []}\n',
            "an episode of schema 1, .* reads schema 2; record the episodes again",
        ),
        (b'{"schema": 3}\n', "an episode of schema 3, .* reads schema 2; update cleaner-env"),
        (b'{"step": 1}\n', "no recorded episode: schema must be 2, got None"),
        (b"\xff\xfe\n", "can't decode byte"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
        (b'{"schema": 2, "reward": NaN}\n', "NaN is no finite number"),
        (b'{"schema": 2, "reward": 1e999}\n', "1e999 is no finite number"),
        (b'{"schema": 2, "seed": ' + b"9" * 10_000 + b"}\n", "Exceeds the limit"),
    ],
)
def test_what_is_no_episode_is_named_by_its_line(tmp_path, content, told):
    file = tmp_path / "episodes.jsonl"
    file.write_bytes(json_line(record().as_json()) + content + json_line(record().as_json()))
    episodes = read_episodes(file)
    assert next(episodes) == record()
    with pytest.raises(DataError, match=f"episodes.jsonl:2: .*{told}") as caught:
        next(episodes)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("reward", True, "reward must be a number, got True"),
        ("reward", "1", "reward must be a number, got '1'"),
        ("turns", [{"action": "x"}], r"turns\[0\] has no 'observation'"),
        ("turns", ["x"], r"turns\[0\] has no 'action'"),
        ("turns", [{"action": {"text": "x"}}], r"turns\[0\].action must be a list of messages"),
        ("conversation", [{"role": "user"}], "conversation must be a list of messages"),
        ("conversation", ["user"], "conversation must be a list of messages"),
        ("start", [{"role": 3, "content": "x"}], "start must be messages of texts"),
        ("repairs", [{"turn": -1}], r"repairs\[0\].turn must not be negative, got -1"),
        (
            "repairs",
            [{"turn": 0, "raw_turns": 1, "attempts": 1, "hidden_tokens": 0, "similarity": "high"}],
            "similarity must",
        ),
        ("info", [], r"info must be an object, got \[\]"),
        ("reward", 10**400, "reward must be a number, got one too large for a float"),
        ("seed", 0.5, "seed must be a whole number or null, got 0.5"),
    ],
)
def test_a_key_of_the_wrong_kind_is_named(key, value, told):
    with pytest.raises(ValueError, match=told):
        EpisodeRecord.from_json(line(record(), **{key: value}))
    without = line(record())
    del without[key]
    with pytest.raises(ValueError, match=f"the episode has no '{key}'"):
        EpisodeRecord.from_json(without)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("token_ids", ["q"], "token_ids must be a list of int, got"),
        ("token_ids", "q", "token_ids must be a list of int, got"),
        ("token_ids", [True], "token_ids must be a list of int, got"),
        ("offsets", [0.5], "offsets must be a list of int, got"),
        ("logprobs", ["x"], "logprobs must be a list of float or int or null, got"),
        ("logprobs", [10**400], "logprobs must be numbers that a float can hold"),
        ("grafted", ["no"], "grafted must be a list of bool, got"),
        ("text", ["4"], "text must be a str, got"),
        ("finish_reason", [], "finish_reason must be a str, got"),
    ],
)
def test_a_completion_of_other_kinds_is_refused(key, value, told):
    good = line(record(text=Completion("4", (1,), (-0.5,), (0,))), turns=[])
    action = {"text": "4", "token_ids": [1], "logprobs": [-1], "offsets": [0], "grafted": [False], "finish_reason": "stop"}
    turn = {"observation": None, "tool_status": None, "error_type": None, "seconds": None}
    read = EpisodeRecord.from_json({**good, "turns": [{**turn, "action": action}]})
    assert read.turns[0].action.logprobs == (-1.0,)
    with pytest.raises(ValueError, match=rf"turns\[0\].action must be a list of messages: {told}"):
        EpisodeRecord.from_json({**good, "turns": [{**turn, "action": {**action, key: value}}]})


@given(st.recursive(JSON, lambda inner: st.dictionaries(st.sampled_from([*line(record())]), inner), max_leaves=20))
def test_any_json_is_read_or_refused(value):
    changed = {**line(record()), **(value if isinstance(value, dict) else {"turns": value})}
    try:
        EpisodeRecord.from_json(changed)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - anything else that is raised fails the test


@given(st.data())
def test_an_unfinished_last_line_is_skipped_and_cut_off_by_the_next_writer(tmp_path_factory, data):
    file = tmp_path_factory.mktemp("records") / "episodes.jsonl"
    whole, torn = json_line(record("whole").as_json()), json_line(record("torn", "é" * 60_000).as_json())
    file.write_bytes(whole + torn[: data.draw(st.integers(0, len(torn) - 2))])
    assert list(read_episodes(file)) == [record("whole")]
    check_writable(file)
    append_records(file, [record("next").as_json()])
    assert file.read_bytes() == whole + json_line(record("next").as_json())


def test_a_last_line_that_lacks_its_newline_only_is_kept(tmp_path):
    file = tmp_path / "episodes.jsonl"
    file.write_bytes(json_line(record("whole").as_json())[:-1])
    assert list(read_episodes(file)) == [record("whole")]
    append_records(file, [record("next").as_json()])
    assert [read.problem_id for read in read_episodes(file)] == ["whole", "next"]


@pytest.mark.parametrize("content", [b"hello", b"{", b'{"schema": 2', b"\x89PNG", b'{"schema": 2, "env_id"'])
def test_a_first_line_is_unfinished_only_where_it_begins_like_an_episode(tmp_path, content):
    file = tmp_path / "episodes.jsonl"
    file.write_bytes(content)
    if content.startswith(b"{"):
        assert list(read_episodes(file)) == []
    else:
        with pytest.raises(DataError, match=r"episodes\.jsonl:1: "):
            list(read_episodes(file))


def test_what_cannot_be_read_or_written_is_told(tmp_path):
    with pytest.raises(ConfigError, match="cannot read /proc/self/mem: Input/output error"):
        list(read_episodes("/proc/self/mem"))
    with pytest.raises(ConfigError, match="does not exist"):
        episodes_file("x" * 300)
    for path in (None, 5, b"episodes.jsonl", "a\0b", "x" * 300):
        with pytest.raises(ConfigError, match=r"given by its path, got|cannot write episodes to"):
            check_writable(path)
    with pytest.raises(ConfigError, match="File name too long"):
        write_whole(tmp_path / ("x" * 300), b"")
    with pytest.raises(ConfigError, match="Not a directory"):
        write_whole("/dev/null/page.html", b"")
    write_whole(tmp_path / ("x" * 255), b"")
    assert [len(file.name) for file in tmp_path.iterdir()] == [255]


def test_a_value_that_is_nested_too_deeply_is_told():
    nested = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(DataError, match="nested too deeply"):
        json_line(record().as_json() | {"info": {"deep": nested}})


def append_many(file, writer, go):
    go.wait()
    for number in range(50):
        append_records(file, [record(f"{writer}-{number}-{part}", "x" * 997 * writer).as_json() for part in range(2)])


def test_processes_share_a_file(tmp_path):
    file = tmp_path / "episodes.jsonl"
    context = multiprocessing.get_context("spawn")
    go = context.Event()
    writers = [context.Process(target=append_many, args=(file, writer, go)) for writer in range(1, 5)]
    for process in writers:
        process.start()
    go.set()
    for process in writers:
        process.join()
        assert process.exitcode == 0
    found = [read.problem_id for read in read_episodes(file)]
    assert len(found) == len(set(found)) == 400
    for writer in range(1, 5):
        own = [name for name in found if name.startswith(f"{writer}-")]
        assert own == [f"{writer}-{number}-{part}" for number in range(50) for part in range(2)]


WRITE_ON = """
import sys
from cleaner_env.wrappers.records import append_records, read_episodes
record = next(read_episodes(sys.argv[1])).as_json()
print("begun", flush=True)
for number in range(10**6):
    append_records(sys.argv[1], [{**record, "number": number, "padding": "x" * 300_000}])
"""


def test_a_killed_writer_loses_the_line_under_way_only(tmp_path):
    for attempt in range(3):
        file = tmp_path / f"episodes-{attempt}.jsonl"
        append_records(file, [record("first").as_json()])
        with subprocess.Popen([sys.executable, "-c", WRITE_ON, file], stdout=subprocess.PIPE) as writer:
            writer.stdout.readline()
            while len(list(read_episodes(file))) < 4:
                pass
            writer.send_signal(signal.SIGKILL)
        first, *read = read_episodes(file)
        assert first == record("first")
        assert [episode.labels["number"] for episode in read] == list(range(len(read)))
        append_records(file, [record("after").as_json()])
        assert list(read_episodes(file)) == [first, *read, record("after")]


FILL = """
import resource, sys
from cleaner_env.errors import InfrastructureError
from cleaner_env.wrappers.records import append_records, read_episodes
record = next(read_episodes(sys.argv[1])).as_json()
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    append_records(sys.argv[1], [record, {**record, "padding": "x" * 100_000}])
except InfrastructureError as error:
    print(error)
"""


def test_a_file_that_cannot_grow_stays_as_it_was(tmp_path):
    file = tmp_path / "episodes.jsonl"
    append_records(file, [record().as_json()])
    before = file.read_bytes()
    done = subprocess.run([sys.executable, "-c", FILL, file], capture_output=True, text=True, check=True)
    assert done.stdout == f"cannot append episodes to {file}: File too large\n"
    assert file.read_bytes() == before


def test_a_folder_that_is_gone_is_reported(tmp_path):
    with pytest.raises(InfrastructureError, match="No such file or directory"):
        append_records(tmp_path / "gone" / "episodes.jsonl", [record().as_json()])


def test_a_large_file_is_read_line_by_line(tmp_path):
    file = tmp_path / "episodes.jsonl"
    large = json_line(record("large", "x" * 500_000).as_json())
    with file.open("wb") as lines:
        lines.writelines(large for _ in range(60))
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_episodes(file)) == 60
        assert tracemalloc.get_traced_memory()[1] < 15 * len(large) < file.stat().st_size
    finally:
        tracemalloc.stop()


def test_where_episodes_may_be_written(tmp_path):
    check_writable(tmp_path / "new.jsonl")
    (tmp_path / "empty").touch()
    check_writable(tmp_path / "empty")
    for name, content in {
        "older": '{"schema": 1, "step": 3}\n',
        "other": "text",
        "data": '{"schema": 20, "a": 1}\n',
    }.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(
            ConfigError, match=f"{name} holds something other than episodes of schema 2; choose another file"
        ):
            check_writable(tmp_path / name)
        assert (tmp_path / name).read_text() == content
    with pytest.raises(ConfigError, match="no plain file"):
        check_writable(tmp_path)
    with pytest.raises(ConfigError, match="no plain file"):
        check_writable("/dev/null")
    with pytest.raises(ConfigError, match="in a folder that does not exist"):
        check_writable(tmp_path / "gone" / "episodes.jsonl")


def test_a_run_and_a_file_name_their_episodes(tmp_path):
    with pytest.raises(ConfigError, match=r"has no episodes\.jsonl; give a run's folder"):
        episodes_file(tmp_path)
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        episodes_file(tmp_path / "nowhere")
    append_records(tmp_path / "episodes.jsonl", [record().as_json()])
    assert list(read_episodes(tmp_path)) == list(read_episodes(str(tmp_path / "episodes.jsonl"))) == [record()]


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "page.html"
    write_whole(file, b"first")

    def failing():
        yield b"half"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_whole(file, failing())
    assert file.read_bytes() == b"first"
    (tmp_path / "link").symlink_to(file)
    write_whole(tmp_path / "link", iter([b"sec", b"ond"]))
    assert (file.read_bytes(), (tmp_path / "link").is_symlink()) == (b"second", True)
    for path in (tmp_path, "/dev/null", tmp_path / "gone" / "page.html"):
        with pytest.raises(ConfigError, match="cannot write"):
            write_whole(path, b"")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link", "page.html"]


def test_an_episode_is_finished_when_it_was_played_to_its_end():
    assert record().finished
    assert replace(record(), terminated=False, truncated=True).finished
    assert not replace(record(), terminated=False).finished
