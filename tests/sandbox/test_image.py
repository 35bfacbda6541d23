from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from cleaner_env.errors import ConfigError, SandboxError
from cleaner_env.sandbox import DockerSandbox, LocalSandbox
from cleaner_env.sandbox.engine import connect
from cleaner_env.sandbox.image import build_image, dockerfile

BASE = f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim"
VERSIONS = "import sys, numpy\n(sys.version_info[:2], numpy.__version__, float(numpy.linalg.norm([3, 4])))"


def test_both_backends_have_the_same_python_and_packages(docker_sandbox) -> None:
    with docker_sandbox.open() as ours, LocalSandbox() as local, local.open() as theirs:
        assert ours.run(VERSIONS).value == theirs.run(VERSIONS).value


def test_an_image_is_built_from_a_base_image(docker_image) -> None:
    """The base is our own image under the name of Docker's: what is tested needs no registry."""
    api = connect()
    tag = "cleaner-env-sandbox:from-base"
    try:
        had_base = bool(api.images(BASE))
        if not had_base:
            api.tag(docker_image, *BASE.split(":"))
        lines: list[str] = []
        image = build_image(tag, packages=(), method="auto", report=lines.append)
        assert lines == [f"builds {tag} from {BASE}"]
        assert api.inspect_image(image)["Config"]["User"] == "65534:65534"
        with DockerSandbox(tag, warm=0) as sandbox, sandbox.open() as session:
            assert session.run("6 * 7").value == "42"
    finally:
        for name in (tag, *(() if had_base else (BASE,))):
            api.remove_image(name, force=True)
        api.close()


def test_a_step_that_fails_is_a_clear_error_and_leaves_no_image(docker_image) -> None:
    with pytest.raises(SandboxError, match="the image was not built: "):
        build_image("cleaner-env-sandbox:broken", packages=("/no/such/package-1-py3-none-any.whl",), method="root")
    api = connect()
    assert api.images("cleaner-env-sandbox:broken") == []
    api.close()


def test_a_bare_name_gets_the_version_that_is_installed_here() -> None:
    from cleaner_env.sandbox.image import _pinned

    assert _pinned("numpy") == f"numpy=={importlib.metadata.version('numpy')}"
    assert _pinned("numpy==1.0") == "numpy==1.0"
    assert _pinned("no_such_package_cleaner") == "no_such_package_cleaner"
    assert '"numpy==1.0"' in dockerfile(["numpy==1.0"])


def test_an_unknown_method_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'magic'; choose one of auto, registry, root"):
        build_image(method="magic")  # type: ignore[arg-type]


def test_the_command_describes_a_docker_sandbox(docker_image) -> None:
    code = "from cleaner_env.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "sandbox", "reap"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "removed")
