"""The hub's client against a double of the hub on loopback, which serves files in the formats of the real ones."""

import base64
import csv
import hashlib
import io
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import unquote

import pytest

from cleaner_env.errors import DataError
from cleaner_env.tasks import get_task, hub
from cleaner_env.tasks.catalog import HUB_DATASETS

pytest.importorskip("huggingface_hub")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def as_parquet(rows):
    sink = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    return sink.getvalue()


def as_jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_csv(rows):
    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return sink.getvalue().encode()


def livecodebench_row(release, day):
    private = json.dumps([{"input": f"{release}\n", "output": f"{2 * release}\n", "testtype": "stdin"}])
    return {
        "question_title": f"Double {release}",
        "question_content": f"Print twice the number. Release {release}.",
        "platform": "atcoder",
        "question_id": "abc350_c" if release == 3 else f"r{release}",
        "contest_id": "c",
        "contest_date": f"{day}T00:00:00",
        "starter_code": "",
        "difficulty": "easy",
        "public_test_cases": json.dumps([{"input": "1\n", "output": "2\n", "testtype": "stdin"}]),
        "private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(private))).decode(),
        "metadata": "{}",
    }


DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer "
    "(without quotes) where $Answer is the answer to the problem.\n\n{}\n\nRemember to put your answer on its own line "
    'after "Answer:".'
)


def verl_row(prompt, truth, index, ability="MATH", source="math_dapo"):
    return {
        "data_source": source,
        "prompt": [{"content": prompt, "role": "user"}],
        "ability": ability,
        "reward_model": {"ground_truth": truth, "style": "rule"},
        "extra_info": {"index": index},
    }


QUESTION = "Which one is a metal?\n\nA) helium\nB) iron\nC) neon\nD) argon"
CODE = json.dumps({"inputs": ["3\n"], "outputs": ["6\n"], "fn_name": None})
FUNCTION = json.dumps({"inputs": [[1, [2]]], "outputs": [[[3]]], "fn_name": "f"})
RELEASE_DAYS = ("2023-09-01", "2024-04-15", "2024-07-01", "2024-09-14", "2024-12-01", "2025-03-08")

FILES = {
    "Maxwell-Jia/AIME_2024/aime_2024_problems.parquet": as_parquet(
        [{"ID": f"2024-I-{n}", "Problem": f"Find ${n}$.", "Solution": "Easy.", "Answer": n} for n in range(1, 4)]
    ),
    "math-ai/aime25/test.jsonl": as_jsonl([{"problem": f"Find {n}.", "answer": f"0{n}", "id": str(n)} for n in range(3)]),
    "math-ai/aime26/aime2026.jsonl": as_jsonl([{"problem": "Find $16$.", "answer": "16", "id": "1"}]),
    "Idavidrein/gpqa/gpqa_diamond.csv": as_csv(
        [
            {
                "Question": f"What is {n}?\nA comma, too.",
                "Correct Answer": f"{n}\n",
                "Incorrect Answer 1": "a",
                "Incorrect Answer 2": "b",
                "Incorrect Answer 3": "c",
                "Explanation": "-",
                "High-level domain": "Physics",
                "Record ID": f"rec{n}",
            }
            for n in range(4)
        ]
    ),
    **{
        f"livecodebench/code_generation_lite/test{'' if number == 1 else number}.jsonl": as_jsonl(
            [livecodebench_row(number, day)]
        )
        for number, day in enumerate(RELEASE_DAYS, 1)
    },
    "BytedTsinghua-SIA/DAPO-Math-17k/data/dapo-math-17k.parquet": as_parquet(
        [verl_row(DAPO.format("What is $1+1$?"), "2", "u1"), verl_row(DAPO.format("What is $2+2$?"), "4", "u2")] * 5
        + [verl_row(DAPO.format("Which?"), "5", "u3"), verl_row(DAPO.format("Which?"), "6", "u4")]
        + [verl_row(DAPO.format("A half?"), "\\frac{1}{2}", "u5")]
    ),
    "Gen-Verse/Open-AgentRL-30K/Open-AgentRL-30K.parquet": as_parquet(
        [
            verl_row("What is 3 * 5?", "15", "1"),
            verl_row(QUESTION, "B", "2", "SCIENCE", "megascience"),
            verl_row("Why is the sky blue?", "Rayleigh scattering", "3", "SCIENCE", "megascience"),
            verl_row("Double the number.", CODE, "4", "CODE", "skywork"),
            verl_row("Write f.", FUNCTION, "5", "CODE", "skywork"),
        ]
    ),
}


