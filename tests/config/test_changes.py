"""What a resume says of settings that may change."""

from pathlib import Path

from paceline.config.changes import changes
from paceline.config.load import dump, load


def test_every_key_whose_value_changed_is_named_with_both_values(tmp_path: Path) -> None:
    words = ["task.name=chain_sum", "rollout.stop=['a', 'b']", "trainer.learning_rate=1e-5"]
    resolved = tmp_path / "config.toml"
    resolved.write_text(dump(load(None, words)))
    assert changes(resolved, load(None, words)) == []
    other = load(None, [*words, "trainer.learning_rate=2e-5", "rollout.stop=['a']", "run.epochs=2"])
    assert changes(resolved, other) == [
        'rollout.stop: ["a", "b"] -> ["a"]',
        "run.epochs: unset -> 2",
        "trainer.learning_rate: 1e-05 -> 2e-05",
    ]
    assert changes(resolved, load(None, [*words, "reward.0.weight=0.5"])) == ["reward.0.weight: 1.0 -> 0.5"]


def test_a_resolved_file_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    config = load(None, ["task.name=chain_sum"])
    assert changes(tmp_path / "none.toml", config) == []
    (tmp_path / "cut.toml").write_text("[run\n")
    assert changes(tmp_path / "cut.toml", config) == []
