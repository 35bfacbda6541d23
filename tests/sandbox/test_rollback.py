from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FAILURES = {
    "error": "\nraise RuntimeError('on purpose')",
    "exit": "\nimport os; os._exit(3)",
    "killed": "\nimport os, signal; os.kill(os.getpid(), signal.SIGKILL)",
}

SETUP = """
import os, random, sys, types
numbers = [1, 2]
table = {'a': [1]}
module = types.ModuleType('module'); module.value = [1]
sys.modules['module'] = module
os.makedirs('sub')
for name in ('one.txt', 'sub/two.txt'):
    with open(name, 'w') as handle: n = handle.write(name)
reader = open('one.txt')
writer = open('log.txt', 'w')
"""

PROBE = """
import json, stat
def tree():
    found = {}
    for folder, names, files in os.walk('.'):
        for name in names + files:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            content = open(path, 'rb').read().decode() if stat.S_ISREG(status.st_mode) else None
            target = os.readlink(path) if stat.S_ISLNK(status.st_mode) else None
            found[path] = (stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode), content, target)
    return found
def mask():
    old = os.umask(18)
    os.umask(old)
    return old
def probe():
    return (numbers, table, module.value, sorted(k for k in module.__dict__ if k[0] != '_'), os.environ.get('X'),
        os.getcwd(), [p for p in sys.path if p == 'x'], hash(repr(random.getstate())), reader.tell(), writer.tell(),
        sys.getrecursionlimit(), 'colorsys' in sys.modules, mask(), sorted(tree().items()),
        sorted(n for n in globals() if n[0] == 'v'))
"""

EFFECTS = [
    "numbers.append(len(numbers))",
    "numbers[:] = numbers[::-1]",
    "table['a'].append(len(table)); table[len(table)] = 0",
    "module.value.append(2); module.extra = 1",
    "v1 = 1",
    "globals().pop('v1', None); v2 = random.random()",
    "os.environ['X'] = os.environ.get('X', '') + 'x'",
    "sys.path.append('x')",
    "random.random()",
    "random.seed(7)",
    "reader.read(1); os.lseek(reader.fileno(), 2, 0)",
    "k = writer.write('buffered')",
    "writer.write('flushed'); writer.flush()",
    "sys.setrecursionlimit(sys.getrecursionlimit() + 1)",
    "import colorsys",
    "os.umask(0o77)",
    "open('new.txt', 'w').write('new')",
    "open('new.txt', 'a').write('more')",
    "os.path.exists('one.txt') and open('one.txt', 'r+').write('X')",
    "os.makedirs('sub/deep/er', exist_ok=True); open('sub/deep/er/f', 'w').write(str(len(numbers)))",
    "os.path.lexists('link') or os.symlink('one.txt', 'link')",
    "os.path.exists('one.txt') and os.chmod('one.txt', 0o640)",
    "os.path.exists('sub/two.txt') and os.replace('sub/two.txt', 'moved.txt')",
    "__import__('shutil').rmtree('sub', ignore_errors=True)",
    "os.path.exists('one.txt') and os.unlink('one.txt')",
    "os.chdir(os.environ['TMPDIR' if os.getcwd() == os.environ['HOME'] else 'HOME'])",
]

SUPPRESSED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


def run_all(session, cells) -> str:
    session.run(SETUP + PROBE)
    for effect, failure in cells:
        execution = session.run(f"if True:\n    {effect}\n    pass{FAILURES.get(failure, '')}")
        assert execution.status == failure, execution
    return session.run("probe()").value


@settings(max_examples=8, deadline=None, suppress_health_check=SUPPRESSED)
@given(st.lists(st.tuples(st.sampled_from(EFFECTS), st.sampled_from(["ok", "ok", *FAILURES])), max_size=10))
def test_failed_cells_leave_exactly_what_the_others_alone_leave(sandbox, cells) -> None:
    with sandbox.open() as session, sandbox.open() as clean:
        with_failures = run_all(session, cells)
        without = run_all(clean, [cell for cell in cells if cell[1] == "ok"])
        ours, theirs = (str(s.run("print(os.path.dirname(os.environ['HOME']), end='')").stdout) for s in (session, clean))
        assert with_failures is not None
        assert with_failures.replace(ours, theirs) == without


@pytest.mark.parametrize("failure", FAILURES)
def test_every_effect_is_undone_by_itself(session, failure) -> None:
    session.run(SETUP + PROBE)
    before = session.run("probe()").value
    for effect in EFFECTS:
        assert session.run(f"if True:\n    {effect}\n    pass{FAILURES[failure]}").status == failure
        assert session.run("probe()").value == before, effect


