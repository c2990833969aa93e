"""An engine that decodes by compiled kernels: which weights it computes with, what it shares, and when it does without."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from engine_help import drain, engine, prompt, request, tiny

from paceline.cli import wire
from paceline.config.load import load as load_config
from paceline.models.store import write_tensors
from paceline.models.tiny import write_tiny
from paceline.native import calls
from paceline.native.calls import kernels
from paceline.native.machine import compiler
from paceline.types.errors import ConfigError, ModelError
from paceline.types.weights import WeightsRef

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
FAMILIES = ("llama", "qwen2", "qwen3")


def small(root, family="llama", dtype="float32", **options):
    return tiny(root, dtype, family=family, width=64, tied=family != "qwen2", **options)


def workload(version=0):
    return [request(g, s, prompt(g, 3 + 9 * g), max_tokens=8, version=version) for g in range(3) for s in range(3)]


def told(serving, version=0):
    serving.submit(workload(version))
    return {key: (t.ids.tolist(), t.columns["logprob"].tolist()) for key, t in drain(serving).items()}


def moved(model, path, seed):
    """A file with the model's weights, each moved a little."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: weight.detach() + 0.05 * torch.randn(weight.shape, generator=generator).to(weight.dtype)
        for name, weight in model.named_parameters()
    }
    write_tensors(tensors.items(), path, next(iter(tensors.values())).dtype)
    return str(path)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_after_every_load_it_computes_with_what_was_loaded(tmp_path, family, dtype):
    model, cold = small(tmp_path / "m", family, dtype), small(tmp_path / "c", family, dtype)
    serving, found = engine(model, kernels="native"), []
    for version in range(3):
        file = moved(cold[0].model, tmp_path / f"{version}.safetensors", version)
        serving.load(WeightsRef(version, "full", ""), file, replaces=version - 1 if version else None)
        found.append(told(serving, version))
        fresh = engine(cold, kernels="native")
        fresh.load(WeightsRef(0, "full", ""), file)
        assert found[-1] == told(fresh)
        cold = small(tmp_path / "c", family, dtype)
    assert found[0] != found[1] != found[2]


def test_versions_side_by_side_are_each_computed_with_their_own_weights(tmp_path):
    model = small(tmp_path / "m")
    serving = engine(model, slots=20, versions_held=2, kernels="native")
    files = [moved(model[0].model, tmp_path / f"{version}.safetensors", version) for version in range(2)]
    for version, file in enumerate(files):
        serving.load(WeightsRef(version, "full", ""), file)
    serving.submit([r for version in range(2) for r in [request(10 * version, 0, prompt(5, 9), max_tokens=8, version=version)]])
    together = {group: t.ids.tolist() for (group, _), t in drain(serving).items()}
    for version, file in enumerate(files):
        alone = engine(small(tmp_path / "m"), kernels="native")
        alone.load(WeightsRef(0, "full", ""), file)
        alone.submit([request(10 * version, 0, prompt(5, 9), max_tokens=8)])
        assert drain(alone)[10 * version, 0].ids.tolist() == together[10 * version]


def test_engines_that_share_a_model_do_not_change_each_other(tmp_path):
    model = small(tmp_path / "m")
    plain = told(engine(model))
    native, exact = engine(model, kernels="native"), engine(model, kernels="native", deterministic=True)
    tiled = engine(model, deterministic=True)
    before = [told(one) for one in (native, exact, tiled)]
    assert told(engine(model)) == plain
    assert [told(one) for one in (tiled, exact, native)] == before[::-1]


def test_weights_that_kernels_cannot_read_are_refused_before_any_address_is_given(tmp_path):
    served = small(tmp_path / "m")[0].model
    view = served.served(kernels("native"))
    served.to(torch.float64)
    with pytest.raises(ModelError, match=r"model.embed_tokens.weight: compiled kernels read .* this is torch.float64 on cpu"):
        view.hidden(torch.tensor([3, 4]), torch.tensor([0, 1]), lambda layer, q, k, v: q)


@pytest.mark.parametrize(("options", "reason"), [
    ({"dtype": "float64"}, "in torch.float64"),
    ({"width": 32}, "with heads of 8"),
])  # fmt: skip
def test_an_engine_says_why_it_does_without_kernels(tmp_path, options, reason):
    model = tiny(tmp_path / "m", options.get("dtype", "float32"), width=options.get("width", 64))
    serving = engine(model, kernels="auto")
    assert serving.without_kernels == f"attention is not compiled for keys and values {reason}"
    assert engine(model).without_kernels == "there are none"


def body_config(root, *words):
    write_tiny(root / "model", width=64)
    own = (f"model.path={root / 'model'}", "model.dtype=float32", "task.kind=reasoning_gym", "task.name=chain_sum", "rollout.slots=2")
    return load_config(None, [*own, "reward.0.kind=numeric", f"run.dir={root / 'run'}", *words])


def test_native_insists(tmp_path):
    wire.rollout_body(body_config(tmp_path, "rollout.kernels=native"), "rollout-0")
    config = body_config(tmp_path, "rollout.kernels=native")
    write_tiny(tmp_path / "model", width=32)
    with pytest.raises(ConfigError, match=r"rollout.kernels = 'native': attention is not compiled .* with heads of 8"):
        wire.rollout_body(config, "rollout-0")


@pytest.mark.parametrize(("width", "implementation", "reason"), [
    (32, "auto", r"heads of 8 numbers are no multiple of 16"),
    (64, "transformers", r"only the slim decoder can"),
])  # fmt: skip
def test_native_insists_in_the_trainer_too(tmp_path, width, implementation, reason):
    wire.trainer_body(body_config(tmp_path / "fits", "trainer.kernels=native"))
    config = body_config(tmp_path, "trainer.kernels=native")
    config = config.model_copy(update={"model": config.model.model_copy(update={"implementation": implementation})})
    write_tiny(tmp_path / "model", width=width)
    with pytest.raises(ConfigError, match=rf"trainer.kernels = 'native': {reason}"):
        wire.trainer_body(config)
    wire.trainer_body(body_config(tmp_path / "other", "trainer.kernels=auto", f"model.implementation={implementation}"))


def test_a_process_with_other_kernels_than_its_deterministic_run_is_refused(tmp_path):
    config, name = body_config(tmp_path, "run.deterministic=true"), kernels("native").name
    wire.rollout_body(config, "rollout-0", name)
    wire.trainer_body(config, name)
    for wanted in ("kernels 0123", "none"):
        for worker, body in (
            ("rollout-0", partial(wire.rollout_body, config, "rollout-0")),
            ("trainer", partial(wire.trainer_body, config)),
        ):
            with pytest.raises(ConfigError, match=rf"{worker} has kernels.*, the run's compiled kernels are {wanted}"):
                body(wanted)
    operators = body_config(tmp_path, "run.deterministic=true", "rollout.kernels=torch", "trainer.kernels=torch")
    wire.rollout_body(operators, "rollout-0", "none")
    wire.trainer_body(operators, "none")


def test_without_a_compiler_a_process_cannot_join_a_deterministic_run_with_kernels(tmp_path, monkeypatch):
    config, name = body_config(tmp_path, "run.deterministic=true"), kernels("native").name
    monkeypatch.setattr(calls, "_built", lambda: "no compiler")
    for body in (partial(wire.rollout_body, config, "rollout-0"), partial(wire.trainer_body, config)):
        with pytest.raises(ConfigError, match=rf"has no compiled kernels, the run's compiled kernels are {name}"):
            body(name)
