"""The kernels' library: made once, found again, and a clear word where it cannot be made."""

import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

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


ANSWER = 'extern "C" int answer() { return 42; }\n'


def source(tmp_path, monkeypatch, text):
    """Let this be what is compiled."""
    monkeypatch.setattr(build, "SOURCES", (tmp_path / "small.cpp",))
    build.SOURCES[0].write_text(text)


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@needs_compiler
def test_those_who_come_together_wait_for_the_one_that_compiles(cache, tmp_path, monkeypatch):
    count = tmp_path / "count"
    real = " ".join(machine.compiler())
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", f'case "$*" in *" -c "*) echo x >> {count};; esac; exec  {real} "$@"'))
    source(tmp_path, monkeypatch, ANSWER)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: library(), range(3)))
    assert [one.answer() for one in found] == [42] * 3
    assert count.read_text() == "x\n"
    assert [path.suffix for path in cache.glob("kernels-*")] == [".so"]


@needs_compiler
def test_flags_that_a_compiler_does_not_know_are_left_out(tmp_path, monkeypatch):
    real = " ".join(machine.compiler())
    refuse = 'case "$*" in *-fopenmp*|*native*) echo "unknown flag" >&2; exit 1;; esac'
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", f'{refuse}; exec  {real} "$@"'))
    source(tmp_path, monkeypatch, ANSWER)
    assert library().answer() == 42


def test_other_code_or_another_compiler_gets_a_library_of_its_own(tmp_path, monkeypatch):
    before = build._digest(["/bin/true"])
    assert build._digest(["/bin/false"]) != before
    monkeypatch.setattr(build, "SOURCES", (tmp_path / "other.cpp",))
    build.SOURCES[0].write_text("// other")
    assert build._digest(["/bin/true"]) != before


def test_without_a_compiler_auto_goes_on_with_a_warning_and_native_is_refused(monkeypatch, caplog):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.WARNING):
        assert calls.kernels("auto") is None
    assert "no C++ compiler (no-such-compiler) on the path" in caplog.text
    with pytest.raises(ConfigError, match=r"kernels = 'native': no C\+\+ compiler"):
        calls.kernels("native")


@needs_compiler
@pytest.mark.parametrize("source", build.SOURCES, ids=lambda source: source.name)
def test_the_kernels_compile_where_an_int64_is_a_long_long(tmp_path, source):
    """As on macOS; there nothing converts what the standard's functions take by reference."""
    first = [line for name in (*build.HEADERS, source) for line in name.read_text().splitlines() if line.startswith("#include <")]
    lines = [*(line for line in first if "immintrin" not in line), "#define int64_t long long", f'#include "{source}"']
    elsewhere = tmp_path / "elsewhere.cpp"
    elsewhere.write_text("\n".join(lines))
    done = build._run([*machine.compiler(), "-std=c++17", "-fsyntax-only", str(elsewhere)])
    assert not done.returncode, done.stderr


