"""Plans: resolved schedules, what counts what, and memory by hand-computed values."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.config.inspect import PACKAGED, ModelShape, missing_files, model_shape, task_rows
from paceline.config.load import load
from paceline.config.memory import SYMBOLS, memory
from paceline.config.plan import plan, reward_deadline, schedule
from paceline.config.schema import Config, TaskConfig
from paceline.core.presets import DEADLINES
from paceline.types.errors import DataError, ModelError

GYM = "task.name=chain_sum"


def config(*overrides: str) -> Config:
    return load(None, [GYM, *overrides])


def test_serial_takes_one_update_per_round_by_default() -> None:
    s = schedule(config())
    assert (s.groups_per_round, s.groups_per_dispatch, s.updates_per_publish, s.start_when, s.bound) == (8, 8, 1, "all", 0)


def test_pipelined_starts_at_a_dispatch_and_publishes_after_the_round() -> None:
    s = schedule(
        config("schedule.preset=pipelined", "schedule.groups_per_round=32", "schedule.groups_per_dispatch=2", "schedule.frontier=auto")
    )
    assert (s.updates_per_publish, s.start_when, s.frontier, s.groups_per_dispatch, s.bound) == (4, "dispatch", "auto", 2, 0)


def test_pipelined_overlaps_by_default_also_with_one_update_per_round() -> None:
    for u, d in ((16, 2), (8, 1), (24, 3), (12, 1), (20, 2), (100, 10), (7, 1), (1, 1)):
        assert schedule(config("schedule.preset=pipelined", f"schedule.groups_per_update={u}")).groups_per_dispatch == d
    several = schedule(config("schedule.preset=pipelined", "schedule.groups_per_round=32"))
    assert (several.groups_per_update, several.groups_per_dispatch) == (8, 8), "its updates overlap with the generation of the others"
    whole = schedule(config("schedule.preset=pipelined", "algorithm.advantage=batch_std"))
    assert whole.groups_per_dispatch == 8, "batch_std needs the whole update at once"


def test_streaming_defaults_to_a_staleness_of_one_and_a_buffer_for_all_that_it_admits() -> None:
    s = schedule(config("schedule.preset=streaming", "schedule.updates_per_publish=2"))
    assert (s.staleness, s.bound, s.groups_per_publish, s.buffer_groups, s.version_window) == (1, 1, 16, 32, 1)
    assert schedule(config("schedule.preset=streaming", "schedule.staleness=0")).bound == 0


def test_multiversion_defaults_to_a_window_of_two() -> None:
    s = schedule(config("schedule.preset=multiversion"))
    assert (s.version_window, s.bound, s.buffer_groups, s.staleness, s.in_flight_groups) == (2, 1, 0, 0, 0)


DECODING = ("admit", "evaluate", "groups")


def test_periods_and_deadlines_reach_the_schedule() -> None:
    s = schedule(
        config(
            "eval.task.name=other",
            "eval.every=4",
            "run.checkpoint_every=3",
            "pool.answer_timeout_s=7",
            "pool.train_timeout_s=70",
            "reward.0.timeout_s=2",
            "reward.1.kind=exact",
        )
    )
    deadlines = dict(s.deadlines)
    assert (s.evaluate_every, s.checkpoint_every) == (4, 3)
    assert set(deadlines) == set(DEADLINES)
    assert {seconds for kind, seconds in deadlines.items() if kind not in ("materialize", "dispatch", *DECODING)} == {7.0}
    assert deadlines["dispatch"] == 70.0
    assert deadlines["materialize"] == 12.0


def test_what_decodes_has_time_for_every_token_so_that_long_answers_are_not_overdue() -> None:
    words = ("rollout.slots=64", "rollout.instances=2", "schedule.group_size=8", "schedule.groups_per_update=64", "reward.0.timeout_s=10")
    words = (*words, "rollout.max_tokens=32768", "eval.task.name=other", "eval.problems=100", "eval.samples=4")
    deadlines = dict(schedule(config(*words)).deadlines)
    assert deadlines["admit"] == 600 + 32768 / 4, "ten minutes alone were a false alarm in every run of a reasoning model"
    assert deadlines["groups"] == 600 + 10 + 4 * 32768 / 4, "512 samples in 128 slots"
    assert deadlines["evaluate"] == 600 + 4 * 32768 / 4, "500 answers"
    assert 600 < dict(schedule(config("rollout.max_tokens=24")).deadlines)["admit"] < 610


def test_an_answer_of_kind_math_has_its_own_deadline_and_a_group_the_sum_of_them() -> None:
    c = config("schedule.group_size=8", "reward.0.kind=math", "reward.0.timeout_s=2", "reward.1.kind=exact", "pool.verifiers=4")
    base, per_answer = reward_deadline(c)
    assert per_answer == 0.5
    assert base + 8 * per_answer >= 10.0 + 2.0 * 8 / 4
    assert dict(schedule(c).deadlines)["materialize"] == base + 8 * per_answer
    assert reward_deadline(config("reward.0.timeout_s=2")) == (2.0, 0.0)


def test_an_epoch_of_128_prompts_is_16_updates_of_8_groups_and_1024_samples() -> None:
    p = plan(config("run.updates=48"), [128], shape=None)
    assert (p.updates_per_epoch, p.epochs) == (16.0, 3.0)
    assert (p.groups, p.samples) == (384, 3072)
    assert p.samples == 3 * 1024


def test_an_update_of_8_samples_is_one_group_and_an_epoch_of_128_prompts_is_128_of_them() -> None:
    p = plan(config("run.updates=384", "schedule.groups_per_update=1"), [128], shape=None)
    assert (p.updates_per_epoch, p.epochs, p.samples) == (128.0, 3.0, 3 * 1024)


def test_token_limits_count_a_prompt_once_per_group() -> None:
    p = plan(config("run.updates=2", "rollout.max_prompt_tokens=100", "rollout.max_tokens=10"), [None], shape=None)
    assert (p.prompt_tokens, p.sampled_tokens, p.trained_tokens) == (1600, 1280, 2880)
    assert (p.epochs, p.updates_per_epoch, p.memory) == (None, None, ())


def test_a_last_round_that_is_not_full_is_a_round_and_a_publish() -> None:
    p = plan(config("run.updates=5", "schedule.groups_per_round=16"), [10], shape=None)
    assert (p.rounds, p.publishes, p.groups) == (3, 4, 40)


def test_epochs_end_a_run_that_has_updates_left() -> None:
    p = plan(config("run.updates=9", "run.epochs=2"), [10], shape=None)
    assert (p.updates, p.groups, p.rounds, p.epochs) == (3, 20, 3, 2.0)
    assert plan(config("run.updates=2", "run.epochs=2"), [10], shape=None).updates == 2


def test_multiversion_rebalances_on_a_timer_and_relieves_full_instances() -> None:
    assert (schedule(config()).rebalance_seconds, schedule(config("schedule.preset=multiversion")).rebalance_seconds) == (0.0, 30.0)
    s = schedule(config("schedule.preset=multiversion", "schedule.rebalance_s=0", "schedule.high_kv_use=0.5"))
    assert (s.rebalance_seconds, s.high_kv_use) == (0.0, 0.5)


def test_refilling_asks_for_more_prompts_at_most() -> None:
    p = plan(config("run.updates=2", "schedule.no_signal=refill"), [10], shape=None)
    assert p.more_prompts == 48
    flowing = plan(config("run.updates=2", "schedule.no_signal=refill", "schedule.preset=streaming"), [10], shape=None)
    assert flowing.more_prompts == 0, "there are no places, hence no limit per place"


def test_the_packaged_model_has_the_parameters_it_is_known_for() -> None:
    assert PACKAGED["smollm2-135m"].parameters == 134_515_008


SMALL = ModelShape(layers=2, width=8, heads=4, kv_heads=2, head_dim=2, intermediate=16, vocabulary=10, tied=False)
LAYER = 2 * 8 + 2 * (4 + 2) * 2 + 2 * 16
"""Numbers that a backward pass keeps per row and layer."""
FEW = ("rollout.slots=3", "rollout.max_prompt_tokens=5", "rollout.max_tokens=4", "trainer.head_chunk=6", "schedule.groups_per_update=2")
"""2 x (5 + 8 x 3) = 58 rows per update."""


def items(c: Config, shape: ModelShape = SMALL, panels: bool = False) -> dict[tuple[str, str], int]:
    return {(m.process, m.what): m.bytes for m in memory(c, shape, schedule(c).groups_per_dispatch, panels=panels, trainer_panels=panels)}


def test_an_engine_that_multiplies_by_panels_needs_no_head_in_float32() -> None:
    found, plain = items(config(*FEW), panels=True), items(config(*FEW))
    assert found["engine", "weights"] == 2 * 2 * SMALL.parameters
    assert ("engine", "head to be packed") not in found
    assert sum(found.values()) < sum(plain.values())


def test_a_trainer_with_panels_keeps_the_head_twice_in_bfloat16_and_makes_no_probabilities() -> None:
    found, wide = items(config(*FEW), panels=True), items(config(*FEW, "model.dtype=float32"), panels=True)
    assert found["trainer", "rounded head"] == 2 * 2 * 80
    assert found["trainer", "logits"] == 6 * 10 * (4 + 2)
    assert not found.keys() & {("trainer", "head in a chunk"), ("trainer", "head in bfloat16")}, "the gradient grows where it lies"
    assert wide["trainer", "head in a chunk"] == 4 * 80
    assert ("trainer", "rounded head") not in wide
    assert wide["trainer", "logits"] == 6 * 10 * (4 + 4)
    filtered = items(config(*FEW, "rollout.top_p=0.9", "rollout.train_on_filtered=true"), panels=True)
    assert filtered["trainer", "logits"] == 4 * 6 * 10 * 4, "kept sets need probabilities"
    assert filtered["trainer", "head in a chunk"] == filtered["trainer", "head in bfloat16"] == 2 * 80
    assert filtered["trainer", "rounded head"] == (4 + 2) * 80, "updates multiply in float32, the probe by panels"


def test_a_reference_of_its_own_counts_with_its_own_sizes() -> None:
    chosen, larger = config(*FEW, "algorithm.kl=k3", "algorithm.kl_weight=0.1", "algorithm.reference=larger"), replace(SMALL, layers=9)
    own, other = (
        {m.what: m.bytes for m in memory(chosen, SMALL, 2, panels=False, trainer_panels=False, reference=shape)} for shape in (None, larger)
    )
    assert other["reference model"] - own["reference model"] == 2 * 2 * (larger.parameters - SMALL.parameters)
    assert other.keys() == own.keys()


def test_every_letter_of_a_memory_formula_is_explained_below_the_plan() -> None:
    chosen = config("algorithm.kl=k3", "algorithm.kl_weight=0.1")
    shape, both = PACKAGED["smollm2-135m"], (True, False)
    items = [item for engine in both for trainer in both for item in memory(chosen, shape, 2, panels=engine, trainer_panels=trainer)]
    used = {letter for item in items for letter in re.findall(r"\b[A-Za-z]\b", item.formula)} - {"x", "a"}
    assert used <= SYMBOLS.keys()
    assert len(used) > 5


def test_memory_items_follow_their_formulas() -> None:
    assert SMALL.parameters == 2 * 80 + 2 * (64 + 32 + 32 + 64 + 384 + 16) + 8
    found, n = items(config(*FEW, "trainer.micro_batch_tokens=20")), SMALL.parameters
    assert found["engine", "weights"] == 2 * n + (2 * n - 80 * 2) + 80 * 4
    assert found["engine", "head to be packed"] == 80 * 4
    assert found["engine", "KV cache"] == 2 * 2 * 2 * 2 * 4 * 3 * 64, "a page each for prompt and answer, held in float32"
    assert found["engine", "logits"] == 2 * 3 * 10 * 4
    assert found["trainer", "master weights"] == found["trainer", "gradients"] == 4 * n
    assert found["trainer", "AdamW moments"] == 8 * n
    assert found["trainer", "rounded head"] == 4 * 80
    assert found["trainer", "activations"] == 20 * 2 * LAYER * 2
    assert found["trainer", "logits"] == 2 * 6 * 10 * 4
    assert found["trainer", "head in a chunk"] == found["trainer", "head in bfloat16"] == 2 * 80
    assert ("trainer", "gradient of the head") not in found, "it is one of the gradients"
    assert ("trainer", "reference model") not in found
    for process in ("engine", "trainer"):
        given = sum(size for (where, what), size in found.items() if where == process and what not in ("libraries", "allocator"))
        assert found[process, "allocator"] == given // 10


def test_a_micro_batch_is_no_larger_than_the_update_and_no_smaller_than_one_answer() -> None:
    assert items(config(*FEW))["trainer", "activations"] == 58 * 2 * LAYER * 2
    assert items(config(*FEW, "trainer.micro_batch_tokens=1"))["trainer", "activations"] == (5 + 3) * 2 * LAYER * 2
    exact = items(config(*FEW, "run.deterministic=true"))
    assert exact["trainer", "activations"] == (5 + 8 * 3) * 2 * LAYER * 2, "no micro-batch holds two groups"
    assert exact["trainer", "gradients"] == 4 * SMALL.parameters


def test_dispatches_of_a_part_of_an_update_hold_that_part_and_the_gradients_of_those_before() -> None:
    found = items(config(*FEW, "schedule.preset=pipelined"))
    assert found["trainer", "activations"] == (5 + 8 * 3) * 2 * LAYER * 2, "by default pipelined takes one of two groups at a time"
    assert found["trainer", "gradients"] == 4 * SMALL.parameters


def test_there_are_no_more_rows_of_logits_than_sampled_tokens() -> None:
    found = items(config(*FEW, "trainer.head_chunk=512", "trainer.micro_batch_tokens=20"))
    assert found["trainer", "logits"] == 2 * (2 * 8 * 4) * 10 * 4


def test_in_one_micro_batch_gradients_come_while_activations_go() -> None:
    """Many rows: what is kept when the backward pass begins counts; few: all the gradients at its end."""
    many = items(config(*FEW))
    assert many["trainer", "gradient of the head"] == 4 * 80
    assert ("trainer", "gradients") not in many
    sizes = ("schedule.groups_per_update=1", "schedule.group_size=2", "rollout.max_prompt_tokens=1", "rollout.max_tokens=2")
    few = items(config(*sizes, "trainer.head_chunk=6"))
    assert few["trainer", "gradients"] == 4 * SMALL.parameters
    assert ("trainer", "activations") not in few


def test_with_checkpointing_only_the_inputs_of_the_layers_and_one_layer_are_kept() -> None:
    found = items(config(*FEW, "trainer.checkpoint_activations=true", "trainer.micro_batch_tokens=20"))
    assert found["trainer", "activations"] == 20 * (2 * 8 + LAYER) * 2


def test_every_version_that_an_instance_holds_has_a_copy_of_the_weights() -> None:
    c = config("schedule.preset=multiversion", "rollout.versions_held=2")
    assert items(c, PACKAGED["smollm2-135m"])["engine", "weights"] == 2 * (2 * 2 * 134_515_008 + 2 * 49_152 * 576)


def test_float32_needs_no_rounded_head_and_a_reference_model_is_packed_like_the_engines_weights() -> None:
    c = config("model.dtype=float32", "algorithm.kl=k3", "algorithm.kl_weight=0.1", "rollout.kv_tokens=1000")
    found = items(c, PACKAGED["smollm2-135m"])
    assert ("trainer", "rounded head") not in found
    assert found["trainer", "reference model"] == found["engine", "weights"] == 2 * 4 * 134_515_008
    assert items(config("model.dtype=float64"))["engine", "weights"] == 8 * SMALL.parameters, "no kernel packs float64"
    assert found["engine", "KV cache"] == 2 * 30 * 3 * 64 * 4 * 1000


@pytest.mark.parametrize(("dtype", "part"), [("bfloat16", 10), ("float32", 5)])
def test_a_trainer_in_float32_leaves_more_between_the_blocks_of_its_allocator(dtype: str, part: int) -> None:
    found = items(config(f"model.dtype={dtype}"))
    for process, share in (("engine", 10), ("trainer", part)):
        given = sum(size for (where, what), size in found.items() if where == process and what not in ("libraries", "allocator"))
        assert found[process, "allocator"] == given // share


def test_a_local_directory_tells_its_shape_by_its_config(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "tie_word_embeddings": False}))
    assert model_shape(str(tmp_path)) == ModelShape(3, 64, 4, 4, 16, 128, 100, False)


def test_a_decoder_that_names_its_sizes_otherwise_is_no_error_only_of_unknown_size(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 9}))
    assert model_shape(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), ("{", "is no model configuration"), ("{}", "has no 'hidden_size'"), ("[]", "is no model configuration")],
)
def test_a_directory_without_a_decoders_sizes_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=message):
        model_shape(str(tmp_path))


def test_a_hub_id_has_no_shape_here_and_a_path_that_is_not_there_is_refused() -> None:
    assert model_shape("someone/some-model") is None
    with pytest.raises(ModelError, match="no such directory"):
        model_shape("./not/there")


def test_rows_are_counted_without_reading_them(tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    lines.write_text('{"a": 1}\n\n{"a": 2}\n{"a": 3}')
    parquet = tmp_path / "rows.parquet"
    parquet.write_bytes(b"PAR1....")
    assert task_rows(TaskConfig(kind="file", path=str(lines))) == 3
    assert task_rows(TaskConfig(kind="file", path=str(lines), limit=2)) == 2
    assert task_rows(TaskConfig(kind="file", path=str(parquet), limit=2)) is None
    assert task_rows(TaskConfig(name="chain_sum", size=50)) == 50
    with pytest.raises(DataError, match=r"eval.task.path = .*absent"):
        task_rows(TaskConfig(kind="file", path=str(tmp_path / "absent")), "eval.task")


def test_files_that_are_named_and_not_there_are_all_listed(tmp_path: Path) -> None:
    there = tmp_path / "rows.jsonl"
    there.write_text("{}")
    c = load(
        None,
        [
            "task.kind=file",
            f"task.path={there}",
            "eval.task.kind=file",
            "eval.task.path=no.jsonl",
            "reward.0.kind=function",
            "reward.0.function=no.py:f",
        ],
    )
    assert [fault.items[0][0] for fault in missing_files(c)] == ["eval.task.path", "reward.0.function"]


def test_gsm8k_has_7473_training_rows() -> None:
    path = Path(__file__).parents[2].parent / "shared" / "data" / "gsm8k" / "train.jsonl"
    if not path.is_file():
        pytest.skip(f"the data set is not at {path}")
    assert task_rows(TaskConfig(kind="file", path=str(path))) == 7473


def test_the_plan_of_a_mixture_says_how_many_prompts_each_task_gives() -> None:
    words = ("task.name=chain_sum", "task.size=300", "mix.0.name=spell_backward", "mix.0.size=100", "run.updates=10")
    by_rows = plan(load(None, words), [300, 100], None)
    assert by_rows.groups_by_task == (("chain_sum", 60), ("spell_backward", 20))
    weighted = plan(load(None, [*words, "task.weight=1.0", "mix.0.weight=3.0"]), [300, None], None)
    assert weighted.groups_by_task == (("chain_sum", 20), ("spell_backward", 60))
    assert plan(load(None, words), [300, None], None).groups_by_task == ()
