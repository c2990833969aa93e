"""The sections `[task]`, `[[mix]]` and `[eval.task]`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from paceline.config.section import Section, Table


class TaskConfig(Section):
    """Where prompts come from."""

    kind: Literal["reasoning_gym", "file", "synthetic"] = "reasoning_gym"
    """`reasoning_gym` = problems of a generator, `file` = rows of a file or a saved dataset, `synthetic` = numbered prompts of
    max_prompt_tokens tokens each, for the emulated engine."""
    name: str = ""
    """reasoning_gym: the generator, e.g. `chain_sum`."""
    parameters: Table = Field(default_factory=dict)
    """reasoning_gym: parameters of the generator."""
    size: int = Field(default=2000, ge=1)
    """reasoning_gym, synthetic: rows generated (duplicates are removed afterwards and counted)."""
    seed: int = 1
    """reasoning_gym: seed of the generator."""
    path: str = ""
    """file: JSONL or Parquet file, a directory with the parts of one, or one that `datasets` wrote with save_to_disk; relative to the
    working directory."""
    prompt_column: str = "prompt"
    """file: column with the question (text) or the messages (list of role/content)."""
    gold_column: str | None = None
    """file: column with the gold answer; unset = no gold."""
    gold_pattern: str | None = None
    """file: regular expression; its last match's group 1 in the gold column is the gold (GSM8K: `####\\s*(.+)`)."""
    system: str | None = None
    """System message put before the question (plain: a text before it); unset = the template's own default (plain: none)."""
    suffix: str = ""
    """Text appended to the question."""
    template: Literal["chat", "plain"] = "chat"
    """`chat` = the tokenizer's chat template with a generation prompt; `plain` = the text itself."""
    template_arguments: Table = Field(default_factory=dict)
    """chat: passed on to the template, e.g. `enable_thinking = false`."""
    bad_rows: Literal["refuse", "skip"] = "refuse"
    """A row that cannot be used, or whose gold no verifier of the run can read: refuse the file, or skip the row and count it."""
    limit: int | None = Field(default=None, ge=1)
    """Use at most this many rows."""
    shuffle: bool = True
    """Shuffle each epoch (a pure function of run seed and epoch)."""
    label: str | None = Field(default=None, min_length=1)
    """Name in metrics and messages; default: the generator, or the file's name."""
    weight: float | None = Field(default=None, gt=0)
    """Share in a mixture of tasks (`[[mix]]`), relative to the others' weights; unset for all = every task by its number of rows."""
