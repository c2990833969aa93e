"""Commands end to end, with a fake `wire` in place of the heavy half."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from paceline.cli.main import app
from paceline.config.load import dump, load
from paceline.config.schema import Config
from paceline.native import machine
from paceline.types.errors import CheckpointError, ConfigError, DataError, ModelError, PacelineError, TrainerError
from paceline.types.progress import Progress
from paceline.types.results import AuditReport, EvalResult, Outcome, Share

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "recipes" / "quickstart.toml")
HEAVY = ("torch", "transformers", "pyarrow", "reasoning_gym", "numpy", "paceline.cli.wire", "paceline.cli.jobs")


@dataclass
class FakeJobs:
    """Does what it is told and remembers what it was asked."""

    outcome: Outcome = field(default_factory=lambda: Outcome(True, "", 2, 2))
    report: AuditReport = field(default_factory=lambda: AuditReport(10, 9, 1))
    error: BaseException | None = None
    asked: list[tuple[object, ...]] = field(default_factory=list)

    def train(self, config: Config, *, resume: bool, on_progress: Callable[[Progress], None]) -> Outcome:
        self.asked.append((config, resume))
        if self.error:
            raise self.error
        on_progress(Progress(0, 2, phase="rollout"))
        on_progress(Progress(1, 2, {"reward": 0.25, "loss": 0.5}, "train"))
        on_progress(Progress(1, 2, phase="rollout", message="a notice"))
        on_progress(Progress(2, 2, {"reward": 0.5, "loss": 0.25}, "train"))
        on_progress(Progress(2, 2, {"eval/greedy": 0.75}, "evaluate"))
        return self.outcome

    def evaluate(self, config: Config, model: str, *, on_progress: Callable[[Progress], None]) -> EvalResult:
        self.asked.append((config, model))
        return EvalResult(
            200,
            Share(0.5, 0.43, 0.57, 200),
            Share(0.25, 0.2, 0.3, 800),
            parsed=Share(0.9, 0.8, 0.95, 1000),
            pass_at={1: 0.25, 4: 0.6},
        )

    def export(self, config: Config, step: int | None, directory: Path | None) -> tuple[Path, Path]:
        self.asked.append((config, step, directory))
        run = Path(config.run.dir)
        return run / "checkpoints" / f"step-{step or 8}", directory or run / f"model-step-{step or 8}"

    def audit(self, run_dir: Path) -> AuditReport:
        self.asked.append((run_dir,))
        return self.report


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeJobs:
    """No run of the checkout's own is in sight, such as the one that `make quickstart` leaves."""
    monkeypatch.chdir(tmp_path)
    fake = FakeJobs()
    monkeypatch.setitem(sys.modules, "paceline.cli.jobs", fake)
    return fake


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def paceline(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which afterwards prints the heavy modules it has loaded."""
    code = (
        "import sys\nfrom paceline.cli.main import main\ntry:\n    main()\nfinally:\n"
        f"    print('LOADED', [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=cwd, env=environment, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--help"], 0, "train"),
        (["train", "--help"], 0, "--resume"),
        (["--version"], 0, "paceline 0."),
        (["train", QUICKSTART, "--dry-run"], 0, "trained tokens"),
        (["plan", QUICKSTART, "schedule.preset=multiversion"], 0, "staleness <= 1"),
        (["train", "absent.toml"], 2, "absent.toml: cannot be read"),
        (["train", QUICKSTART, "run.updatez=3"], 2, "nearest: run.updates"),
        (["train", QUICKSTART, "schedule.frontier=3"], 2, "[frontier_no_effect]"),
        (["train", QUICKSTART, "model.path=./nowhere"], 2, "no such directory"),
        (["train", "task.kind=file", "task.path=no.jsonl", "task.gold_column=a", "--dry-run"], 2, "no such file"),
        (["eval", "./nowhere"], 2, "name a configuration with --config"),
        (["train"], 2, "name a configuration file"),
        (["audit", "./nowhere"], 2, "is no run directory"),
        (["train", "--no-such-option"], 2, "No such option"),
    ],
)
def test_help_plans_and_errors_come_without_heavy_libraries_and_without_a_traceback(arguments: list[str], code: int, says: str) -> None:
    done = paceline(*arguments)
    assert done.returncode == code, done.stderr
    assert says in (done.stderr if code else done.stdout)
    assert "Traceback" not in done.stderr
    assert "LOADED []" in done.stderr


def test_the_package_runs_as_a_module() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-m", "paceline", "--version"], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.startswith("paceline 0.")


GROUPS = "schedule.groups_per_update=8"


def plan_rows(*arguments: str) -> dict[str, str]:
    """The plan's lines by their first words, white space joined."""
    done = call("plan", QUICKSTART, "schedule.groups_per_update=8", *arguments)
    assert done.exit_code == 0, done.output
    rows = [line.strip().split("  ", 1) for line in done.stdout.splitlines() if line.strip()]
    return {name: " ".join(rest[0].split()) if rest else "" for name, *rest in rows}


def test_a_plan_says_what_counts_what() -> None:
    rows = plan_rows("run.updates=5", "trainer.warmup_updates=0", GROUPS, "schedule.groups_per_round=16", "task.size=128")
    assert rows["updates"] == "5 of 8 groups (prompts) x 8 samples"
    assert rows["rounds"] == "3 of 16 groups under one version"
    assert rows["publishes"].startswith("4 ")
    assert rows["checkpoints"] == "one at the end: a crash begins at the start"
    assert plan_rows("run.checkpoint_every=3")["checkpoints"] == "every 3 updates (at the publish after), and at the end"
    assert rows["prompts per epoch"].startswith("<= 128 ")
    assert rows["updates per epoch"].startswith("16 ")
    assert rows["epochs"].startswith("0.312 ")
    assert rows["prompts"].startswith("40 ")
    assert rows["samples"].startswith("320 ")
    assert rows["sampled tokens"].startswith(f"<= {320 * 24:,} ")
    assert rows["master weights"].startswith("538 ")


def test_a_reference_model_that_is_not_there_is_named_before_anything_is_loaded(tmp_path: Path) -> None:
    done = call("plan", QUICKSTART, "algorithm.kl=k3", "algorithm.kl_weight=0.1", f"algorithm.reference={tmp_path / 'gone'}")
    assert done.exit_code != 0
    assert f"algorithm.reference = {tmp_path / 'gone'}: no such directory" in done.stderr


def test_a_machine_without_a_compiler_is_told_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    done = call("plan", QUICKSTART)
    assert "warning: rollout.kernels and trainer.kernels = auto: no C++ compiler on the path" in done.stderr
    assert "V w x 4 bytes" in done.stdout
    assert "warning: trainer.kernels = auto" in call("plan", QUICKSTART, "rollout.kernels=torch").stderr
    assert "warning: rollout.kernels = auto" in call("plan", QUICKSTART, "pool.trainer_device=cuda").stderr
    assert (
        "warning: trainer.kernels = native: no C++ compiler on the path, so a run will be refused here"
        in call("plan", QUICKSTART, "trainer.kernels=native").stderr
    )
    for words in (("rollout.kernels=torch", "trainer.kernels=torch"), ("pool.rollout_devices=[cuda:0]", "trainer.kernels=torch")):
        assert "compiler" not in call("plan", QUICKSTART, *words).stderr


@pytest.mark.skipif(not machine.panels("bfloat16", 64, 1536), reason="compiled kernels do not multiply bfloat16 on this machine")
def test_a_plan_counts_panels_where_engines_multiply_by_them() -> None:
    assert "once more in panels" in plan_rows()["weights"]
    assert "once more in panels" not in plan_rows("rollout.kernels=torch")["weights"]


def test_a_plan_names_frontier_and_replacements_and_needs_no_rounds() -> None:
    assert "frontier 4" in plan_rows("schedule.preset=pipelined", "schedule.frontier=4")["schedule"]
    assert "up to 720 more" in plan_rows("run.updates=30", GROUPS, "schedule.no_signal=refill")["prompts"]
    assert "rounds" not in plan_rows("schedule.preset=streaming")


SAYS: dict[str, tuple[str, str, str, str]] = {
    "serial": (
        "<= 8 groups: the whole round", "in rounds the next after the publish and its evaluation",
        "from 8 trainable groups on, all until the next publish", "1 version nothing is under way",
    ),
    "pipelined ~eval": (
        "<= 8 groups: the whole round", "in rounds the next after the publish",
        "from 1 trainable groups on", "1 version nothing is under way",
    ),
    "pipelined schedule.frontier=4": (
        "<= 4 groups' worth of trajectories (frontier)", "in rounds the next after the publish and its evaluation",
        "from 1 trainable groups on", "1 version nothing is under way",
    ),
    "pipelined schedule.frontier=auto": (
        "auto groups' worth, chosen for each round", "in rounds the next after the publish and its evaluation",
        "from 1 trainable groups on", "1 version nothing is under way",
    ),
    "streaming": (
        "<= 16 groups, requested and not consumed", "goes on while fewer than 16 groups are trainable",
        "from 8 trainable groups on", "1 version samples go on under it, KV cache kept",
    ),
    "streaming schedule.at_publish=recompute schedule.in_flight_groups=12 schedule.buffer_groups=9": (
        "<= 12 groups, requested and not consumed", "goes on while fewer than 9 groups are trainable",
        "from 8 trainable groups on", "1 version samples go on under it, KV cache rebuilt",
    ),
    "streaming schedule.at_publish=drain schedule.start_when=all schedule.updates_per_publish=2": (
        "<= 32 groups, requested and not consumed", "pauses before a publish, until new weights are there",
        "from 16 trainable groups on, all until the next publish", "1 version an instance loads when its samples are done",
    ),
    "multiversion schedule.version_window=3": (
        "<= 24 groups, requested and not consumed", "goes on new groups on the newest version",
        "from 8 trainable groups on", "<= 3 versions groups go on, each under its own version",
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", SAYS)
def test_a_plan_says_how_a_schedule_flows_in_a_line_each(words: str) -> None:
    rows = plan_rows(*f"schedule.preset={words}".split())
    assert (rows["in flight"], rows["generation"], rows["training"], rows["at publish"]) == SAYS[words]


def test_a_plan_says_what_it_cannot_know(tmp_path: Path) -> None:
    rows = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"prompt": ["1 + 1 ="], "gold": ["2"]}), rows)
    done = call("plan", "task.kind=file", f"task.path={rows}", "task.gold_column=gold", "model.path=someone/some-model")
    assert "unknown" in next(line for line in done.stdout.splitlines() if line.startswith("prompts per epoch"))
    assert "epochs" not in done.stdout
    assert "memory: unknown" in done.stdout


