import csv
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.errors import ConfigError, DataError
from cleaner_env.tasks import get_task
from cleaner_env.tasks.exporting import export
from cleaner_env.tasks.gpqa import GPQATask, option_order


@given(st.integers(), st.text(max_size=20), st.integers(2, 10))
def test_the_order_is_a_permutation_and_a_pure_function(seed, identifier, count):
    order = option_order(seed, identifier, count)
    assert sorted(order) == list(range(count))
    assert option_order(seed, identifier, count) == order


def test_the_order_is_the_same_in_every_run():
    assert [option_order(0, f"q-{n}") for n in range(3)] == [(3, 2, 0, 1), (1, 3, 2, 0), (3, 1, 2, 0)]


def test_the_right_letter_is_uniform():
    letters = Counter(option_order(0, f"q-{n}").index(0) for n in range(4000))
    # 1000 expected for each letter, with a standard deviation of 27.
    assert all(abs(letters[letter] - 1000) < 110 for letter in range(4))
    by_seed = Counter(option_order(seed, "q").index(0) for seed in range(4000))
    assert all(abs(by_seed[letter] - 1000) < 110 for letter in range(4))


def test_options_are_shown_in_that_order():
    for seed in (0, 1):
        for problem in GPQATask(seed).load("builtin").problems:
            options = problem.metadata["options"]
            assert problem.metadata["option_order"] == option_order(seed, problem.id)
            assert problem.prompt.endswith("\n".join(f"{letter}) {o}" for letter, o in zip("ABCD", options, strict=True)))
            assert problem.metadata["option_order"]["ABCD".index(problem.answer)] == 0


def test_another_seed_moves_the_options_and_not_the_answer():
    first, second = (GPQATask(seed).load("builtin") for seed in (0, 1))
    assert first.fingerprint != second.fingerprint
    for a, b in zip(first.problems, second.problems, strict=True):
        assert a.metadata["options"]["ABCD".index(a.answer)] == b.metadata["options"]["ABCD".index(b.answer)]


def test_letters_are_graded():
    task = get_task("gpqa")
    for problem in task.load("builtin").problems:
        wrong = "ABCD".replace(problem.answer, "")[0]
        assert task.grade(problem, f"\\boxed{{{problem.answer}}}").verdict == "correct"
        assert task.grade(problem, f"Answer: {wrong}").verdict == "incorrect"
        assert task.grade(problem, f"I like {problem.answer}").verdict == "no_answer"


def test_the_official_columns(tmp_path):
    path = tmp_path / "gpqa.csv"
    columns = ["Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Canary String", "Record ID", "High-level domain", *columns])
        writer.writerow(["-", "rec1", "Physics", "Which,\n\"one\"?", "right\n", "w1", "w2", "w3"])  # fmt: skip
    (problem,) = get_task("gpqa").load(str(path)).problems
    assert problem.id == "rec1"
    assert problem.prompt.startswith('Which,\n"one"?\n\nA) ')
    assert problem.metadata["options"]["ABCD".index(problem.answer)] == "right"
    assert sorted(problem.metadata["options"]) == ["right", "w1", "w2", "w3"]
    assert problem.metadata["domain"] == "Physics"


def test_the_text_of_the_option_is_no_other_answer(tmp_path):
    path = tmp_path / "gpqa.jsonl"
    options = ["A", "Only B is wrong", "K -> Na", "NOR gate"]
    lines = [{"question": f"Which, {n}?", "options": options, "answer_index": n} for n in range(4)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = get_task("gpqa")
    for problem, text in zip(task.load(str(path)).problems, options, strict=True):
        assert task.grade(problem, f"Answer: {problem.answer}) {text}").verdict == "correct"


@pytest.mark.parametrize("answer", ["B", "b", "two"])
def test_listed_options(tmp_path, answer):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"question": "Which?", "options": ["one", "two", "three"], "answer": answer}))
    (problem,) = get_task("gpqa").load(str(path)).problems
    assert problem.metadata["options"]["ABC".index(problem.answer)] == "two"
    assert "A, B or C" in get_task("gpqa").messages(problem)[1]["content"]


