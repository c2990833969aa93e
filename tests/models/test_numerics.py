"""What two computations must share to give the same bits is named, whole, and stable."""

import pytest
import torch

from paceline.models.numerics import numerics


def test_the_build_and_the_instruction_set_are_named_and_do_not_change_from_call_to_call() -> None:
    found = numerics()
    assert torch.__version__ in found["torch"]
    assert torch.backends.cpu.get_cpu_capability() in found["instruction set"]
    assert numerics() == found


def test_what_makes_libraries_choose_other_kernels_shows_and_the_number_of_threads_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = numerics()
    monkeypatch.setenv("OMP_NUM_THREADS", "17")
    assert numerics() == found
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert "ONEDNN_MAX_CPU_ISA=AVX2" in numerics()["kernels by environment"]