def test_what_the_compiler_says_is_in_the_error(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", 'echo "internal error: out of luck" >&2; exit 4'))
    with pytest.raises(BuildError, match=r"does not compile the kernels: .*out of luck"):
        library()
    assert calls.kernels("auto") is None


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", "exit 0"))
    with pytest.raises(BuildError, match=r"NotADirectoryError: .*file/cache"):
        library()


@needs_compiler
@pytest.mark.parametrize("kept", [0, 3 / 4, 1], ids=["nothing is left", "a part is left", "one bit is another"])
def test_a_damaged_library_is_made_again_and_not_opened(tmp_path, monkeypatch, kept):
    source(tmp_path, monkeypatch, ANSWER)
    monkeypatch.setattr(build, "_opened", lambda path: path)  # this process would not survive a part of one
    made = library()
    whole = made.read_bytes()
    made.write_bytes(whole[: int(kept * len(whole))] if kept < 1 else whole[:-1] + bytes([whole[-1] ^ 1]))
    assert library().read_bytes() == whole


@needs_compiler
def test_a_library_that_cannot_be_opened_is_made_again(cache, tmp_path, monkeypatch):
    source(tmp_path, monkeypatch, ANSWER)
    cache.mkdir()
    other = b"not a library"
    (cache / f"kernels-{build._digest(machine.compiler())}-{build._short(other)}.so").write_bytes(other)
    assert library().answer() == 42


@needs_compiler
def test_a_library_that_is_there_is_opened_without_writing_anything(cache, tmp_path, monkeypatch):
    source(tmp_path, monkeypatch, ANSWER)
    library()
    (cache / ".kernels.lock").unlink()
    assert library().answer() == 42
    assert not (cache / ".kernels.lock").exists()


@needs_compiler
def test_threads_whose_runtime_is_not_here_are_left_out(tmp_path, monkeypatch):
    real = " ".join(machine.compiler())
    missing = 'case "$*" in *-fopenmp*" -c "*) more=-DMISSING;; esac'
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", f'{missing}; exec {real} $more "$@"'))
    monkeypatch.setattr(build, "SOURCES", (tmp_path / "small.cpp",))
    build.SOURCES[0].write_text(
        '#ifdef MISSING\nextern "C" int nowhere();\nint found = nowhere();\n#endif\nextern "C" int answer() { return 42; }\n'
    )
    assert library().answer() == 42


@needs_compiler
def test_a_compiler_may_be_named_with_arguments(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", " ".join([*machine.compiler(), "-DANSWER=41"]))
    monkeypatch.setattr(build, "SOURCES", (tmp_path / "small.cpp",))
    build.SOURCES[0].write_text('extern "C" int answer() { return ANSWER; }\n')
    assert library().answer() == 41


def test_a_compiler_that_hangs_or_cannot_be_run_is_no_reason_to_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "_SECONDS", 0.3)
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", "sleep 9"))
    with pytest.raises(BuildError, match=r"not done after 0\.3 s"):
        library()
    (tmp_path / "bare").write_bytes(b"\x7fELF nothing")
    (tmp_path / "bare").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "bare"))
    with pytest.raises(BuildError, match="Exec format error"):
        library()
    assert calls.kernels("auto") is None


@pytest.mark.parametrize("named", ['g++ "', "'"])
def test_a_compiler_that_is_no_command_is_none(monkeypatch, named):
    monkeypatch.setenv("CXX", named)
    assert machine.compiler() is None
    assert calls.kernels("auto") is None
    with pytest.raises(ConfigError, match=r"kernels = 'native': no C\+\+ compiler"):
        calls.kernels("native")


def test_an_empty_name_of_a_compiler_is_none_named(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    usual = machine.compiler()
    monkeypatch.setenv("CXX", " ")
    assert machine.compiler() == usual


def test_torch_is_asked_for_by_name(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert calls.kernels("torch") is None


@pytest.mark.parametrize(("dtype", "head_dim", "inputs", "flags", "expected"), [
    ("bfloat16", 64, 1536, "fpu avx512f avx512_bf16", True),
    ("bfloat16", 64, 1536, "fpu avx512f", False),
    ("bfloat16", 8, 1536, "fpu avx512f avx512_bf16", False),
    ("bfloat16", 64, 40_000, "fpu avx512f avx512_bf16", False),
    ("float32", 128, 4096, "fpu avx512f", True),
    ("float32", 128, 4096, "fpu avx2", False),
    ("float64", 64, 1536, "fpu avx512f avx512_bf16", False),
])  # fmt: skip
def test_panels_are_expected_where_the_processor_has_the_feature(tmp_path, monkeypatch, dtype, head_dim, inputs, flags, expected):
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", "exit 0"))
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nmodel name : Some CPU\nflags\t\t: {flags}\n\nprocessor : 1\nflags : fpu\n")
    assert machine.processor(tmp_path / "cpuinfo") == ("Some CPU", frozenset(flags.split()))
    assert machine.panels(dtype, head_dim, inputs, tmp_path / "cpuinfo") is expected
    assert machine.panels(dtype, head_dim, inputs, tmp_path / "nowhere") is False
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert machine.panels(dtype, head_dim, inputs, tmp_path / "cpuinfo") is False


@needs_compiler
@pytest.mark.skipif(not os.path.exists("/proc/cpuinfo"), reason="no /proc/cpuinfo here")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_is_expected_of_this_machine_is_what_was_compiled(dtype):
    weight = torch.empty(2, 2, dtype=getattr(torch, dtype))
    assert calls.kernels("native").multiplies(weight) is machine.panels(dtype, 64, 2)