def test_a_plan_looks_for_reward_functions(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def right(completions): return [1.0 for _ in completions]\n")
    for name, code, says in (("right", 0, "trained tokens"), ("wrong", 2, "mine.py has no 'wrong'; it has right")):
        done = call("plan", QUICKSTART, "reward.0.kind=function", f"reward.0.function={tmp_path / 'mine.py'}:{name}")
        assert done.exit_code == code
        assert says in done.output


def test_a_plan_looks_for_the_columns_of_every_file(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "1 + 1 =", "answer": "2"}\n')
    own = ("task.kind=file", f"task.path={rows}", "task.prompt_column=question", "model.path=someone/some-model")
    done = call("train", "--dry-run", *own, "task.gold_column=solution")
    assert done.exit_code == 2
    assert "solution" in done.stderr
    assert "task.gold_column = 'answer'" in done.stderr.replace('"', "'")
    held_out = ("eval.task.kind=file", f"eval.task.path={rows}", "eval.task.prompt_column=problem", "eval.task.gold_column=answer")
    done = call("train", "--dry-run", *own, "task.gold_column=answer", *held_out)
    assert done.exit_code == 2
    assert "[eval.task]" in done.stderr
    done = call("train", "--dry-run", *own, "task.gold_column=solution", *held_out)
    assert "'solution'" in done.stderr
    assert "'problem'" in done.stderr


def test_training_prints_one_line_per_update_and_its_end(jobs: FakeJobs) -> None:
    done = call("train", QUICKSTART, "run.updates=2", "trainer.warmup_updates=0", "--set", "run.seed=5")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "update 1/2  reward 0.25  loss 0.5",
        "update 2/2  reward 0.5  loss 0.25",
        "evaluation after update 2  greedy 0.75",
        "done after 2 of 2 updates",
        "reward 0.250 -> 0.500 (first and last)  ▁█",
    ]
    assert done.stderr == "a notice\n"
    config, resume = jobs.asked[0]
    assert isinstance(config, Config)
    assert (config.run.updates, config.run.seed, resume) == (2, 5, False)


