"""What every pool promises, run on the real one and on the fake."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from paceline.ports.fakes.pool import InlinePool
from paceline.ports.pool import Pool, Worker, WorkerSpec
from paceline.runtime.calls import Seat
from paceline.runtime.frames import pack
from paceline.runtime.process import ProcessPool
from paceline.types.errors import EngineError, PacelineError, WorkerLost, WorkerSilent

HERE = Path(__file__).parent


@pytest.fixture(params=["inline", "process"])
def pool(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    monkeypatch.syspath_prepend(str(HERE))
    return InlinePool() if request.param == "inline" else ProcessPool(log_dir=tmp_path, start_timeout_s=30)


class Heard:
    """What came in beside answers."""

    def __init__(self) -> None:
        self.reports: list[Any] = []
        self.losses: list[str] = []

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def started(pool: Pool, **arguments: Any) -> AsyncIterator[tuple[Worker, Heard]]:
    heard = Heard()
    spec = WorkerSpec(name="one", factory="pool_bodies:body", arguments=arguments)
    worker = await pool.start(spec, heard.reports.append, heard.losses.append)
    try:
        yield worker, heard
    finally:
        await worker.stop(5.0)


async def test_calls_are_answered_in_order_and_large_values_come_back_whole(pool: Pool) -> None:
    async with started(pool) as (worker, _):
        large = bytes(range(256)) * 40_000
        assert await asyncio.gather(*(worker.call("echo", value) for value in (1, "two", large))) == [1, "two", large]


async def test_an_exception_travels_to_the_caller_and_the_worker_lives_on(pool: Pool) -> None:
    async with started(pool) as (worker, heard):
        with pytest.raises(EngineError, match="no such thing"):
            await worker.call("refuse", "engine")
        with pytest.raises(ValueError, match="no such thing"):
            await worker.call("refuse", "value")
        assert await worker.call("echo", 3) == 3
        assert heard.losses == []


@pytest.mark.parametrize("kind", ["group", "stop", "unicode"])
async def test_an_error_that_cannot_be_made_again_travels_by_name(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    async with started(ProcessPool(log_dir=tmp_path, start_timeout_s=30)) as (worker, heard):
        name = {"group": "ExceptionGroup", "stop": "StopIteration", "unicode": "UnicodeDecodeError"}[kind]
        with pytest.raises(PacelineError, match=f"{name}: .*no such thing"):
            await worker.call("refuse", kind)
        assert await worker.call("echo", 3) == 3
        assert heard.losses == []


async def test_a_worker_whose_report_cannot_be_taken_is_lost_by_name(pool: Pool) -> None:
    losses: list[str] = []

    def refuse(report: Any) -> None:
        raise KeyError(f"nobody wants {report}")

    worker = await pool.start(WorkerSpec(name="one", factory="pool_bodies:body", arguments={}), refuse, losses.append)
    async with asyncio.timeout(10):
        await worker.call("count_down", 2)
        while not losses:
            await asyncio.sleep(0.005)
        with pytest.raises(WorkerLost, match="could not be taken"):
            await worker.call("echo", 1)
        assert len(losses) == 1
        assert "one" in losses[0]
        assert "what it sent could not be taken (KeyError" in losses[0]
        await worker.stop(1.0)


async def test_a_body_ticks_while_it_has_work_and_its_reports_arrive_in_order(pool: Pool) -> None:
    async with started(pool) as (worker, heard):
        await worker.call("count_down", 6)
        await heard.until(lambda: len(heard.reports) == 3)
        assert heard.reports == [("left", 4), ("left", 2), ("left", 0)]


async def test_a_body_that_naps_is_asked_again_in_time_and_a_call_wakes_it(pool: Pool) -> None:
    async with started(pool) as (worker, heard):
        begun = time.monotonic()
        await worker.call("nap", 0.2)
        await heard.until(lambda: len(heard.reports) == 2)
        assert heard.reports == ["asleep", "awake"]
        assert 0.2 <= time.monotonic() - begun < 5
        await worker.call("nap", 3600.0)
        await heard.until(lambda: len(heard.reports) == 3)
        assert await worker.call("echo", "up") == "up"
        await heard.until(lambda: len(heard.reports) == 4)


async def test_a_worker_that_dies_fails_its_open_calls_and_is_reported_lost_once(pool: Pool) -> None:
    async with started(pool) as (worker, heard):
        with pytest.raises(WorkerLost, match="one"):
            await worker.call("die", 3)
        with pytest.raises(WorkerLost, match="gone"):
            await worker.call("echo", 1)
        await heard.until(lambda: len(heard.losses) == 1)
        assert "exit code 3" in heard.losses[0]


async def test_a_killed_worker_is_reported_lost_and_a_stopped_one_is_not(pool: Pool) -> None:
    async with started(pool) as (worker, heard):
        worker.kill()
        await heard.until(lambda: len(heard.losses) == 1)
    async with started(pool) as (worker, heard):
        await worker.stop(5.0)
        await asyncio.sleep(0.02)
        assert heard.losses == []
        with pytest.raises(WorkerLost):
            await worker.call("echo", 1)


async def test_stopping_closes_the_body(pool: Pool, tmp_path: Path) -> None:
    async with started(pool, closed_file=str(tmp_path / "closed")) as (worker, _):
        await worker.call("echo", 1)
    assert (tmp_path / "closed").read_text() == "closed"


async def test_an_error_of_the_factory_is_raised_where_the_worker_was_started(pool: Pool) -> None:
    with pytest.raises(ValueError, match="this factory refuses"):
        await pool.start(WorkerSpec(name="two", factory="pool_bodies:broken", arguments={}), print, print)


async def test_a_foreign_error_keeps_its_name_and_does_not_import_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    async with started(ProcessPool(log_dir=tmp_path)) as (worker, _):
        with pytest.raises(PacelineError, match="Odd: no such thing") as caught:
            await worker.call("refuse", "own")
        assert "in refuse" in caught.value.__notes__[0]


async def test_what_a_worker_warns_of_is_told_with_its_name_at_its_start_and_later_and_stands_in_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    said: list[tuple[str, str]] = []
    pool = ProcessPool(log_dir=tmp_path, on_warning=lambda worker, text: said.append((worker, text)))
    async with started(pool, warning="slow") as (worker, heard):
        assert said == [("one", "slow")]
        await worker.call("warn", "slower")
        await heard.until(lambda: len(said) > 1)
        assert said[1:] == [("one", "slower")]
    assert "slow\nslower\n" in (tmp_path / "one.log").read_text()


async def test_a_lost_process_leaves_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    async with started(ProcessPool(log_dir=tmp_path)) as (worker, heard):
        with pytest.raises(WorkerLost, match="while it did die"):
            await worker.call("die", 4)
        await heard.until(lambda: bool(heard.losses))
        assert "these are my last words" in heard.losses[0]
    long = tmp_path / "one.log"
    long.write_text("x" * 1_000_000)
    async with started(ProcessPool(log_dir=tmp_path)) as (worker, heard):
        with pytest.raises(WorkerLost):
            await worker.call("die", 4)
        await heard.until(lambda: bool(heard.losses))
        assert "these are my last words" in heard.losses[0]
        assert len(heard.losses[0]) < 2200


async def test_threads_and_cores_stand_before_the_body_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    spec = WorkerSpec(name="pinned", factory="pool_bodies:body", arguments={}, threads=3, cores=(0,))
    worker = await ProcessPool(log_dir=tmp_path).start(spec, print, print)
    about = await worker.call("about")
    assert (about["threads"], about["cores"]) == ("3", [0])
    await worker.stop(5.0)


async def test_a_worker_keeps_the_memory_it_has_used_unless_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000")
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    async with started(ProcessPool(log_dir=tmp_path)) as (worker, _):
        about = await worker.call("about")
    assert (about["kept"], int(about["mapped"])) == ("1000", 2**36)


async def test_a_worker_that_does_not_close_in_time_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    async with started(ProcessPool(log_dir=tmp_path)) as (worker, _):
        call = asyncio.ensure_future(worker.call("sleep", 60))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            await worker.stop(0.2)
        with pytest.raises(WorkerLost):
            await call


@pytest.mark.parametrize("how", ["start_child", "fork_child"])
async def test_what_a_worker_started_ends_with_it_and_does_not_hide_that_it_is_gone(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    async with started(ProcessPool(log_dir=tmp_path)) as (worker, heard):
        child = await worker.call(how)
        async with asyncio.timeout(20):
            with pytest.raises(WorkerLost, match="exit code 3"):
                await worker.call("die", 3)
        await heard.until(lambda: not _runs(child))


@pytest.mark.parametrize("how", ["start_child", "fork_child"])
async def test_a_signal_to_the_whole_job_ends_no_worker_and_still_ends_what_a_worker_started(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    async with started(ProcessPool(log_dir=tmp_path)) as (worker, heard):
        child = await worker.call(how)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(worker.pid, number)
            assert await worker.call("echo", number) == number

        def asked_to_end() -> bool:
            """Again and again: it may not have begun."""
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
            return not _runs(child)

        await heard.until(asked_to_end)
        assert heard.losses == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs the descriptors of Linux")
async def test_the_connection_of_a_lost_worker_is_closed_though_its_handle_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    before = len(os.listdir("/proc/self/fd"))
    async with started(ProcessPool(log_dir=tmp_path)) as (worker, heard):
        os.kill(worker.pid, signal.SIGKILL)
        await heard.until(lambda: bool(heard.losses))
        await heard.until(lambda: len(os.listdir("/proc/self/fd")) == before)


async def test_a_controller_that_stood_still_beyond_a_deadline_takes_the_answer_that_came_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    seat = Seat(ProcessPool(log_dir=tmp_path), WorkerSpec("one", "pool_bodies:body", {}), 0.3)
    await seat.fill(print, print)
    call = asyncio.ensure_future(seat.call("sleep", 0.05))
    await asyncio.sleep(0.01)
    time.sleep(0.6)
    await call
    with pytest.raises(WorkerSilent, match=r"did not answer sleep within 0\.3 s"):
        await seat.call("sleep", 60)
    await seat.stop(1.0)


async def test_a_body_that_forks_and_goes_on_in_both_answers_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    async with started(ProcessPool(log_dir=tmp_path)) as (worker, heard):
        for _ in range(3):
            assert await worker.call("fork_and_go_on_in_both") == worker.pid
            assert [await worker.call("echo", i) for i in range(20)] == list(range(20))
        assert heard.losses == []


CONTROLLER = """
import asyncio, sys
from pathlib import Path
from paceline.ports.pool import WorkerSpec
from paceline.runtime.process import ProcessPool

