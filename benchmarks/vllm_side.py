"""vLLM's side of `decode.py`, run by the Python of vLLM's own environment: tokens per second per batch size, as JSON to a file.

It imports nothing of paceline's. All answers of a batch have the same length, so no slot is ever empty; nothing but token ids is asked for.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams


def rate(llm: Any, prompts: list[list[int]], tokens: int) -> float:
    """Sampled tokens per second, prefill included."""
    settings = SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    started = time.perf_counter()
    answers = llm.generate([{"prompt_token_ids": ids} for ids in prompts], settings, use_tqdm=False)
    seconds = time.perf_counter() - started
    sampled = sum(len(answer.outputs[0].token_ids) for answer in answers)
    assert sampled == tokens * len(prompts), f"{sampled} tokens sampled for {len(prompts)} answers of {tokens}"
    return sampled / seconds


def main() -> None:
    """Measure every batch once, after answers to the prompts of `warm_up`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "job", type=Path, help="JSON: model, dtype, tokens, batches (prompt ids of each answer, by batch size), warm_up, out"
    )
    job = json.loads(parser.parse_args().job.read_text())
    llm = LLM(
        model=job["model"],
        dtype=job["dtype"],
        max_model_len=256,
        max_num_seqs=max(map(int, job["batches"])),
        enable_prefix_caching=True,
        seed=0,
    )
    rate(llm, job["warm_up"], job["tokens"])
    found = {batch: rate(llm, prompts, job["tokens"]) for batch, prompts in job["batches"].items()}
    Path(job["out"]).write_text(json.dumps({"tokens_per_s": found}))


if __name__ == "__main__":
    main()
