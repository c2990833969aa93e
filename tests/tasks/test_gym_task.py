"""reasoning-gym as a source."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paceline.config.schema import TaskConfig
from paceline.ports.fakes.data import ByteTokenizer
from paceline.tasks import RowTask, load
from paceline.tasks.gym import scorer, scorers
from paceline.types.errors import ConfigError, DataError

TINY = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def sums(size: int = 40, seed: int = 1, run_seed: int = 0) -> RowTask:
    return load(TaskConfig(name="chain_sum", size=size, seed=seed, parameters=TINY), ByteTokenizer(), seed=run_seed, max_prompt_tokens=500)


def test_rows_are_deduplicated_by_question_and_counted() -> None:
    task = sums(size=400)
    assert len({task.prompt(i).text for i in range(len(task))}) == len(task) < 200
    assert task.counts == {"read": 400, "bad": 0, "duplicate": 400 - len(task), "over_limit": 0, "excluded": 0, "kept": len(task)}


def test_a_row_carries_what_the_generators_scorer_needs() -> None:
    score = scorer("chain_sum", TINY)
    for i in range(5):
        prompt = sums().prompt(i)
        assert prompt.gold is not None
        assert score(prompt, prompt.gold) == 1.0
        assert score(prompt, "999") == 0.0


def test_answers_of_a_mixture_go_to_the_scorer_of_their_own_task() -> None:
    both = scorers({"chain_sum": {"name": "chain_sum", "parameters": TINY}, "spell": {"name": "spell_backward", "parameters": {}}})
    spell = load(TaskConfig(name="spell_backward", size=3, label="spell"), ByteTokenizer(), seed=0, max_prompt_tokens=500).prompt(0)
    assert both(spell, str(spell.gold)) == both(sums().prompt(0), str(sums().prompt(0).gold)) == 1.0
    assert both(spell, "999") < 1.0


def test_rows_of_the_training_task_are_left_out_of_a_held_out_one_and_counted() -> None:
    train, evaluation = sums(), sums(seed=20)
    shared = {train.prompt(i).text for i in range(len(train))} & {evaluation.prompt(i).text for i in range(len(evaluation))}
    assert shared
    held_out = evaluation.excluding({train.prompt(i).text for i in range(len(train))})
    assert len(held_out) == len(evaluation) - len(shared)
    assert held_out.counts["excluded"] == len(shared)
    assert shared.isdisjoint(held_out.prompt(i).text for i in range(len(held_out)))


def test_a_held_out_task_without_rows_of_its_own_is_refused() -> None:
    with pytest.raises(DataError, match=r"no rows left.*excluded"):
        sums().excluding({sums().prompt(i).text for i in range(len(sums()))})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "chain_sums"}, "'chain_sums': reasoning-gym has no such generator; did you mean chain_sum"),
        ({"name": ""}, "there are 1"),
        (
            {"name": "chain_sum", "parameters": {"min_term": 2}},
            "task.parameters.min_term: .*did you mean min_terms.*it has min_terms, max_terms",
        ),
        ({"name": "chain_sum", "parameters": {"seed": 2}}, "task.parameters.seed: set task.seed"),
        ({"name": "chain_sum", "parameters": {"min_terms": 0}}, "chain_sum refuses min_terms = 0: min_terms must be positive"),
        ({"name": "chain_sum", "parameters": {"min_terms": "two"}}, "chain_sum refuses min_terms = 'two'"),
    ],
)
def test_a_wrong_generator_or_parameter_is_named_with_what_exists(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(TaskConfig(**settings), ByteTokenizer(), seed=0, max_prompt_tokens=500)  # type: ignore[arg-type]


def test_tasks_and_rewards_load_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from paceline.ports.fakes.data import ByteTokenizer; from paceline.config.schema import TaskConfig, RewardConfig;"
        "from paceline.tasks import load; from paceline.rewards import load_judge;"
        "task = load(TaskConfig(name='chain_sum', size=3), ByteTokenizer(), seed=0, max_prompt_tokens=500);"
        "load_judge([RewardConfig()]).check(task.prompt(i) for i in range(len(task)));"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
