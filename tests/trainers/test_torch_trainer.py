from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline.config.schema import AlgorithmConfig, ModelConfig, RolloutConfig, TrainerConfig
from paceline.models.load import load
from paceline.models.packed import LoadedModel
from paceline.models.tiny import write_tiny
from paceline.native.build import library
from paceline.native.calls import Kernels, kernels
from paceline.native.machine import compiler, panels
from paceline.ports.fakes.training import scored_group
from paceline.trainers.torch_trainer import TorchTrainer
from paceline.types.errors import CheckpointDamaged, CheckpointError, ConfigError, ModelError, TrainerError
from paceline.types.records import LOGPROB, LOGPROB_KEPT, VERSION, ScoredGroup

torch.set_num_threads(1)
PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("trainer") / "model")


class Bench:
    """A trainer on the tiny model, with its weights in reach."""

    def __init__(
        self,
        tiny: Path,
        *,
        dtype: str = "float32",
        reference: bool | LoadedModel = False,
        updates: int = 100,
        kernels: Kernels | None = None,
        **sections: dict[str, Any],
    ) -> None:
        config = ModelConfig(path=str(tiny), dtype=dtype)
        self.loaded = load(config, train=True)
        self.trainer = TorchTrainer(
            self.loaded,
            algorithm=AlgorithmConfig(**({"gap_stop": 1e9} | sections.get("algorithm", {}))),
            trainer=TrainerConfig(**({"learning_rate": 1e-2, "warmup_updates": 0} | sections.get("trainer", {}))),
            rollout=RolloutConfig(**({"max_tokens": 8} | sections.get("rollout", {}))),
            model=config,
            total_updates=updates,
            reference=load(config) if reference is True else reference or None,
            kernels=kernels,
        )

    def weights(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten().clone() for _, p in self.loaded.model.named_parameters()])

    def gradient(self) -> torch.Tensor:
        named = self.loaded.model.named_parameters()
        return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten().clone() for _, p in named])

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        """Log-probs of a completion of PROMPT under the version last published."""
        return list(self.trainer.probe([*PROMPT, *ids]).logprobs[len(PROMPT) - 1 :])


def group(index: int = 0, rewards: Sequence[float] = (1.0, 0.0), **options: Any) -> ScoredGroup:
    completions = [[20, 21, 22], [30, 31], [40, 41, 42, 43], [50]][: len(rewards)]
    return scored_group(index, PROMPT, completions, rewards, **options)


def test_updates_make_rewarded_samples_more_likely_and_the_others_less(tiny: Path, tmp_path: Path) -> None:
    bench = Bench(tiny)
    seen = []
    for version in range(4):
        seen.append([bench.logprobs(ids) for ids in ([20, 21, 22], [30, 31])])
        bench.trainer.accumulate([group(logprobs=seen[-1], version=version)])
        metrics = bench.trainer.step().metrics
        assert metrics["ratio/max"] == pytest.approx(1.0, abs=1e-5), "on-policy at every version"
        assert metrics["logprob_gap/tokens"] == 5
        bench.trainer.publish(version + 1, str(tmp_path / "weights"))
    good, bad = ([sum(row[sample]) for row in seen] for sample in (0, 1))
    assert good == sorted(good)
    assert bad == sorted(bad, reverse=True)
    assert good[-1] > good[0] + 0.5
    assert bad[-1] < bad[0] - 0.5


def test_with_a_learning_rate_of_zero_fifty_updates_leave_every_bit_and_the_log_probs_constant(tiny: Path) -> None:
    bench = Bench(tiny, trainer={"learning_rate": 0.0, "weight_decay": 0.1})
    before = bench.weights()
    seen = set()
    for index in range(50):
        bench.trainer.accumulate([group(index)])
        report = bench.trainer.step()
        assert report.applied
        assert report.metrics["learning_rate"] == 0.0
        seen.add(report.metrics["logprob_gap/mean"])
    assert torch.equal(bench.weights(), before)
    assert len(seen) == 1


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_weights_after_an_update_do_not_depend_on_dispatches_micro_batches_or_order(tiny: Path, aggregation: str) -> None:
    groups = [group(0), group(1, (0.0, 1.0, 0.0)), group(2, (1.0, 1.0, 0.0, 0.5))]
    results = []
    for dispatches, budget in (([groups], 4096), ([[g] for g in groups], 4096), ([groups[::-1]], 4096), ([groups], 1)):
        bench = Bench(
            tiny, dtype="float64", algorithm={"aggregation": aggregation}, trainer={"micro_batch_tokens": budget, "learning_rate": 1e-3}
        )
        for dispatch in dispatches:
            bench.trainer.accumulate(dispatch)
        report = bench.trainer.step()
        results.append((bench.weights(), report))
    for weights, report in results[1:]:
        torch.testing.assert_close(weights, results[0][0], atol=1e-9, rtol=0)
        for name in ("loss", "grad_norm", "entropy", "clip_ratio/region_mean", "approx_kl", "ratio/max"):
            assert report.metrics[name] == pytest.approx(results[0][1].metrics[name], rel=1e-9, abs=1e-12), name


