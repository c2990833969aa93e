"""JSONL and Parquet files as sources."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline.config.schema import TaskConfig
from paceline.ports.fakes.data import ByteTokenizer
from paceline.tasks import RowTask, load
from paceline.types.errors import ConfigError, DataError

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "gsm8k"


def read(path: Path, *, limit: int = 10_000, over_limit: Any = "refuse", **settings: Any) -> RowTask:
    defaults = {"kind": "file", "path": str(path), "gold_column": "answer", "template": "plain", "shuffle": False}
    return load(TaskConfig(**{**defaults, **settings}), ByteTokenizer(), seed=0, max_prompt_tokens=limit, over_limit=over_limit)


def jsonl(tmp_path: Path, *rows: Any) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def parquet(tmp_path: Path, table: pa.Table) -> Path:
    path = tmp_path / "data.parquet"
    pq.write_table(table, path)
    return path


def questions(task: RowTask) -> list[str]:
    return [task.prompt(i).text for i in range(len(task))]


def test_a_byte_order_mark_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a\xe2\x80\xa8b", "answer": 1}\r\n\n  \n{"prompt": "c", "answer": "2"}\n')
    path.write_bytes(path.read_bytes() + b'\xef\xbb\xbf{"prompt": "of another file", "answer": 3}')
    task = read(path)
    assert questions(task) == ["a\u2028b", "c", "of another file"]
    assert [task.prompt(i).gold for i in range(2)] == ["1", "2"]
    assert [task.prompt(i).row for i in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ('{"prompt": "b", "answer"', "line 2: not JSON at character 26"),
        ("[1]", "line 2: list instead of an object"),
        ('"text"', "line 2: str instead of an object"),
        ("[" * 100_000, "line 2: JSON nested too deeply"),
        (r'{"prompt": "b", "answer": "\uDC00"}', "line 2: half a character"),
        ({"answer": "2"}, "line 2, column 'prompt': missing"),
        ({"prompt": None, "answer": "2"}, "line 2, column 'prompt': missing"),
        ({"prompt": " ", "answer": "2"}, "line 2, column 'prompt': empty"),
        ({"prompt": 7, "answer": "2"}, "line 2, column 'prompt': int instead of text or a list"),
        ({"prompt": [], "answer": "2"}, "line 2, column 'prompt': no messages"),
        ({"prompt": ["x"], "answer": "2"}, "message 0 is str"),
        ({"prompt": [{"role": "human", "content": "x"}], "answer": "2"}, "role 'human' instead of system, user"),
        ({"prompt": [{"role": "user", "content": ["x"]}], "answer": "2"}, "message 0 has no content that is text"),
        (
            {"prompt": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "answer": "2"},
            "last message must come from the user",
        ),
        ({"prompt": [{"role": "user", "content": "x"}], "answer": "2"}, "messages need task.template = 'chat'"),
        ({"prompt": "b"}, "line 2, column 'answer': missing"),
        ({"prompt": "b", "answer": None}, "line 2, column 'answer': missing"),
        ({"prompt": "b", "answer": True}, "line 2, column 'answer': bool instead of text or a number"),
        ({"prompt": "b", "answer": ["2"]}, "line 2, column 'answer': list instead of text or a number"),
        ('{"prompt": "b", "answer": NaN}', "line 2, column 'answer': nan is no answer"),
        ('{"prompt": "b", "answer": 1e400}', "line 2, column 'answer': inf is no answer"),
        ({"prompt": '[{"role": "user", "content": "b"}]', "answer": "2"}, "line 2, column 'prompt': messages written as text"),
    ],
)
def test_a_bad_row_is_refused_by_name_or_skipped_and_counted(tmp_path: Path, bad: Any, reason: str) -> None:
    path = jsonl(tmp_path, {"prompt": "a", "answer": "1"}, bad, {"prompt": "c", "answer": "3"})
    with pytest.raises(DataError) as caught:
        read(path)
    assert reason in str(caught.value)
    assert "data.jsonl" in str(caught.value)
    task = read(path, bad_rows="skip")
    assert questions(task) == ["a", "c"]
    assert [task.prompt(i).row for i in range(2)] == [0, 2]
    assert (task.counts["read"], task.counts["bad"], task.counts["kept"]) == (3, 1, 2)
    assert reason in task.skipped[0]


def test_a_line_that_is_not_utf8_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"prompt": "a", "answer": 1}\n{"prompt": "\xff", "answer": 1}\n')
    with pytest.raises(DataError, match=r"data.jsonl line 2: not UTF-8 at byte 12"):
        read(path)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"question": "a", "answer": "1"},
            "no column 'prompt' (task.prompt_column): set task.prompt_column = 'question'; columns present: question, answer",
        ),
        (
            {"prompt": "a", "label": "1"},
            "no column 'answer' (task.gold_column): set task.gold_column = 'label'; columns present: prompt, label",
        ),
        (
            {"x": "a", "y": "1"},
            "set task.prompt_column to one of them; no column 'answer' (task.gold_column): set task.gold_column to one of them",
        ),
    ],
)
def test_missing_columns_are_named_with_what_is_present_and_how_to_map_it(
    tmp_path: Path, kind: str, row: dict[str, str], message: str
) -> None:
    path = jsonl(tmp_path, row, row) if kind == "jsonl" else parquet(tmp_path, pa.Table.from_pylist([row, row]))
    start = time.perf_counter()
    with pytest.raises(DataError) as caught:
        read(path, bad_rows="skip")
    assert message in str(caught.value)
    assert time.perf_counter() - start < 5.0


def test_equal_prompts_and_equal_ids_stay_distinct_rows_with_their_own_gold(tmp_path: Path) -> None:
    task = read(jsonl(tmp_path, {"id": 1, "prompt": "a", "answer": "1"}, {"id": 1, "prompt": "a", "answer": "2"}))
    assert [(task.prompt(i).row, task.prompt(i).index, task.prompt(i).gold) for i in range(2)] == [(0, 0, "1"), (1, 1, "2")]


def test_a_gold_pattern_takes_its_last_match(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"prompt": "a", "answer": "#### 1\nno\n#### 1,234"}, {"prompt": "b", "answer": "5"})
    with pytest.raises(DataError, match=r"line 2, column 'answer': no match of task.gold_pattern in '5'"):
        read(path, gold_pattern=r"####\s*(.+)")
    task = read(path, gold_pattern=r"####\s*(.+)", bad_rows="skip")
    assert task.prompt(0).gold == "1,234"
    assert task.prompt(0).columns["answer"] == "#### 1\nno\n#### 1,234"
    for pattern, message in (("(", "not a regular expression"), ("####", "needs a group")):
        with pytest.raises(ConfigError, match=message):
            read(path, gold_pattern=pattern)


def test_a_nested_column_is_reached_by_its_path(tmp_path: Path) -> None:
    row = {"prompt": "a", "reward_model": {"ground_truth": "7"}}
    for path in (jsonl(tmp_path, row), parquet(tmp_path, pa.Table.from_pylist([row]))):
        assert read(path, gold_column="reward_model.ground_truth").prompt(0).gold == "7"
        with pytest.raises(DataError, match=r"column 'reward_model.gold': missing"):
            read(path, gold_column="reward_model.gold")
        with pytest.raises(DataError, match=r"no column 'answer' \(task.gold_column\): set task.gold_column = 'reward_model.ground_truth'"):
            read(path, gold_column="answer")
        with pytest.raises(DataError, match=r"column 'reward_model': holds ground_truth; name one of them after a dot"):
            read(path, gold_column="reward_model")


def test_an_integer_of_five_thousand_digits_is_read(tmp_path: Path) -> None:
    digits = "7" * 5000
    assert read(jsonl(tmp_path, f'{{"prompt": "a", "answer": {digits}}}')).prompt(0).gold == digits


def test_a_limit_stops_after_that_many_usable_rows(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"prompt": ""}, *({"prompt": c, "answer": "1"} for c in "abc"), "not json at all")
    task = read(path, bad_rows="skip")
    assert len(task) == 3
    config = TaskConfig(kind="file", path=str(path), gold_column="answer", template="plain", shuffle=False, bad_rows="skip", limit=2)
    assert questions(load(config, ByteTokenizer(), seed=0, max_prompt_tokens=100)) == ["a", "b"]


def test_a_prompt_says_where_its_row_stands_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_text('{"prompt": "a", "answer": "1"}\n\n{"prompt": "b", "answer": "2"}\n')
    assert [prompt.place for prompt in read(path).every_row()] == ["row 0 of sums [sums.jsonl line 1]", "row 1 of sums [sums.jsonl line 3]"]


def test_every_row_that_was_read_is_kept_or_counted(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"prompt": ""}, *({"prompt": "x" * n, "answer": "1"} for n in (1, 2, 30, 40, 3)))
    counts = read(path, bad_rows="skip", over_limit="filter", limit=10).counts
    assert counts == {"read": 6, "bad": 1, "duplicate": 0, "over_limit": 2, "excluded": 0, "kept": 3}


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "none.jsonl")
    for name, content, message in (
        ("a.csv", "x", "expected a file ending .* make one of it: python -c .*csv.DictReader.* < a.csv > a.jsonl$"),
        ("a.json", "[]", "expected a file ending .* make one of it: python -c .*json.load.* < a.json > a.jsonl$"),
        ("a.xlsx", "x", "or a saved dataset$"),
        ("a.parquet", "x", "not a readable Parquet file"),
        ("a.jsonl", "", "columns present: none"),
        ("a.jsonl", '[{"prompt": "a", "answer": "1"}]\n', r"a.jsonl: no line of it is a JSON object: a.jsonl line 1: list instead of"),
        ("a.jsonl", '{"prompt": "a", "answer": "1"}\n'.encode("utf-16"), r"a.jsonl: no line of it .* a.jsonl line 1: not UTF-8 at byte 0"),
    ):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises((DataError, ConfigError), match=message):
            read(path)


@pytest.mark.parametrize(("name", "content"), [("it's.csv", "prompt,answer\na,007\n"), ("a b.json", '[{"prompt": "a", "answer": "007"}]')])
def test_the_command_that_makes_a_readable_file_of_another_makes_one(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigError) as refused:
        read(path)
    command = str(refused.value).partition("make one of it: ")[2].replace("python", shlex.quote(sys.executable), 1)
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    assert read(path.with_suffix(".jsonl")).prompt(0).gold == "007"


def test_parquet_written_by_newer_libraries_is_read_through_its_columns_alone(tmp_path: Path) -> None:
    messages = [[{"role": "user", "content": f"q{i}", "name": None}] for i in range(3)]
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.large_string()), ("name", pa.string())]))
    table = pa.table(
        {
            "prompt": pa.array(messages, kind),
            "answer": pa.array(["1", "2", "1"]).dictionary_encode(),
            "source": pa.array(["s", "s", "t"], pa.large_string()),
            "embedding": pa.array([[0.5, 1.5]] * 3, pa.list_(pa.float32(), 2)),
        }
    ).replace_schema_metadata(
        {"huggingface": '{"info": {"features": {"prompt": {"_type": "List", "feature": {"_type": "FromTheFuture"}}}}}'}
    )
    task = read(parquet(tmp_path, table), template="chat")
    assert [task.prompt(i).gold for i in range(3)] == ["1", "2", "1"]
    assert task.prompt(2).messages == ({"role": "user", "content": "q2"},)
    assert task.prompt(2).columns == {"answer": "1", "source": "t", "embedding": [0.5, 1.5]}
    assert task.prompt(2).ids.tolist() == [257, *b"q2", 260, 258]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_a_gold_that_is_a_number_is_the_decimal_that_was_written_whatever_its_width(tmp_path: Path, kind: pa.DataType) -> None:
    table = pa.table({"prompt": ["a", "b", "c"], "answer": pa.array(np.array([0.1, 12.5, 18], kind.to_pandas_dtype()), kind)})
    for path in (parquet(tmp_path, table), saved(tmp_path / "set", table)):
        assert [read(path).prompt(i).gold for i in range(3)] == ["0.1", "12.5", "18.0"]
    nested = [{"ground_truth": value, "list": [1.5]} for value in (0.1, None)]
    struct = pa.struct([("ground_truth", kind), ("list", pa.list_(kind))])
    path = parquet(tmp_path, pa.table({"prompt": ["a", "b"], "reward_model": pa.array(nested, struct)}))
    task = read(path, gold_column="reward_model.ground_truth", bad_rows="skip")
    assert [task.prompt(i).gold for i in range(len(task))] == ["0.1"]
    assert task.prompt(0).columns["reward_model"]["list"] == [1.5]


def test_a_column_that_stands_twice_is_refused_since_either_may_be_meant(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["1"]), pa.array(["2"])], ["prompt", "answer", "answer"])
    for path in (parquet(tmp_path, table), saved(tmp_path / "set", table)):
        with pytest.raises(DataError, match="'answer' is the name of more than one column"):
            read(path)


def test_times_that_python_lacks_are_text_and_other_values_that_it_lacks_are_named(tmp_path: Path) -> None:
    columns = {"prompt": ["a"], "answer": ["1"], "made": pa.array([1], pa.timestamp("ns"))}
    assert read(parquet(tmp_path, pa.table(columns))).prompt(0).columns["made"] == "1970-01-01 00:00:00.000000001"
    columns["took"] = pa.array([1], pa.duration("ns"))
    with pytest.raises(DataError, match=r"data.parquet: column 'took' \(duration\[ns\]\)"):
        read(parquet(tmp_path, pa.table(columns)))


def test_a_cell_of_twenty_megabytes_is_read(tmp_path: Path) -> None:
    table = pa.table({"prompt": ["a", "b"], "answer": ["1", "2"], "blob": ["x", "y" * 20_000_000]})
    assert len(read(parquet(tmp_path, table)).prompt(1).columns["blob"]) == 20_000_000


def test_a_bad_parquet_row_is_named_by_its_number(tmp_path: Path) -> None:
    path = parquet(tmp_path, pa.table({"prompt": ["a", None], "answer": ["1", "2"]}))
    with pytest.raises(DataError, match=r"data.parquet row 1, column 'prompt': missing"):
        read(path)


@pytest.mark.skipif(not SHARED.exists(), reason="shared GSM8K data is not here")
def test_gsm8k_is_read_whole_with_its_golds() -> None:
    task = read(SHARED / "test.jsonl", prompt_column="question", gold_pattern=r"####\s*(.+)")
    assert len(task) == 1319
    assert task.prompt(0).gold == "18"


# --- directories that `datasets` writes


def saved(directory: Path, *tables: pa.Table, **state: Any) -> Path:
    """What `Dataset.save_to_disk` leaves: Arrow streams and a state that lists them."""
    directory.mkdir(parents=True)
    names = [f"data-{i:05d}-of-{len(tables):05d}.arrow" for i in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        with pa.OSFile(str(directory / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    (directory / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names], "_fingerprint": "f", **state}))
    (directory / "dataset_info.json").write_text("{}")
    return directory


def test_a_saved_dataset_is_read_in_the_order_of_its_state(tmp_path: Path) -> None:
    parts = [pa.table({"prompt": [f"{p}{i}" for i in range(300)], "answer": pa.array(["1"] * 300).dictionary_encode()}) for p in "ab"]
    task = read(saved(tmp_path / "set", *parts))
    assert len(task) == 600
    assert questions(task)[298:302] == ["a298", "a299", "b0", "b1"]
    assert (task.prompt(0).task, task.prompt(300).row) == ("set", 300)


def test_a_saved_dataset_and_a_file_of_the_same_rows_are_the_same_data(tmp_path: Path) -> None:
    table = pa.table({"prompt": [[{"role": "user", "content": "a"}]], "answer": ["1"]})
    one, two = (read(path, template="chat") for path in (saved(tmp_path / "set", table), parquet(tmp_path, table)))
    assert one.fingerprint() == two.fingerprint()


def test_what_is_no_single_saved_dataset_is_refused_with_what_to_do(tmp_path: Path) -> None:
    table = pa.table({"prompt": ["a"], "answer": ["1"]})
    both = tmp_path / "both"
    saved(both / "train", table)
    saved(both / "test", table)
    (both / "dataset_dict.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    cut = saved(tmp_path / "cut", table)
    (cut / "data-00000-of-00001.arrow").write_bytes(b"ARROW")
    for path, message in (
        (both, "several datasets; name one of them: test, train"),
        (tmp_path / "empty", "holds no file that ends in .jsonl, .ndjson, .parquet, and is no dataset"),
        (saved(tmp_path / "mapped", table, _indices_files=[{"filename": "i.arrow"}]), "flatten_indices"),
        (cut, "data-00000-of-00001.arrow: not a readable Arrow file"),
        (saved(tmp_path / "other", table.rename_columns(["question", "answer"])), "set task.prompt_column = 'question'"),
    ):
        with pytest.raises(DataError, match=re.escape(message)):
            read(path)


# --- directories of files


def test_a_directory_with_the_parts_of_a_table_is_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for part in (1, 0):
        table = pa.table({"prompt": [f"{part}{i}" for i in range(3)], "answer": ["1"] * 3})
        pq.write_table(table, tmp_path / f"train-{part:05d}-of-00002.parquet")
    (tmp_path / "README.md").write_text("not a part")
    task = read(tmp_path)
    assert questions(task) == ["00", "01", "02", "10", "11", "12"]
    assert [task.prompt(i).row for i in range(6)] == list(range(6))
    lines = tmp_path / "lines"
    lines.mkdir()
    for part in range(2):
        (lines / f"{part}.jsonl").write_text(json.dumps({"prompt": f"p{part}", "answer": 1}))
    assert questions(read(lines)) == ["p0", "p1"]


def test_a_directory_with_several_tables_is_refused_by_their_names(tmp_path: Path) -> None:
    for name in ("train-00000-of-00001", "test-00000-of-00001"):
        pq.write_table(pa.table({"prompt": ["a"], "answer": ["1"]}), tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match=r"holds several tables \(test.parquet, train.parquet\); name a file"):
        read(tmp_path)


def test_a_part_that_lacks_a_column_or_holds_a_bad_row_is_named(tmp_path: Path) -> None:
    (tmp_path / "a-0.jsonl").write_text(json.dumps({"prompt": "p", "answer": 1}))
    (tmp_path / "a-1.jsonl").write_text(json.dumps({"prompt": "", "answer": 1}))
    with pytest.raises(DataError, match=r"a-1.jsonl line 1, column 'prompt': empty"):
        read(tmp_path)
    (tmp_path / "a-1.jsonl").write_text(json.dumps({"question": "p", "answer": 1}))
    with pytest.raises(DataError, match=r"a-1.jsonl: no column 'prompt'"):
        read(tmp_path)


def test_windows_line_ends_and_a_missing_last_one_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a\\r\\n", "answer": "1"}\r\n\r\n{"prompt": "b", "answer": "2"}')
    assert questions(read(path)) == ["a\r\n", "b"]
