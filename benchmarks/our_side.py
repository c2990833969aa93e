"""paceline's side of `step_vs_trl.py`: the runtime with its own workers, but for lengths that do not end early.

A process of its own that imports what `paceline train` imports and nothing else, so that its memory is that of a run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lengths import REWARD, Lengths, workers
from paceline.cli import jobs
from paceline.config.schema import Config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path, help="JSON: model, prompts, group_size, groups, max_tokens, updates, threads, rate, dir, task")
    job = json.loads(parser.parse_args().job.read_text())
    Path(job["task"]).write_text("".join(json.dumps({"prompt": text}) + "\n" for text in job["prompts"]))
    config = Config.model_validate(
        {
            "run": {"dir": job["dir"], "updates": job["updates"], "keep_last": 1},
            "model": {"path": job["model"]},
            "task": {"kind": "file", "path": job["task"], "template": "plain", "shuffle": False},
            "reward": (dict(REWARD),),
            "rollout": {"slots": job["groups"] * job["group_size"], "max_prompt_tokens": 64, "max_tokens": job["max_tokens"]},
            "schedule": {"group_size": job["group_size"], "groups_per_update": job["groups"]},
            "trainer": {"learning_rate": job["rate"], "warmup_updates": 0},
            "pool": {"rollout_threads": job["threads"], "trainer_threads": job["threads"]},
        }
    )
    most = job["max_tokens"]
    outcome = jobs.train(config, workers=workers(config, Lengths(median=most, sigma=1.0, least=most, most=most)))
    assert outcome.ok, outcome.reason


if __name__ == "__main__":
    main()