def test_the_gradient_is_clipped_after_scaling_so_its_norm_does_not_grow_with_the_batch(tiny: Path) -> None:
    norms = []
    for copies in (1, 4):
        bench = Bench(tiny, dtype="float64")
        bench.trainer.accumulate([group(index) for index in range(copies)])
        norms.append(bench.trainer.step().metrics["grad_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-10)


def test_the_deviation_of_the_batch_needs_the_whole_update_in_one_dispatch(tiny: Path) -> None:
    bench = Bench(tiny, algorithm={"advantage": "batch_std"})
    bench.trainer.accumulate([group(0), group(1, (0.0, 1.0))])
    with pytest.raises(ConfigError, match=r"batch_std.*must come in one dispatch"):
        bench.trainer.accumulate([group(2)])
    assert bench.trainer.step().groups == (0, 1)


def test_a_group_that_is_kept_learns_from_its_rewards_alone_whatever_its_outcomes(tiny: Path) -> None:
    def gradient(**options: Any) -> torch.Tensor:
        bench = Bench(tiny)
        bench.trainer.accumulate([group(0, (0.0, 0.12, 0.30, 0.05), **options)])
        return bench.gradient()

    assert gradient(outcomes=[0.0] * 4).abs().max() > 0, "shaping teaches in an all-wrong group"
    assert torch.equal(gradient(outcomes=[0.0] * 4), gradient(outcomes=[0.0, 0.0, 1.0, 0.0]))


def test_a_group_of_equal_rewards_has_no_gradient_and_counts_in_the_denominator(tiny: Path) -> None:
    bench = Bench(tiny)
    bench.trainer.accumulate([group(0, (0.3,) * 4, outcomes=[0.0] * 4)])
    assert (bench.gradient() == 0).all()
    bench.trainer.accumulate([group(1)])
    report = bench.trainer.step()
    assert report.metrics["frac_zero_advantage"] == 0.5
    assert report.tokens == 10 + 5, "its tokens count in the denominator"


@pytest.mark.parametrize(("masked", "pulled"), [(False, True), (True, False)])
def test_the_kl_term_reaches_groups_without_signal_unless_masked(tiny: Path, masked: bool, pulled: bool) -> None:
    bench = Bench(tiny, algorithm={"kl": "k3", "kl_weight": 0.04, "mask_kl_without_signal": masked})
    bench.trainer.accumulate([group(0)])
    bench.trainer.step()
    bench.trainer.accumulate([group(1, (1.0, 1.0))])
    assert bool(bench.gradient().abs().max() > 0) == pulled
    metrics = bench.trainer.step().metrics
    assert metrics["kl"] > 0, "measured either way"


def test_with_constant_reward_the_kl_to_the_starting_weights_falls(tiny: Path) -> None:
    bench = Bench(tiny, algorithm={"kl": "k3", "kl_weight": 1.0}, trainer={"learning_rate": 3e-3})
    for index in range(4):
        bench.trainer.accumulate([group(index)])
        bench.trainer.step()
    seen = []
    for index in range(20):
        bench.trainer.accumulate([group(10 + index, (1.0, 1.0))])
        seen.append(bench.trainer.step().metrics["kl"])
    assert seen[-1] < 0.2 * max(seen)


def test_a_reference_given_is_measured_against_without_a_weight_and_none_is_kept_otherwise(tiny: Path) -> None:
    given = Bench(tiny, reference=True, algorithm={"kl": "k3"})
    given.trainer.accumulate([group(0)])
    assert given.trainer.step().metrics["kl"] == pytest.approx(0.0, abs=1e-9)
    none = Bench(tiny, algorithm={"kl": "k3"})
    none.trainer.accumulate([group(0)])
    assert "kl" not in none.trainer.step().metrics


@pytest.mark.parametrize("tokens", [200, 400])
def test_a_reference_with_another_vocabulary_is_refused(tiny: Path, tmp_path: Path, tokens: int) -> None:
    config = ModelConfig(path=str(write_tiny(tmp_path / "other", vocab_size=tokens)), dtype="float32")
    with pytest.raises(ConfigError, match=rf"algorithm.reference = '.*other': it has {tokens} tokens and the policy 271"):
        Bench(tiny, reference=load(config), algorithm={"kl": "k3", "kl_weight": 0.1})


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_compiled_kernels_a_reference_given_says_what_the_starting_weights_say(tmp_path: Path, dtype: str) -> None:
    wide, weighted = write_tiny(tmp_path / "model", width=64), {"kl": "k3", "kl_weight": 0.1}
    given, kept = (
        Bench(wide, dtype=dtype, reference=reference, algorithm=weighted, kernels=kernels("native")) for reference in (True, False)
    )
    assert Bench(wide, dtype=dtype, algorithm=weighted, kernels=kernels("native")).trainer.accumulate([group(0)])["kl"] == 0, "of itself"
    for index in range(2):
        measured = [bench.trainer.accumulate([group(index)])["kl"] for bench in (given, kept)]
        assert measured[0] == measured[1]
        for bench in (given, kept):
            bench.trainer.step()


def test_truncated_samples_leave_loss_and_denominator(tiny: Path) -> None:
    masked = Bench(tiny, dtype="float64", algorithm={"mask_truncated": True})
    masked.trainer.accumulate([group(0, (1.0, 0.0, 0.5), truncated=[False, False, True])])
    report = masked.trainer.step()
    assert (report.sequences, report.tokens) == (2, 5)
    everything = Bench(tiny)
    everything.trainer.accumulate([group(0, (1.0, 0.0, 0.5), truncated=[False, False, True])])
    assert everything.trainer.step().tokens == 9


def test_masking_takes_out_exactly_the_part_of_the_sample_and_keeps_the_advantages_of_the_others(tiny: Path) -> None:
    def gradient(masked: bool, truncated: list[bool]) -> torch.Tensor:
        bench = Bench(tiny, dtype="float64", algorithm={"mask_truncated": masked, "clip_low": 1.0, "clip_high": 1e9})
        bench.trainer.accumulate([group(0, (1.0, 0.0, 0.3), truncated=truncated)])
        return bench.gradient()

    pieces = [gradient(True, [i != kept for i in range(3)]) for kept in range(3)]
    whole = gradient(False, [True] * 3)
    torch.testing.assert_close(pieces[0] + pieces[1] + pieces[2], whole, atol=1e-12, rtol=0)
    torch.testing.assert_close(gradient(True, [False, False, True]), pieces[0] + pieces[1], atol=1e-12, rtol=0)
    assert all(piece.abs().max() > 0 for piece in pieces[:2])


def test_an_update_without_a_single_loss_token_moves_nothing(tiny: Path) -> None:
    bench = Bench(tiny, algorithm={"mask_truncated": True})
    bench.trainer.accumulate([group(0)])
    bench.trainer.step()
    before = bench.weights()
    bench.trainer.accumulate([group(1, truncated=[True, True])])
    report = bench.trainer.step()
    assert (report.applied, report.tokens, report.metrics["loss"]) == (True, 0, 0.0)
    assert torch.equal(bench.weights(), before), "not even through the optimizer's momentum"


def test_a_finite_loss_with_a_gradient_that_is_not_skips_the_update_and_names_the_sample(tiny: Path) -> None:
    bench = Bench(tiny)
    logprobs = [[-1.0, -1.0, -1.0], [-1.0, -1.0]]
    broken = group(7, logprobs=[[-1.0, -250.0, -1.0], [-1.0, -1.0]])
    before = bench.weights()
    bench.trainer.accumulate([group(6, logprobs=logprobs), broken])
    report = bench.trainer.step()
    assert np.isfinite(report.metrics["loss"])
    assert not report.applied
    assert report.culprits == ((7, 0),)
    assert report.metrics["skipped_updates"] == 1
    assert torch.equal(bench.weights(), before)


def test_a_skipped_update_leaves_nothing_behind_but_its_number(tiny: Path) -> None:
    ends = []
    for skipped in (False, True):
        bench = Bench(tiny)
        bench.trainer.accumulate([group(0)])
        bench.trainer.step()
        if skipped:
            bench.trainer.accumulate([group(1, logprobs=[[-1.0, -250.0, -1.0], [-1.0, -1.0]])])
            bench.trainer.accumulate([group(2)])
            assert not bench.trainer.step().applied
        bench.trainer.accumulate([group(3)])
        report = bench.trainer.step()
        ends.append((bench.weights(), report))
    assert torch.equal(ends[0][0], ends[1][0]), "neither gradients nor moments nor the number of steps that AdamW counts"
    assert [report.update for _, report in ends] == [2, 3]
    assert ends[1][1].metrics["skipped_updates"] == 1


def test_the_gap_is_measured_on_tokens_of_the_present_weights_only(tiny: Path, tmp_path: Path) -> None:
    bench = Bench(tiny)
    bench.trainer.accumulate([group(0, version=0), group(1, version=3)])
    metrics = bench.trainer.step().metrics
    assert metrics["logprob_gap/tokens"] == 5
    assert {"logprob_gap/mean", "logprob_gap/p99", "logprob_gap/max"} <= metrics.keys()
    bench.trainer.accumulate([group(2, version=0)])
    metrics = bench.trainer.step().metrics
    assert metrics["logprob_gap/tokens"] == 0, "the weights are version 0 no longer"
    assert "logprob_gap/mean" not in metrics
    assert metrics["sampling/sampling_logp_difference/mean"] > 0
    bench.trainer.publish(1, str(tmp_path / "v1"))
    bench.trainer.accumulate([group(3, version=0), group(4, version=1)])
    assert bench.trainer.step().metrics["logprob_gap/tokens"] == 5


def test_a_trajectory_that_went_on_over_keys_and_values_of_earlier_weights_says_nothing_of_engine_and_trainer(tiny: Path) -> None:
    bench = Bench(tiny, algorithm={"gap_stop": 0.5})
    honest = [bench.logprobs(ids) for ids in ([20, 21, 22], [30, 31])]
    kept = [[-9.0] * 3, honest[1]]
    mixed = [{VERSION: np.array([-1, 0, 0], dtype=np.int32)}, {}]
    bench.trainer.accumulate([group(0, logprobs=kept, columns=mixed)])
    metrics = bench.trainer.step().metrics
    assert metrics["logprob_gap/tokens"] == 2
    assert metrics["logprob_gap/max"] < 1e-5
    assert metrics["sampling/sampling_logp_difference/max"] > 1


def test_a_gap_above_the_bound_stops_the_run_before_the_weights_move(tiny: Path) -> None:
    bench = Bench(tiny, algorithm={"gap_stop": 0.5})
    before = bench.weights()
    bench.trainer.accumulate([group(0, logprobs=[[-0.01] * 3, [-0.01] * 2])])
    with pytest.raises(TrainerError, match=r"differ by .* nats .*gap_stop = 0.5"):
        bench.trainer.step()
    assert torch.equal(bench.weights(), before)


def test_a_bfloat16_policy_keeps_float32_masters_so_that_small_updates_are_not_lost(tiny: Path, tmp_path: Path) -> None:
    bench = Bench(tiny, dtype="bfloat16", trainer={"learning_rate": 1e-5})
    before = bench.weights()
    assert before.dtype == torch.float32
    bench.trainer.accumulate([group(0)])
    bench.trainer.step()
    moved = (bench.weights() != before).float().mean()
    rounded = (bench.weights().bfloat16() != before.bfloat16()).float().mean()
    assert moved > 0.5 > 10 * rounded
    ref = bench.trainer.publish(1, str(tmp_path / "v1"))
    serving = load(ModelConfig(path=str(tiny), dtype="bfloat16"))
    assert serving.model.load_tensors(tmp_path / "v1") == ref.fingerprint, "published in serving dtype"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_the_probe_gives_what_a_model_loaded_from_the_published_file_computes(tiny: Path, tmp_path: Path, dtype: str) -> None:
    bench = Bench(tiny, dtype=dtype)
    bench.trainer.accumulate([group(0)])
    bench.trainer.step()
    bench.trainer.publish(1, str(tmp_path / "v1"))
    ids = [5, 9, 30, 31, 77, 12]
    probe = bench.trainer.probe(ids)
    config = ModelConfig(path=str(tiny), dtype=dtype)
    serving = load(config, train=True)
    serving.model.load_tensors(tmp_path / "v1")
    other = TorchTrainer(
        serving, algorithm=AlgorithmConfig(), trainer=TrainerConfig(), rollout=RolloutConfig(), model=config, total_updates=1
    )
    again = other.probe(ids)
    assert again.logprobs == probe.logprobs
    assert again.fingerprint == probe.fingerprint
    plain = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float64)
    assert np.mean(probe.logprobs) == pytest.approx(float(_plain_logprobs(bench, plain, ids).mean()), abs=0.05)


def _plain_logprobs(bench: Bench, plain: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        for name, weight in bench.loaded.model.named_parameters():
            plain.get_parameter(name).copy_(weight)
        logits = plain(torch.tensor([ids])).logits[0, :-1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])


def test_the_exported_directory_loads_with_transformers_and_holds_the_trained_weights(tiny: Path, tmp_path: Path) -> None:
    bench = Bench(tiny)
    bench.trainer.accumulate([group(0)])
    bench.trainer.step()
    bench.trainer.export(str(tmp_path / "out"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    for name, weight in bench.loaded.model.named_parameters():
        assert torch.equal(model.get_parameter(name), weight), name


def test_a_checkpoint_of_another_model_is_refused(tiny: Path, tmp_path: Path) -> None:
    Bench(tiny).trainer.save(str(tmp_path))
    other = Bench(write_tiny(tmp_path / "wide", width=64))
    with pytest.raises(CheckpointError, match=r"weights do not fit this model, e\.g\. 'model"):
        other.trainer.restore(str(tmp_path))


def flipped(content: bytes, place: int) -> bytes:
    damaged = bytearray(content)
    damaged[place] ^= 1
    return bytes(damaged)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit of the last tensor": lambda content: flipped(content, -1),
    "a bit of the length of the header": lambda content: flipped(content, 1),
    "a bit of the first name": lambda content: flipped(content, 12),
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
}


@pytest.mark.parametrize("damage", [*DAMAGES, "gone"])
@pytest.mark.parametrize("name", ["master.safetensors", "optimizer.safetensors", "trainer.json"])
def test_a_checkpoint_with_a_damaged_file_is_refused_by_its_name(tiny: Path, tmp_path: Path, name: str, damage: str) -> None:
    bench = Bench(tiny)
    bench.trainer.accumulate([group(0)])
    bench.trainer.step()
    bench.trainer.save(str(tmp_path))
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    if damage != "gone":
        (tmp_path / name).write_bytes(DAMAGES[damage](content))
    with pytest.raises(CheckpointDamaged, match=rf"{name}: (missing or )?damaged"):
        bench.trainer.restore(str(tmp_path))


def test_a_checkpoint_whose_counters_have_changed_is_refused(tiny: Path, tmp_path: Path) -> None:
    bench = Bench(tiny)
    bench.trainer.accumulate([group(0)])
    bench.trainer.step()
    bench.trainer.save(str(tmp_path))
    text = (tmp_path / "trainer.json").read_text()
    assert '"update": 1' in text
    (tmp_path / "trainer.json").write_text(text.replace('"update": 1', '"update": 3'))
    with pytest.raises(CheckpointDamaged, match=r"trainer\.json: missing or damaged \(it does not hold what was written"):
        bench.trainer.restore(str(tmp_path))


def test_a_restored_trainer_still_pulls_towards_the_starting_weights(tiny: Path, tmp_path: Path) -> None:
    algorithm = {"kl": "k3", "kl_weight": 0.1}
    first, second = Bench(tiny, algorithm=algorithm), Bench(tiny, algorithm=algorithm)
    first.trainer.accumulate([group(0)])
    first.trainer.step()
    first.trainer.save(str(tmp_path))
    second.trainer.restore(str(tmp_path))
    for bench in (first, second):
        bench.trainer.accumulate([group(1)])
    assert torch.equal(first.gradient(), second.gradient())
    assert first.trainer.step().metrics["kl"] == second.trainer.step().metrics["kl"] > 0


def test_parts_that_cancel_leave_no_gradient_although_outcomes_differ(tiny: Path) -> None:
    bench = Bench(tiny)
    bench.trainer.accumulate([group(0, (0.0, 0.0), outcomes=[1.0, 0.0])])
    assert (bench.gradient() == 0).all()
    assert bench.trainer.step().metrics["loss"] == 0.0


def test_the_overlong_penalty_moves_the_advantage_of_long_samples(tiny: Path) -> None:
    def gradient(buffer: int, rewards: tuple[float, ...], outcomes: list[float]) -> torch.Tensor:
        algorithm = {"overlong_buffer": buffer, "advantage": "group_mean"}
        bench = Bench(tiny, dtype="float64", algorithm=algorithm, rollout={"max_tokens": 4})
        bench.trainer.accumulate([group(0, rewards, outcomes=outcomes)])
        return bench.gradient()

    # Completions of 3, 2, 4 tokens: with a buffer of 2 below 4 the penalties are 0.5, 0 and 1.
    outcomes = [1.0, 0.0, 1.0]
    assert torch.equal(gradient(2, (1.0, 0.0, 1.0), outcomes), gradient(0, (0.5, 0.0, 0.0), outcomes))
    assert torch.equal(gradient(2, (0.0, 0.0, 0.0), [0.0] * 3), gradient(0, (-0.5, 0.0, -1.0), [0.0] * 3)), "where all are wrong too"


def test_under_a_filter_the_ratio_compares_kept_sets_and_the_gap_full_vocabularies(tiny: Path) -> None:
    settings = {"rollout": {"top_k": 3, "train_on_filtered": True, "max_tokens": 8}}
    columns = [{LOGPROB: np.full(n, -4.0), LOGPROB_KEPT: np.full(n, -0.5)} for n in (3, 2)]
    bench = Bench(tiny, **settings)
    metrics = bench.trainer.accumulate([group(0, columns=columns)])
    kept_only = [{LOGPROB: np.full(n, -9.0), LOGPROB_KEPT: np.full(n, -0.5)} for n in (3, 2)]
    other = Bench(tiny, **settings).trainer.accumulate([group(0, columns=kept_only)])
    assert metrics["ratio/max"] == other["ratio/max"]
    assert metrics["logprob_gap/mean"] != other["logprob_gap/mean"]
    with pytest.raises(TrainerError, match="group 3, sample 0: column 'logprob_kept' is missing"):
        bench.trainer.accumulate([group(3)])


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({LOGPROB: np.zeros(2)}, "group 0, sample 0: column 'logprob' has 2 values for 3 tokens"),
        ({VERSION: np.zeros(4)}, "group 0, sample 0: column 'version' has 4 values for 3 tokens"),
    ],
)
def test_columns_that_do_not_fit_the_tokens_are_refused_by_name(tiny: Path, columns: dict[str, Any], what: str) -> None:
    with pytest.raises(TrainerError, match=what):
        Bench(tiny).trainer.accumulate([group(0, columns=[columns, {}])])


