"""User functions with TRL's signature."""

from __future__ import annotations

import asyncio
import functools
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.rewards.functions import FunctionReward, Loop
from paceline.rewards.judge import Judge, Part
from paceline.rewards.resolve import resolve
from paceline.types.errors import ConfigError, RewardError
from paceline.types.records import Prompt, Trajectory

IDS = np.arange(3, dtype=np.int32)
LOOP = Loop()


def prompt(**changes: Any) -> Prompt:
    fields: dict[str, Any] = {
        "index": 9,
        "row": 7,
        "ids": IDS,
        "text": "2+2?",
        "gold": "4",
        "columns": {"answer": "4", "level": 3},
        "task": "sums",
    }
    return Prompt(**{**fields, **changes})


def samples(*texts: str) -> list[Trajectory]:
    return [Trajectory(5, i, 0, IDS, np.arange(len(text), dtype=np.int32), {}, "eos", text) for i, text in enumerate(texts)]


def values(reward: FunctionReward, *texts: str, row: Prompt | None = None) -> list[float | None]:
    trajectories = samples(*texts)
    return [score.value for score in reward.score([row or prompt()] * len(trajectories), trajectories)]


def test_a_function_gets_text_ids_columns_and_gold_by_name() -> None:
    seen: dict[str, Any] = {}

    def reward(prompts: list[str], completions: list[str], completion_ids: list[list[int]], **columns: Any) -> list[float]:
        seen.update(columns, prompts=prompts, completions=completions, completion_ids=completion_ids)
        return [float(len(c)) for c in completions]

    assert values(FunctionReward(reward), "ab", "c") == [2.0, 1.0]
    assert seen == {
        "prompts": ["2+2?"] * 2,
        "completions": ["ab", "c"],
        "completion_ids": [[0, 1], [0]],
        "answer": ["4", "4"],
        "level": [3, 3],
        "gold": ["4", "4"],
    }


