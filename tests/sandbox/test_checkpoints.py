from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cleaner_env.errors import ConfigError, SandboxError

SETUP = """
import os, random
numbers = [0]
open('kept.txt', 'w').write('start')
log = open('log.txt', 'w+')
n = log.write('start'); log.flush()
def probe():
    files = {name: open(name).read() for name in sorted(os.listdir('.'))}
    return (numbers, files, log.tell(), os.environ.get('X'), os.getcwd().rpartition('/')[2], random.random())
"""
EFFECTS = [
    "numbers.append(len(numbers))",
    "n = log.write('x'); log.flush()",
    "log.seek(1)",
    "os.path.exists('kept.txt') and os.unlink('kept.txt')",
    "n = open('kept.txt', 'a').write('more')",
    "n = open(f'new{len(numbers)}.txt', 'w').write('new')",
    "os.environ['X'] = os.environ.get('X', '') + 'x'",
    "random.seed(len(numbers))",
]
STEPS = st.one_of(
    st.tuples(st.just("run"), st.sampled_from(EFFECTS)),
    st.tuples(st.just("fail"), st.sampled_from(EFFECTS)),
    st.tuples(st.just("keep"), st.none()),
    st.tuples(st.just("back"), st.integers(0, 9)),
)
SUPPRESSED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@settings(max_examples=8, deadline=None, suppress_health_check=SUPPRESSED)
@given(st.lists(STEPS, min_size=4, max_size=12))
def test_going_back_is_as_if_the_cells_since_had_not_been(sandbox, steps) -> None:
    with sandbox.open() as session, sandbox.open() as clean:
        session.run(SETUP)
        cells: list[str] = []
        kept: list[tuple[str, list[str]]] = []
        for kind, what in steps:
            if kind == "run":
                assert session.run(what).ok
                cells.append(what)
            elif kind == "fail":
                assert session.run(f"{what}\n1 / 0").status == "error"
            elif kind == "keep":
                kept.append((session.checkpoint(), list(cells)))
            elif kept:
                token, before = kept[what % len(kept)]
                session.rollback(token)
                cells = list(before)
        clean.run(SETUP)
        for code in cells:
            assert clean.run(code).ok
        assert session.run("probe()").value == clean.run("probe()").value


def test_branches_of_a_search_share_their_stem(session) -> None:
    session.run("path = [1]")
    stem = session.checkpoint()
    leaves = []
    for number in (2, 3, 4):
        session.rollback(stem)
        leaves.append(session.run(f"path.append({number}); path").value)
    assert leaves == ["[1, 2]", "[1, 3]", "[1, 4]"]


def test_a_later_checkpoint_outlives_going_back_to_an_earlier_one(session) -> None:
    session.run("a = 1")
    early = session.checkpoint()
    session.run("a = 2; open('f', 'w').write('2')")
    late = session.checkpoint()
    session.rollback(early)
    assert session.run("import os; (a, os.listdir('.'))").value == "(1, [])"
    session.rollback(late)
    assert session.run("(a, open('f').read())").value == "(2, '2')"


def test_processes_that_wait_do_not_count_as_the_cells_own(session) -> None:
    from cleaner_env.sandbox import Limits

    for _ in range(6):
        session.checkpoint()
    assert session.run("import time; time.sleep(0.2)", limits=Limits(processes=3)).ok


def test_a_checkpoint_survives_the_loss_of_its_state(session) -> None:
    session.run("a = [1]")
    token = session.checkpoint()
    session.run("a.append(2)")
    session.run("import os, signal; os.kill(os.getppid(), signal.SIGKILL); import time; time.sleep(9)")
    assert session.run("a").value == "[1, 2]"
    session.rollback(token)
    assert session.run("a").value == "[1]"


def test_a_released_checkpoint_is_gone(session) -> None:
    token = session.checkpoint()
    session.release(token)
    with pytest.raises(ConfigError, match=token):
        session.rollback(token)
    assert session.run("1").ok


@pytest.mark.parametrize("token", ["nonsense", None, 3])
def test_an_unknown_checkpoint_is_the_callers_error(session, token) -> None:
    with pytest.raises(ConfigError, match=repr(token)):
        session.rollback(token)
    with pytest.raises(ConfigError, match=repr(token)):
        session.release(token)


def test_too_many_checkpoints_are_refused_and_do_no_harm(session) -> None:
    session.run("a = 1")
    tokens = [session.checkpoint() for _ in range(32)]
    with pytest.raises(SandboxError, match="at most 32"):
        session.checkpoint()
    assert session.run("a").value == "1"
    session.release(tokens[0])
    session.rollback(session.checkpoint())
    assert session.run("a").value == "1"


def test_a_closed_session_has_no_checkpoints(sandbox) -> None:
    session = sandbox.open()
    token = session.checkpoint()
    session.close()
    for use in (session.checkpoint, lambda: session.rollback(token), lambda: session.release(token)):
        with pytest.raises(SandboxError, match="closed"):
            use()