def test_a_warning_of_the_configuration_goes_to_standard_error(jobs: FakeJobs) -> None:
    done = call("train", QUICKSTART, "run.updates=2", "--resume")
    assert "warning: trainer.warmup_updates = 5, run.updates = 2: the run ends before" in done.stderr
    assert jobs.asked[0][1] is True


@pytest.mark.parametrize(
    ("outcome", "code", "says"),
    [
        (Outcome(True, "", 2, 2, model="runs/x/model"), 0, "model: runs/x/model"),
        (
            Outcome(True, "", 2, 2, model="runs/x/model", emulated=True),
            0,
            "no model: nothing was learnt, runs/x/model holds the counters of an emulated trainer",
        ),
        (Outcome(False, "trainer: no memory", 1, 2), 1, "failed after 1 of 2 updates: trainer: no memory"),
        (
            Outcome(True, "stopped by the user", 1, 2, interrupted=True, resumable=True),
            130,
            "continue it: paceline train runs/quickstart/config.toml --resume",
        ),
    ],
)
def test_the_exit_code_says_how_a_run_ended(jobs: FakeJobs, outcome: Outcome, code: int, says: str) -> None:
    jobs.outcome = outcome
    done = call("train", QUICKSTART)
    assert done.exit_code == code
    assert says in done.output
    assert "paceline doctor" not in done.output, "there is no run directory"


