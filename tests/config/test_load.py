"""Loading: sources, overrides, errors, and the way back to TOML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.config.keys import ELSEWHERE, known, nearest
from paceline.config.load import dump, load
from paceline.config.schema import AlgorithmConfig, Config, RewardConfig, RolloutConfig, RunConfig, TaskConfig, TrainerConfig
from paceline.types.errors import ConfigError

TASK = "task.name=chain_sum"
RECIPES = Path(__file__).parents[2] / "recipes"


def fault(*overrides: str, text: str | None = None, tmp_path: Path | None = None) -> str:
    """The error message of a configuration that is refused."""
    path = None
    if text is not None:
        assert tmp_path is not None
        path = tmp_path / "run.toml"
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    return str(caught.value)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_loads(recipe: Path) -> None:
    assert load(recipe).run.dir == f"runs/{recipe.stem}"


def test_later_sources_win_over_earlier_ones(tmp_path: Path) -> None:
    path = written(tmp_path, '[task]\nname = "chain_sum"\n[run]\nupdates = 7\nseed = 3\n')
    config = load(path, ["run.updates=8", "run.updates=9"])
    assert (config.run.updates, config.run.seed, config.run.keep_last) == (9, 3, RunConfig().keep_last)


def test_override_values_are_toml() -> None:
    config = load(
        None,
        [
            TASK,
            "trainer.learning_rate=2e-5",
            "trainer.betas=[0.8, 0.9]",
            'rollout.stop=["a", "b"]',
            "rollout.stop_ids=[2]",
            "run.permute_rewards=true",
        ],
    )
    assert config.trainer.learning_rate == 2e-5
    assert config.trainer.betas == (0.8, 0.9)
    assert config.rollout.stop == ("a", "b")
    assert config.rollout.stop_ids == (2,)
    assert config.run.permute_rewards is True


@pytest.mark.parametrize(
    ("raw", "value"), [("2024-01-01", "2024-01-01"), ("1e5", "1e5"), ("true", "true"), ("'x y'", "x y"), ('"a=b"', "a=b"), ("a=b", "a=b")]
)
def test_texts_need_no_quotes_and_are_never_read_as_something_else(raw: str, value: str) -> None:
    assert load(None, [TASK, f"run.dir={raw}"]).run.dir == value


def test_an_override_reaches_into_lists_and_free_tables() -> None:
    config = load(
        None, [TASK, "reward.0.weight=2", "reward.1.kind=exact", "task.parameters.max_terms=3", "task.parameters.deep.x=[1, true]"]
    )
    assert [(r.kind, r.weight) for r in config.reward] == [("numeric", 2.0), ("exact", 1.0)]
    assert config.task.parameters == {"max_terms": 3, "deep": {"x": [1, True]}}


def test_a_tilde_takes_a_key_out_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, '[task]\nname = "chain_sum"\n[run]\nupdates = 7\n[[reward]]\nkind = "exact"\n[[reward]]\nkind = "numeric"\n')
    config = load(path, ["~run.updates", "~reward.0", "~run.seed"])
    assert config.run.updates == RunConfig().updates
    assert [r.kind for r in config.reward] == ["numeric"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("updates", "an override is key=value"),
        ("run.updates=", "no value given"),
        ("~run.updats", "unknown key; nearest: run.updates"),
        ("reward.3.kind=exact", "there is no 3 in a list of 0"),
        ("run.dir.x=1", "there is no x in"),
        ("=3", "an override is key=value"),
    ],
)
def test_an_override_that_cannot_be_applied_is_refused(override: str, message: str) -> None:
    assert message in fault(TASK, "run.dir=a", override)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ('trainer.learning_rate="1e-5"', 'trainer.learning_rate = "1e-5" (command line): should be a valid number'),
        ("run.updates=0", "run.updates = 0 (command line): should be greater than or equal to 1"),
        ("run.updates=2.0", "run.updates = 2.0 (command line): should be a valid integer"),
        ("trainer.learning_rate=inf", "should be a finite number"),
        ("trainer.learning_rate=nan", "should be a finite number"),
        ("run.permute_rewards=1", "should be a valid boolean"),
        ("model.dtype=float16", "should be 'float32', 'bfloat16' or 'float64'"),
        ("schedule.frontier=many", "should be a valid integer or should be 'auto'"),
        ("trainer.betas=[0.9, 1.0]", "trainer.betas.1 = 1.0 (command line): should be less than 1"),
        ("rollout.stop=['']", "rollout.stop.0"),
        ("reward.0.wieght=1", "reward.0.wieght = 1 (command line): unknown key; nearest: reward.0.weight"),
        ("eval.task.nam=x", 'eval.task.nam = "x" (command line): unknown key; nearest: eval.task.name'),
        ("algorithm.learning_rate=1", "nearest: trainer.learning_rate"),
        ("learning_rate=1", "nearest: trainer.learning_rate"),
        (
            "actor_rollout_ref.actor.grad_clip=1",
            "actor_rollout_ref.actor.grad_clip = 1 (command line): unknown key; nearest: trainer.clip_norm",
        ),
        ("task.parameters={x = 2024-01-01}", "may hold texts, booleans, finite numbers, lists and tables; x is"),
        ("run=3", "run = 3 (command line): should be a valid dictionary"),
    ],
)
def test_a_fault_names_key_value_origin_and_rule(override: str, line: str) -> None:
    assert line in fault(TASK, override)


def test_all_faults_come_in_one_error_with_their_origin(tmp_path: Path) -> None:
    message = fault("trainer.warmup_updates=-1", text="[run]\nupdatez = 1\n[model]\ndtype = 16\n", tmp_path=tmp_path)
    assert message.startswith(f"3 faults in {tmp_path / 'run.toml'}:")
    assert f"run.updatez = 1 ({tmp_path / 'run.toml'})" in message
    assert f"model.dtype = 16 ({tmp_path / 'run.toml'})" in message
    assert "trainer.warmup_updates = -1 (command line)" in message


def test_several_broken_combinations_come_in_one_error() -> None:
    message = fault(TASK, "schedule.frontier=2", "algorithm.kl_weight=0.1")
    assert "[frontier_no_effect]" in message
    assert "[kl_weight_needs_kl]" in message


@pytest.mark.parametrize(("content", "message"), [(b"[run\n", "is not TOML"), (b"\xff\xfe", "is not UTF-8")])
def test_a_file_that_is_no_toml_is_refused_with_its_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load(path)


def test_an_unknown_kind_of_reward_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"reward\.0\.kind.*nummeric"):
        load(None, [TASK, "reward.0.kind=nummeric"])


def test_a_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: cannot be read"):
        load(tmp_path / "absent.toml")


def test_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = load(None, [TASK])
    monkeypatch.setenv("PACELINE_RUN__UPDATES", "3")
    monkeypatch.setenv("PACELINE_UPDATES", "3")
    assert load(None, [TASK]) == before


def test_a_free_table_is_a_copy_in_which_tuples_are_lists() -> None:
    given_table: dict[str, Any] = {"x": (1, 2)}
    task = TaskConfig(name="chain_sum", parameters=given_table)
    given_table["x"] = None
    assert task.parameters == {"x": [1, 2]}


@pytest.mark.parametrize("value", [None, float("nan"), {1: 2}, {1, 2}])
def test_a_free_table_holds_only_what_toml_gives_back(value: object) -> None:
    with pytest.raises(ValueError, match="may hold"):
        TaskConfig(parameters={"x": value})


def test_every_optional_key_is_unset_by_default_so_that_leaving_it_out_of_the_file_says_so() -> None:
    optional = {key: field for key, field in known().items() if type(None) in get_args(field.annotation)}
    assert len(optional) > 10
    assert all(field.default is None for field in optional.values())


def test_every_key_has_a_description() -> None:
    assert [key for key, field in known().items() if not field.description] == []


def test_the_nearest_keys_of_a_section_come_first() -> None:
    assert nearest("trainer.lerning_rate")[0] == "trainer.learning_rate"
    assert nearest("reward.2.functon")[0] == "reward.0.function"
    assert nearest("zzzz.qqqq") == []


def test_a_key_by_its_name_in_another_framework_is_answered_with_its_name_here() -> None:
    assert nearest("algorithm.beta") == ["algorithm.kl_weight"]
    assert nearest("trainer.lr") == ["trainer.learning_rate"]
    assert nearest("num_generations") == ["schedule.group_size"]
    assert nearest("actor_rollout_ref.rollout.n") == ["schedule.group_size"]
    assert [name for name, here in ELSEWHERE.items() if here not in known()] == []
    assert [name for name in ELSEWHERE if any(key.rpartition(".")[2] == name for key in known())] == [], "a name of ours stays ours"
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "from-other-trainers.md").read_text(encoding="utf-8")
    rows = [line for line in guide.partition("\n## Keys\n")[2].partition("\n## ")[0].splitlines() if line.startswith("|")]
    for name, here in ELSEWHERE.items():
        key = here.rpartition(".")[2]
        assert any(re.search(rf"[`.]{name}`", row) and (f"`{here}`" in row or f"`.{key}`" in row) for row in rows), (name, here)


texts = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = st.floats(0, 1e6, allow_nan=False, allow_infinity=False)
plain = st.recursive(
    texts | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
tables = st.dictionaries(texts, plain, max_size=3)
configs = st.builds(
    Config,
    run=st.builds(RunConfig, dir=texts.filter(bool), seed=st.integers(), permute_rewards=st.booleans()),
    task=st.builds(
        TaskConfig, name=texts.filter(bool), parameters=tables, system=st.none() | texts, suffix=texts, limit=st.none() | st.integers(1)
    ),
    reward=st.builds(
        lambda *args: (RewardConfig(weight=args[0], kind="function", function="module:reward", arguments=args[1]),), numbers, tables
    ),
    rollout=st.builds(RolloutConfig, stop=st.lists(texts.filter(bool), max_size=2).map(tuple), slots=st.integers(1, 999)),
    trainer=st.builds(TrainerConfig, learning_rate=numbers, eps=st.floats(1e-300, 1)),
    algorithm=st.builds(AlgorithmConfig, advantage=st.sampled_from(["group_std", "group_mean"]), dual_clip=st.none() | st.floats(1.5, 9)),
)


@settings(max_examples=150, deadline=None)
@given(config=configs)
def test_a_resolved_file_loads_as_the_same_configuration(config: Config, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "resolved.toml"
    path.write_text(dump(config), encoding="utf-8", newline="")
    assert load(path) == config
