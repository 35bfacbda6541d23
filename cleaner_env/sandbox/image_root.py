"""Makes the files of an image from the Python that runs this: interpreter, standard library, wheels, shared libraries."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from cleaner_env.errors import SandboxError

__all__ = ["make_root"]

_LEFT_OUT: Final = shutil.ignore_patterns(
    "__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip",
    "lib2to3", "config-*", "_tkinter*", "_test*", "_ctypes_test*", "_xxtestfuzz*", "EXTERNALLY-MANAGED",
)  # fmt: skip
_PROGRAMS: Final = (
    "sh", "cat", "cp", "date", "echo", "env", "false", "head", "ls", "mkdir", "mv", "pwd", "rm", "rmdir", "seq", "sleep",
    "sort", "tail", "touch", "true", "wc",
)  # fmt: skip
_USERS: Final = "root:x:0:0:root:/:/nonexistent\nnobody:x:65534:65534:nobody:/tmp:/nonexistent\n"
_GROUPS: Final = "root:x:0:\nnogroup:x:65534:\n"
_LIBRARY: Final = re.compile(r"(?:=> )?(/\S+) \(0x")


def make_root(root: Path, packages: Sequence[str], report: Callable[[str], object] = lambda line: None) -> None:
    """Makes the file tree.

    Args:
        root: The folder to make.
        packages: Wheels to install in it, as pip takes them.
        report: Gets a line about each step.

    Raises:
        SandboxError: A step failed.
    """
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library = root / "usr/local/lib" / version
    for name in ("usr/bin", "usr/local/bin", "etc", "tmp", "proc", "sys", "dev", "sandbox"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    (root / "bin").symlink_to("usr/bin")
    (root / "etc/passwd").write_text(_USERS)
    (root / "etc/group").write_text(_GROUPS)

    report("copies Python and its standard library")
    python = Path(getattr(sys, "_base_executable", "") or sys.executable).resolve()
    shutil.copy2(python, root / "usr/local/bin" / version)
    for alias in (root / "usr/local/bin/python3", root / "usr/local/bin/python"):
        alias.symlink_to(version)
    shutil.copytree(sysconfig.get_path("stdlib"), library, symlinks=False, ignore=_LEFT_OUT, ignore_dangling_symlinks=True)
    packages_folder = library / "site-packages"
    packages_folder.mkdir()
    (library / "dist-packages").symlink_to("site-packages")  # Where Debian's Python looks.
    for program in _PROGRAMS:
        found = shutil.which(program)
        if found:
            shutil.copy2(Path(found).resolve(), root / "usr/bin" / program)

    if packages:
        report(f"installs {', '.join(packages)}")
        _call([
            sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary", ":all:",
            "--disable-pip-version-check", "--root-user-action", "ignore", "--target", str(packages_folder), *packages,
        ])  # fmt: skip
        for folder in [*packages_folder.rglob("tests"), packages_folder / "bin", packages_folder / "share"]:
            shutil.rmtree(folder, ignore_errors=True)

    report("copies shared libraries")
    for path in _shared_libraries(root):
        target = root / path.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path.resolve(), target)

    report("compiles")
    compiling = "import compileall, sys; compileall.compile_dir(sys.argv[1], quiet=2, stripdir=sys.argv[2],"
    compiling += " invalidation_mode=__import__('py_compile').PycInvalidationMode.UNCHECKED_HASH)"
    _call([sys.executable, "-c", compiling, str(library), str(root)])


def _shared_libraries(root: Path) -> list[Path]:
    """What the programs and extension modules in the tree load, as the dynamic linker of this machine finds it."""
    binaries = [str(path) for path in _binaries(root)]
    found = set()
    for start in range(0, len(binaries), 200):
        result = subprocess.run(
            ["ldd", *binaries[start : start + 200]], capture_output=True, text=True, check=False, env={"PATH": os.defpath}
        )
        found |= set(_LIBRARY.findall(result.stdout))
    return [Path(name) for name in sorted(found) if not name.startswith(f"{root}/")]


def _binaries(root: Path) -> Iterator[Path]:
    yield from (
        path for folder in ("usr/bin", "usr/local/bin") for path in (root / folder).iterdir() if not path.is_symlink()
    )
    yield from (path for path in (root / "usr/local/lib").rglob("*.so*") if path.is_file())


def _call(command: Sequence[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines() or [f"exit code {result.returncode}"]
        raise SandboxError(f"the image was not built: {lines[-1]}")
