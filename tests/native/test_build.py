"""The kernels' library: made once, found again, and a clear word where it cannot be made."""

import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from paceline.native import build, calls, machine
from paceline.native.build import BuildError, library
from paceline.types.errors import ConfigError

needs_compiler = pytest.mark.skipif(machine.compiler() is None, reason="no C++ compiler on this machine")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    calls._built.cache_clear()
    yield tmp_path / "cache"
    calls._built.cache_clear()


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@needs_compiler
def test_those_who_come_together_wait_for_the_one_that_compiles(cache, tmp_path, monkeypatch):
    count = tmp_path / "count"
    real = machine.compiler()
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", f'case "$*" in *" -c "*) echo x >> {count};; esac; exec {real} "$@"'))
    monkeypatch.setattr(build, "SOURCE", tmp_path / "small.cpp")
    build.SOURCE.write_text('extern "C" int answer() { return 42; }\n')
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: library(), range(3)))
    assert [one.answer() for one in found] == [42] * 3
    assert count.read_text() == "x\n"
    assert [path.suffix for path in cache.glob("kernels-*")] == [".so"]


@needs_compiler
def test_flags_that_a_compiler_does_not_know_are_left_out(tmp_path, monkeypatch):
    real = machine.compiler()
    refuse = 'case "$*" in *-fopenmp*|*native*) echo "unknown flag" >&2; exit 1;; esac'
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", f'{refuse}; exec {real} "$@"'))
    monkeypatch.setattr(build, "SOURCE", tmp_path / "small.cpp")
    build.SOURCE.write_text('extern "C" int answer() { return 42; }\n')
    assert library().answer() == 42


def test_other_code_or_another_compiler_gets_a_library_of_its_own(tmp_path, monkeypatch):
    before = build._digest("/bin/true")
    assert build._digest("/bin/false") != before
    monkeypatch.setattr(build, "SOURCE", tmp_path / "other.cpp")
    build.SOURCE.write_text("// other")
    assert build._digest("/bin/true") != before


def test_without_a_compiler_auto_goes_on_with_a_warning_and_native_is_refused(monkeypatch, caplog):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.WARNING):
        assert calls.kernels("auto") is None
    assert "no C++ compiler (no-such-compiler) on the path" in caplog.text
    with pytest.raises(ConfigError, match=r"rollout.kernels = 'native': no C\+\+ compiler"):
        calls.kernels("native")


def test_what_the_compiler_says_is_in_the_error(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", 'echo "internal error: out of luck" >&2; exit 4'))
    with pytest.raises(BuildError, match=r"does not compile kernels.cpp: .*out of luck"):
        library()
    assert calls.kernels("auto") is None


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", "exit 0"))
    with pytest.raises(BuildError, match=r"file/cache/kernels-.*Not a directory"):
        library()


@needs_compiler
def test_a_damaged_library_is_an_error_and_not_a_crash(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "SOURCE", tmp_path / "small.cpp")
    build.SOURCE.write_text('extern "C" int answer() { return 42; }\n')
    target = cache / f"kernels-{build._digest(machine.compiler())}.so"
    cache.mkdir()
    target.write_bytes(b"not a library")
    with pytest.raises(BuildError, match=str(target)):
        library()


def test_torch_is_asked_for_by_name(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert calls.kernels("torch") is None


@pytest.mark.parametrize(("dtype", "flags", "expected"), [
    ("bfloat16", "fpu avx512f avx512_bf16", True),
    ("bfloat16", "fpu avx512f", False),
    ("float32", "fpu avx512f", True),
    ("float32", "fpu avx2", False),
    ("float64", "fpu avx512f avx512_bf16", False),
])  # fmt: skip
def test_panels_are_expected_where_the_processor_has_the_feature(tmp_path, monkeypatch, dtype, flags, expected):
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", "exit 0"))
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: {flags}\n")
    assert machine.panels(dtype, tmp_path / "cpuinfo") is expected
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert machine.panels(dtype, tmp_path / "cpuinfo") is False


@needs_compiler
@pytest.mark.skipif(not os.path.exists("/proc/cpuinfo"), reason="no /proc/cpuinfo here")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_is_expected_of_this_machine_is_what_was_compiled(monkeypatch, dtype):
    import torch

    monkeypatch.delenv("PACELINE_CACHE")
    assert calls.kernels("native").multiplies(torch.empty(2, 2, dtype=getattr(torch, dtype))) is machine.panels(dtype)
