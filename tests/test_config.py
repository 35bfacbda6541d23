from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Le
from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.config import dump_toml, load_config
from cleaner_env.errors import ConfigError

Share = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True)
class Purification:
    share: Share = 0.5
    max_retries: int = 3

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise ConfigError(f"max_retries must not be negative, got {self.max_retries}")


@dataclass(frozen=True)
class Run:
    saar: Purification = field(default_factory=Purification)
    second: Purification | None = None
    name: str | None = None
    folder: Path = Path("runs")
    mode: Literal["group", "batch"] = "group"
    widths: tuple[int, ...] = (1, 2)
    learning_rate: float = 1e-6
    limit: int | None = 7
    env: dict[str, Any] = field(default_factory=dict)
    verbose: bool = False


def loaded(*overrides: str) -> Run:
    return load_config(Run, overrides=overrides)


def test_defaults_without_file_or_overrides() -> None:
    assert loaded() == Run()


def test_file_then_overrides_in_order(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('mode = "batch"\nlimit = 1\n[saar]\nshare = 0.25\nmax_retries = 5\n')
    run = load_config(Run, file, ["saar.share=0.75", "limit=2", "limit=3"])
    assert run == Run(mode="batch", limit=3, saar=Purification(0.75, 5))


@pytest.mark.parametrize(
    ("override", "option", "value"),
    [
        ("learning_rate=1", "learning_rate", 1.0),
        ("learning_rate=inf", "learning_rate", math.inf),
        ("name=first run", "name", "first run"),
        ('name="first run"', "name", "first run"),
        ("name=2026", "name", "2026"),
        ("name=1979-05-27", "name", "1979-05-27"),
        ("name=none", "name", None),
        ("limit=none", "limit", None),
        ("folder=/a/b", "folder", Path("/a/b")),
        ("folder=3", "folder", Path("3")),
        ("widths=[3, 4]", "widths", (3, 4)),
        ("verbose=true", "verbose", True),
        ("env.max_turns=4", "env", {"max_turns": 4}),
        ("env.sandbox.memory_mb=64", "env", {"sandbox": {"memory_mb": 64}}),
        ("env.dataset=builtin", "env", {"dataset": "builtin"}),
        ("saar={share = 0.1}", "saar", Purification(share=0.1)),
        ("second.max_retries=1", "second", Purification(max_retries=1)),
        (" verbose = true ", "verbose", True),
        ("name=a=b", "name", "a=b"),
    ],
)
def test_override_values(override: str, option: str, value: object) -> None:
    assert getattr(loaded(override), option) == value


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("saar.shar=0", "unknown option saar.shar; did you mean saar.share?"),
        ("sarr.share=0", "unknown option sarr; did you mean saar?"),
        ("zzz=0", "unknown option zzz; the top level has env, "),
        ("saar.zzz=0", "unknown option saar.zzz; [saar] has max_retries, share"),
        ("saar.share=2", "saar.share: input should be less than or equal to 1, got 2"),
        ("saar.share=abc", 'saar.share: input should be a valid number, got "abc"'),
        ("saar.max_retries=-1", "saar: max_retries must not be negative, got -1"),
        ("saar.max_retries=1.5", "saar.max_retries: input should be a valid integer, got 1.5"),
        ("saar.max_retries=true", "saar.max_retries: input should be a valid integer, got true"),
        ("verbose=1", "verbose: input should be a valid boolean, got 1"),
        ("mode=none", "mode: input should be 'group' or 'batch', got \"none\""),
        ("saar=3", "saar: input should be an object, got 3"),
        ("widths=[1, 'a']", 'widths.1: input should be a valid integer, got "a"'),
        ("verbose", "an override must read option=value, such as seed=1, got 'verbose'"),
        ("saar.=1", "an override must read option=value, such as seed=1, got 'saar.=1'"),
        ("name.first=a", 'name: input should be a valid string, got {"first": "a"}'),
    ],
)
def test_a_wrong_override_is_one_line(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(override)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_value_set_as_section_afterwards() -> None:
    with pytest.raises(ConfigError, match=r"^limit is a value, not a section, so limit\.a cannot be set$"):
        loaded("limit=1", "limit.a=2")


def test_several_errors_are_counted() -> None:
    with pytest.raises(ConfigError, match=r"\(and 1 more\)$"):
        loaded("limit=a", "verbose=b")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*absent\.toml: No such file"):
        load_config(Run, tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    broken.write_bytes(b"limit = = 1\n")
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML: .*line 1"):
        load_config(Run, broken)
    broken.write_bytes(b"name = '\xff'\n")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load_config(Run, broken)


def test_a_missing_required_option() -> None:
    @dataclass(frozen=True)
    class Needs:
        model: str

    with pytest.raises(ConfigError, match=r"^model has no default and must be given$"):
        load_config(Needs)


def test_what_toml_cannot_hold() -> None:
    with pytest.raises(ConfigError, match=r'^name cannot be the string "none"'):
        dump_toml(Run(name="none"))
    with pytest.raises(ConfigError, match=r"^env\.a cannot hold None inside a list"):
        dump_toml(Run(env={"a": [None]}))


texts = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: text != "none")
runs = st.builds(
    Run,
    saar=st.builds(Purification, st.floats(0, 1), st.integers(0, 9)),
    second=st.none() | st.builds(Purification),
    name=st.none() | texts,
    mode=st.sampled_from(["group", "batch"]),
    widths=st.lists(st.integers(-9, 9), max_size=4).map(tuple),
    learning_rate=st.floats(allow_nan=False),
    limit=st.none() | st.integers(-(2**63), 2**63 - 1),
    env=st.dictionaries(
        texts, st.none() | st.booleans() | st.integers(-9, 9) | texts | st.dictionaries(texts, texts), max_size=3
    ),
    verbose=st.booleans(),
)


@given(runs)
def test_dumped_toml_loads_back_to_an_equal_config(tmp_path_factory: pytest.TempPathFactory, run: Run) -> None:
    file = tmp_path_factory.mktemp("config") / "run.toml"
    file.write_text(dump_toml(run), encoding="utf-8", newline="")
    assert load_config(Run, file) == run
