from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleaner_env.sandbox.worker.files import FileSnapshot, QuotaExceededError, remove_tree

NAMES = st.sampled_from(["a", "b", "c/d", "c/e/f", "g", "\udcff"])
ACTIONS = st.one_of(
    st.tuples(st.just("write"), NAMES, st.binary(max_size=8)),
    st.tuples(st.just("append"), NAMES, st.binary(max_size=8)),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("hardlink"), NAMES, NAMES),
    st.tuples(st.just("symlink"), NAMES, NAMES),
    st.tuples(st.just("folder"), NAMES),
    st.tuples(st.just("mode"), NAMES, st.sampled_from([0o600, 0o444, 0o755, 0])),
    st.tuples(st.just("fifo"), NAMES),
)


def act(root: Path, action: tuple) -> None:
    kind, path = action[0], root / action[1]
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind in ("write", "append"):
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | (os.O_TRUNC if kind == "write" else os.O_APPEND)
        with open(os.open(path, flags, 0o644), "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(action[2])
    elif kind == "delete":
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    elif kind == "rename":
        path.rename(root / action[2])
    elif kind == "hardlink":
        os.link(path, root / action[2], follow_symlinks=False)
    elif kind == "symlink":
        path.symlink_to(action[2])
    elif kind == "folder":
        path.mkdir()
    elif kind == "mode":
        path.chmod(action[2])
    elif kind == "fifo":
        os.mkfifo(path)


def attempt(root: Path, actions: list[tuple]) -> None:
    for action in actions:
        try:
            act(root, action)
        except OSError:
            continue


def state(root: Path) -> dict[str, tuple]:
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
        target = str(path.readlink()) if path.is_symlink() else None
        inode = status.st_ino if stat.S_ISREG(status.st_mode) else None
        times = None if path.is_symlink() else status.st_mtime_ns
        found[str(path)] = (status.st_mode, content, target, inode, times)
    return found


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.lists(ACTIONS, max_size=6), st.lists(ACTIONS, max_size=6)), min_size=1, max_size=3))
def test_restoring_gives_what_was_taken(tmp_path_factory, rounds) -> None:
    base = tmp_path_factory.mktemp("base")
    root, store = base / "root", base / "store"
    root.mkdir()
    store.mkdir()
    snapshot = FileSnapshot(str(root), str(store))
    for kept, undone in rounds:
        attempt(root, kept)
        snapshot.take()
        before = state(root)
        attempt(root, undone)
        snapshot.restore()
        assert state(root) == before
    shutil.rmtree(base)


@pytest.fixture
def snapshot(tmp_path) -> FileSnapshot:
    (tmp_path / "root").mkdir()
    (tmp_path / "store").mkdir()
    return FileSnapshot(str(tmp_path / "root"), str(tmp_path / "store"), max_bytes=1000, max_entries=5)


def test_a_change_within_the_clocks_grain_is_seen(snapshot) -> None:
    path = Path(snapshot.root) / "file"
    for number in range(200):
        path.write_text(f"{number:03}")
        snapshot.take()
        path.write_text("bad")
        snapshot.restore()
        assert path.read_text() == f"{number:03}"


def test_a_closed_folder_is_no_obstacle(snapshot) -> None:
    folder = Path(snapshot.root) / "closed"
    folder.mkdir()
    (folder / "file").write_text("kept")
    folder.chmod(0)
    snapshot.take()
    folder.chmod(0o700)
    (folder / "file").write_text("changed")
    folder.chmod(0)
    snapshot.restore()
    assert stat.S_IMODE(folder.stat().st_mode) == 0
    folder.chmod(0o700)
    assert (folder / "file").read_text() == "kept"


def test_quotas_leave_the_last_snapshot_valid(snapshot) -> None:
    path = Path(snapshot.root) / "file"
    path.write_text("kept")
    snapshot.take()
    path.write_text("x" * 2000)
    with pytest.raises(QuotaExceededError, match="2000 bytes, more than the 1000"):
        snapshot.take()
    snapshot.restore()
    assert path.read_text() == "kept"
    for number in range(9):
        path.with_name(str(number)).touch()
    with pytest.raises(QuotaExceededError, match="more than 5 files"):
        snapshot.take()
    snapshot.restore()
    assert [path.name for path in Path(snapshot.root).iterdir()] == ["file"]


def test_the_store_holds_nothing_of_what_is_gone(snapshot) -> None:
    path = Path(snapshot.root) / "file"
    path.write_text("x")
    snapshot.take()
    assert len(list(Path(snapshot.store).iterdir())) == 2
    path.unlink()
    snapshot.take()
    assert list(Path(snapshot.store).iterdir()) == []


def test_a_link_out_of_the_tree_is_not_followed(snapshot, tmp_path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    (Path(snapshot.root) / "file").write_text("inside")
    snapshot.take()
    (Path(snapshot.root) / "file").unlink()
    (Path(snapshot.root) / "file").symlink_to(outside)
    snapshot.restore()
    assert outside.read_text() == "untouched"
    assert (Path(snapshot.root) / "file").read_text() == "inside"


def test_a_deep_tree_is_removed(tmp_path) -> None:
    here = Path.cwd()
    top = tmp_path / "top"
    top.mkdir()
    try:
        os.chdir(top)
        for _ in range(600):
            Path("d" * 10).mkdir()
            os.chdir("d" * 10)
    finally:
        os.chdir(here)
    remove_tree(str(top))
    assert not top.exists()
