"""TRL's side of `step_vs_trl.py`, run by the Python of TRL's own environment: a few updates of GRPOTrainer, each timed, as JSON to a file.

It imports nothing of paceline's. Rewards are noise from the sampled ids, so that every token is trained on; every completion has exactly
max_tokens tokens. Weights are float32 and computed in bfloat16 under autocast, generation too.
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Timed(GRPOTrainer):
    """Adds up the seconds of generation, which runs inside a step."""

    generated = 0.0

    def _generate_single_turn(self, *arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16):
            result = super()._generate_single_turn(*arguments, **options)
        self.generated += time.perf_counter() - started
        return result


class Steps(TrainerCallback):
    """One row per update: seconds in all and of generation."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.trainer: Timed | None = None

    def on_step_begin(self, *arguments: Any, **options: Any) -> None:
        assert self.trainer is not None
        self._started, self.trainer.generated = time.perf_counter(), 0.0

    def on_step_end(self, *arguments: Any, **options: Any) -> None:
        assert self.trainer is not None
        seconds = time.perf_counter() - self._started
        self.rows.append({"seconds": seconds, "generation": self.trainer.generated, "training": seconds - self.trainer.generated})


def noise(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """As paceline's side has it."""
    return [zlib.crc32(repr(list(map(int, ids))).encode()) / 2**32 for ids in completion_ids]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "job", type=Path, help="JSON: model, prompts, group_size, groups, max_tokens, updates, threads, rate, micro_batch, out"
    )
    job = json.loads(parser.parse_args().job.read_text())
    torch.set_num_threads(job["threads"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32, attn_implementation=job["attention"])
    batch = job["groups"] * job["group_size"]
    config = GRPOConfig(
        output_dir=job["scratch"],
        use_cpu=True,
        bf16=True,
        gradient_checkpointing=False,
        max_steps=job["updates"],
        num_generations=job["group_size"],
        per_device_train_batch_size=job["micro_batch"],
        gradient_accumulation_steps=batch // job["micro_batch"],
        max_completion_length=job["max_tokens"],
        generation_kwargs={"min_new_tokens": job["max_tokens"]},
        learning_rate=job["rate"],
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        max_grad_norm=1.0,
        beta=0.0,
        loss_type="dapo",
        optim="adamw_torch_fused",
        save_strategy="no",
        report_to=[],
        logging_steps=1000,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    steps = Steps()
    rows = Dataset.from_list([{"prompt": prompt} for prompt in job["prompts"]])
    trainer = Timed(model=model, args=config, reward_funcs=noise, train_dataset=rows, processing_class=tokenizer, callbacks=[steps])
    steps.trainer = trainer
    trainer.train()
    Path(job["out"]).write_text(json.dumps({"rows": steps.rows}))


if __name__ == "__main__":
    main()