async def main():
    workers = [await ProcessPool().start(WorkerSpec(name, "pool_bodies:body", {}), print, print) for name in ("idle", "busy")]
    call = asyncio.ensure_future(workers[1].call("sleep", 60))
    await asyncio.sleep(0.05)
    print(*(worker.pid for worker in workers), flush=True)
    await call

asyncio.run(main())
"""


def test_workers_end_when_their_controller_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(HERE)])}
    with subprocess.Popen([sys.executable, "-c", CONTROLLER], stdout=subprocess.PIPE, text=True, env=environment) as controller:
        assert controller.stdout is not None
        pids = [int(word) for word in controller.stdout.readline().split()]
        assert len(pids) == 2
        controller.kill()
    deadline = time.monotonic() + 5
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline, f"workers {pids} outlived their controller"
        time.sleep(0.02)


def test_a_worker_whose_controller_died_before_it_stood_makes_no_body() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(pack(WorkerSpec("late", "pool_bodies:broken", {})))
    ours.close()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(HERE)])}
    command = [sys.executable, "-m", "paceline.runtime.worker", str(theirs.fileno()), ""]
    with theirs:
        late = subprocess.run(
            command, pass_fds=(theirs.fileno(),), capture_output=True, text=True, env=environment, timeout=30, check=False
        )
    assert (late.returncode, late.stderr) == (0, ""), "a body would be refused by its factory, and nobody would hear it"


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie (nobody may reap it here)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
