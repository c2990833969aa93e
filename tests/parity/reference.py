"""Gradients written out plainly, and those of the trainer: one place for the parity tests and the script that measures the differences."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from paceline.config.schema import AlgorithmConfig, ModelConfig, RolloutConfig, TrainerConfig
from paceline.models.hf import KeepDouble
from paceline.models.load import load
from paceline.native.calls import Kernels
from paceline.ports.fakes.training import scored_group
from paceline.trainers.torch_trainer import TorchTrainer
from paceline.types.records import LOGPROB, LOGPROB_KEPT, ScoredGroup

BOUND = {"float32": 1e-5, "float64": 1e-12}
"""Largest relative L2 difference of the whole gradient."""
CLIPPED = {"clip_low": 0.1, "clip_high": 0.15, "dual_clip": 1.3}
Gradient = dict[str, torch.Tensor]


def plain_model(directory: Path, dtype: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype), attn_implementation="eager").eval()


def plain_logits(model: Any, groups: list[ScoredGroup]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every sample padded on the right with its own prompt: logits that predict each completion token, ids and mask [B, T]."""
    trajectories = [t for g in groups for t in g.trajectories]
    longest = max(len(t.ids) for t in trajectories)
    width = max(len(t.prompt_ids) + len(t.ids) for t in trajectories)
    ids = torch.zeros(len(trajectories), width, dtype=torch.int64)
    attention = torch.zeros_like(ids)
    for row, t in enumerate(trajectories):
        text = torch.from_numpy(np.concatenate([t.prompt_ids, t.ids]).astype(np.int64))
        ids[row, : len(text)] = text
        attention[row, : len(text)] = 1
    with KeepDouble():
        logits = model(ids, attention_mask=attention, use_cache=False).logits
    starts = torch.tensor([len(t.prompt_ids) for t in trajectories])
    places = starts[:, None] + torch.arange(longest)
    mask = torch.arange(longest) < torch.tensor([len(t.ids) for t in trajectories])[:, None]
    chosen = ids.gather(1, places.clamp(max=width - 1))
    rows = logits.gather(1, (places - 1).clamp(max=width - 1)[..., None].expand(-1, -1, logits.shape[-1]))
    return rows, chosen, mask


LENGTHS = ((3, 9, 1, 17), (6, 6, 0, 2), (12, 4, 8, 1))
REWARDS = ((1.0, 0.0, 0.5, 0.25), (0.0, 1.0, 0.0, 1.0), (1.0, 1.0, 0.0, 0.0))


def make_groups(
    model: Any, *, temperature: float = 1.0, noise: float = 0.2, top_p: float = 1.0, top_k: int = 0, sampled: bool = False
) -> list[ScoredGroup]:
    """Three groups of different prompts and lengths, an empty completion among them; behaviour log-probs by the plain model.

    `noise` moves the log-probs, so that ratios differ from 1; `sampled` draws the tokens from the model instead of evenly.
    """
    random = np.random.default_rng(5)
    prompts = [random.integers(5, 250, size) for size in (5, 11, 1)]
    completions = [[random.integers(5, 250, n) for n in row] for row in LENGTHS]
    if sampled:
        completions = [
            [_drawn(model, random, p, n, temperature, top_p, top_k) for n in row] for p, row in zip(prompts, LENGTHS, strict=True)
        ]
    bare = [scored_group(g, prompts[g], completions[g], REWARDS[g]) for g in range(3)]
    with torch.no_grad():
        logits, ids, _ = plain_logits(model, bare)
        scaled = logits.double() / temperature
        full = scaled.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
        kept = _kept(scaled, ids, top_p, top_k)
    full, kept = (x + noise * torch.from_numpy(random.standard_normal(x.shape)) for x in (full, kept))
    groups, row = [], 0
    for g, lengths in enumerate(LENGTHS):
        columns = [{LOGPROB: full[row + s, :n].numpy(), LOGPROB_KEPT: kept[row + s, :n].numpy()} for s, n in enumerate(lengths)]
        groups.append(scored_group(g, prompts[g], completions[g], REWARDS[g], columns=columns))
        row += len(lengths)
    return groups


def _drawn(model: Any, random: np.random.Generator, prompt: Any, count: int, temperature: float, top_p: float, top_k: int) -> list[int]:
    """Tokens drawn one by one from the filtered distribution."""
    text = prompt.tolist()
    for _ in range(count):
        with torch.no_grad(), KeepDouble():
            logits = model(torch.tensor([text]), use_cache=False).logits[0, -1] / temperature
        chosen = _set(logits, top_p, top_k)
        text.append(int(random.choice(chosen, p=logits[chosen].softmax(0).numpy())))
    return text[len(prompt) :]


