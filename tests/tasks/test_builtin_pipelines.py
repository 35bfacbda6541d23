import random

import pytest

from cleaner_env.errors import DataError
from cleaner_env.grading import CodeTests, Judge
from cleaner_env.sandbox import make_sandbox
from cleaner_env.tasks import get_task
from cleaner_env.tasks.builtin.pipelines import draw_pipeline


@pytest.fixture(scope="module")
def judge():
    with make_sandbox("local") as sandbox, Judge(sandbox) as opened:
        yield opened


@pytest.mark.parametrize("seed", range(40))
def test_the_reference_passes_and_the_shortcut_fails_some_tests(seed, judge):
    pipeline = draw_pipeline(random.Random(seed))
    assert {result.status for result in judge.run(pipeline.reference, pipeline.tests)} == {"AC"}
    found = {result.status for result in judge.run(pipeline.shortcut, pipeline.tests, stop_early=False)}
    assert "AC" in found
    assert "WA" in found


def test_the_splits_are_disjoint_and_never_run_out():
    train, test = (get_task("livecodebench").load("generated", split) for split in ("train", "test"))
    prompts = [{problem.prompt for problem in dataset.problems[:150]} for dataset in (train, test)]
    assert not prompts[0] & prompts[1]
    assert len(prompts[0]) > 110
    assert len(train.problems) >= 1_000_000
    problem = train.problems[3]
    assert problem == get_task("livecodebench").load("generated").problems[3]
    assert len({test.input for test in CodeTests.from_json(problem.answer).tests}) >= 10
    assert {problem.metadata["difficulty"] for problem in train.problems[:40]} == {"easy", "medium", "hard"}
    with pytest.raises(DataError, match="choose one of train, test"):
        get_task("livecodebench").load("generated", "dev")
