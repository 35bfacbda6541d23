from __future__ import annotations

import pytest

from cleaner_env.errors import ConfigError
from cleaner_env.sandbox import Limits, LocalSandbox, Sandbox, Session, make_sandbox, shared_sandbox


@pytest.mark.parametrize("name", ["podman", "nothing", None, 3, ["local"]])
def test_an_unknown_backend_names_the_known_ones(name) -> None:
    for make in (make_sandbox, shared_sandbox):
        with pytest.raises(ConfigError, match="auto, docker, local") as caught:
            make(name)
        assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"no_such_option": 1},
            r"the sandbox 'local' has no option 'no_such_option'; it has preload, limits, .*namespaces",
        ),
        ({"preload": "numpy"}, "'numpy'"),
        ({"preload": [1]}, r"\[1\]"),
        ({"limits": 4}, "4"),
        ({"namespaces": ["moon"]}, "'moon'"),
        ({"namespaces": "user"}, "'user'"),
    ],
)
def test_wrong_options(options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make_sandbox("local", **options)


@pytest.mark.parametrize("name", ["auto", "docker"])
def test_an_unknown_option_names_those_there_are(name) -> None:
    with pytest.raises(ConfigError, match=f"the sandbox '{name}' has no option 'wall_s'; it has .*preload, limits"):
        make_sandbox(name, wall_s=1)


def test_the_backend_keeps_the_contract(isolated) -> None:
    assert isinstance(isolated, Sandbox)
    assert isinstance(shared_sandbox("local"), Sandbox)
    with isolated.open() as session:
        assert isinstance(session, Session)


@pytest.mark.parametrize(
    "options", [{"wall_s": 0}, {"wall_s": "4"}, {"wall_s": None}, {"memory_mb": -1}, {"cpu_s": float("nan")}]
)
def test_limits_are_positive_numbers(options) -> None:
    ((name, value),) = options.items()
    with pytest.raises(ConfigError, match=f"Limits.{name} must be a positive number, got {value!r}"):
        Limits(**options)


def test_default_limits_are_those_of_the_sandbox() -> None:
    with make_sandbox("local", limits=Limits(output_bytes=10)) as sandbox, sandbox.open() as session:
        assert session.run("print('a' * 20)").status == "output_limit"
        assert session.run("print('a' * 20)", limits=Limits()).ok


def test_borrowers_of_the_same_options_share_one_worker() -> None:
    one, same, other = shared_sandbox("local"), shared_sandbox("local"), shared_sandbox("local", preload=("decimal",))
    assert one._sandbox is same._sandbox
    assert one._sandbox is not other._sandbox
    for sandbox in (one, same, other):
        sandbox.close()


def test_preloaded_modules_are_there(isolated) -> None:
    with LocalSandbox(preload=("decimal", "no_such_module_anywhere")) as sandbox, sandbox.open() as session:
        assert sandbox.describe()["preload"] == ("decimal",)
        assert session.run("import sys; 'decimal' in sys.modules").value == "True"
    with isolated.open() as session:
        assert session.run("import sys; 'decimal' in sys.modules").value == "False"