def test_a_conversational_row_gives_messages_and_message_lists() -> None:
    messages = ({"role": "user", "content": "2+2?"},)

    def reward(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
        return [
            float(p[-1]["content"] == "2+2?" and c[0] == {"role": "assistant", "content": "4"})
            for p, c in zip(prompts, completions, strict=True)
        ]

    assert values(FunctionReward(reward), "4", "5", row=prompt(messages=messages)) == [1.0, 0.0]


def test_a_function_without_keywords_gets_only_what_it_names() -> None:
    def reward(completions: list[str], level: list[int]) -> list[float]:
        return [float(n) for n in level]

    assert values(FunctionReward(reward), "a", "b") == [3.0, 3.0]


def test_arguments_of_the_configuration_reach_the_function() -> None:
    def reward(completions: list[str], scale: float = 1.0) -> list[float]:
        return [scale * len(c) for c in completions]

    assert values(FunctionReward(reward, arguments={"scale": 0.5}), "abcd") == [2.0]
    with pytest.raises(ConfigError, match="scal "):
        FunctionReward(reward, arguments={"scal ": 1})


class Scorer:
    async def method(self, completions: list[str], **_: Any) -> list[float]:
        await asyncio.sleep(0.3)
        return [1.0 + i for i in range(len(completions))]

    async def __call__(self, completions: list[str], **_: Any) -> list[float]:
        return [7.0] * len(completions)


async def slow(delay: float, completions: list[str], **_: Any) -> list[float]:
    await asyncio.sleep(delay)
    return [10 * delay + i for i in range(len(completions))]


def plain(completions: list[str], **_: Any) -> list[float]:
    return [0.5] * len(completions)


def test_async_functions_run_at_the_same_time_and_keep_the_order_of_rows() -> None:
    both = threading.Barrier(2)

    async def together(delay: float, completions: list[str], **_: Any) -> list[float]:
        await asyncio.to_thread(both.wait, 8)
        return await slow(delay, completions)

    kinds: Sequence[tuple[str, Callable[..., Any]]] = (
        ("bound", Scorer().method),
        ("partial", functools.partial(together, 0.1)),
        ("hidden", lambda completions, **_: together(0.2, completions)),
        ("sync", plain),
    )
    judge = Judge([Part(FunctionReward(function, name=name)) for name, function in kinds])
    group = judge.score_group(prompt(), samples("a", "b", "c"))
    assert group.parts == {"bound": (1.0, 2.0, 3.0), "partial": (1.0, 2.0, 3.0), "hidden": (2.0, 3.0, 4.0), "sync": (0.5, 0.5, 0.5)}
    assert group.rewards == (4.5, 7.5, 10.5)


def test_async_functions_may_wait_for_each_other() -> None:
    meeting = asyncio.Barrier(3)

    async def reward(completions: list[str]) -> list[float]:
        await meeting.wait()
        return [1.0]

    judge = Judge([Part(FunctionReward(reward, name=name, timeout_s=5.0, loop=LOOP)) for name in "abc"])
    assert judge.score_group(prompt(), samples("x")).rewards == (3.0,)


async def test_an_async_function_works_inside_a_running_event_loop() -> None:
    assert values(FunctionReward(Scorer()), "a", "b") == [7.0, 7.0]


def test_a_client_bound_to_an_event_loop_lives_across_calls() -> None:
    loops = []

    async def reward(completions: list[str]) -> list[float]:
        loops.append(asyncio.get_running_loop())
        return [0.0]

    function = FunctionReward(reward)
    values(function, "a")
    values(function, "b")
    assert loops[0] is loops[1]
    function.close()


def test_a_timeout_of_the_functions_own_is_an_exception_of_it_and_no_missed_deadline() -> None:
    async def client(completions: list[str]) -> list[float]:
        raise TimeoutError("the service is slow")

    with pytest.raises(RewardError, match=r"reward client raised TimeoutError on row 7 of sums .*: the service is slow"):
        values(FunctionReward(client, timeout_s=5.0), "a")


def test_an_async_function_that_is_late_is_an_error_naming_function_and_row() -> None:
    reward = FunctionReward(functools.partial(slow, 30.0), timeout_s=0.05)
    with pytest.raises(RewardError, match=r"reward slow gave no answer within 0.05 s on row 7 of sums \(group 5, samples 0-1\)"):
        values(reward, "a", "b")


def test_an_async_function_that_blocks_its_loop_is_waited_for_as_a_sync_one_is() -> None:
    """Whoever gave it up would leave the loop blocked for the groups after it; its worker's deadline ends the whole process."""
    over: list[bool] = []

    async def blocking(completions: list[str]) -> list[float]:
        time.sleep(0 if over else 1.2)
        over.append(True)
        return [1.0]

    reward = FunctionReward(blocking, timeout_s=0.05)
    with pytest.raises(RewardError, match=r"no answer within 0.05 s"):
        values(reward, "a")
    assert over == [True]
    assert values(reward, "a") == [1.0]


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt("3"), asyncio.CancelledError("3")])
def test_what_would_end_a_process_or_a_task_is_an_exception_of_the_function(raised: BaseException) -> None:
    async def later(completions: list[str]) -> list[float]:
        raise raised

    def at_once(completions: list[str]) -> list[float]:
        raise raised

    async_only = isinstance(raised, asyncio.CancelledError)
    for function in (later,) if async_only else (later, at_once):
        with pytest.raises(RewardError, match=rf"raised {type(raised).__name__} on row 7 of sums \(group 5, sample 0\): "):
            values(FunctionReward(function), "a")


def test_none_means_not_applicable() -> None:
    def reward(completions: list[str]) -> list[float | None]:
        return [None if c == "skip" else 1.0 for c in completions]

    assert values(FunctionReward(reward), "skip", "go") == [None, 1.0]


@pytest.mark.parametrize("value", [1, 1.0, True, np.float32(1.0), np.int64(1), np.bool_(True), np.array(1.0), torch.tensor(1.0)])
def test_every_kind_of_number_is_taken_as_a_float(value: Any) -> None:
    (got,) = values(FunctionReward(lambda completions: [value]), "a")
    assert got == 1.0
    assert type(got) is float


def test_an_array_of_rewards_is_as_good_as_a_list() -> None:
    assert values(FunctionReward(lambda completions: np.array([0.5, 1.5])), "a", "b") == [0.5, 1.5]


def boom(completions: list[str]) -> list[float]:
    return [1 / len(c) for c in completions]


class Mute(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]


def mute_boom(completions: list[str]) -> list[float]:
    raise Mute


