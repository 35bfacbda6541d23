import gzip
import json
import lzma
import os

import pytest

from cleaner_env.errors import DataError
from cleaner_env.tasks import files, get_task

GOOD = [{"id": "a", "problem": "1+1?", "answer": "2"}, {"id": "b", "problem": "2+2?", "answer": "4"}]


def json_lines(rows):
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def load(path, content, task="aime"):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return get_task(task).load(str(path))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("set.jsonl", json_lines(GOOD)),
        ("set.jsonl", "\n" + json_lines(GOOD).replace("\n", "\r\n\n")),
        ("set.jsonl", b"\xef\xbb\xbf" + json_lines(GOOD).encode()),
        ("set.json", json.dumps(GOOD)),
        ("set.json", json.dumps(GOOD, indent=2)),
        ("set.json", json_lines(GOOD)),
        ("set.JSON", json.dumps(GOOD)),
        ("set.csv", "id,problem,answer\na,1+1?,2\n\nb,2+2?,4\n"),
    ],
)
def test_the_same_problems_from_every_kind_of_file(tmp_path, name, content):
    dataset = load(tmp_path / name, content)
    found = [(problem.id, problem.prompt, problem.answer) for problem in dataset.problems]
    assert found == [("a", "1+1?", "2"), ("b", "2+2?", "4")]
    assert dataset.name == str(tmp_path / name)
    assert dataset.fingerprint == load(tmp_path / "other.jsonl", json_lines(GOOD)).fingerprint


def test_a_field_with_a_line_break_moves_the_lines_below(tmp_path):
    content = 'problem,answer\n"one\ntwo",1\nthree,x\n'
    with pytest.raises(DataError, match=r"line 4: the answer must be an integer, got 'x'"):
        load(tmp_path / "a.csv", content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", json_lines(GOOD) + "{'id': 3}", "line 3: not valid JSON"),
        ("a.jsonl", json_lines(GOOD) + '{"a": ' + "9" * 5000 + "}", "line 3: not valid JSON"),
        ("a.jsonl", "[" * 100_000, "line 1: not valid JSON"),
        ("a.jsonl", json_lines(GOOD) + "\n[1, 2]", r"line 4: a problem must be an object, got \[1, 2\]"),
        ("a.jsonl", json_lines(GOOD).encode() + b'{"problem": "\xff"}', "line 3: not UTF-8"),
        ("a.json", b'[\n{"problem":\n"\xff"}]', "line 3: not UTF-8"),
        ("a.jsonl", json_lines(GOOD).encode("utf-16"), "line 1: not UTF-8 .*; save it as UTF-8"),
        ("a.jsonl", gzip.compress(b"{}", mtime=0), "line 1: not UTF-8 .*; it is packed with gzip, so unpack it"),
        ("a.csv", lzma.compress(b"problem,answer\n1?,1\n"), "line 1: not UTF-8 .*; it is packed with xz, so unpack it"),
        ("a.jsonl", '{"problem": "1?", "answer": 1, "answer": 2}', "line 1: not valid JSON: the key 'answer' is"),
        ("a.json", '[\n{"x": [{"a": 1, "a": 1}]}]', "line 2: not valid JSON: the key 'a' is there twice"),
        ("a.csv", "problem,answer\n" + "1" * 200_000 + ",1\n", "line 2: not valid CSV: field .*; JSON Lines"),
        ("a.json", '[\n{"problem": "1?", "answer": 1},\n{"problem": "2?"}]', "line 3: no column for the answer"),
        ("a.json", '[\n{"problem": "1?", "answer": 1}\n{"problem": "2?"}]', "line 2: not valid JSON: a comma"),
        ("a.json", '[{"problem": "1?", "answer": 1},', "not valid JSON: the array is not closed"),
        ("a.json", "[", "not valid JSON: the array is not closed"),
        ("a.json", '[{"problem": "1?", "answer": 1}] {}', "not valid JSON: text after the array"),
        ("a.json", '{"data": [1]}', "no column for the problem: expected one of problem, question, prompt; found data"),
        ("a.csv", "problem,answer\n1?,1\n2?,2,3\n", "line 3: 3 fields, but the header has 2 columns"),
        ("a.csv", "problem,problem\n1?,1\n", "line 1: a column name is there twice"),
        ("a.csv", 'problem,answer\n"1?,1\n', "not valid CSV"),
        ("a.txt", "x", "the name must end in .json, .jsonl, .csv, .parquet"),
    ],
)  # fmt: skip
def test_malformed_files_are_refused_with_the_line(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path / name, content)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path):
    for path, reason in ((tmp_path / "none.jsonl", "no such file"), (tmp_path, "not a regular file")):
        with pytest.raises(DataError, match=reason):
            get_task("aime").load(str(path))
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(DataError, match="not a regular file"):
        get_task("aime").load(str(tmp_path / "pipe.jsonl"))


def test_a_file_over_the_size_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 20)
    with pytest.raises(DataError, match="more than the 20 that are read"):
        load(tmp_path / "a.jsonl", json_lines(GOOD))


def test_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        path.write_bytes(b"PAR1")
        with pytest.raises(DataError, match=r"needs pyarrow: pip install 'cleaner-env\[data\]'"):
            get_task("aime").load(str(path))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(GOOD), path)
        assert [problem.answer for problem in get_task("aime").load(str(path)).problems] == ["2", "4"]
        for content in (b"PAR1 and nothing else", b"PAR1" + bytes(40) + b"PAR1", b""):
            path.write_bytes(content)
            with pytest.raises(DataError, match=r"line 1: not valid Parquet: \w+"):
                get_task("aime").load(str(path))
