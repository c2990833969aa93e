"""Pure numerics: advantages, losses, KL estimators, sampling. torch and numpy, no I/O."""
