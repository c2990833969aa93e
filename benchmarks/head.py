"""What float32 logits cost: the head of SmolLM2 (49,152 x 576) by rows, in three ways, with the largest error of a logit.

And what packed float32 products gain and cost: three products of that model by rows, from packed weights and by the library's own order of
summation, with the error relative to float64 (root mean squares).

python benchmarks/head.py [--threads 1]: milliseconds are the best of `--repeats`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional as F

from evidence import best_seconds, measured
from paceline.models.head import Head
from paceline.models.kernels import Projection, bare_linear

VOCABULARY, WIDTH, INNER = 49_152, 576, 1536
PRODUCTS = {"gate and up": (2 * INNER, WIDTH), "down": (WIDTH, INNER), "head": (VOCABULARY, WIDTH)}
"""Outputs and inputs."""
ROWS = (1, 8, 64, 512)


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


def products(rows: int, repeats: int) -> list[dict[str, object]]:
    """One row of the result per float32 product and way of computing it."""
    generator = torch.Generator().manual_seed(0)
    found: list[dict[str, object]] = []
    for name, (outputs, inputs) in PRODUCTS.items():
        layer = bare_linear(inputs, outputs, False, torch.empty(0))
        layer.weight.requires_grad_(False).copy_(torch.randn(outputs, inputs, generator=generator))
        hidden = torch.randn(rows, inputs, generator=generator)
        right = hidden.double() @ layer.weight.double().t()
        ways: dict[str, Callable[[], torch.Tensor]] = {
            "library": partial(F.linear, hidden, layer.weight),
            "packed": partial(Projection(layer), hidden),
        }
        for way, run in ways.items():
            error = ((run().double() - right).square().mean() / right.square().mean()).sqrt()
            found.append(
                {"product": name, "rows": rows, "way": way, "ms": round(1e3 * best_seconds(run, repeats), 3), "error": float(error)}
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with torch.no_grad(), measured("head", repeats=arguments.repeats) as figures:
        figures["threads"] = arguments.threads
        figures["results"] = [line for n in ROWS for line in measure(n, arguments.repeats)]
        figures["float32"] = [line for n in ROWS for line in products(n, arguments.repeats)]


if __name__ == "__main__":
    main()
