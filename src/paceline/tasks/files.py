"""Rows of JSONL and Parquet files, of directories of them and of saved datasets, with column mapping. A row that cannot be used comes out
as a BadRow with its reason."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paceline.config.schema import TaskConfig
from paceline.tasks.rows import BadRow, Row
from paceline.types.errors import ConfigError, DataError

_JSON_SUFFIXES = (".jsonl", ".ndjson")
_PARQUET = ".parquet"
_MADE = {
    ".json": """python -c "import json, sys; [print(json.dumps(row)) for row in json.load(sys.stdin)]" < {} > {}""",
    ".csv": """python -c "import csv, json, sys; [print(json.dumps(row)) for row in csv.DictReader(sys.stdin)]" < {} > {}""",
}
"""How files of other kinds become one that is read."""
_NUMBERED = re.compile(r"[-_.]?[0-9]+(?:-of-[0-9]+)?$")
_QUESTION_NAMES = ("prompt", "question", "problem", "messages", "instruction", "input", "query")
_GOLD_NAMES = ("answer", "gold", "ground_truth", "solution", "label", "target", "reward_model.ground_truth")
_ROLES = ("system", "user", "assistant", "tool")
_MESSAGES_AS_TEXT = re.compile(r"""\s*\[\s*\{\s*["'](?:role|content)["']\s*:""")
_PLAIN_DIGITS = 4000
"""Python refuses to make an int of more than 4,300 digits from text; longer ones stay text."""


def rows(config: TaskConfig) -> Iterator[Row | BadRow]:
    """All rows of the file in order. Raises ConfigError for the mapping, DataError for a file that cannot be read or lacks a column.

    Column names may be paths into nested columns (`reward_model.ground_truth`); a column that has the whole name wins.
    """
    pattern = _pattern(config.gold_pattern)
    for number, (where, record) in enumerate(_records(config, Path(config.path))):
        yield BadRow(number, f"{where}: {record}") if isinstance(record, str) else _row(config, pattern, number, where, record)


def check_columns(config: TaskConfig) -> None:
    """Raise for a file that cannot be read or lacks a column altogether; reads no more rows than needed for it."""
    path, seen = Path(config.path), dict[str, None]()
    if path.suffix not in _JSON_SUFFIXES or not path.is_file():
        next(iter(_records(config, path)), None)
        return
    for _, record in _json_lines(path):
        seen |= dict.fromkeys(record if isinstance(record, dict) else ())
        if not _missing_columns(config, list(seen)):
            return
    _records(config, path)


def _records(config: TaskConfig, path: Path) -> Iterable[tuple[str, dict[str, Any] | str]]:
    """(place, record or what is wrong) of every row, once the mapped columns are known to be there."""
    if path.is_dir():
        shards = _shards(path)
        return chain.from_iterable(_records(config, shard) for shard in shards) if shards else _arrow(config, path)
    if not path.is_file():
        raise DataError(f"task.path = {str(path)!r}: no such file or directory")
    if path.suffix in _JSON_SUFFIXES:
        return _json_table(config, path)
    if path.suffix == _PARQUET:
        return _parquet(config, path)
    made = _MADE.get(path.suffix, "").format(shlex.quote(path.name), shlex.quote(f"{path.stem}.jsonl"))
    raise ConfigError(
        f"task.path = {str(path)!r}: expected a file ending in {', '.join((*_JSON_SUFFIXES, _PARQUET))}, a directory of such files, or a "
        f"saved dataset{'; make one of it: ' * bool(made)}{made}"
    )


def _shards(path: Path) -> list[Path]:
    """The files of a directory that are the parts of one table, by name; none where `datasets` saved one. Refuses those of several."""
    if any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return []
    files = sorted(file for file in path.iterdir() if file.suffix in (*_JSON_SUFFIXES, _PARQUET))
    tables = sorted({_NUMBERED.sub("", file.stem) + file.suffix for file in files})
    if len(tables) > 1:
        raise DataError(
            f"task.path = {str(path)!r}: holds several tables ({', '.join(tables)}); name a file, or a directory with one of them"
        )
    return files


def _json_table(config: TaskConfig, path: Path) -> list[tuple[str, dict[str, Any] | str]]:
    lines = list(_json_lines(path))
    if lines and not any(isinstance(record, dict) for _, record in lines):
        raise DataError(f"{path}: no line of it is a JSON object: {': '.join(map(str, lines[0]))}")
    present = dict.fromkeys(key for _, record in lines if isinstance(record, dict) for key in record)
    _require_columns(config, path, list(present))
    return lines


def _json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """(place, record or what is wrong) per line that is not blank; a byte order mark is skipped, also where files were joined."""
    with path.open("rb") as file:
        for line_number, line in enumerate(file, start=1):
            content = line.removeprefix(b"\xef\xbb\xbf")
            if content.strip():
                yield f"{path.name} line {line_number}", _json_record(content)


def _json_record(content: bytes) -> dict[str, Any] | str:
    try:
        record = json.loads(content.decode("utf-8"), parse_int=_integer)
        if b"\\ud" in content.lower():  # perhaps half of a pair
            json.dumps(record, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}"
    except UnicodeEncodeError:
        return "half a character (a lone surrogate, \\ud800 to \\udfff), which is no text"
    except json.JSONDecodeError as error:
        return f"not JSON at character {error.pos + 1}: {error.msg}"
    except RecursionError:
        return "JSON nested too deeply"
    return record if isinstance(record, dict) else f"{type(record).__name__} instead of an object"


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _PLAIN_DIGITS else digits


def _parquet(config: TaskConfig, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows through the Arrow schema alone: metadata that other libraries left in the file is not interpreted."""
    try:
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
        _require_columns(config, path, names)
        number = 0
        for batch in file.iter_batches(batch_size=256):
            for record in _records_of(batch, path):
                yield f"{path.name} row {number}", record
                number += 1
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"task.path = {str(path)!r}: not a readable Parquet file: {error}") from error


def _arrow(config: TaskConfig, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a directory that `datasets` wrote with save_to_disk: the Arrow files that its `state.json` lists, in that order."""
    number = 0
    for file in _data_files(path):
        try:
            with pa.memory_map(str(file)) as mapped, pa.ipc.open_stream(mapped) as stream:
                _require_columns(config, path, stream.schema.names)
                for batch in stream:
                    for record in (record for first in range(0, len(batch), 256) for record in _records_of(batch.slice(first, 256), file)):
                        yield f"{path.name} row {number}", record
                        number += 1
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{file}: not a readable Arrow file: {error}") from error


def _records_of(batch: pa.RecordBatch, path: Path) -> list[dict[str, Any]]:
    """The rows of a batch. A float32 is the decimal that it was made of: 0.1, and not 0.10000000149011612, which no answer equals.
    Times that Python does not have are text. Raises DataError for a column with other values that it does not have."""
    records: list[dict[str, Any]] = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        try:
            values = column.to_pylist()
        except (ValueError, OverflowError) as error:
            if not pa.types.is_timestamp(field.type):
                raise DataError(f"{path}: column {field.name!r} ({field.type}): {error}") from error
            values = column.cast(pa.string()).to_pylist()  # to the nanosecond, or beyond the year 9999
        records = records or [{} for _ in values]
        widen = _widening(field.type)
        for record, value in zip(records, values, strict=True):
            record[field.name] = value if widen is None or value is None else widen(value)
    return records


def _widening(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """How a value of a type becomes one without narrow floats in it; None where it has none. Lists stay: what is long is no gold."""
    if pa.types.is_dictionary(kind):
        return _widening(kind.value_type)
    if pa.types.is_floating(kind):
        narrow = kind.to_pandas_dtype()
        return None if narrow is np.float64 else lambda value: float(str(narrow(value)))
    if not pa.types.is_struct(kind):
        return None
    inner = {field.name: widen for field in kind if (widen := _widening(field.type)) is not None}
    if not inner:
        return None
    return lambda value: {k: inner[k](item) if k in inner and item is not None else item for k, item in value.items()}


def _data_files(path: Path) -> list[Path]:
    if (path / "dataset_dict.json").is_file():
        splits = ", ".join(sorted(file.parent.name for file in path.glob("*/state.json")))
        raise DataError(f"task.path = {str(path)!r}: holds several datasets; name one of them: {splits}")
    if not (path / "state.json").is_file():
        kinds = ", ".join((*_JSON_SUFFIXES, _PARQUET))
        raise DataError(f"task.path = {str(path)!r}: holds no file that ends in {kinds}, and is no dataset that save_to_disk wrote")
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        files = [path / entry["filename"] for entry in state["_data_files"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"task.path = {str(path)!r}: no dataset that save_to_disk wrote: state.json: {error}") from error
    if any(state.get(key) is not None for key in ("_indices_files", "_indices_data_files")) or not files:
        raise DataError(f"task.path = {str(path)!r}: has an indices mapping or no data; save it after flatten_indices()")
    return files


def _require_columns(config: TaskConfig, path: Path, present: Sequence[str]) -> None:
    """Refuse a file that lacks a mapped column altogether, naming what is there and how to map it, or that has one twice."""
    twice = sorted({name for name in present if present.count(name) > 1})
    if twice:
        raise DataError(f"{path}: {', '.join(map(repr, twice))} is the name of more than one column")
    problems = []
    for key, column, usual in _missing_columns(config, present):
        candidates = [name for name in usual if name.split(".")[0] in present]
        hint = f"set task.{key} = {candidates[0]!r}" if candidates else f"set task.{key} to one of them"
        problems.append(f"no column {column!r} (task.{key}): {hint}")
    if problems:
        raise DataError(f"{path}: {'; '.join(problems)}; columns present: {', '.join(present) or 'none'}")


def _missing_columns(config: TaskConfig, present: Sequence[str]) -> list[tuple[str, str, tuple[str, ...]]]:
    """(key, column, usual names) of every mapped column that is not there."""
    mapped = (("prompt_column", config.prompt_column, _QUESTION_NAMES), ("gold_column", config.gold_column, _GOLD_NAMES))
    return [(k, c, usual) for k, c, usual in mapped if c is not None and c not in present and c.split(".")[0] not in present]


def _pattern(source: str | None) -> re.Pattern[str] | None:
    if source is None:
        return None
    try:
        pattern = re.compile(source)
    except re.error as error:
        raise ConfigError(f"task.gold_pattern = {source!r}: not a regular expression: {error}") from error
    if pattern.groups < 1:
        raise ConfigError(f"task.gold_pattern = {source!r}: needs a group, e.g. '####\\s*(.+)'")
    return pattern


def _row(config: TaskConfig, pattern: re.Pattern[str] | None, number: int, where: str, record: dict[str, Any]) -> Row | BadRow:
    try:
        question, messages = _question(_cell(record, config.prompt_column))
    except DataError as error:
        return BadRow(number, f"{where}, column {config.prompt_column!r}: {error}")
    try:
        gold = None if config.gold_column is None else _gold(_cell(record, config.gold_column), pattern)
    except DataError as error:
        return BadRow(number, f"{where}, column {config.gold_column!r}: {error}")
    columns = {name: value for name, value in record.items() if name != config.prompt_column}
    return Row(number, where, question, messages, gold, columns)


def _cell(record: Mapping[str, Any], column: str) -> Any:
    if column in record:
        return record[column]
    value: Any = record
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise DataError("missing")
        value = value[part]
    return value


def _question(value: Any) -> tuple[str, tuple[Mapping[str, Any], ...] | None]:
    if isinstance(value, str):
        if not value.strip():
            raise DataError("empty")
        if _MESSAGES_AS_TEXT.match(value):
            raise DataError("messages written as text; they must be a list")
        return value, None
    if not isinstance(value, list):
        raise DataError("missing" if value is None else f"{type(value).__name__} instead of text or a list of messages")
    messages = tuple(_message(i, message) for i, message in enumerate(value))
    if not messages or messages[-1]["role"] not in ("user", "tool"):
        raise DataError("the last message must come from the user, so that the assistant answers" if messages else "no messages")
    return "\n\n".join(message["content"] for message in messages if message["role"] != "system"), messages


def _message(position: int, value: Any) -> Mapping[str, Any]:
    """A message without the keys that are null (Parquet gives every message the union of all keys)."""
    if not isinstance(value, Mapping):
        raise DataError(f"message {position} is {type(value).__name__} instead of an object with role and content")
    message = {key: item for key, item in value.items() if item is not None}
    if message.get("role") not in _ROLES:
        raise DataError(f"message {position} has role {message.get('role')!r} instead of {', '.join(_ROLES)}")
    if not isinstance(message.get("content"), str):
        raise DataError(f"message {position} has no content that is text")
    return message


def _gold(value: Any, pattern: re.Pattern[str] | None) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal)):
        raise DataError(_no_gold(value))
    if (isinstance(value, float) and not math.isfinite(value)) or (isinstance(value, Decimal) and not value.is_finite()):
        raise DataError(f"{value} is no answer")  # a table's mark for a missing number, or one that was too large for a float
    text = str(value)
    if pattern is None:
        return text
    found = list(pattern.finditer(text))
    if not found or found[-1][1] is None:
        raise DataError(f"no match of task.gold_pattern in {text[-60:]!r}")
    return found[-1][1].strip()


def _no_gold(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"holds {', '.join(map(str, value)) or 'nothing'}; name one of them after a dot"
    return "missing" if value is None else f"{type(value).__name__} instead of text or a number"