REVISIONS = {dataset.repository: dataset.revision for dataset in HUB_DATASETS.values()}


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does: the same headers, and its error codes."""

    gated: ClassVar = ()
    requests: ClassVar = []

    def do_HEAD(self):
        self._answer(with_body=False)

    def do_GET(self):
        self._answer(with_body=True)

    def log_message(self, *_):
        pass

    def _answer(self, with_body):
        path = unquote(self.path.partition("?")[0])
        type(self).requests.append((self.command, path))
        prefix, _, rest = path.partition("/resolve/")
        repository, (revision, _, file) = prefix.removeprefix("/datasets/"), rest.partition("/")
        if REVISIONS.get(repository) != revision:
            return self._refuse(404, "RepoNotFound" if repository not in REVISIONS else "RevisionNotFound")
        if repository in self.gated and self.headers.get("Authorization") != "Bearer hf_right":
            return self._refuse(401 if "Authorization" not in self.headers else 403, "GatedRepo")
        body = FILES.get(f"{repository}/{file}")
        if body is None:
            return self._refuse(404, "EntryNotFound")
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", revision)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)
        return None

    def _refuse(self, status, code):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", f"Access refused: {code}.")
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def the_hub(monkeypatch, tmp_path):
    class Handler(Hub):
        gated: ClassVar = ()
        requests: ClassVar = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_TOKEN", "")
    yield Handler
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """An address where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))


def answers(task, *arguments):
    return [(problem.id, problem.answer) for problem in get_task(task).load(*arguments).problems]


def test_the_years_of_the_aime(the_hub):
    assert answers("aime", "aime2024") == [("2024-I-1", "1"), ("2024-I-2", "2"), ("2024-I-3", "3")]
    assert answers("aime", "aime2025", "test") == [("0", "0"), ("1", "1"), ("2", "2")]
    dataset = get_task("aime").load("aime2026")
    assert (dataset.name, dataset.problems[0].prompt) == ("aime2026", "Find $16$.")
    assert dataset.label == f"aime2026@{dataset.fingerprint[:12]}"


def test_gpqa(the_hub):
    dataset = get_task("gpqa").load("gpqa_diamond")
    assert [problem.id for problem in dataset.problems] == [f"rec{n}" for n in range(4)]
    for number, problem in enumerate(dataset.problems):
        assert problem.metadata["options"]["ABCD".index(problem.answer)] == str(number)
        assert problem.metadata["domain"] == "Physics"


def test_releases_and_windows_of_livecodebench(the_hub):
    def ids(name, split=None):
        return [problem.id for problem in get_task("livecodebench").load(name, split).problems]

    assert ids("livecodebench_v1") == ["r1"]
    assert ids("livecodebench_v4", "test") == ["r1", "r2", "abc350_c", "r4"]
    assert len(the_hub.requests) == 8  # Asked about and got, once each.
    assert ids("livecodebench_v6", "v5..v6") == ids("livecodebench_v6:v5..v6") == ["r5", "r6"]
    assert ids("livecodebench_v6:v6") == ["r6"]
    assert ids("livecodebench_v6", "2024-07-01..2024-12-01") == ["abc350_c", "r4", "r5"]
    assert ids("livecodebench_v6:2025-03-08..2025-03-08") == ["r6"]
    dataset = get_task("livecodebench").load("livecodebench_v6:v3")
    assert dataset.name == "livecodebench_v6:v3"
    assert dataset.problems[0].metadata["erratum"] == "the tests are wrong"
    assert [test["output"] for test in json.loads(dataset.problems[0].answer)["tests"]] == ["2\n", "6\n"]
    assert dataset.fingerprint == get_task("livecodebench").load("livecodebench_v3:v3").fingerprint


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("livecodebench_v5:v6", None, r"has the releases v1..v5, got 'v6'"),
        ("livecodebench_v6:v4..v2", None, "has the releases v1..v6"),
        ("livecodebench_v6:2025", None, "has no part '2025'; give a window of dates such as"),
        ("livecodebench_v6:2025-02-01..2025-01-01", None, "ends before it begins"),
        ("livecodebench_v6:v6", "v5", "in its name or as the split, not both"),
        ("livecodebench_v6", "train", "has no part 'train'"),
        ("livecodebench_v6:2030-01-01..2031-01-01", None, "no problem in this file"),
    ],
)
def test_wrong_parts_of_livecodebench_are_refused(the_hub, name, split, message):
    with pytest.raises(DataError, match=message):
        get_task("livecodebench").load(name, split)


