import subprocess
import sys

import pytest

from paceline.algo import length_metrics, overlong_penalty


def test_lengths_are_those_sampled_whatever_the_mask_leaves_out() -> None:
    metrics = length_metrics([3, 8, 5], [False, True, False])
    assert metrics == {
        "completions/mean_length": pytest.approx(16 / 3),
        "completions/min_length": 3,
        "completions/max_length": 8,
        "completions/clipped_ratio": pytest.approx(1 / 3),
        "completions/mean_terminated_length": 4,
        "completions/min_terminated_length": 3,
        "completions/max_terminated_length": 5,
    }


def test_when_everything_is_cut_there_is_no_terminated_length() -> None:
    metrics = length_metrics([8, 8], [True, True])
    assert metrics["completions/clipped_ratio"] == 1
    assert not any("terminated" in name for name in metrics)
    assert length_metrics([], []) == {}
    with pytest.raises(ValueError, match="2 lengths and 1 flags"):
        length_metrics([1, 2], [True])


@pytest.mark.parametrize(("tokens", "right"), [(0, 0.0), (16, 0.0), (17, -0.25), (18, -0.5), (20, -1.0)])
def test_the_overlong_penalty_falls_in_a_straight_line_over_the_buffer(tokens: int, right: float) -> None:
    assert overlong_penalty(tokens, max_tokens=20, buffer=4) == right
    assert overlong_penalty(tokens, max_tokens=20, buffer=4, penalty=3.0) == 3 * right
    assert overlong_penalty(tokens, max_tokens=20, buffer=0) == 0.0


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"tokens": 3, "max_tokens": 8, "buffer": 9}, "overlong_buffer must be between 0 and max_tokens"),
        ({"tokens": 3, "max_tokens": 8, "buffer": -1}, "got -1"),
        ({"tokens": 9, "max_tokens": 8, "buffer": 2}, "tokens must be between 0 and max_tokens"),
        ({"tokens": 3, "max_tokens": 8, "buffer": 2, "penalty": -1.0}, "overlong_penalty must be >= 0"),
    ],
)
def test_senseless_overlong_settings_are_refused(arguments: dict, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        overlong_penalty(**arguments)


def test_filter_shaping_and_lengths_work_without_loading_torch() -> None:
    code = "import sys, paceline.algo as a; a.has_signal([0, 1]); a.overlong_penalty(3, max_tokens=4, buffer=2); a.length_metrics([1], [False]); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"
