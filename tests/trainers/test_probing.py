from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from paceline.config.schema import ModelConfig
from paceline.models.load import load
from paceline.models.tiny import write_tiny
from paceline.trainers.attend import block_attend
from paceline.trainers.packing import Block
from paceline.trainers.probing import STILL, Probing

torch.set_num_threads(1)
IDS = [5, 9, 30, 31, 77, 12, 40, 8]
Make = Callable[[str], tuple[Probing, torch.nn.Module]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def _make(dtype: str) -> tuple[Probing, torch.nn.Module]:
        model = load(ModelConfig(path=str(write_tiny(tmp_path / dtype)), dtype=dtype), train=True).model
        assert isinstance(model, torch.nn.Module)
        return Probing(model, torch.device("cpu"), 64, None), model  # type: ignore[arg-type]

    return _make


def rounding(probing: Probing, ids: list[int]) -> float:
    return probing.rounding(ids, probing.logprobs(ids))


def moved(model: torch.nn.Module, factor: float) -> None:
    with torch.no_grad():
        for tensor in model.parameters():
            tensor *= factor


def test_rounding_is_the_mean_distance_from_another_attention_and_none_where_nothing_is_rounded(make: Make) -> None:
    narrow, model = make("bfloat16")
    logprobs = narrow.logprobs(IDS)
    other = block_attend([Block(len(IDS), ())], model.shape.scale, torch.device("cpu"))  # type: ignore[union-attr, arg-type]
    found = narrow.rounding(IDS, logprobs)
    assert found == float((narrow._logprobs(IDS, other) - logprobs).abs().mean())
    assert found > 0
    assert [rounding(make(dtype)[0], IDS) for dtype in ("float32", "float64")] == [0.0, 0.0]


def test_rounding_is_measured_again_for_other_tokens_and_once_the_log_probs_have_moved(make: Make) -> None:
    probing, model = make("bfloat16")
    first, before = rounding(probing, IDS), probing.logprobs(IDS)
    moved(model, 1.0005)
    assert 0 < float((probing.logprobs(IDS) - before).abs().mean()) < STILL
    assert rounding(probing, IDS) == first, "what it was, though the log-probs are others"
    moved(model, 1.5)
    assert float((probing.logprobs(IDS) - before).abs().mean()) > STILL
    assert rounding(probing, IDS) == rounding(Probing(model, torch.device("cpu"), 64, None), IDS) != first  # type: ignore[arg-type]
    assert rounding(probing, IDS[:4]) == rounding(Probing(model, torch.device("cpu"), 64, None), IDS[:4])  # type: ignore[arg-type]


def test_weights_that_are_no_numbers_leave_no_rounding_behind(make: Make) -> None:
    probing, model = make("bfloat16")
    good, kept = rounding(probing, IDS), [tensor.clone() for tensor in model.parameters()]
    moved(model, float("nan"))
    assert rounding(probing, IDS) != rounding(probing, IDS), "not a number"
    with torch.no_grad():
        for tensor, old in zip(model.parameters(), kept, strict=True):
            tensor.copy_(old)
    assert rounding(probing, IDS) == good
