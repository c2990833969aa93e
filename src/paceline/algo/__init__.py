"""Pure numerics: advantages, losses, KL estimators, log-probs, sampling. torch and numpy, no I/O.

A loss is advantage estimator + ratio + clip + correction + aggregation + KL, each a small function of its own:
`advantages` gives one number per sample, `policy_loss` turns log-probs and those numbers into a loss.
Names load on first use, so that the torch-free ones (`has_signal`, `overlong_penalty`, `length_metrics`) cost nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.algo.advantage import advantages as advantages
    from paceline.algo.correction import Correction as Correction
    from paceline.algo.kl import kl_estimate as kl_estimate
    from paceline.algo.logprobs import TokenScores as TokenScores
    from paceline.algo.logprobs import token_logprobs as token_logprobs
    from paceline.algo.loss import PolicyLoss as PolicyLoss
    from paceline.algo.loss import policy_loss as policy_loss
    from paceline.algo.shaping import length_metrics as length_metrics
    from paceline.algo.shaping import overlong_penalty as overlong_penalty
    from paceline.types.signal import has_signal as has_signal

_HOME = {
    "Correction": "paceline.algo.correction",
    "PolicyLoss": "paceline.algo.loss",
    "TokenScores": "paceline.algo.logprobs",
    "advantages": "paceline.algo.advantage",
    "has_signal": "paceline.types.signal",
    "kl_estimate": "paceline.algo.kl",
    "length_metrics": "paceline.algo.shaping",
    "overlong_penalty": "paceline.algo.shaping",
    "policy_loss": "paceline.algo.loss",
    "token_logprobs": "paceline.algo.logprobs",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
