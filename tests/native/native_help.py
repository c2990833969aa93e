"""Numbers for the tests of the kernels."""

import torch


def numbers(*size, dtype=torch.float32, seed=0, scale=1.0):
    return (scale * torch.randn(size, generator=torch.Generator().manual_seed(seed))).to(dtype)
