"""Remembers a folder tree, and puts it back: contents, names, links, modes, times and the very inodes.

Each regular file is hard-linked into a store beside the tree and its contents are copied there once per change. An inode
that a failed cell deletes can so be linked back, and a file object which the interpreter holds open stays valid.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterator

_BLOCK = 1 << 20
_RACY_NS = 50_000_000  # A change this soon before a snapshot may share its timestamp with a change just after it.


class QuotaExceededError(Exception):
    """The tree holds more bytes or entries than allowed."""


def remove_tree(path: str) -> None:
    """Removes a folder and all in it, however deep."""
    with contextlib.suppress(OSError, RecursionError):
        os.chmod(path, 0o700)
        shutil.rmtree(path)
    if os.path.lexists(path):
        os.spawnvp(os.P_WAIT, "rm", ["rm", "-rf", "--", path])


class _Entry:
    """What is known of one path."""

    __slots__ = ("racy", "status", "target")

    def __init__(self, status: os.stat_result, target: str | None, racy: bool) -> None:
        self.status = status
        self.target = target
        self.racy = racy


class SavedTree:
    """A snapshot kept for later: what `FileSnapshot` knew, and a folder of links to its store."""

    def __init__(self, folder: str, entries: dict[str, _Entry]) -> None:
        self.folder = folder
        self.entries = dict(entries)

    def remove(self) -> None:
        """Gives up the space."""
        remove_tree(self.folder)


class FileSnapshot:
    """The state of the tree ``root`` as of the last `take`; ``store`` is a folder on the same file system.

    Paths are used as given, so a process whose working folder nobody can move may give relative ones.
    """

    def __init__(self, root: str, store: str, max_bytes: int = 64 << 20, max_entries: int = 2_000) -> None:
        self.root = root
        self.store = store
        self.max_bytes = max_bytes
        self.max_entries = max_entries
        self._entries: dict[str, _Entry] = {}
        self._copies: dict[int, os.stat_result] = {}
        self._racy_inodes: dict[int, bool] = {}
        self._saved = 0

    def take(self, thorough: bool = False) -> None:
        """Remembers the tree as it is now.

        Args:
            thorough: Compare contents even where size and times are unchanged, because the tree may have been written
                through shared memory maps, which some file systems do not record.

        Raises:
            QuotaExceededError: The tree is too large; the previous snapshot is still the valid one.
        """
        found = dict(self._walk())
        self._check_quota(found)
        now = time.time_ns()
        entries: dict[str, _Entry] = {}
        inodes = set()
        for path, status in found.items():
            target = os.readlink(path) if stat.S_ISLNK(status.st_mode) else None
            if stat.S_ISREG(status.st_mode):
                if status.st_ino not in inodes:
                    self._save(path, status, thorough)
                    inodes.add(status.st_ino)
                status = os.lstat(path)
                self._copies[status.st_ino] = status
            racy = now - status.st_ctime_ns < _RACY_NS
            entries[path] = _Entry(status, target, racy)
        for inode in set(self._copies) - inodes:
            del self._copies[inode]
            os.unlink(self._link(inode))
            os.unlink(self._copy(inode))
        self._entries = entries
        self._racy_inodes = {entry.status.st_ino: entry.racy for entry in entries.values()}

    def save(self) -> SavedTree:
        """Keeps the last snapshot for later, beside those that follow."""
        self._saved += 1
        tree = SavedTree(f"{self.store}/saved-{self._saved}", self._entries)
        os.mkdir(tree.folder, 0o700)
        for inode in self._copies:
            for name in (f"{inode}.link", f"{inode}.copy"):
                os.link(f"{self.store}/{name}", f"{tree.folder}/{name}")
        return tree

    def restore(self, saved: SavedTree | None = None) -> None:
        """Makes the tree what it was at the last `take`, or at a saved one, which so becomes the last."""
        if saved is not None:
            self._take_over(saved)
        self._restore_entries()

    def _take_over(self, saved: SavedTree) -> None:
        for inode in self._copies:
            os.unlink(self._link(inode))
            os.unlink(self._copy(inode))
        self._entries = dict(saved.entries)
        self._copies = {}
        for entry in self._entries.values():
            inode = entry.status.st_ino
            if stat.S_ISREG(entry.status.st_mode) and inode not in self._copies:
                os.link(f"{saved.folder}/{inode}.link", self._link(inode))
                os.link(f"{saved.folder}/{inode}.copy", self._copy(inode))
                self._copies[inode] = entry.status

    def _restore_entries(self) -> None:
        for path, status in sorted(self._walk(), reverse=True):
            entry = self._entries.get(path)
            if entry is None or not _same_object(entry.status, status):
                _remove(path, status)
        for path, entry in sorted(self._entries.items()):
            self._restore_one(path, entry)
        for path, entry in sorted(self._entries.items(), reverse=True):
            if entry.target is None:
                os.chmod(path, stat.S_IMODE(entry.status.st_mode))
                os.utime(path, ns=(entry.status.st_atime_ns, entry.status.st_mtime_ns))
            status = os.lstat(path)
            self._entries[path] = _Entry(status, entry.target, racy=True)
            if status.st_ino in self._copies:
                self._copies[status.st_ino] = status
            self._racy_inodes[status.st_ino] = True

    def _restore_one(self, path: str, entry: _Entry) -> None:
        kind = entry.status.st_mode
        exists = os.path.lexists(path)
        if stat.S_ISDIR(kind):
            if not exists:
                os.mkdir(path, 0o700)
        elif stat.S_ISLNK(kind):
            if exists and os.readlink(path) != entry.target:
                os.unlink(path)
                exists = False
            if not exists:
                os.symlink(entry.target or "", path)
        elif stat.S_ISFIFO(kind):
            if not exists:
                os.mkfifo(path)
        elif stat.S_ISREG(kind):
            inode = entry.status.st_ino
            if not exists:
                os.link(self._link(inode), path)
            if not _equal(path, self._copy(inode)):
                _copy_into(self._copy(inode), path)

    def _save(self, path: str, status: os.stat_result, thorough: bool) -> None:
        inode = status.st_ino
        known = self._copies.get(inode)
        if known is None:
            os.link(path, self._link(inode))
        else:
            sure = not thorough and not self._racy_inodes.get(inode, True)
            if _unchanged(known, status) and (sure or _equal(path, self._copy(inode))):
                return
            os.unlink(self._copy(inode))  # Not overwritten, for a saved tree may share it.
        _copy_into(path, self._copy(inode))

    def _check_quota(self, found: dict[str, os.stat_result]) -> None:
        if len(found) > self.max_entries:
            raise QuotaExceededError(f"the working folder holds more than {self.max_entries} files and folders")
        total = sum({s.st_ino: s.st_size for s in found.values() if stat.S_ISREG(s.st_mode)}.values())
        if total > self.max_bytes:
            raise QuotaExceededError(f"the working folder holds {total} bytes, more than the {self.max_bytes} allowed")

    def _walk(self) -> Iterator[tuple[str, os.stat_result]]:
        pending = [self.root]
        while pending:
            folder = pending.pop()
            with _opened_up(folder), os.scandir(folder) as listing:
                for item in listing:
                    status = item.stat(follow_symlinks=False)
                    if stat.S_ISSOCK(status.st_mode):
                        continue
                    yield item.path, status
                    if stat.S_ISDIR(status.st_mode):
                        pending.append(item.path)

    def _link(self, inode: int) -> str:
        return f"{self.store}/{inode}.link"

    def _copy(self, inode: int) -> str:
        return f"{self.store}/{inode}.copy"


@contextlib.contextmanager
def _opened_up(folder: str) -> Iterator[None]:
    """Makes a folder searchable for a moment, where its owner closed it."""
    mode = stat.S_IMODE(os.lstat(folder).st_mode)
    closed = mode & 0o700 != 0o700
    if closed:
        os.chmod(folder, mode | 0o700)
    yield
    if closed:
        os.chmod(folder, mode)


def _same_object(one: os.stat_result, other: os.stat_result) -> bool:
    same_kind = stat.S_IFMT(one.st_mode) == stat.S_IFMT(other.st_mode)
    return same_kind and (one.st_ino == other.st_ino or not stat.S_ISREG(one.st_mode))


def _unchanged(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_ctime_ns, one.st_mtime_ns, one.st_size) == (other.st_ctime_ns, other.st_mtime_ns, other.st_size)


def _remove(path: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        remove_tree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _equal(one: str, other: str) -> bool:
    with _readable(one) as first, open(other, "rb", buffering=0) as second:
        if os.fstat(first).st_size != os.fstat(second.fileno()).st_size:
            return False
        while True:
            block = os.read(first, _BLOCK)
            if block != second.read(_BLOCK):
                return False
            if not block:
                return True


@contextlib.contextmanager
def _readable(path: str) -> Iterator[int]:
    """Opens a regular file for reading and writing whatever its mode; its mode stays."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except PermissionError:
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        os.chmod(path, 0o600)
        fd = os.open(path, flags)
        os.chmod(path, mode)
    try:
        yield fd
    finally:
        os.close(fd)


def _copy_into(source: str, target: str) -> None:
    """Copies contents, keeping the target's inode."""
    with contextlib.ExitStack() as stack:
        if not os.path.lexists(target):
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        reading = stack.enter_context(_readable(source))
        writing = stack.enter_context(_readable(target))
        while True:
            block = os.read(reading, _BLOCK)
            if not block:
                break
            view = memoryview(block)
            while view:
                view = view[os.write(writing, view) :]
        os.ftruncate(writing, os.lseek(writing, 0, os.SEEK_CUR))