def test_every_effect_is_there_to_be_undone(isolated) -> None:
    """Without a failure each effect changes what the probe sees, so the tests above can fail."""
    unseen = []
    with isolated.open() as session:
        session.run(SETUP + PROBE)
        for effect in EFFECTS:
            before = session.run("probe()").value
            assert session.run(f"if True:\n    {effect}\n    pass").ok
            if session.run("probe()").value == before:
                unseen.append(effect)
    assert unseen == []


def test_random_goes_on_as_if_the_failed_cell_had_not_been(session) -> None:
    session.run("import random\nrandom.seed(5)\na = random.random()")
    session.run("random.random(); 1 / 0")
    session.run("b = random.random()")
    assert session.run("random.seed(5)\n[a, b] == [random.random(), random.random()]").value == "True"


def test_random_goes_on_after_a_cell_that_left_a_thread(session) -> None:
    session.run("import random, threading, time\nrandom.seed(5)\na = random.random()")
    session.run("threading.Thread(target=time.sleep, args=(9,), daemon=True).start()")
    session.run("b = random.random()")
    assert session.run("random.seed(5)\n[a, b] == [random.random(), random.random()]").value == "True"


def test_numpy_random_goes_on_as_well(session) -> None:
    session.run("import numpy as np\nnp.random.seed(5)\ng = np.random.default_rng(5)\na = [np.random.rand(), g.random()]")
    session.run("np.random.rand(); g.random(); 1 / 0")
    session.run("a += [np.random.rand(), g.random()]")
    code = (
        "np.random.seed(5)\ng = np.random.default_rng(5)\na == [np.random.rand(), g.random(), np.random.rand(), g.random()]"
    )
    assert session.run(code).value == "True"


def test_sessions_start_with_the_same_generators(sandbox) -> None:
    values = set()
    for _ in range(2):
        with sandbox.open() as session:
            values.add(session.run("import random\n(random.random(), hash('text'))").value)
    assert len(values) == 1


def test_a_buffered_file_is_flushed_once(session) -> None:
    session.run("f = open('log', 'w')\nn = f.write('pending ')")
    session.run("f.flush(); 1 / 0")
    session.run("f.write('lost '); import sys; sys.exit()")
    session.run("n = f.write('kept')")
    session.run("f.close()")
    assert session.run("open('log').read()").value == "'pending kept'"


def test_an_open_file_stays_valid_when_a_failed_cell_deletes_it(session) -> None:
    session.run("import os\nf = open('data', 'w+')\nn = f.write('abc'); f.flush()")
    session.run("os.unlink('data')\nopen('data', 'w').write('other')\n1 / 0")
    session.run("n = f.write('def'); f.flush()")
    assert session.run(
        "f.seek(0)\n(f.read(), open('data').read(), os.fstat(f.fileno()).st_ino == os.stat('data').st_ino)"
    ).value == ("('abcdef', 'abcdef', True)")


def test_the_working_folder_itself_can_be_lost(session) -> None:
    session.run("import os, shutil\nopen('a', 'w').write('1')\nhere = os.getcwd()")
    assert (
        session.run("os.chdir('/')\nshutil.rmtree(here)\nassert os.path.exists(here), 'gone'").exception.message == "gone"
    )
    assert (
        session.run("open('b', 'w').write('2')\nsorted(os.listdir('.')), os.getcwd() == here").value == "(['a', 'b'], True)"
    )


def test_writing_through_a_memory_map_is_undone(session) -> None:
    session.run("import mmap\nopen('m', 'wb').write(b'a' * 4096)\nf = open('m', 'r+b')\nm = mmap.mmap(f.fileno(), 0)")
    session.run("m[0:3] = b'xyz'")
    session.run("m[0:3] = b'bad'; m.flush(); 1 / 0")
    assert session.run("m[0:3], open('m', 'rb').read(3)").value == "(b'xyz', b'xyz')"
    session.run("import os; os.truncate('m', 1); 1 / 0")
    assert session.run("m[0:3], len(open('m', 'rb').read())").value == "(b'xyz', 4096)"


def test_too_many_files_fail_the_cell(session) -> None:
    execution = session.run("for i in range(2100): open(f'f{i}', 'w').close()")
    assert execution.status == "output_limit"
    assert "working folder" in execution.stderr
    assert session.run("import os; os.listdir('.')").value == "[]"


def test_a_very_deep_tree_is_undone(session) -> None:
    session.run("x = 1")
    code = "import os\nfor i in range(400):\n    os.mkdir('d' * 20); os.chdir('d' * 20)\nraise ValueError"
    assert session.run(code).status == "error"
    assert session.run("import os; (x, os.listdir('.'))").value == "(1, [])"


def test_a_session_whose_interpreter_was_killed_is_replayed(session) -> None:
    session.run("a = [1]")
    session.run("a.append(2)")
    execution = session.run(
        "import os, signal\na.append(3)\nos.kill(os.getppid(), signal.SIGKILL)\nimport time; time.sleep(20)"
    )
    assert execution.status == "killed"
    assert session.run("a").value == "[1, 2]"
