"""What float32 logits cost: the head of SmolLM2 (49,152 x 576) by rows, in three ways, with the largest error of a logit.

python benchmarks/head.py [--threads 1]: milliseconds are the best of `--repeats`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch.nn import functional as F

from evidence import best_seconds, measured
from paceline.models.kernels import Head

VOCABULARY, WIDTH = 49_152, 576


def measure(rows: int, repeats: int) -> list[dict[str, object]]:
    """One row of the result per way of computing `rows` x logits."""
    generator = torch.Generator().manual_seed(0)
    weight = (torch.randn(VOCABULARY, WIDTH, generator=generator) * 0.2).bfloat16()
    hidden = torch.randn(rows, WIDTH, generator=generator).bfloat16()
    wide = weight.float()
    owner = torch.nn.Linear(1, 1, bias=False, device="meta")
    owner.weight = torch.nn.Parameter(weight, requires_grad=False)
    head = Head(owner)
    right = hidden[:8].double() @ weight.double().t()
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "bfloat16 result": lambda: F.linear(hidden, weight),
        "float32 product": lambda: F.linear(hidden.float(), wide),
        "paceline (bfloat16 product, float32 sum and result)": lambda: head(hidden),
    }
    return [
        {
            "rows": rows,
            "way": way,
            "ms": round(1e3 * best_seconds(run, repeats), 3),
            "largest_error": float((run()[:8].double() - right).abs().max()),
        }
        for way, run in ways.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with torch.no_grad(), measured("head", repeats=arguments.repeats) as figures:
        figures |= {"threads": arguments.threads, "results": [line for n in (1, 8, 64, 512) for line in measure(n, arguments.repeats)]}


if __name__ == "__main__":
    main()