def test_a_run_that_failed_says_where_to_look_and_how_it_goes_on(jobs: FakeJobs, tmp_path: Path) -> None:
    (tmp_path / "a run").mkdir()
    (tmp_path / "a run" / "ledger.sqlite").touch()
    jobs.outcome = Outcome(False, "group 3 could not be rewarded: no", 1, 2)
    done = call("train", QUICKSTART, f"run.dir={tmp_path / 'a run'}")
    assert f"paceline doctor '{tmp_path / 'a run'}'" in done.stderr
    assert f"paceline train '{tmp_path / 'a run'}/config.toml' --resume" in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (ConfigError("run.dir = x: in use"), 2, "error: run.dir = x: in use"),
        (DataError("rows.jsonl row 3: no column"), 2, "error: rows.jsonl row 3"),
        (ModelError("no config.json"), 2, "error: no config.json"),
        (CheckpointError("step-3 is damaged"), 2, "error: step-3 is damaged"),
        (TrainerError("groups 1, 2"), 1, "failed: groups 1, 2"),
        (PacelineError("anything else"), 1, "failed: anything else"),
        (
            OSError(28, "No space left on device", "runs/a/metrics.jsonl"),
            1,
            "failed: [Errno 28] No space left on device: 'runs/a/metrics.jsonl'",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_that_a_user_can_cause_are_messages_with_an_exit_code(jobs: FakeJobs, error: BaseException, code: int, says: str) -> None:
    jobs.error = error
    done = call("train", QUICKSTART)
    assert done.exit_code == code
    assert says in done.stderr
    assert "Traceback" not in done.output


def test_a_service_that_was_given_up_cannot_hold_the_process_at_its_exit() -> None:
    """As W&B's exit handler does, which waits for uploads to a server that is gone."""
    code = (
        "import atexit, sys, time, typer\nfrom paceline.cli import main\nfrom paceline.trackers.link import GIVEN_UP\n"
        "@main.app.command('wait')\ndef wait():\n"
        "    atexit.register(time.sleep, 600)\n    GIVEN_UP.set()\n    sys.stdout.write('the end')\n    raise typer.Exit(3)\n"
        "sys.argv = ['paceline', 'wait']\nmain.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (3, "the end"), done.stderr


def test_a_fault_of_paceline_itself_is_not_hidden(jobs: FakeJobs) -> None:
    jobs.error = AssertionError("ours")
    assert isinstance(call("train", QUICKSTART).exception, AssertionError)


def test_a_file_after_the_first_word_is_refused(jobs: FakeJobs) -> None:
    done = call("train", "run.updates=3", QUICKSTART)
    assert done.exit_code == 2
    assert "one configuration file may come first" in done.stderr
    assert jobs.asked == []


def test_a_file_with_an_equals_sign_in_its_directory_is_a_file(jobs: FakeJobs, tmp_path: Path) -> None:
    path = tmp_path / "a=b" / "run.toml"
    path.parent.mkdir()
    path.write_text('[task]\nname = "chain_sum"\n')
    assert call("train", str(path)).exit_code == 0


def test_evaluation_prints_accuracies_with_intervals_and_pass_at_k(jobs: FakeJobs) -> None:
    done = call("eval", "smollm2-135m", "--config", QUICKSTART, "eval.problems=200")
    assert done.exit_code == 0
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "model on 200 problems"
    assert "greedy accuracy 0.500 0.430 to 0.570 200" in lines
    assert "sampled accuracy 0.250 0.200 to 0.300 800" in lines
    assert "parsable answers 0.900 0.800 to 0.950 1000" in lines
    assert "pass@4 0.600" in lines
    assert jobs.asked[0][1] == "smollm2-135m"


def test_evaluating_a_run_takes_its_own_configuration(jobs: FakeJobs, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(dump(load(Path(QUICKSTART), ["run.seed=9"])))
    assert call("eval", str(tmp_path), "eval.samples=2").exit_code == 0
    config = jobs.asked[0][0]
    assert isinstance(config, Config)
    assert (config.run.seed, config.eval.samples) == (9, 2)


def test_a_model_is_scored_where_the_rows_that_it_was_trained_on_are_not_at_hand(jobs: FakeJobs, tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    files = ["task.kind=file", "task.path=gone.jsonl", "task.gold_column=answer", "reward.0.kind=exact"]
    judged = ["eval.task.kind=file", "eval.task.path=test.jsonl", "eval.task.gold_column=answer"]
    (tmp_path / "config.toml").write_text(dump(load(None, [*files, *judged])))
    done = call("eval", str(tmp_path))
    assert done.exit_code == 0, done.output
    (tmp_path / "test.jsonl").unlink()
    assert "no such file" in call("eval", str(tmp_path)).stderr


def test_a_run_whose_directory_was_moved_goes_on_where_it_lies(jobs: FakeJobs, tmp_path: Path) -> None:
    run = tmp_path / "moved"
    run.mkdir()
    (run / "ledger.sqlite").touch()
    (run / "config.toml").write_text(dump(load(Path(QUICKSTART), ["run.dir=before"])))
    for words, directory in (((), str(run)), (("run.dir=elsewhere",), "elsewhere")):
        assert call("train", str(run / "config.toml"), *words, "--resume").exit_code == 0
        config, resume = jobs.asked[-1]
        assert isinstance(config, Config)
        assert (config.run.dir, resume) == (directory, True)
    (run / "ledger.sqlite").unlink()
    assert call("train", str(run / "config.toml")).exit_code == 0
    config = jobs.asked[-1][0]
    assert isinstance(config, Config)
    assert config.run.dir == "before", "a file that lies beside no run is a configuration like any other"


def test_evaluating_without_held_out_problems_is_refused(jobs: FakeJobs) -> None:
    done = call("eval", "smollm2-135m", "--config", QUICKSTART, "~eval")
    assert done.exit_code == 2
    assert "eval.task is unset" in done.stderr


def test_evaluating_an_emulated_run_is_refused_whatever_it_says_of_problems(jobs: FakeJobs, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[task]\nkind = "synthetic"\n[rollout]\nengine = "emulated"\n')
    for words in ((), ("eval.task.kind=synthetic",)):
        done = call("eval", str(tmp_path), *words)
        assert done.exit_code == 2
        assert "its answers are pretended" in done.stderr
    assert jobs.asked == []


@pytest.mark.parametrize(
    ("words", "asked", "says"),
    [((), (None, None), "run here/model-step-8"), (("--step", "4", "-o", "out"), (4, Path("out")), "out")],
)
def test_exporting_a_checkpoint_says_where_the_model_lies_and_how_it_is_scored(
    jobs: FakeJobs, tmp_path: Path, words: tuple[str, ...], asked: tuple[object, ...], says: str
) -> None:
    run = tmp_path / "run here"
    run.mkdir()
    (run / "config.toml").write_text(dump(load(Path(QUICKSTART), ["run.dir=moved since"])))
    done = call("export", str(run), *words)
    assert done.exit_code == 0, done.output
    config, *rest = jobs.asked[0]
    assert isinstance(config, Config)
    assert (config.run.dir, *rest) == (str(run), *asked), "a run directory that was moved is read where it lies"
    assert says in done.stdout
    assert f"--config '{run}/config.toml'" in done.stdout


def test_exporting_what_is_no_run_is_refused(jobs: FakeJobs, tmp_path: Path) -> None:
    done = call("export", str(tmp_path))
    assert (done.exit_code, jobs.asked) == (2, [])
    assert "holds no config.toml" in done.stderr


@pytest.mark.parametrize(
    ("violations", "code", "says"), [((), 0, "every rule holds"), (("exactly once: group 3 ended twice",), 1, "group 3 ended twice")]
)
def test_an_audit_says_what_does_not_hold(jobs: FakeJobs, tmp_path: Path, violations: tuple[str, ...], code: int, says: str) -> None:
    (tmp_path / "ledger.sqlite").touch()
    jobs.report = AuditReport(10, 9, 1, violations)
    done = call("audit", str(tmp_path))
    assert done.exit_code == code
    assert says in done.stdout
    assert "10 events and 9 commands" in done.stdout


def test_an_audit_of_nothing_does_not_say_that_every_rule_holds(jobs: FakeJobs, tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").touch()
    jobs.report = AuditReport(0, 0, 0, ())
    done = call("audit", str(tmp_path))
    assert (done.exit_code, "every rule holds" in done.stdout, "nothing was checked: nothing is recorded yet" in done.stdout) == (
        0,
        False,
        True,
    )


def test_the_error_of_a_run_that_had_begun_says_how_it_goes_on(jobs: FakeJobs, tmp_path: Path) -> None:
    jobs.error = TrainerError("groups 1, 2")
    assert "--resume" not in call("train", QUICKSTART, f"run.dir={tmp_path}").stderr
    (tmp_path / "ledger.sqlite").touch()
    done = call("train", QUICKSTART, f"run.dir={tmp_path}")
    assert done.exit_code == 1
    assert "failed: groups 1, 2\nwhat went wrong: paceline doctor" in done.stderr
    assert done.stderr.endswith(f"when the cause is mended: paceline train {tmp_path}/config.toml --resume\n")
    jobs.error = CheckpointError("step-3 is damaged")
    assert "usable" not in call("train", QUICKSTART, f"run.dir={tmp_path}").stderr
