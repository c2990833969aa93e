"""What the tests of the kernels share."""

import pytest
import torch

from paceline.native.calls import kernels


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def native(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield kernels("native")
    torch.set_num_threads(before)