async def late_boom(completions: list[str]) -> list[float]:
    return boom(completions)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (boom, r"reward boom raised ZeroDivisionError on row 7 of sums .*\(test_functions.py line \d+\)$"),
        (mute_boom, r"reward mute_boom raised Mute on row 7 of sums .*TypeError when asked for its text"),
        (late_boom, r"reward late_boom raised ZeroDivisionError on row 7 of sums .*\(test_functions.py line \d+\)$"),
        (lambda completions: [1.0], "returned 1 values for 2 completions on row 7"),
        (lambda completions: 1.0, "returned float on row 7"),
        (lambda completions: "ab", "returned str on row 7"),
        (lambda completions: None, "returned NoneType on row 7"),
        (lambda completions: [1.0, 10**400], r"gave inf on row 7 of sums \(group 5, sample 1\): rewards are finite"),
        (lambda completions: [1.0, float("nan")], r"gave nan on row 7 of sums \(group 5, sample 1\)"),
        (lambda completions: [float("-inf"), 1.0], r"gave -inf on row 7 of sums \(group 5, sample 0\)"),
        (lambda completions: [1.0, np.ones(2)], r"gave ndarray on row 7 of sums \(group 5, sample 1\)"),
        (lambda completions: [1.0, "1"], r"gave str on row 7 of sums \(group 5, sample 1\)"),
        (lambda completions: [slow(0.0, []), 1.0], r"gave coroutine on row 7 of sums \(group 5, sample 0\)"),
    ],
)
def test_a_wrong_result_is_an_error_naming_function_and_row(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        values(FunctionReward(function), "a", "")


def test_a_function_that_needs_what_does_not_exist_is_refused_by_name() -> None:
    def reward(completions: list[str], trainer_state: Any, difficulty: list[int]) -> list[float]:
        return [0.0]

    with pytest.raises(
        RewardError, match=r"requires trainer_state, difficulty; a row offers answer, completion_ids, completions, gold, level, prompts"
    ):
        FunctionReward(reward).check(prompt())
    with pytest.raises(RewardError, match="requires trainer_state, difficulty"):
        values(FunctionReward(reward), "a")


def test_a_positional_only_parameter_is_refused() -> None:
    def reward(completions: list[str], /) -> list[float]:
        return [0.0]

    with pytest.raises(ConfigError, match="positional only"):
        FunctionReward(reward)


def test_functions_are_found_in_files_and_modules(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        textwrap.dedent("""
        class Judge:
            def method(self, completions):
                return [2.0]
        judge = Judge()
        def reward(completions):
            return [1.0]
        constant = 3
    """)
    )
    assert resolve(f"{path}:reward")(completions=["a"]) == [1.0]
    assert resolve(f"{path}:judge.method")(completions=["a"]) == [2.0]
    assert resolve(f"{path}:reward") is resolve(f"{path}:reward")
    assert resolve("math:sqrt")(4) == 2.0
    for reference, message in (
        ("reward", "expected `module:function`"),
        (":reward", "expected `module:function`"),
        (f"{path}:missing", "no 'missing'; it has Judge, judge|no 'missing'; it has"),
        (f"{path}:constant", "int is not callable"),
        (f"{tmp_path}/none.py:reward", "no file"),
        ("no_such_module_here:reward", "cannot import"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve(reference)


def test_a_function_finds_what_lies_beside_its_file_and_a_module_may_lie_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "beside_a_reward_of_a_test.py").write_text("VALUE = 3.0\n")
    own = "from beside_a_reward_of_a_test import VALUE\ndef reward(completions): return [VALUE for _ in completions]\n"
    (tmp_path / "sub" / "mine.py").write_text(own)
    (tmp_path / "module_of_a_test.py").write_text("def reward(completions): return [4.0 for _ in completions]\n")
    assert resolve("sub/mine.py:reward")(completions=["a"]) == [3.0]
    assert resolve("module_of_a_test:reward")(completions=["a"]) == [4.0]


def test_a_file_that_cannot_be_loaded_is_a_configuration_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    for content, message in (
        ("import no_such_module_here", "No module named 'no_such_module_here'"),
        ("def f(:", "invalid syntax"),
        ("\nopen('no such file')", r"FileNotFoundError: .* \(broken.py line 2\)"),
        ("raise SystemExit(4)", r"SystemExit: 4 \(broken.py line 1\)"),
    ):
        path.write_text(content)
        for _ in range(2):
            with pytest.raises(ConfigError, match=rf"broken.py:reward': cannot load .*broken.py: .*{message}"):
                resolve(f"{path}:reward")
