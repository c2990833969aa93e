"""What the data worker refuses before anything is generated."""

import json
import time
from pathlib import Path

import pytest

from paceline.cli.data import DataBody
from paceline.cli.identity import identity_of
from paceline.cli.loading import mixed
from paceline.cli.wire import data_body
from paceline.config.load import load
from paceline.config.schema import Config
from paceline.models.load import positions
from paceline.models.tiny import write_tiny
from paceline.ports.fakes.data import ByteTokenizer
from paceline.runtime.rundir import check_identity
from paceline.tasks import Mixture, RowTask
from paceline.types.errors import CheckpointError, ConfigError, DataError


def config(root: Path, *words: str) -> Config:
    """Prompts of 5, 8, 9 and 20 tokens, answers of at most 8."""
    rows = root / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"id": f"row-{n}", "prompt": "x" * n, "answer": "1"}) for n in (5, 8, 9, 20)))
    task = ("task.kind=file", f"task.path={rows}", "task.gold_column=answer", "task.template=plain", "task.shuffle=false")
    return load(None, [*task, "rollout.max_prompt_tokens=100", "rollout.max_tokens=8", *words])


def test_prompts_that_leave_no_room_for_the_answer_in_the_model_are_refused_together_with_id_length_and_limit(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="2 of 4 prompts") as refused:
        DataBody(config(tmp_path), ByteTokenizer(), 16).call("load", True, False)
    said = str(refused.value)
    assert "'row-9'): 9 tokens, limit 8" in said
    assert "'row-20'): 20 tokens, limit 8" in said
    assert "the model's 16 positions less rollout.max_tokens = 8 leave 8 tokens for a prompt" in said


def test_they_are_left_out_and_counted_when_asked(tmp_path: Path) -> None:
    (rows,), _ = DataBody(config(tmp_path, "rollout.over_limit=filter"), ByteTokenizer(), 16).call("load", True, False)
    assert [len(prompt.ids) for prompt in rows["prompts"]] == [5, 8]
    assert rows["counts"]["over_limit"] == 2


def test_a_model_without_positions_for_a_prompt_is_refused_and_one_that_does_not_say_is_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.max_tokens = 8: the model has 8 positions, which leave none for a prompt"):
        DataBody(config(tmp_path), ByteTokenizer(), 8)
    (rows,), _ = DataBody(config(tmp_path), ByteTokenizer()).call("load", True, False)
    assert len(rows["prompts"]) == 4


def test_a_fault_of_another_task_than_the_first_says_whose_keys_it_names(tmp_path: Path) -> None:
    held_out = tmp_path / "held.jsonl"
    words = ("eval.task.kind=file", f"eval.task.path={held_out}", "eval.task.gold_column=answer", "eval.task.template=plain")
    says = r"\(task\.{key}.*\(this task is \[eval\.task\]: its keys begin with eval\.task\.\)"
    held_out.write_text(json.dumps({"prompt": "x"}))
    with pytest.raises((ConfigError, DataError), match="(?s)" + says.format(key="gold_column")):
        data_body(config(tmp_path, *words))
    held_out.write_text("\n".join([json.dumps({"prompt": "x", "answer": "1"}), json.dumps({"prompt": "y"})]))
    with pytest.raises(DataError, match="(?s)" + says.format(key="bad_rows")):
        DataBody(config(tmp_path, *words), ByteTokenizer()).call("load", True, False)


def test_positions_are_those_of_the_models_own_config(tmp_path: Path) -> None:
    assert positions(write_tiny(tmp_path / "model")) == 512


def test_every_training_task_comes_as_rows_of_its_own_without_the_held_out_questions(tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(json.dumps({"prompt": "x" * n, "answer": "1"}) for n in (5, 6)))
    held = tmp_path / "held.jsonl"
    held.write_text(json.dumps({"prompt": "x" * 5, "answer": "1"}))
    same = "gold_column='answer', template='plain', kind='file'"
    words = (f"mix.0={{path='{other}', shuffle=false, {same}}}", f"eval.task={{path='{held}', {same}}}")
    (first, second), _ = DataBody(config(tmp_path, *words), ByteTokenizer()).call("load", True, False)
    assert [len(prompt.ids) for prompt in first["prompts"]] == [8, 9, 20]
    assert [(len(prompt.ids), prompt.task) for prompt in second["prompts"]] == [(6, "other")]
    assert (first["counts"]["excluded"], second["counts"]["excluded"]) == (1, 1)


def test_a_missing_column_is_named_before_a_tokenizer_is_loaded(tmp_path: Path) -> None:
    """The model does not exist, so that reaching for its tokenizer would fail with another error."""
    lacking = config(tmp_path, "task.gold_column=gold", f"model.path={tmp_path / 'no model'}")
    start = time.process_time()
    with pytest.raises(
        DataError, match=r"no column 'gold' \(task.gold_column\): set task.gold_column = 'answer'; columns present: id, prompt, answer"
    ):
        data_body(lacking)
    assert time.process_time() - start < 5.0


