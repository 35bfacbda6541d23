import json
from pathlib import Path

import pytest

from cleaner_env.errors import DataError
from cleaner_env.tasks import get_task

GOOD = [{"id": "a", "problem": "1+1?", "answer": "2"}, {"id": "b", "problem": "2+2?", "answer": "4"}]


def json_lines(rows):
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def load(path, content, task="aime"):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return get_task(task).load(str(path))


def test_the_fingerprint_tells_contents_apart(tmp_path):
    first = load(tmp_path / "a.jsonl", json_lines(GOOD)).fingerprint
    changed = [GOOD[0], {**GOOD[1], "answer": "5"}]
    assert len(first) == 64
    assert load(tmp_path / "a.jsonl", json_lines(changed)).fingerprint != first


@pytest.mark.parametrize(
    ("prompt", "answer", "identifier"),
    [("Problem", "Answer", "ID"), ("question", "expected_answer", "problem_id"), ("prompt", "solution", "question_id")],
)
def test_columns_that_people_use(tmp_path, prompt, answer, identifier):
    row = {"url": "-", identifier: 7, prompt: "What?", answer: r"\boxed{016}"}
    (problem,) = load(tmp_path / "a.jsonl", json_lines([row])).problems
    assert (problem.id, problem.prompt, problem.answer) == ("7", "What?", "16")


@pytest.mark.parametrize(
    "row",
    [
        {"ID": "2024-I-4", "Problem": "What?", "Solution": "Long.", "Answer": 16},  # Maxwell-Jia/AIME_2024
        {"id": 4, "problem": "What?", "solution": "Long.", "answer": "016", "url": "-", "year": 2024},  # HuggingFaceH4, QwQ
        {"id": "4", "problem": "What?", "answer": "16", "solution": "", "url": "-", "year": 2025, "__index_level_0__": 4},
        {"problem": "What?", "answer": "16", "id": "4"},  # math-ai/aime25
        {"id": "4", "problem": "What?", "solution": "\\boxed{016}", "url": "-"},  # math-ai/aime24
        {"problem_idx": 4, "problem": "What?", "answer": 16, "problem_type": ["Algebra"]},  # MathArena
        {"question": "What?", "answer": "16"},  # opencompass/AIME2025
        {"idx": 4, "question": "What?", "answer": "$16$", "cot": "Long."},  # Qwen2.5-Math
        {"data_source": "aime", "prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "What?"}],
         "ability": "MATH", "reward_model": {"style": "rule", "ground_truth": "16"}, "extra_info": {"index": "4"}},  # verl
        {"prompt": [{"role": "user", "content": "What?"}], "reward_model": {"ground_truth": "16"}, "extra_info": None},
    ],
)  # fmt: skip
def test_schemas_that_people_publish(tmp_path, row):
    (problem,) = load(tmp_path / "a.jsonl", json_lines([row])).problems
    assert (problem.prompt, problem.answer) == ("What?", "16")


def test_conflicting_answers_of_a_pool_are_left_out(tmp_path):
    def row(prompt, truth):
        return {"prompt": [{"role": "user", "content": prompt}], "reward_model": {"ground_truth": truth}}

    rows = [row("A?", "1"), row("B?", "2"), row("A?", "1"), row("B?", "3"), row("C?", "many"), row("D?", "4")]
    problems = load(tmp_path / "pool.jsonl", json_lines(rows)).problems
    assert [(problem.id, problem.prompt, problem.answer) for problem in problems] == [
        ("pool-1", "A?", "1"),
        ("pool-6", "D?", "4"),
    ]


def verl(prompt, truth, index=0):
    reward = {"ground_truth": truth}
    return {"prompt": [{"role": "user", "content": prompt}], "reward_model": reward, "extra_info": {"index": index}}


def test_problems_of_a_pool_that_share_an_id_are_kept_apart(tmp_path):
    rows = [verl("A?", "1"), verl("B?", "2"), verl("A?", "1"), verl("B?", "02"), verl("C?", "3", "other"), verl("D?", "4")]
    dataset = load(tmp_path / "pool.jsonl", json_lines(rows))
    assert [(problem.id, problem.prompt, problem.answer) for problem in dataset.problems] == [
        ("0", "A?", "1"),
        ("pool-2", "B?", "2"),
        ("other", "C?", "3"),
        ("pool-6", "D?", "4"),
    ]
    assert dataset.left_out == {"it repeats another": 2}


def test_questions_of_a_pool_are_compared_whatever_their_ids(tmp_path):
    question = "Which?\n\nA) one\nB) two\nC) three\nD) four"
    rows = [verl(question, letter, index) for index, letter in enumerate("BBB")]
    dataset = load(tmp_path / "pool.jsonl", json_lines(rows), "gpqa")
    assert [problem.id for problem in dataset.problems] == ["0"]
    rows = [verl(question, letter, index) for index, letter in enumerate("BC")] + [verl(f"{question}!", "A", 9)]
    dataset = load(tmp_path / "pool.jsonl", json_lines(rows), "gpqa")
    assert [problem.id for problem in dataset.problems] == ["9"]
    assert dataset.left_out == {"the same prompt has another answer too": 2}


