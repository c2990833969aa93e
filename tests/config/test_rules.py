"""Every rule refuses what it is for; what is away from its edge passes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.config.checks import RULES, check, ensure, warnings
from paceline.config.load import load
from paceline.config.plan import schedule
from paceline.config.schema import Config, ScheduleConfig, TaskConfig
from paceline.types.errors import ConfigError

GYM = ("task.name=chain_sum",)
HELD_OUT = (*GYM, "eval.task.name=chain_sum", "eval.task.seed=1000000")
FILE = ("task.kind=file", "task.path=a.jsonl", "task.gold_column=answer")
STREAM = (*GYM, "schedule.preset=streaming")
EMULATED = ("rollout.engine=emulated", "task.kind=synthetic")
MULTI = (*GYM, "schedule.preset=multiversion")
EXACT = ("model.dtype=float32", "algorithm.correction=truncate")

BROKEN: list[tuple[str, tuple[str, ...]]] = [
    ("deterministic_order_of_prompts", (*GYM, "run.deterministic=true", "schedule.no_signal=refill")),
    ("deterministic_computes", (*EMULATED, "run.deterministic=true")),
    ("verifiers_compare_mathematics", (*GYM, "pool.verifiers=2")),
    ("signature_no_effect", (*GYM, "reward.0.signature=verl")),
    ("groups_per_round_no_effect", (*STREAM, "schedule.groups_per_round=16")),
    ("updates_per_publish_no_effect", (*GYM, "schedule.updates_per_publish=2")),
    ("frontier_no_effect", (*GYM, "schedule.frontier=4")),
    ("refill_no_effect", (*GYM, "schedule.preset=pipelined", "schedule.refill=group")),
    ("staleness_no_effect", (*GYM, "schedule.staleness=1")),
    ("overstale_no_effect", (*MULTI, "schedule.overstale=drop")),
    ("at_publish_no_effect", (*GYM, "schedule.at_publish=drain")),
    ("buffer_groups_no_effect", (*MULTI, "schedule.buffer_groups=16")),
    ("granularity_no_effect", (*GYM, "schedule.granularity=group")),
    ("version_window_no_effect", (*STREAM, "schedule.version_window=3")),
    ("rebalance_s_no_effect", (*STREAM, "schedule.rebalance_s=5")),
    ("high_kv_use_no_effect", (*GYM, "schedule.high_kv_use=0.5")),
    ("in_flight_groups_no_effect", (*GYM, "schedule.in_flight_groups=8")),
    ("refill_limit_no_effect", (*GYM, "schedule.refill_limit=5")),
    ("refill_limit_no_effect", (*STREAM, "schedule.no_signal=refill", "schedule.refill_limit=5")),
    ("in_order_no_effect", (*MULTI, "schedule.in_order=true")),
    ("refill_takes_another", (*GYM, "schedule.no_signal=refill", "schedule.refill_limit=0")),
    ("serial_starts_late", (*GYM, "schedule.start_when=dispatch")),
    ("pipelined_starts_early", (*GYM, "schedule.preset=pipelined", "schedule.start_when=all")),
    ("whole_updates_per_round", (*GYM, "schedule.groups_per_round=12")),
    ("whole_updates_per_round", (*GYM, "schedule.groups_per_round=4")),
    ("whole_dispatches_per_update", (*GYM, "schedule.groups_per_dispatch=3")),
    ("whole_dispatches_per_update", (*GYM, "schedule.groups_per_dispatch=16")),
    ("frontier_within_round", (*GYM, "schedule.preset=pipelined", "schedule.frontier=9")),
    ("buffer_starts_training", (*STREAM, "schedule.buffer_groups=7")),
    ("buffer_starts_training", (*STREAM, "schedule.buffer_groups=15", "schedule.updates_per_publish=2", "schedule.start_when=all")),
    ("buffer_can_fill", (*STREAM, "schedule.buffer_groups=17")),
    ("buffer_can_fill", (*STREAM, "schedule.buffer_groups=10", "schedule.in_flight_groups=9")),
    ("buffer_can_fill", (*STREAM, "schedule.buffer_groups=17", "schedule.overstale=drop")),
    ("all_is_more_than_a_dispatch", (*STREAM, "schedule.start_when=all")),
    ("all_is_more_than_a_dispatch", (*MULTI, "schedule.start_when=all", "schedule.updates_per_publish=1")),
    ("in_flight_in_range", (*MULTI, "schedule.in_flight_groups=15", "schedule.updates_per_publish=2", "schedule.start_when=all")),
    ("in_flight_in_range", (*MULTI, "schedule.in_flight_groups=7")),
    ("in_flight_in_range", (*MULTI, "schedule.in_flight_groups=17")),
    ("in_flight_in_range", (*STREAM, "schedule.staleness=0", "schedule.in_flight_groups=9")),
    ("group_of_one", (*GYM, "schedule.group_size=1")),
    ("survivors_make_a_group", (*GYM, "schedule.group_size=2", "schedule.on_failure=drop_sample")),
    ("generator_named", ()),
    ("file_named", ("task.kind=file", "task.gold_column=answer")),
    ("name_no_effect", (*FILE, "task.name=chain_sum")),
    ("parameters_no_effect", (*FILE, "task.parameters.x=1")),
    ("size_no_effect", (*FILE, "task.size=5")),
    ("seed_no_effect", (*FILE, "task.seed=5")),
    ("path_no_effect", (*GYM, "task.path=a.jsonl")),
    ("path_no_effect", (*HELD_OUT, "eval.task.path=a.jsonl")),
    ("prompt_column_no_effect", (*GYM, "task.prompt_column=question")),
    ("gold_column_no_effect", (*GYM, "task.gold_column=answer")),
    ("gold_pattern_no_effect", (*GYM, "task.gold_pattern=(x)")),
    ("bad_rows_no_effect", (*GYM, "task.bad_rows=skip")),
    ("template_arguments_no_effect", (*GYM, "task.template=plain", "task.template_arguments.x=true")),
    ("gold_pattern_needs_column", ("task.kind=file", "task.path=a.jsonl", "task.gold_pattern=(x)")),
    ("gold_pattern_has_a_group", (*FILE, "task.gold_pattern=x")),
    ("gold_pattern_has_a_group", (*FILE, "task.gold_pattern=(x")),
    ("function_named", (*GYM, "reward.0.kind=function")),
    ("function_named", (*GYM, "reward.0.kind=function", "reward.0.function=module")),
    ("function_no_effect", (*GYM, "reward.0.function=module:reward")),
    ("arguments_known", (*GYM, "reward.0.kind=exact", "reward.0.arguments.which=first")),
    ("argument_values", (*GYM, "reward.0.arguments.which=middle")),
    ("argument_values", (*GYM, "reward.0.arguments.marker=' '")),
    ("argument_values", (*GYM, "reward.0.arguments.marker=3")),
    ("marker_outside_tags", (*GYM, "reward.0.kind=task", "reward.0.arguments.marker=A:")),
    ("sampling_needs_temperature", (*GYM, "rollout.temperature=0.0")),
    ("filter_asked_for", (*GYM, "rollout.top_p=0.9")),
    ("filter_asked_for", (*GYM, "rollout.top_k=20")),
    ("train_on_filtered_no_effect", (*GYM, "rollout.train_on_filtered=true")),
    ("kv_holds_a_trajectory", (*GYM, "rollout.kv_tokens=767")),
    ("kv_holds_a_trajectory", (*GYM, "rollout.kv_tokens=60", "rollout.max_prompt_tokens=33", "rollout.max_tokens=8")),
    ("std_no_effect", (*GYM, "algorithm.advantage=group_mean", "algorithm.std=population")),
    ("std_eps_no_effect", (*GYM, "algorithm.advantage=group_mean", "algorithm.std_eps=0.1")),
    ("constant_length_no_effect", (*GYM, "algorithm.constant_length=256")),
    ("dual_clip_above_one", (*GYM, "algorithm.dual_clip=1.0")),
    ("dual_clip_above_one", (*GYM, "algorithm.dual_clip=0.0")),
    ("clip_low_at_most_one", (*GYM, "algorithm.clip_low=1.1")),
    ("correction_level_no_effect", (*GYM, "algorithm.correction_level=sequence")),
    ("correction_high_no_effect", (*GYM, "algorithm.correction_high=3.0")),
    ("correction_low_no_effect", (*GYM, "algorithm.correction_low=0.1")),
    ("correction_low_no_effect", (*GYM, "algorithm.correction=truncate", "algorithm.correction_low=0.1")),
    ("clip_low_no_effect", (*GYM, "algorithm.correction=truncate", "algorithm.clip_low=0.1")),
    ("clip_high_no_effect", (*GYM, "algorithm.correction=mask", "algorithm.clip_high=0.28")),
    ("dual_clip_no_effect", (*GYM, "algorithm.correction=mask", "algorithm.dual_clip=3.0")),
    ("ratio_no_effect", (*GYM, "algorithm.correction=truncate", "algorithm.ratio=sequence")),
    ("correction_keeps_on_policy", (*GYM, "algorithm.correction=mask", "algorithm.correction_low=1.0")),
    ("correction_keeps_on_policy", (*GYM, "algorithm.correction=reject", "algorithm.correction_high=1.0")),
    ("correction_bound_acts", (*GYM, "algorithm.correction=truncate", "algorithm.correction_high=1e9")),
    ("kl_weight_needs_kl", (*GYM, "algorithm.kl_weight=0.1")),
    ("kl_needs_weight", (*GYM, "algorithm.kl=k3")),
    ("reference_no_effect", (*GYM, "algorithm.reference=dir")),
    ("mask_kl_without_signal_no_effect", (*GYM, "algorithm.mask_kl_without_signal=true")),
    ("overlong_penalty_no_effect", (*GYM, "algorithm.overlong_penalty=0.5")),
    ("overlong_buffer_needs_penalty", (*GYM, "algorithm.overlong_buffer=10", "algorithm.overlong_penalty=0")),
    ("gap_warns_first", (*GYM, "algorithm.gap_warn=2.0")),
    ("problems_no_effect", (*GYM, "eval.problems=5")),
    ("samples_no_effect", (*GYM, "eval.samples=5")),
    ("temperature_no_effect", (*GYM, "eval.temperature=0.5")),
    ("greedy_no_effect", (*GYM, "eval.greedy=false")),
    ("every_no_effect", (*GYM, "eval.every=5")),
    ("hold_out_no_effect", (*GYM, "eval.hold_out=false")),
    ("eval_scores_something", (*HELD_OUT, "eval.greedy=false", "eval.samples=0")),
    ("mixed_tasks_differ_by_name", (*GYM, "mix.0.name=chain_sum", "mix.0.seed=7")),
    ("one_generator_per_name", (*GYM, "task.label=t", "eval.task.name=spell_backward", "eval.task.label=t")),
    ("weights_for_all_or_none", (*GYM, "mix.0.name=spell_backward", "task.weight=2.0")),
    ("weight_needs_a_mixture", (*GYM, "task.weight=2.0")),
    ("names_no_effect", (*GYM, "tracking.names=['trl']")),
    ("project_no_effect", (*GYM, "tracking.kinds=['tensorboard']", "tracking.project=p")),
    ("name_no_effect", (*GYM, "tracking.kinds=['tensorboard']", "tracking.name=n")),
    ("offline_no_effect", (*GYM, "tracking.kinds=['tensorboard']", "tracking.offline=true")),
    ("mlflow_server_no_effect", (*GYM, "tracking.kinds=['wandb']", "tracking.mlflow_server=http://x")),
    ("no_password_in_the_address", (*GYM, "tracking.kinds=['mlflow']", "tracking.mlflow_server=https://me:secret@host:5000/x")),
    ("kinds_once", (*GYM, "tracking.kinds=['wandb', 'wandb']")),
    ("temperature_without_samples", (*HELD_OUT, "eval.samples=0", "eval.temperature=0.5")),
    ("some_reward", (*GYM, "reward=[]")),
    ("reward_names_differ", (*GYM, "reward.0.kind=numeric", "reward.1.kind=numeric")),
    ("some_outcome", (*GYM, "reward.0.outcome=false")),
    ("task_scores_itself", (*FILE, "reward.0.kind=task")),
    ("gold_to_compare_with", ("task.kind=file", "task.path=a.jsonl")),
    ("synthetic_has_no_text", (*EMULATED, "task.suffix=Be brief.")),
    ("mean_tokens_no_effect", (*EMULATED, "emulated.lengths=trace.txt", "emulated.mean_tokens=5.0")),
    ("sigma_no_effect", (*EMULATED, "emulated.lengths=trace.txt", "emulated.sigma=0.5")),
    ("emulated_no_effect", (*GYM, "emulated.time_scale=60.0")),
    ("emulated_learns_nothing", (*EMULATED, "trainer.learning_rate=1e-4")),
    ("emulated_samples_nothing", (*EMULATED, "rollout.temperature=0.5")),
    ("emulated_is_synthetic", (*GYM, "rollout.engine=emulated")),
    ("emulated_is_synthetic", ("task.kind=synthetic",)),
    ("emulated_is_synthetic", (*EMULATED, "eval.task.name=chain_sum")),
    ("batch_std_sees_the_update", (*GYM, "algorithm.advantage=batch_std", "schedule.groups_per_dispatch=4")),
    ("correction_corrects", (*GYM, *EXACT)),
    ("correction_corrects", (*GYM, *EXACT, "schedule.groups_per_round=8", "schedule.preset=pipelined")),
    ("correction_corrects", (*STREAM, *EXACT, "schedule.staleness=0")),
    ("correction_corrects", (*MULTI, *EXACT, "schedule.version_window=1")),
    ("overlong_buffer_below_max_tokens", (*GYM, "algorithm.overlong_buffer=256")),
    ("rollout_versions_held_no_effect", (*STREAM, "rollout.versions_held=2")),
    ("versions_held_within_window", (*MULTI, "rollout.versions_held=3")),
    ("slots_hold_a_group", (*STREAM, "schedule.granularity=group", "rollout.slots=7")),
    ("slim_decoder_only", (*GYM, "model.implementation=transformers", "trainer.checkpoint_activations=true")),
    ("slim_decoder_only", (*GYM, "model.implementation=transformers", "trainer.compile=true")),
    ("slim_decoder_only", (*GYM, "model.implementation=transformers", "trainer.kernels=native")),
    ("native_kernels", (*GYM, "trainer.kernels=native", "model.dtype=float64")),
    ("native_kernels", (*GYM, "trainer.kernels=native", "pool.trainer_device=cuda")),
    ("native_kernels", (*GYM, "rollout.kernels=native", "model.dtype=float64")),
    ("native_kernels", (*GYM, "rollout.kernels=native", 'pool.rollout_devices=["cpu", "cuda"]', "rollout.instances=2")),
    ("deterministic_kernels", (*GYM, "run.deterministic=true", "trainer.compile=true")),
    ("deterministic_on_cpus", (*GYM, "run.deterministic=true", "pool.trainer_device=cuda")),
    ("deterministic_on_cpus", (*GYM, "run.deterministic=true", "pool.rollout_devices=['cuda:1']")),
    ("devices_for_instances", (*GYM, "pool.rollout_devices=[]")),
    ("devices_for_instances", (*GYM, "pool.rollout_devices=['cuda:0', 'cuda:1']")),
    ("pool_rollout_devices_no_effect", (*EMULATED, "pool.rollout_devices=['cuda']")),
    ("pool_trainer_device_no_effect", (*EMULATED, "pool.trainer_device=cuda")),
]

WARNED: list[tuple[str, tuple[str, ...]]] = [
    ("frontier_within_slots", (*GYM, "schedule.preset=pipelined", "schedule.frontier=8")),
    ("gold_for_the_function", (*FILE, "~task.gold_column", "reward.0.kind=function", "reward.0.function=m:f", "reward.0.signature=verl")),
    ("warmup_within_run", (*GYM, "run.updates=5")),
    ("micro_batch_holds_a_sequence", (*GYM, "trainer.micro_batch_tokens=512")),
    ("deterministic_engine_only", (*STREAM, "run.deterministic=true")),
    ("versions_fit_the_fleet", (*MULTI,)),
    ("versions_fit_the_fleet", (*MULTI, "schedule.version_window=3", "rollout.versions_held=2")),
    ("geometric_bounds_wide", (*GYM, "algorithm.correction=mask", "algorithm.correction_level=geometric")),
]

ALLOWED: list[tuple[str, ...]] = [
    (*GYM, "algorithm.correction=truncate"),
    (*GYM, "algorithm.correction=reject", "algorithm.clip_high=0.28", "algorithm.ratio=sequence"),
    (*GYM, *EXACT, "schedule.groups_per_round=16"),
    (*STREAM, *EXACT),
    (*STREAM, *EXACT, "schedule.staleness=0", "schedule.updates_per_publish=2"),
    (*MULTI, "rollout.instances=2", *EXACT),
    (*MULTI, "rollout.versions_held=2"),
    (*MULTI, "rollout.versions_held=3", "schedule.version_window=3"),
    (*GYM, "run.deterministic=true", "trainer.checkpoint_activations=true"),
    (*GYM, "trainer.checkpoint_activations=true", "trainer.compile=true"),
    GYM,
    HELD_OUT,
    FILE,
    EMULATED,
    (*EMULATED, "task.size=10", "emulated.lengths=trace.txt", "emulated.time_scale=60.0", "eval.task.kind=synthetic"),
    STREAM,
    (*MULTI, "rollout.instances=2"),
    (*GYM, "trainer.learning_rate=0"),
    (*GYM, "schedule.groups_per_round=32", "schedule.groups_per_dispatch=2"),
    (*GYM, "schedule.frontier='auto'", "schedule.preset=pipelined", "schedule.refill=group"),
    (*GYM, "schedule.frontier=7", "schedule.preset=pipelined"),
    (*GYM, "schedule.frontier=8", "schedule.preset=pipelined", "schedule.refill=group"),
    (*GYM, "schedule.frontier=8", "schedule.preset=pipelined", "rollout.instances=2"),
    (*GYM, "schedule.start_when=all"),
    (*STREAM, "schedule.staleness=3", "schedule.buffer_groups=8", "schedule.updates_per_publish=2", "schedule.in_flight_groups=64"),
    (*STREAM, "schedule.overstale=drop", "schedule.in_flight_groups=1000"),
    (*STREAM, "schedule.buffer_groups=16", "schedule.updates_per_publish=2", "schedule.start_when=all"),
    (*STREAM, "schedule.buffer_groups=16"),
    (*STREAM, "schedule.buffer_groups=30", "schedule.overstale=drop", "schedule.in_flight_groups=30"),
    (*STREAM, "schedule.start_when=all", "schedule.groups_per_dispatch=4"),
    (*STREAM, "schedule.no_signal=refill"),
    (*MULTI, "rollout.instances=4", "schedule.version_window=4", "schedule.in_flight_groups=32"),
    (*MULTI, "rollout.instances=2", "schedule.in_flight_groups=8"),
    (*GYM, "schedule.no_signal=refill", "schedule.refill_limit=5"),
    (*FILE, "task.gold_pattern=####\\s*(.+)", "task.bad_rows=skip"),
    (
        *GYM,
        "reward.0.arguments={marker = 'A:', which = 'first', percent = 'strict'}",
        "reward.1.kind=task",
        "reward.1.arguments.answer=number",
    ),
    (*GYM, "reward.0.kind=function", "reward.0.function=dir/file.py:reward", "reward.0.arguments.anything=1"),
    (*GYM, "rollout.top_p=0.9", "rollout.train_on_filtered=true"),
    (*GYM, "rollout.kv_tokens=768"),
    (*GYM, "algorithm.kl=k3", "algorithm.kl_weight=0.04", "algorithm.reference=dir", "algorithm.mask_kl_without_signal=true"),
    (*GYM, "algorithm.aggregation=constant", "algorithm.constant_length=64", "algorithm.dual_clip=3.0", "algorithm.clip_low=1.0"),
    (*GYM, "algorithm.advantage=batch_std", "schedule.groups_per_dispatch=8"),
    (*GYM, "algorithm.overlong_buffer=255", "algorithm.overlong_penalty=0.5"),
    (*GYM, "eval.task.name=chain_sum", "eval.task.seed=2001"),
    (*GYM, "eval.task.name=chain_sum", "eval.hold_out=false"),
    (*GYM, "eval.task.name=chain_sum", "eval.task.seed=2", "eval.task.parameters.max_terms=3"),
    (*GYM, "task.template=plain", "task.system=Sums:", "task.suffix=' ='"),
    (*GYM, "task.path=''", "schedule.refill=sample", "eval.every=0", "algorithm.std_eps=1e-4"),
]


@pytest.mark.parametrize(("name", "overrides"), BROKEN, ids=[f"{name}-{index}" for index, (name, _) in enumerate(BROKEN)])
def test_a_combination_without_effect_or_meaning_is_refused_by_name(name: str, overrides: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, overrides)
    lines = [line for line in str(caught.value).splitlines() if line.endswith(f"[{name}]")]
    assert lines, str(caught.value)
    assert " = " in lines[0]


@pytest.mark.parametrize(("name", "overrides"), WARNED, ids=[f"{name}-{index}" for index, (name, _) in enumerate(WARNED)])
def test_what_is_probably_not_meant_gives_a_warning_by_name(name: str, overrides: tuple[str, ...]) -> None:
    assert [fault.name for fault in warnings(load(None, overrides))] == [name]


@pytest.mark.parametrize("overrides", ALLOWED, ids=str)
def test_what_has_effect_and_meaning_passes_without_a_warning(overrides: tuple[str, ...]) -> None:
    assert warnings(load(None, overrides)) == []


@pytest.mark.parametrize("overrides", ALLOWED, ids=str)
def test_the_machine_accepts_every_schedule_that_the_rules_accept(overrides: tuple[str, ...]) -> None:
    presets = pytest.importorskip("paceline.core.presets", reason="the machine's own check is not here")
    presets.check(schedule(load(None, overrides)))


counts = st.none() | st.integers(1, 40)
schedules = st.builds(
    ScheduleConfig,
    preset=st.sampled_from(["serial", "pipelined", "streaming", "multiversion"]),
    group_size=st.integers(2, 3),
    groups_per_update=st.integers(1, 8),
    groups_per_round=counts,
    groups_per_dispatch=st.none() | st.integers(1, 4),
    updates_per_publish=st.none() | st.integers(1, 3),
    start_when=st.none() | st.sampled_from(["dispatch", "all"]),
    frontier=counts | st.just("auto"),
    staleness=st.none() | st.integers(0, 2),
    overstale=st.sampled_from(["pace", "drop"]),
    buffer_groups=counts,
    version_window=st.none() | st.integers(1, 3),
    in_flight_groups=counts,
)


@settings(max_examples=400, deadline=None)
@given(schedule_config=schedules)
def test_the_machine_accepts_any_schedule_that_the_rules_accept(schedule_config: ScheduleConfig) -> None:
    presets = pytest.importorskip("paceline.core.presets", reason="the machine's own check is not here")
    config = Config(task=TaskConfig(name="chain_sum"), schedule=schedule_config)
    if not check(config):
        presets.check(schedule(config))


def test_every_rule_has_a_case_that_breaks_it() -> None:
    rules = {rule.name for section in RULES.values() for rule in section}
    assert rules == {name for name, _ in BROKEN + WARNED}


def test_rule_names_are_unique_within_their_section() -> None:
    for section in RULES.values():
        names = [rule.name for rule in section]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(("overrides", "in_order"), [(GYM, True), ((*GYM, "schedule.preset=pipelined"), True), (MULTI, False)], ids=str)
def test_deterministic_runs_consume_in_order_where_there_is_one(overrides: tuple[str, ...], in_order: bool) -> None:
    assert schedule(load(None, (*overrides, "run.deterministic=true"))).in_order is in_order
    assert schedule(load(None, overrides)).in_order is False


def test_a_configuration_built_in_python_can_be_checked_alike() -> None:
    good = load(None, GYM)
    assert ensure(good) is good
    with pytest.raises(ConfigError, match="whole_updates_per_round"):
        ensure(Config(task=good.task, schedule=ScheduleConfig(groups_per_round=12)))