@pytest.mark.parametrize("kind", ["numeric", "exact", "math"])
def test_rows_whose_gold_no_verifier_can_read_are_left_out_and_counted_when_asked(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "golds.jsonl"
    golds = ["4", " ", r"\foo", "5"]
    path.write_text("".join(json.dumps({"prompt": f"q{i}", "answer": gold}) + "\n" for i, gold in enumerate(golds)))
    words = (
        "task.kind=file",
        f"task.path={path}",
        "task.gold_column=answer",
        "task.template=plain",
        "task.bad_rows=skip",
        f"reward.0.kind={kind}",
    )
    ((rows,), _) = DataBody(load(None, words), ByteTokenizer()).call("load", True, False)
    kept = [prompt.gold for prompt in rows["prompts"]]
    assert kept == (["4", r"\foo", "5"] if kind == "exact" else ["4", "5"])
    assert (rows["counts"]["read"], rows["counts"]["bad"], rows["counts"]["kept"]) == (4, 4 - len(kept), len(kept))
    assert rows["skipped"][0].startswith(f"golds.jsonl line 2, reward {kind}: gold ' ' ")


# --- what a resume says about other data (case R08)


def task_of(c: Config) -> RowTask | Mixture:
    rows, _ = DataBody(c, ByteTokenizer()).call("load", True, False)
    return mixed(c, [RowTask(**arguments) for arguments in rows])


def refusal(before: Config, after: Config, root: Path) -> str:
    first, second = (identity_of(c, task, {}) for c, task in ((before, task_of(before)), (after, task_of(after))))
    with pytest.raises(CheckpointError) as refused:
        check_identity(first, second, root)
    return str(refused.value)


def numbered(path: Path, count: int, answer: str = "1") -> tuple[str, ...]:
    path.write_text("\n".join(json.dumps({"prompt": f"question {i}", "answer": answer}) for i in range(count)))
    return ("task.kind=file", f"task.path={path}", "task.gold_column=answer", "task.template=plain")


def test_a_resume_with_another_file_says_how_many_rows_each_has_and_which_file_it_is(tmp_path: Path) -> None:
    one, two = load(None, numbered(tmp_path / "a.jsonl", 100)), load(None, [*numbered(tmp_path / "b.jsonl", 60), "task.label=a"])
    said = refusal(one, two, tmp_path)
    assert 'rows of task a: "100 of 100" -> "60 of 60"' in said
    assert f'task.a.path: "{tmp_path}/a.jsonl" -> "{tmp_path}/b.jsonl"' in said


def test_a_resume_with_changed_contents_under_the_same_name_says_so(tmp_path: Path) -> None:
    c = load(None, numbered(tmp_path / "a.jsonl", 5))
    before = identity_of(c, task_of(c), {})
    numbered(tmp_path / "a.jsonl", 5, answer="2")
    with pytest.raises(CheckpointError, match="contents of task a: ") as refused:
        check_identity(before, identity_of(c, task_of(c), {}), tmp_path)
    assert "rows of task" not in str(refused.value)


def test_a_resume_with_other_problems_held_out_names_the_settings_that_chose_them(tmp_path: Path) -> None:
    words = numbered(tmp_path / "a.jsonl", 100)
    judged = ["eval.task.kind=file", f"eval.task.path={tmp_path}/a.jsonl", "eval.task.gold_column=answer", "eval.task.template=plain"]
    said = refusal(load(None, [*words, *judged, "eval.problems=10"]), load(None, [*words, *judged, "eval.problems=20"]), tmp_path)
    assert 'rows of task a: "90 of 100" -> "80 of 100"' in said
    assert "eval.problems: 10 -> 20" in said
    judged.append("eval.problems=10")
    said = refusal(load(None, [*words, *judged]), load(None, [*words, *judged, "eval.task.limit=7"]), tmp_path)
    assert "eval.task.a.limit: null -> 7" in said


def test_a_resume_with_another_setting_names_the_setting(tmp_path: Path) -> None:
    words = numbered(tmp_path / "a.jsonl", 5)
    said = refusal(load(None, words), load(None, [*words, "task.suffix=' Think.'"]), tmp_path)
    assert 'task.a.suffix: "" -> " Think."' in said
    assert "contents of task" not in said


def test_the_same_rows_from_a_file_that_was_moved_go_on(tmp_path: Path) -> None:
    one = load(None, numbered(tmp_path / "a.jsonl", 5))
    before = identity_of(one, task_of(one), {})
    (tmp_path / "elsewhere").mkdir()
    two = load(None, numbered(tmp_path / "elsewhere" / "a.jsonl", 5))
    check_identity(before, identity_of(two, task_of(two), {}), tmp_path)
