"""What a resume notices beside the configuration itself."""

from pathlib import Path

import pytest

from paceline.cli.contents import contents
from paceline.config.load import load
from paceline.runtime.rundir import check_identity, mended
from paceline.types.errors import CheckpointError

REWARD = "def graded(completions, **columns):\n    return [1.0 for _ in completions]\n"


class Place:
    """A model directory and a reward file, as a configuration names them."""

    def __init__(self, root: Path, function: str = "") -> None:
        self.root = root
        self.model, self.reference = root / "model", root / "reference"
        for directory in (self.model, self.reference):
            directory.mkdir()
            for name in ("config.json", "model.safetensors", "README.md"):
                (directory / name).write_text(name)
        self.reward = root / "own_reward_of_a_test.py"
        self.reward.write_text(REWARD)
        self.words = [
            "task.name=chain_sum",
            f"model.path={self.model}",
            "reward.0.kind=function",
            f"reward.0.function={function or self.reward}:graded",
            "algorithm.kl=k3",
            "algorithm.kl_weight=0.1",
            f"algorithm.reference={self.reference}",
        ]

    def now(self) -> dict[str, str]:
        return contents(load(None, self.words), Path)


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("model/model.safetensors", "model.path, model.safetensors"),
        ("model/config.json", "model.path, config.json"),
        ("reference/model.safetensors", "algorithm.reference, model.safetensors"),
    ],
)
def test_a_file_that_changed_under_the_same_name_is_refused_at_a_resume_by_its_key(file: str, key: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    before = place.now()
    check_identity(before, place.now(), tmp_path)
    (tmp_path / file).write_text(REWARD.replace("1.0", "0.5"))
    with pytest.raises(CheckpointError, match=f"changed since:\n  contents of {key}: [0-9a-f]{{16}} -> [0-9a-f]{{16}}\ntake it back"):
        check_identity(before, place.now(), tmp_path)


def test_a_reward_that_was_mended_is_told_at_a_resume_and_refuses_none(tmp_path: Path) -> None:
    place = Place(tmp_path)
    before = place.now()
    place.reward.write_text(REWARD.replace("1.0", "0.5"))
    check_identity(before, place.now(), tmp_path)
    assert mended(before, place.now()) == ["reward.0.function, own_reward_of_a_test.py"]
    assert mended(before, before) == []


def test_the_module_of_a_reward_function_is_looked_into_without_being_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    place = Place(tmp_path, "own_reward_of_a_test")
    before = place.now()
    place.reward.write_text(REWARD + "raise SystemExit('it was run')\n")
    assert {key for key, value in place.now().items() if before[key] != value} == {"contents of reward.0.function, own_reward_of_a_test.py"}


def test_what_says_nothing_about_the_model_may_change_and_what_is_not_there_has_no_contents(tmp_path: Path) -> None:
    place = Place(tmp_path)
    before = place.now()
    (place.model / "README.md").write_text("other words")
    assert place.now() == before
    place.reward.unlink()
    assert before.keys() - place.now().keys() == {"contents of reward.0.function, own_reward_of_a_test.py"}
