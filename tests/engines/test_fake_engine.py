"""What the public fake offers beyond the contract: chosen lengths, failures on demand, and no torch."""

import subprocess
import sys

import numpy as np
import pytest

from paceline.ports.fakes.engine import FakeEngine, counted_length
from paceline.ports.rollout import Failure
from paceline.types.records import Request, Sampling
from paceline.types.weights import WeightsRef


def ask(group, sample=0, attempt=1, max_tokens=10, prompt=3):
    return Request(group, sample, attempt, np.arange(10, 10 + prompt, dtype=np.int32), Sampling(max_tokens), 1, 0)


def drain(engine):
    results = []
    while engine.load_state().running or engine.load_state().waiting:
        results += engine.step()
    return results


def test_lengths_follow_the_given_function_and_the_limit_cuts_them():
    engine = FakeEngine(length=lambda request: 3 * request.group)
    engine.submit([ask(group) for group in (1, 2, 3, 4)])
    assert [(r.group, len(r.ids), r.finish) for r in drain(engine)] == [(1, 3, "eos"), (2, 6, "eos"), (3, 9, "eos"), (4, 10, "length")]


def test_requests_fail_on_demand_by_attempt():
    engine = FakeEngine(fail=lambda request: "broken on purpose" if request.attempt == 1 and request.group == 2 else None)
    engine.submit([ask(1), ask(2), ask(2, attempt=2)])
    results = drain(engine)
    assert [r for r in results if isinstance(r, Failure)] == [Failure(2, 0, 1, "broken on purpose")]
    assert sorted((r.group, r.attempt) for r in results if not isinstance(r, Failure)) == [(1, 1), (2, 2)]


def test_default_lengths_are_spread_between_one_and_past_the_limit():
    lengths = np.array([counted_length(ask(group, max_tokens=40)) for group in range(2000)])
    assert lengths.min() == 1
    assert lengths.max() == 50
    assert abs(lengths.mean() - 25.5) < 1.5


def test_requests_wait_until_their_worst_case_fits():
    engine = FakeEngine(kv_tokens=30, length=lambda request: 10)
    engine.submit([ask(group) for group in range(3)])
    engine.step()
    assert (engine.load_state().running, engine.load_state().waiting) == (2, 1)
    assert len(drain(engine)) == 3


def test_checksum_and_probe_scores_can_be_chosen():
    engine = FakeEngine(checksum=lambda ref, location: f"{location}@{ref.version}", score=lambda version, token: -float(version + token))
    assert engine.load(WeightsRef(3), "store/3") == "store/3@3"
    report = engine.probe([5, 6, 7])
    assert (report.fingerprint, report.logprobs) == ("store/3@3", (-9.0, -10.0))
    assert FakeEngine(vocabulary=10).probe([1, 2]).logprobs == pytest.approx((-np.log(10),))


def test_the_fake_loads_without_torch():
    code = "import sys, paceline.ports.fakes.engine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
