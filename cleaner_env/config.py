"""Options: frozen dataclasses, read from a TOML file and dotted overrides, and written back as TOML.

The dataclass is the whole schema. Types are checked strictly (``true`` is no integer, ``"3"`` is no number); bounds come
from the field's own ``Annotated`` constraints or from ``__post_init__``. TOML has no null, so the word ``"none"`` stands
for ``None`` wherever a field may be ``None``.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import tomli_w
from pydantic import TypeAdapter, ValidationError

from cleaner_env.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["describe_fault", "dump_toml", "load_config"]

Config = TypeVar("Config")
_NONE: Final = "none"
_SHOWN: Final = 80


def load_config(schema: type[Config], file: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Reads a configuration.

    Args:
        schema: A dataclass whose fields are options, or dataclasses of options.
        file: A TOML file; options that it leaves out keep their defaults.
        overrides: ``"section.option=value"``, applied in order after the file. The value is a TOML literal
            (``3``, ``0.5``, ``true``, ``[1, 2]``); anything that is none is taken as a string.

    Raises:
        ConfigError: The file cannot be read, an option is unknown, or a value has the wrong type or is out of range. The
            message is one line with the option, the value and what is allowed.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Trainer:
        ...     steps: int = 10
        ...     name: str | None = None
        >>> load_config(Trainer, overrides=["steps=20", "name=first"])
        Trainer(steps=20, name='first')
        >>> load_config(Trainer, overrides=["step=20"])
        Traceback (most recent call last):
        cleaner_env.errors.ConfigError: unknown option step; did you mean steps?
    """
    options = {} if file is None else _read_toml(Path(file))
    for override in overrides:
        _apply_override(schema, options, override)
    options = _checked_names(schema, options, ())
    try:
        return TypeAdapter(schema).validate_json(_json(options), strict=True)
    except ValidationError as error:
        raise ConfigError(_one_line(error.errors())) from None


def dump_toml(config: object) -> str:
    """Writes every option of a configuration as TOML that `load_config` reads back to an equal one.

    Raises:
        ConfigError: An optional string holds the word ``"none"``, which would come back as ``None``.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Trainer:
        ...     steps: int = 10
        ...     limit_s: float | None = None
        >>> print(dump_toml(Trainer()), end="")
        steps = 10
        limit_s = "none"
    """
    return tomli_w.dumps(_as_toml(config, type(config), ()))


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {file}: {error.strerror}") from None
    except ValueError as error:  # TOMLDecodeError or UnicodeDecodeError
        raise ConfigError(f"the configuration {file} is not valid TOML: {error}") from None


def _apply_override(schema: object, options: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    path = tuple(part.strip() for part in name.split("."))
    if not equals or not all(path):
        raise ConfigError(f"an override must read option=value, such as seed=1, got {override!r}")
    hint = schema
    table = options
    for depth, part in enumerate(path):
        hint = _hint_of(hint, path[: depth + 1])
        if depth < len(path) - 1:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{'.'.join(path[: depth + 1])} is a value, not a section, so {name} cannot be set")
    table[path[-1]] = _literal(hint, text.strip())


def _literal(hint: Any, text: str) -> object:
    """Returns the TOML value of ``text``, or the text itself where it is no literal or where only a string fits."""
    try:
        value: object = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text
    if isinstance(value, str) or _section_of(hint) is not None:
        return value
    adapter: TypeAdapter[object] = TypeAdapter(hint)
    for candidate in (value, text):
        try:
            adapter.validate_json(_json(candidate), strict=True)
        except ValidationError:
            continue
        return candidate
    return value


def _json(value: object) -> str:
    """Returns JSON, in which strict checking takes lists for tuples and strings for paths; TOML's dates become strings."""
    return json.dumps(value, default=str)


def _checked_names(schema: object, options: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Returns the options with ``"none"`` replaced where it stands for ``None``; refuses unknown names."""
    checked: dict[str, Any] = {}
    for name, value in options.items():
        hint = _hint_of(schema, (*path, name))
        if value == _NONE and _may_be_none(hint):
            checked[name] = None
        elif isinstance(value, Mapping):
            checked[name] = _checked_names(hint, value, (*path, name))
        else:
            checked[name] = value
    return checked


def _hint_of(schema: object, path: tuple[str, ...]) -> object:
    """Returns the type of the option that ``path`` ends in; anything goes inside a plain mapping.

    Raises:
        ConfigError: ``schema`` has no such option.
    """
    section = _section_of(schema)
    if section is None:
        return Any
    known = {field.name for field in dataclasses.fields(section) if field.init}
    if path[-1] in known:
        return get_type_hints(section, include_extras=True)[path[-1]]
    option, prefix = ".".join(path), path[:-1]
    nearest = difflib.get_close_matches(path[-1], known, n=1)
    if nearest:
        raise ConfigError(f"unknown option {option}; did you mean {'.'.join((*prefix, *nearest))}?")
    where = f"[{'.'.join(prefix)}]" if prefix else "the top level"
    raise ConfigError(f"unknown option {option}; {where} has {', '.join(sorted(known))}")


def _alternatives(hint: object) -> Iterator[object]:
    """Yields the types that a hint allows, ``Annotated`` and unions unwrapped."""
    if hasattr(hint, "__metadata__"):
        yield from _alternatives(get_args(hint)[0])
    elif get_origin(hint) in (Union, types.UnionType):
        for alternative in get_args(hint):
            yield from _alternatives(alternative)
    else:
        yield hint


def _section_of(hint: object) -> type[Any] | None:
    """Returns the dataclass that a hint names, ``None`` where the option is a plain value."""
    return next((kind for kind in _alternatives(hint) if isinstance(kind, type) and dataclasses.is_dataclass(kind)), None)


def _may_be_none(hint: object) -> bool:
    return any(kind in (types.NoneType, Any) for kind in _alternatives(hint))


def describe_fault(error: ErrorDetails) -> str:
    """Says in one line what pydantic found wrong with a value, and which value that was."""
    reason = error.get("ctx", {}).get("error")
    if isinstance(reason, ValueError):  # raised by a check of ours, or of Typer's, that names the value
        return str(reason).rstrip(".")
    return f"{error['msg'][:1].lower()}{error['msg'][1:]}, got {json.dumps(error['input'])[:_SHOWN]}"


def _one_line(errors: Sequence[ErrorDetails]) -> str:
    error = errors[0]
    option = ".".join(str(part) for part in error["loc"])
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    if error["type"] == "missing":
        return f"{option} has no default and must be given{more}"
    fault = describe_fault(error)
    return f"{option}: {fault}{more}" if option else f"{fault}{more}"


def _as_toml(value: Any, hint: object, path: tuple[str, ...]) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = get_type_hints(type(value))
        return {
            field.name: _as_toml(getattr(value, field.name), hints[field.name], (*path, field.name))
            for field in dataclasses.fields(value)
            if field.init
        }
    if value is None:
        return _NONE
    if value == _NONE and _may_be_none(hint):
        raise ConfigError(f'{".".join(path)} cannot be the string "none", which stands for no value')
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _as_toml(item, Any, (*path, str(key))) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        if None in value:
            raise ConfigError(f"{'.'.join(path)} cannot hold None inside a list, which TOML cannot write")
        return [_as_toml(item, Any, path) for item in value]
    return value