def _set(logits: torch.Tensor, top_p: float, top_k: int) -> list[int]:
    """The kept set, written plainly: sort, keep the first k, then the shortest prefix with the mass."""
    order = logits.argsort(descending=True)[: top_k or None]
    mass = logits[order].softmax(0).cumsum(0)
    return order[: int((mass < top_p).sum()) + 1 if top_p < 1 else None].tolist()


def _kept(scaled: torch.Tensor, ids: torch.Tensor, top_p: float, top_k: int) -> torch.Tensor:
    """Log-prob over the kept set and the token itself."""
    result = torch.zeros(ids.shape, dtype=torch.float64)
    for place in np.ndindex(*ids.shape):
        logits, token = scaled[place], int(ids[place])
        result[place] = logits[token] - logits[sorted({*_set(logits, top_p, top_k), token})].logsumexp(0)
    return result


def plain_gradient(
    directory: Path, dtype: str, groups: list[ScoredGroup], *, temperature: float = 1.0, correction: dict[str, Any] | None = None
) -> Gradient:
    """GRPO with a token mean, written out over padded tensors; `correction` as in [algorithm]."""
    model = plain_model(directory, dtype)
    logits, ids, mask = plain_logits(model, groups)
    logp = (logits / temperature).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    old, values = torch.zeros_like(logp), torch.zeros(len(logp), 1, dtype=logp.dtype)
    row = 0
    for group in groups:
        rewards = torch.tensor(group.rewards, dtype=torch.float64)
        for value, t in zip((rewards - rewards.mean()) / (rewards.std() + 1e-4), group.trajectories, strict=True):
            old[row, : len(t.ids)] = torch.from_numpy(np.asarray(t.columns[LOGPROB])).to(logp.dtype)
            values[row] = value
            row += 1
    ratio = (logp - old).exp()
    per_token = -torch.minimum(ratio * values, ratio.clamp(1 - CLIPPED["clip_low"], 1 + CLIPPED["clip_high"]) * values)
    per_token = torch.where(values < 0, torch.minimum(per_token, -CLIPPED["dual_clip"] * values), per_token)
    if correction:
        weights, alone = _weights((logp - old).detach() * mask, mask, **correction)
        per_token = weights * (-values * (logp - logp.detach()).exp() if alone else per_token)
    ((per_token * mask).sum() / mask.sum()).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def _weights(
    log_ratio: torch.Tensor, mask: torch.Tensor, correction: str, correction_level: str, correction_low: float, correction_high: float
) -> tuple[torch.Tensor, bool]:
    """Weight of each token [B, T], and whether it stands in for the ratio to the behaviour policy."""
    sums = log_ratio.sum(1, keepdim=True).expand_as(log_ratio)
    mean = sums / mask.sum(1, keepdim=True).clamp(min=1)
    weight = {"token": log_ratio, "sequence": sums, "geometric": mean}[correction_level].exp()
    if correction == "truncate":
        return weight.clamp(max=correction_high), True
    inside = (weight >= correction_low) & (weight <= correction_high)
    return (weight * inside, True) if correction == "mask" else (inside.to(weight.dtype), False)


def our_gradient(
    directory: Path,
    dtype: str,
    dispatches: list[list[ScoredGroup]],
    *,
    implementation: str = "slim",
    budget: int = 4096,
    shared: bool = True,
    rollout: dict[str, Any] | None = None,
    algorithm: dict[str, Any] | None = None,
    head_chunk: int = 16,
    kernels: Kernels | None = None,
    **options: bool,
) -> Gradient:
    """Raw gradient sums of the trainer, divided by the number of tokens. `options` of [trainer]."""
    config = ModelConfig(path=str(directory), dtype=dtype, implementation=implementation)
    loaded = load(config, train=True)
    trainer = TorchTrainer(
        loaded,
        algorithm=AlgorithmConfig(**(CLIPPED | (algorithm or {}))),
        trainer=TrainerConfig(micro_batch_tokens=budget, head_chunk=head_chunk, **options),
        rollout=RolloutConfig(max_tokens=32, **(rollout or {})),
        model=config,
        total_updates=10,
        shared_prompts=shared,
        kernels=kernels,
    )
    for dispatch in dispatches:
        trainer.accumulate(dispatch)
    tokens = sum(len(t.ids) for dispatch in dispatches for group in dispatch for t in group.trajectories)
    return {name: p.grad / tokens for name, p in loaded.model.named_parameters()}


def distance(ours: Gradient, right: Gradient) -> float:
    """Relative L2 difference of the whole gradient."""
    assert ours.keys() == right.keys()
    apart = sum(float((ours[name].double() - right[name].double()).square().sum()) for name in right)
    whole = sum(float(gradient.double().square().sum()) for gradient in right.values())
    return (apart / whole) ** 0.5
