"""How far are the engine's log-probs from the trainer's, over 10^5 tokens of real answers, and what ratios does a first update see?

SmolLM2 answers the quickstart's prompts in groups of eight, as its recipe samples them. The trainer's model, float32 weights and the
compute dtype as in a run, scores the same tokens through the trainer's own packing, attention and head. The difference is trainer - engine,
nats; its exponential is the importance ratio of the first update, before anything has moved.
Usage: python benchmarks/logprob_gap.py [--tokens 1000]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from evidence import Quiet, measured
from paceline.algo.logprobs import token_logprobs
from paceline.config.load import load as load_config
from paceline.config.schema import AlgorithmConfig, Config, TrainerConfig
from paceline.models.load import load
from paceline.models.slim import SlimDecoder
from paceline.native.calls import kernels
from paceline.ports.rollout import Failure
from paceline.trainers.attend import block_attend
from paceline.trainers.packing import pack, plan
from paceline.trainers.sequences import TrainingSequence, training_sequences
from paceline.types.records import Request, Sampling, ScoredGroup, Trajectory
from serving import RECIPE, engine, loaded, prompts

AT_ONCE = 16
"""Groups that are generated, then scored, together."""
QUANTILES = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
Floats = npt.NDArray[np.float64]


def generated(config: Config, tokens: int) -> Iterator[list[ScoredGroup]]:
    """Groups until their answers hold so many tokens, some at a time. Their rewards are equal: nothing is trained here."""
    rollout, size = config.rollout, config.schedule.group_size
    serving = engine(loaded(config.model), rollout.slots, rollout.max_tokens)
    sampling = Sampling(rollout.max_tokens, rollout.temperature, rollout.top_p, rollout.top_k)
    first = sampled = 0
    while sampled < tokens:
        asked = {first + index: prompt for index, prompt in enumerate(prompts(first, AT_ONCE))}
        serving.submit([Request(g, s, 1, prompt.ids, sampling, config.run.seed, 0) for g, prompt in asked.items() for s in range(size)])
        answers = sorted(_drained(serving, size * AT_ONCE), key=lambda answer: (answer.group, answer.sample))
        members = {group: tuple(answer for answer in answers if answer.group == group) for group in asked}
        yield [ScoredGroup(group, asked[group], own, (0.0,) * size, (0.0,) * size) for group, own in members.items()]
        first, sampled = first + AT_ONCE, sampled + sum(len(answer.ids) for answer in answers)


def _drained(serving: Any, count: int) -> list[Trajectory]:
    found: list[Trajectory] = []
    while len(found) < count:
        for result in serving.step():
            assert not isinstance(result, Failure), result
            found.append(result)
    return found


@torch.no_grad()
def scored(model: SlimDecoder, sequences: Sequence[TrainingSequence], trainer: TrainerConfig, temperature: float) -> Floats:
    """Log-prob of every sampled token as the trainer computes it, in the order of the sequences."""
    parts, native = [], kernels(trainer.kernels)
    model.tune(layers_again=False, compiled=False, kernels=native)
    for batch in plan(sequences, trainer.micro_batch_tokens).batches:
        packed = pack([sequences[index] for index in batch.sequences])
        attend = block_attend(packed.blocks, model.shape.scale, torch.device("cpu"), kernels=native)
        hidden = model.hidden(packed.ids, packed.positions, attend)[packed.rows]
        scores = token_logprobs(
            hidden, packed.targets, model.logits, temperature=temperature, chunk=trainer.head_chunk, scorer=model.scores
        )
        parts.append(scores.logp)
    return torch.cat(parts).double().numpy()


def differences(config: Config, tokens: int) -> tuple[Floats, dict[str, Any]]:
    """trainer - engine for every token, and what the tokens are."""
    model = load(config.model, train=True).model
    assert isinstance(model, SlimDecoder)
    parts, answers, started = [], 0, time.perf_counter()
    for groups in generated(config, tokens):
        sequences = training_sequences(groups, AlgorithmConfig(), filtered=False, max_tokens=config.rollout.max_tokens)
        answers += len(sequences)
        recorded = np.concatenate([sequence.full for sequence in sequences]).astype(np.float64)
        parts.append(scored(model, sequences, config.trainer, config.rollout.temperature) - recorded)
    found = np.concatenate(parts)
    return found, {"tokens": len(found), "answers": answers, "seconds": round(time.perf_counter() - started)}


def figures_of(gaps: Floats, clip: tuple[float, float]) -> dict[str, Any]:
    """Sizes of the differences, and the ratios that they are."""
    sizes, ratios = np.abs(gaps), np.exp(gaps)
    return {
        "difference_nats": {
            "mean": float(sizes.mean()),
            "p99": float(np.quantile(sizes, 0.99)),
            "max": float(sizes.max()),
            "mean_signed": float(gaps.mean()),
        },
        "ratio": {
            "mean": float(ratios.mean()),
            "least": float(ratios.min()),
            "most": float(ratios.max()),
            "quantiles": {str(q): float(np.quantile(ratios, q)) for q in QUANTILES},
            "share_outside_the_clip": float(((ratios < 1 - clip[0]) | (ratios > 1 + clip[1])).mean()),
        },
    }


def main() -> None:
    """Measure, write the evidence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"], choices=("bfloat16", "float32"))
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tiny", action="store_true", help="a smoke test: a few tokens, nothing written")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    def _every(tokens: int) -> dict[str, Any]:
        result = {}
        for dtype in arguments.dtypes:
            config = load_config(RECIPE, [f"model.dtype={dtype}"])
            with Quiet() as quiet:
                gaps, what = differences(config, tokens)
            result[dtype] = what | figures_of(gaps, (config.algorithm.clip_low, config.algorithm.clip_high)) | {"other_load": quiet.found}
            print(dtype, json.dumps(result[dtype]), flush=True)
        return result

    if arguments.tiny:
        _every(1000)
        return
    with measured("logprob-gap") as figures:
        figures |= {"threads": arguments.threads, "dtypes": _every(arguments.tokens)}


if __name__ == "__main__":
    main()