def test_training_pools_are_deduplicated(the_hub):
    dataset = get_task("aime").load("dapo_math_17k")
    found = [(problem.id, problem.prompt, problem.answer) for problem in dataset.problems]
    assert found == [("u1", "What is $1+1$?", "2"), ("u2", "What is $2+2$?", "4")]


def test_a_task_takes_its_own_rows_of_a_mixed_pool(the_hub):
    assert answers("aime", "open_agentrl_30k", "train") == [("1", "15")]
    (question,) = get_task("gpqa").load("open_agentrl_30k").problems
    assert question.metadata["options"]["ABCD".index(question.answer)] == "iron"
    assert question.prompt.startswith("Which one is a metal?\n\nA) ")
    stdin, functional = get_task("livecodebench").load("open_agentrl_30k").problems
    assert json.loads(stdin.answer)["tests"] == [{"input": "3\n", "output": "6\n"}]
    assert json.loads(functional.answer)["tests"] == [{"input": "1\n[2]", "output": "[3]"}]
    assert functional.metadata["function"] == "f"


def test_training_and_evaluation_are_kept_apart(the_hub):
    with pytest.raises(DataError, match="'aime2024' has no split 'train'; the only one is 'test'"):
        get_task("aime").load("aime2024", "train")
    with pytest.raises(DataError, match="'dapo_math_17k' has no split 'test'; the only one is 'train'"):
        get_task("aime").load("dapo_math_17k", "test")
    assert {dataset.split for dataset in HUB_DATASETS.values() if dataset.role == "training"} == {"train"}
    repositories = {
        role: {d.repository for d in HUB_DATASETS.values() if d.role == role} for role in ("training", "evaluation")
    }
    assert not repositories["training"] & repositories["evaluation"]


def test_what_is_in_the_cache_needs_no_network(the_hub, nowhere, monkeypatch, tmp_path):
    dead = os.environ["HF_ENDPOINT"]
    with pytest.raises(DataError, match="not in the cache and the hub cannot be reached"):
        get_task("aime").load("aime2025")
    monkeypatch.undo()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    fetched = get_task("aime").load("aime2025")
    server.shutdown()
    server.server_close()
    monkeypatch.setenv("HF_ENDPOINT", dead)
    assert get_task("aime").load("aime2025") == fetched
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert get_task("aime").load("aime2025") == fetched
    with pytest.raises(
        DataError, match="'aime2026' is not in the cache and HF_HUB_OFFLINE is set: run `cleaner data check"
    ):
        get_task("aime").load("aime2026")


def test_a_gated_data_set_says_how_to_get_access(the_hub, monkeypatch):
    the_hub.gated = ("Idavidrein/gpqa",)
    message = (
        r"'gpqa_diamond' is gated: accept its terms at http://127.*/datasets/Idavidrein/gpqa, then run `hf auth login`"
    )
    with pytest.raises(DataError, match=message) as caught:
        get_task("gpqa").load("gpqa_diamond")
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert len(get_task("gpqa").load("gpqa_diamond").problems) == 4


def test_a_file_that_is_not_there(the_hub):
    with pytest.raises(DataError, match=r"'gpqa_main': Idavidrein/gpqa has no gpqa_main\.csv at 633f5ee89ab8"):
        get_task("gpqa").load("gpqa_main")


def test_a_repository_that_is_gone(the_hub, monkeypatch):
    monkeypatch.setitem(
        HUB_DATASETS, "aime2025", hub.HubDataset("aime2025", ("aime",), "evaluation", "a/b", "0" * 40, ("c",), 1)
    )
    with pytest.raises(DataError, match="the hub has no a/b that you may read"):
        get_task("aime").load("aime2025")


def test_without_the_client_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'cleaner-env\[data\]', or give the path of a file"):
        get_task("aime").load("aime2025")


def test_every_revision_is_a_commit():
    for dataset in HUB_DATASETS.values():
        assert len(dataset.revision) == 40
        assert set(dataset.revision) <= set("0123456789abcdef")


def test_importing_the_tasks_does_not_import_the_client():
    code = "import sys, cleaner_env.tasks.hub, cleaner_env.tasks.aime; assert 'huggingface_hub' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
