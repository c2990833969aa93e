"""When a trajectory ends: end-of-sequence ids, stop strings, the token limit, in this order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.types.records import FinishReason

Decode = Callable[[Sequence[int]], str]
"""Token ids -> text without special tokens. The text of a prefix must not depend on what follows (no clean-up of spaces)."""

_INCOMPLETE = "\ufffd"
"""What decoders write for bytes that are not a whole character (yet)."""
_LONGEST_CHARACTER = 4
"""Bytes of UTF-8, hence tokens, after which a character can no longer be completed."""


class Ending:
    """Watches the tokens of one trajectory."""

    def __init__(self, decode: Decode, end_ids: frozenset[int], stop: tuple[str, ...], max_tokens: int) -> None:
        self._decode, self._end_ids, self._stop, self._limit = decode, end_ids, stop, max_tokens
        self._longest = max(map(len, stop), default=0)
        self._tail = ""
        self._from = self._to = 0
        self._seen = ""

    def after(self, ids: Sequence[int]) -> FinishReason | None:
        """Why the trajectory ends with the last of `ids`, or None. Called once per token, all tokens so far each time."""
        if ids[-1] in self._end_ids:
            return "eos"
        if self._stop and self._stopped(ids):
            return "stop"
        return "length" if len(ids) >= self._limit else None

    def catch_up(self, ids: Sequence[int]) -> None:
        """Take note of tokens that another watcher has seen: the trajectory went on after each of them."""
        if self._stop:
            for n in range(1, len(ids) + 1):
                self._stopped(ids[:n])

    def text(self, ids: Sequence[int], finish: FinishReason) -> str:
        """The completion without the end-of-sequence token, and cut before the first stop string if that ended it."""
        text = self._decode(ids[:-1] if finish == "eos" else ids)
        return text[: self._first_stop(text)] if finish == "stop" else text

    def _stopped(self, ids: Sequence[int]) -> bool:
        """Whether the text holds a stop string. Only new text is searched; a hit is confirmed in the whole text, because
        pieces decoded in part (a leading space, half a character) may read differently."""
        read = self._decode(ids[self._from :])
        recent = self._tail + read[len(self._seen) :]
        hit = any(stop in recent for stop in self._stop)
        # Half a character, or a hit not yet confirmed, is read again together with the next token.
        if not hit and (not read.endswith(_INCOMPLETE) or len(ids) - self._to > _LONGEST_CHARACTER):
            self._tail = recent[max(0, len(recent) - self._longest + 1) :] if self._longest > 1 else ""
            self._from, self._to = self._to, len(ids)
            self._seen = self._decode(ids[self._from :])
        return hit and self._first_stop(self._decode(ids)) is not None

    def _first_stop(self, text: str) -> int | None:
        """Where the earliest stop string begins in `text`."""
        found = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        return min(found, default=None)
