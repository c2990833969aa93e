"""Events and commands as JSON and back: an exact round trip, strict about everything it does not know.

A record is a flat object: `v` (schema version), `kind` (the class), then its fields. Numbers that JSON cannot say stand as strings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from paceline.core.commands import Command
from paceline.core.events import Event
from paceline.core.frontier import Forecast
from paceline.types.errors import RecordError
from paceline.types.weights import InstanceInfo

SCHEMA = 1
"""Grows when a kind changes its meaning; records of another schema are refused. A kind that comes, goes or gets other fields needs no
new schema: a version of paceline that does not know it refuses the record by its name, and reads all ledgers that have none of it."""

Reader = Callable[[Any], Any]
T = TypeVar("T")

_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_SCALARS = frozenset((int, str, bool, NoneType))
EVENTS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}
COMMANDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Command)}


def encode(record: Event | Command) -> dict[str, Any]:
    """The record as an object of JSON values."""
    kind = type(record)
    out: dict[str, Any] = {"v": SCHEMA, "kind": kind.__name__}
    for name in _NAMES[kind]:
        out[name] = _plain(getattr(record, name))
    return out


def decode(raw: object) -> Event | Command:
    """The record that `encode` made `raw` from. Raises RecordError for another schema, an unknown kind or field, or a wrong type."""
    if not isinstance(raw, dict):
        raise RecordError(f"a record is an object, not {type(raw).__name__}: {raw!r:.80}")
    if raw.get("v") != SCHEMA:
        raise RecordError(f"record of schema {raw.get('v')!r}; this version of paceline reads schema {SCHEMA}")
    kind = EVENTS.get(str(raw.get("kind"))) or COMMANDS.get(str(raw.get("kind")))
    if kind is None:
        raise RecordError(f"unknown kind {raw.get('kind')!r}; this version of paceline knows {sorted(EVENTS | COMMANDS)}")
    record: Event | Command = _build(kind, {name: value for name, value in raw.items() if name not in ("v", "kind")})
    return record


def dumps(record: Event | Command) -> str:
    """`encode` as one line of JSON."""
    return _JSON.encode(encode(record))


def loads(text: str | bytes) -> Event | Command:
    """`decode` of one line of JSON; text that is none is a RecordError as well."""
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise RecordError(f"not a JSON record: {text!r:.80} ({error})") from error
    return decode(raw)


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is float:
        return value if math.isfinite(value) else repr(value)
    if kind is tuple:
        return [_plain(v) for v in value]
    return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}


def _build(kind: type[T], raw: dict[str, Any]) -> T:
    """An instance of `kind` from exactly its fields: a default is no excuse for a missing one."""
    readers = _READERS[kind]
    if raw.keys() != readers.keys():
        unknown, missing = sorted(raw.keys() - readers.keys()), sorted(readers.keys() - raw.keys())
        raise RecordError(f"{kind.__name__}: unknown fields {unknown}, missing fields {missing}")
    values = {}
    for name, reader in readers.items():
        try:
            values[name] = reader(raw[name])
        except TypeError as error:
            raise RecordError(f"{kind.__name__}.{name}: {error}, got {raw[name]!r:.80}") from None
    return kind(**values)


def _exactly(kind: type) -> Reader:
    def _read(raw: Any) -> Any:
        if type(raw) is not kind:
            raise TypeError(f"expected {kind.__name__}")
        return raw

    return _read


def _float(raw: Any) -> float | int:
    if type(raw) in (float, int):
        return raw  # type: ignore[no-any-return]
    if raw in ("nan", "inf", "-inf"):
        return float(raw)
    raise TypeError("expected a number")


def _one_of(allowed: tuple[Any, ...]) -> Reader:
    def _read(raw: Any) -> Any:
        if raw not in allowed:
            raise TypeError(f"expected one of {allowed}")
        return raw

    return _read


def _sequence(items: tuple[Any, ...]) -> Reader:
    readers = [_reader(hint) for hint in items if hint is not ...]
    endless = items[-1] is ...

    def _read(raw: Any) -> tuple[Any, ...]:
        if type(raw) is not list or not (endless or len(raw) == len(readers)):
            raise TypeError("expected a list" if endless else f"expected a list of {len(readers)}")
        return tuple((readers[0] if endless else readers[i])(v) for i, v in enumerate(raw))

    return _read


def _either(readers: list[Reader]) -> Reader:
    def _read(raw: Any) -> Any:
        errors = []
        for reader in readers:
            try:
                return reader(raw)
            except TypeError as error:
                errors.append(str(error))
        raise TypeError(" or ".join(errors))

    return _read


def _nested(kind: type) -> Reader:
    def _read(raw: Any) -> Any:
        if type(raw) is not dict:
            raise TypeError("expected an object")
        return _build(kind, raw)

    return _read


def _reader(hint: Any) -> Reader:
    """What reads a value of the annotated type."""
    origin = get_origin(hint)
    if origin is Literal:
        return _one_of(get_args(hint))
    if origin is tuple:
        return _sequence(get_args(hint))
    if origin is UnionType:
        return _either([_reader(option) for option in get_args(hint)])
    if hint is float:
        return _float
    if hint in (int, str, bool, NoneType):
        return _exactly(hint)
    return _nested(hint)


_RECORDS = (*EVENTS.values(), *COMMANDS.values(), InstanceInfo, Forecast)
_READERS: dict[type, dict[str, Reader]] = {kind: {n: _reader(h) for n, h in get_type_hints(kind).items()} for kind in _RECORDS}
_NAMES: dict[type, tuple[str, ...]] = {kind: tuple(readers) for kind, readers in _READERS.items()}