def test_groups_that_contradict_themselves_are_refused(tiny: Path) -> None:
    bench = Bench(tiny)
    one, two = group(0), scored_group(0, [9, 9], [[1]], [1.0])
    mixed = ScoredGroup(0, one.prompt, (one.trajectories[0], two.trajectories[0]), (1.0, 0.0), (1.0, 0.0))
    with pytest.raises(TrainerError, match="its prompt differs"):
        bench.trainer.accumulate([mixed])
    strayed = ScoredGroup(5, one.prompt, one.trajectories, one.rewards, one.outcomes)
    with pytest.raises(TrainerError, match="belongs to group 0"):
        bench.trainer.accumulate([strayed])
    with pytest.raises(TrainerError, match="empty prompt"):
        bench.trainer.accumulate([scored_group(0, [], [[1]], [1.0])])
    with pytest.raises(ValueError, match="finite"):
        bench.trainer.accumulate([group(0, (float("nan"), 1.0))])
    bench.trainer.accumulate([one])
    assert bench.trainer.step().groups == (0,), "what was refused left nothing behind"


@pytest.mark.parametrize(
    ("sections", "what"),
    [
        ({"rollout": {"temperature": 0.0}}, "temperature = 0"),
        ({"rollout": {"top_p": 0.9}}, "train_on_filtered"),
        ({"algorithm": {"dual_clip": 0.5}}, "dual_clip must be > 1"),
        ({"algorithm": {"overlong_buffer": 9}}, "overlong_buffer must be between 0 and max_tokens"),
        ({"algorithm": {"kl_weight": 0.5}}, "no effect with kl none"),
    ],
)
def test_settings_without_meaning_are_refused_at_the_start(tiny: Path, sections: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Bench(tiny, **sections)


def test_master_weights_in_bfloat16_are_refused(tiny: Path) -> None:
    config = ModelConfig(path=str(tiny), dtype="bfloat16")
    with pytest.raises(ConfigError, match="load with train=True"):
        TorchTrainer(
            load(config), algorithm=AlgorithmConfig(), trainer=TrainerConfig(), rollout=RolloutConfig(), model=config, total_updates=1
        )


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_metrics_of_a_correction_are_those_of_the_whole_update_however_it_is_split(tiny: Path, level: str) -> None:
    first = Bench(tiny, dtype="float64")
    apart = {(20, 21, 22): [0.1, -0.1, 0.2], (30, 31): [1.5, 1.3], (40, 41, 42, 43): [0.0] * 4}
    behaviour = [[a + b for a, b in zip(first.logprobs(ids), more, strict=True)] for ids, more in apart.items()]
    groups = [group(index, (1.0, 0.0, 0.5), logprobs=behaviour) for index in range(3)]
    algorithm = {"correction": "mask", "correction_level": level, "correction_low": 0.3}
    seen = []
    for budget, dispatches in ((4096, [groups]), (1, [groups[:1], groups[1:]])):
        bench = Bench(tiny, dtype="float64", algorithm=algorithm, trainer={"micro_batch_tokens": budget})
        for dispatch in dispatches:
            bench.trainer.accumulate(dispatch)
        metrics = bench.trainer.step().metrics
        seen.append({name: value for name, value in metrics.items() if name.startswith(("correction/", "approx_kl"))})
    assert seen[0].keys() == seen[1].keys()
    assert "correction/weight_square/mean" not in seen[0]
    assert seen[0] == pytest.approx(seen[1], abs=1e-12)
    assert seen[0]["correction/masked"] == pytest.approx(2 / 9)
    assert 0.7 < seen[0]["correction/effective_share"] < 7 / 9


def test_what_only_the_slim_decoder_can_is_refused_by_name(tiny: Path) -> None:
    config = ModelConfig(path=str(tiny), implementation="transformers")
    for option in ("checkpoint_activations", "compile"):
        with pytest.raises(ConfigError, match=rf"trainer\.{option} = true: only the slim decoder"):
            TorchTrainer(
                load(config, train=True),
                algorithm=AlgorithmConfig(),
                trainer=TrainerConfig(**{option: True}),
                rollout=RolloutConfig(),
                model=config,
                total_updates=1,
            )


def test_without_a_compiler_the_trainer_does_not_start_and_says_which_one_is_missing(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ModelError, match=r"trainer\.compile = true needs a C\+\+ compiler: 'no-such-compiler'"):
        Bench(tiny, trainer={"compile": True})


class Counting(Kernels):
    """Counts how often it packs a head."""

    packed = 0

    def pack(self, weight: torch.Tensor, dtype: torch.dtype | None = None, over: bool = False) -> torch.Tensor:
        self.packed += len(weight) > 200
        return super().pack(weight, dtype, over)


@pytest.mark.skipif(not panels("bfloat16", 16, 64), reason="compiled kernels do not multiply bfloat16 on this machine")
def test_the_head_is_packed_once_per_version_whatever_is_asked_of_it(tiny: Path, tmp_path: Path) -> None:
    native = Counting(library())
    bench = Bench(tiny, dtype="bfloat16", kernels=native, trainer={"head_chunk": 2})
    for version in range(3):
        bench.trainer.probe([*PROMPT, 20, 21])
        for index in range(2):
            bench.trainer.accumulate([group(index)])
        bench.trainer.step()
        bench.trainer.publish(version, str(tmp_path / "weights"))
    assert native.packed == 3
