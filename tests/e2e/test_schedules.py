"""Every schedule on real processes with a tiny model, and everything that goes wrong without a crash of the run, all in one."""

import json
from pathlib import Path

import pytest
from tests.e2e.runs import trained

from paceline.core.commands import Terminal
from paceline.core.events import CommandFailed, InstanceLost
from paceline.models.tiny import write_tiny
from paceline.runtime.audit import audit
from paceline.runtime.ledger import LedgerReader

pytestmark = pytest.mark.timeout(0)  # every process has its own limit: `runs.LIMIT_S`

CONFIG = """
[model]
path = "{root}/model"
dtype = "float64"
[task]
kind = "file"
path = "{root}/rows.jsonl"
gold_column = "answer"
shuffle = false
[[reward]]
kind = "function"
function = "{root}/reward.py:length"
timeout_s = 2
[rollout]
instances = 2
slots = 6
max_prompt_tokens = 100
max_tokens = 24
[schedule]
group_size = 4
groups_per_update = 2
on_failure = "drop_group"
no_signal = "drop"
[trainer]
learning_rate = 1e-3
warmup_updates = 0
[pool]
rollout_threads = 1
trainer_threads = 1
[run]
epochs = 1
"""
ROWS = ["fine", "fine", "fine", "kills", "hangs", "fine", "same", "fine", "fine", "fine", "fine"]
"""What becomes of each prompt when it is judged; the engine is killed once."""
REWARD = """
import os, signal, time
from pathlib import Path

def length(completions, gold, **columns):
    if gold[0] == "hangs":
        time.sleep(3600)
    if gold[0] == "kills":
        kill_the_first_engine()
    return [1.0 if gold[0] == "same" else float(len(text) % 2) for text in completions]

def kill_the_first_engine():
    logs = Path(os.readlink("/proc/self/fd/1")).parent
    once = logs / "killed"
    for descriptor in Path("/proc").glob("[0-9]*/fd/1") if not once.exists() else ():
        try:
            if os.readlink(descriptor) == str(logs / "rollout-0.log"):
                once.touch()
                os.kill(int(descriptor.parts[2]), signal.SIGKILL)
        except OSError:
            continue
"""
SCHEDULES = {
    "serial": (),
    "pipelined": ("schedule.groups_per_dispatch=1", "schedule.frontier=2"),
    "streaming": ("schedule.at_publish=keep", "schedule.groups_per_dispatch=1"),
    "multiversion": ("schedule.version_window=2",),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("schedules")
    write_tiny(root / "model")
    (root / "reward.py").write_text(REWARD)
    (root / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": f"say hello {i}", "answer": kind}) for i, kind in enumerate(ROWS)))
    (root / "config.toml").write_text(CONFIG.format(root=root))
    return root


@pytest.mark.parametrize("preset", SCHEDULES)
def test_a_dying_engine_a_hanging_reward_a_prompt_without_signal_and_data_that_end_leave_the_rest_trained(place: Path, preset: str) -> None:
    run = place / preset
    trained(place / "config.toml", f"schedule.preset={preset}", f"run.dir={run}", *SCHEDULES[preset])
    report = audit(run / "ledger.sqlite")
    assert (report.violations, report.notes) == ((), ())
    reader = LedgerReader(run / "ledger.sqlite")
    records = [record.value for record in reader.records(1)]
    reader.close()
    assert [event.instance for event in records if isinstance(event, InstanceLost)] == ["rollout-0"]
    assert [event.error.split(":")[0] for event in records if isinstance(event, CommandFailed)] == [
        "rewards length gave no answer on group 4 (row 4 of rows [rows.jsonl line 5]"
    ]
    states = {command.group: command.state for command in records if isinstance(command, Terminal)}
    assert states.pop(4) == "failed"
    assert states.pop(6) == "filtered"
    assert set(states) == set(range(len(ROWS))) - {4, 6}
    chance = {group for group, state in states.items() if state != "trained"}
    assert len(chance) <= 3, "some groups may have no signal by chance"
    assert (run / "model").is_dir()