def test_the_place_of_the_answer_may_be_told(tmp_path):
    path = tmp_path / "a.jsonl"
    row = {"question": "Which?", "options": ["B", "A", "D", "C"]}
    for told in ({"answer_index": 1}, {"answer_index": 1, "answer": "A"}, {"answer_index": 1, "answer": "b"}):
        path.write_text(json.dumps({**row, **told}))
        (problem,) = get_task("gpqa").load(str(path)).problems
        assert problem.metadata["options"]["ABCD".index(problem.answer)] == "A"


@pytest.mark.parametrize("options", [["C", "A", "B"], ["a\nB) evil", "b", "c"], ["x", "a\r\n  y", "1\u20282"]])
def test_what_is_exported_is_read_back_the_same(tmp_path, options):
    path, copy = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    path.write_text(json.dumps({"id": "q", "question": "Which?", "options": options, "answer_index": 0}))
    task = get_task("gpqa")
    dataset = task.load(str(path))
    export(task, dataset.problems, copy)
    assert task.load(str(copy)).problems == dataset.problems
    assert [line[:3] for line in dataset.problems[0].prompt.splitlines()[2:] if line[:1].strip()] == ["A) ", "B) ", "C) "]


@pytest.mark.parametrize(
    ("prompt", "question", "options"),
    [
        ("Which?\n\nA) a\n  more of a\nB) b\nC) c", "Which?", ["a\n  more of a", "b", "c"]),
        ("Which?\n(A) a\n\n(B) b\n\nyet b\n(C) c\nmore", "Which?", ["a", "b\n\nyet b", "c\nmore"]),
        ("Which?\n\nA. a\nB. b\nC. c\n \nGive the letter.\n", "Which?\n\nGive the letter.", ["a", "b", "c"]),
    ],
)
def test_nothing_of_a_prompt_with_options_is_lost(tmp_path, prompt, question, options):
    path = tmp_path / "a.jsonl"
    row = {"prompt": [{"role": "user", "content": prompt}], "reward_model": {"ground_truth": "A"}}
    path.write_text(json.dumps(row))
    (problem,) = get_task("gpqa").load(str(path)).problems
    assert problem.prompt.startswith(f"{question}\n\nA) ")
    assert sorted(problem.metadata["options"]) == options
    assert problem.metadata["options"]["ABC".index(problem.answer)] == options[0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "Which?"}, "no column for the options"),
        ({"question": "Which?", "options": "one, two", "answer": "A"}, "options must be a list of texts"),
        ({"question": "Which?", "options": ["one", 2], "answer": "A"}, "options must be a list of texts"),
        ({"question": "Which?", "options": ["one"], "answer": "A"}, "2 to 26 options, got 1"),
        ({"question": "Which?", "options": ["one", "One"], "answer": "A"}, "two options are the same"),
        ({"question": "Which?", "options": ["a b", "a \u00a0b"], "answer": "A"}, "two options are the same"),
        ({"question": "Which?", "options": ["B", "A"], "answer": "A"}, "the letter of one option and the text of another"),
        (
            {"question": "Which?", "options": ["one", "two"], "answer_index": 2},
            "answer_index must be an integer from 0 to 1",
        ),
        ({"question": "Which?", "options": ["one", "two"], "answer_index": True}, "answer_index must be an integer"),
        ({"question": "Which?", "options": ["one", "two"], "answer_index": 0, "answer": "B"}, "are not the same option"),
        ({"question": "Which?", "options": ["one", "two"]}, "no column for the answer"),
        (
            {"question": "Which?", "options": ["one", "two"], "answer": "C"},
            "one of the letters AB or the text of an option",
        ),
        ({"question": "Which?", "options": ["one", "two"], "answer": ""}, "the answer is empty"),
        (
            {"question": "Which?", "correct answer": "one", "incorrect answer 1": "two"},
            "no column for the incorrect answer 2",
        ),
    ],
)
def test_malformed_rows_are_refused_with_the_line(tmp_path, row, message):
    path = tmp_path / "a.jsonl"
    path.write_text("\n" + json.dumps(row))
    with pytest.raises(DataError, match=f"line 2: .*{message}"):
        get_task("gpqa").load(str(path))


@pytest.mark.parametrize("seed", ["0", 1.0, None, True])
def test_a_seed_that_is_no_integer_is_refused(seed):
    with pytest.raises(ConfigError, match="seed must be an integer"):
        GPQATask(seed)