TESTS = {"inputs": ["1"], "outputs": ["1", "2"]}


@pytest.mark.parametrize(
    ("task", "truths", "reasons"),
    [
        ("aime", ["1/2", "1/2", ["2"]], {"the answer is no integer": 2, "it repeats another": 1}),
        ("aime", ["1", "2"], {"the same prompt has another answer too": 2}),
        ("gpqa", ["A"], {"the prompt has no lines with options A, B, ...": 1}),
        ("livecodebench", [TESTS, "x"], {"the reference is no inputs with as many outputs": 2}),
    ],
)
def test_a_pool_without_problems_of_a_task_says_why(tmp_path, task, truths, reasons):
    with pytest.raises(DataError, match="no problem in this file; left out: ") as caught:
        load(tmp_path / "pool.jsonl", json_lines(verl("What?", truth) for truth in truths), task)
    assert str(caught.value).endswith(", ".join(f"{reason} ({count})" for reason, count in reasons.items()))


OFFICIAL = r'{"input": "\udc00", "output": "", "testtype": "stdin"}'


@pytest.mark.parametrize(
    ("task", "row", "what"),
    [
        ("gpqa", {"question": "Which?", "options": ["\ud800", "b"], "answer": "B"}, "prompt"),
        ("aime", {"id": "\udfff", "problem": "What?", "answer": 1}, "id"),
        ("livecodebench", {"question": "Do.", "tests": [{"input": "\ud800", "output": "1"}]}, "answer"),
        ("livecodebench", {"question": "Do.", "public_test_cases": rf"[{OFFICIAL}]"}, "answer"),
        ("livecodebench", {"question": "Do.", "tests": [{"input": "", "output": ""}], "difficulty": "\ud800"}, "metadata"),
    ],
)  # fmt: skip
def test_half_a_surrogate_pair_is_refused_wherever_it_is(tmp_path, task, row, what):
    with pytest.raises(DataError, match=f"line 2: the {what} holds half a surrogate pair"):
        load(tmp_path / "a.jsonl", "\n" + json_lines([row]), task)


def test_ids_are_made_up_where_there_are_none(tmp_path):
    rows = [{"problem": f"{n}?", "answer": n} for n in (5, 6)]
    assert [problem.id for problem in load(tmp_path / "exam.json", json.dumps(rows)).problems] == ["exam-1", "exam-2"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "", "no problem in this file"),
        ("a.json", "[]", "no problem in this file"),
        ("a.csv", "problem,answer\n", "no problem in this file"),
        ("a.jsonl", json_lines([*GOOD, GOOD[0]]), "line 3: id 'a' is there twice, first in line 1"),
        ("a.jsonl", json_lines([{"problem": " ", "answer": 1}]), "line 1: the problem is empty"),
        ("a.jsonl", json_lines([{"problem": ["x"], "answer": 1}]), "line 1: the problem must be text"),
        ("a.jsonl", json_lines([{"problem": None, "answer": 1}]), "line 1: problem is missing"),
        ("a.jsonl", r'{"problem": "\ud800", "answer": 1}', "line 1: the prompt holds half a surrogate pair"),
        ("a.jsonl", json_lines([{"id": "", "problem": "x", "answer": 1}]), "line 1: the id is empty"),
        ("a.jsonl", json_lines([{"id": [1], "problem": "x", "answer": 1}]), "line 1: the id must be text"),
        ("a.jsonl", json_lines([{"problem": "x", "answer": "1/2"}]), "line 1: the answer must be an integer, got '1/2'"),
        ("a.jsonl", json_lines([{"problem": "x", "answer": 1.5}]), "line 1: the answer must be an integer, got '1.5'"),
        ("a.jsonl", json_lines([{"problem": "x", "answer": True}]), "line 1: the answer must be an integer, got 'True'"),
        ("a.jsonl", json_lines([{"problem": "x", "answer": None}]), "line 1: answer is missing"),
        ("a.jsonl", json_lines([{"problem": "x", "answer": 2.0**53}]), r"from 2\*\*53 on a float is not exact"),
        ("a.jsonl", json_lines([{"problem": "x", "answer": int("9" * 400)}]), "type int; no more than 300 characters"),
        ("a.jsonl", json_lines([{"problem": "x", "answer": 1, "Answer": 2}]), "the columns answer and Answer differ"),
        ("a.jsonl", json_lines([{"id": 1, "ID": 2, "problem": "x", "answer": 1}]), "the columns id and ID differ"),
    ],
)  # fmt: skip
def test_malformed_rows_are_refused_with_the_line(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path / name, content)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("task", ["aime", "gpqa", "livecodebench"])
def test_unknown_names_and_splits_are_refused(task):
    with pytest.raises(DataError, match=f"unknown dataset 'aime1899' for {task}; choose builtin, .*, or give the path of"):
        get_task(task).load("aime1899")
    with pytest.raises(DataError, match="no split 'train'; the only one is 'test'"):
        get_task(task).load("builtin", split="train")
    assert get_task(task).load("builtin", split="test") == get_task(task).load("builtin")


def test_a_relative_path_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("exam.jsonl").write_text(json_lines(GOOD))
    assert len(get_task("aime").load("exam.jsonl").problems) == 2
