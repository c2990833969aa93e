"""Engine and trainer run where their model lies: on an accelerator if there is one, and on a pretended device everywhere."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from elsewhere import DEVICE, Elsewhere
from engine_help import drain, engine, prompt, request

from paceline.algo.logprobs import token_logprobs
from paceline.config.schema import AlgorithmConfig, ModelConfig, RolloutConfig, TrainerConfig
from paceline.models.load import load
from paceline.models.tiny import write_tiny
from paceline.ports.fakes.training import scored_group
from paceline.trainers.attend import block_attend
from paceline.trainers.packing import Block
from paceline.trainers.torch_trainer import TorchTrainer
from paceline.types.records import LOGPROB, LOGPROB_KEPT, VERSION
from paceline.types.weights import WeightsRef

NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.fixture(params=["pretended", pytest.param("cuda", marks=NO_CUDA)])
def device(request):
    """Name of a device that is not the CPU."""
    if request.param == "cuda":
        yield "cuda"
    else:
        with Elsewhere():
            yield str(DEVICE)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Directories of two sets of weights of one shape."""
    root = tmp_path_factory.mktemp("devices")
    return [write_tiny(root / f"v{seed}", seed=seed, dtype="float64") for seed in range(2)]


def loaded(directory, device, dtype="float64", **options):
    return load(ModelConfig(path=str(directory), dtype=dtype), device=device, **options)


def serving(directory, device, dtype="float64", **options):
    made = engine((loaded(directory, device, dtype), str), **options)
    made.load(WeightsRef(0), str(directory))
    return made


def workload():
    """Greedy, plain and filtered rows; prompts of 3 to 17 tokens."""
    settings = ({}, {"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 5})
    return [request(g, s, prompt(g, 3 + 7 * g), max_tokens=4 + 5 * s, **settings[(g + s) % 4]) for g in range(3) for s in range(4)]


def same(found, right, bound):
    assert found.keys() == right.keys()
    for key, expected in right.items():
        assert found[key].ids.tolist() == expected.ids.tolist(), key
        for name in {LOGPROB, LOGPROB_KEPT, VERSION} & expected.columns.keys():
            assert np.abs(found[key].columns[name] - expected.columns[name]).max() <= bound


def test_an_engine_samples_the_same_tokens_where_its_model_lies_also_when_memory_is_short(models, device):
    results = []
    for place in ("cpu", device):
        made = serving(models[0], place, slots=9, kv_tokens=64, prefill_tokens=12)
        made.submit(workload())
        results.append(drain(made))
        assert made.preempted
    same(results[1], results[0], 1e-10)


def test_weights_that_arrive_under_work_reach_the_device(models, device):
    results, probes = [], []
    for place in ("cpu", device):
        made = serving(models[0], place)
        made.submit(workload())
        found = {(t.group, t.sample): t for _ in range(3) for t in made.step()}
        made.load(WeightsRef(1), str(models[1]), "recompute", 0)
        results.append(found | drain(made))
        probes.append(made.probe(prompt(5, 30).tolist()))
    same(results[1], results[0], 1e-10)
    assert np.abs(np.subtract(probes[0].logprobs, probes[1].logprobs)).max() <= 1e-10
    assert probes[0].fingerprint == probes[1].fingerprint


def test_trajectories_move_between_devices_with_their_keys_and_values(models, device, tmp_path):
    right = serving(models[0], "cpu")
    right.submit(workload())
    first, second = serving(models[0], device), serving(models[0], "cpu")
    first.submit(workload())
    found = {(t.group, t.sample): t for _ in range(4) for t in first.step()}
    for source, target in ((first, second), (second, first)):
        left = source.hand_over([(g, s) for g in range(3) for s in range(4)], str(tmp_path / "state"))
        assert left
        assert target.take_in(str(tmp_path / "state")).prefilled_tokens == 0
        found |= {(t.group, t.sample): t for t in target.step()}
    same(found | drain(first), drain(right), 1e-10)


def test_bfloat16_computes_there_too(models, device):
    results = []
    for place in ("cpu", device):
        made = serving(models[0], place, "bfloat16")
        results.append(np.array(made.probe(prompt(1, 40).tolist()).logprobs))
    assert np.abs(results[0] - results[1]).mean() < 0.03


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.8, 0), (0.9, 30)])
def test_the_trainers_forward_pass_scores_the_same_on_another_device(models, device, top_p, top_k):
    ids = torch.tensor([*range(11, 31), *range(40, 52), 7, 8, 9])
    positions = torch.cat([torch.arange(32), torch.arange(20, 23)])
    blocks = [Block(20, (12, 3))]
    scores = []
    for place in ("cpu", device):
        model = loaded(models[0], place).model
        with torch.no_grad():
            attend = block_attend(blocks, model.shape.scale, torch.device(place))
            hidden = model.hidden(ids.to(place), positions.to(place), attend)
            scores.append(token_logprobs(hidden[:-1], ids[1:].to(place), model.logits, temperature=0.9, top_p=top_p, top_k=top_k, chunk=8))
    for name in ("logp", "kept"):
        assert torch.allclose(getattr(scores[0], name), getattr(scores[1], name).cpu(), rtol=0, atol=1e-10)


@NO_CUDA
def test_an_update_on_a_cuda_device_moves_the_weights_as_on_the_cpu(models, tmp_path):
    moved = []
    for place in ("cpu", "cuda"):
        model = loaded(models[0], place, train=True)
        trainer = TorchTrainer(
            model,
            algorithm=AlgorithmConfig(gap_stop=1e9),
            trainer=TrainerConfig(warmup_updates=0, learning_rate=1e-3),
            rollout=RolloutConfig(),
            model=ModelConfig(path=str(models[0]), dtype="float64"),
            total_updates=1,
        )
        trainer.accumulate([scored_group(group, [9, 40 + group, 7], [[60, 61, 62], [70, 71]], (1.0, 0.0)) for group in range(2)])
        assert trainer.step().applied
        trainer.save(str(tmp_path / place))
        moved.append({name: tensor.detach().cpu() for name, tensor in model.model.named_parameters()})
    for name, right in moved[0].items():
        assert torch.allclose(moved[1][name], right, rtol=0, atol=1e-9), name
