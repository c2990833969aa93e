"""The one exception tree. Everything a user can cause is also a ValueError that names the value and the rule."""


class PacelineError(Exception):
    """Root of every error that paceline raises on purpose."""


class ConfigError(PacelineError, ValueError):
    """A configuration key is unknown, has the wrong type, or has no effect or no meaning with the others."""


class DataError(PacelineError, ValueError):
    """A dataset, file or row cannot be used; the message names file, row and column."""


class RewardError(PacelineError, ValueError):
    """A reward could not be computed (bad gold, verifier exception, deadline); never a silent 0."""


class ModelError(PacelineError, ValueError):
    """A model directory, weight file or architecture cannot be used as asked."""


class CheckpointError(PacelineError, ValueError):
    """A checkpoint is incomplete, damaged, or belongs to another configuration."""


class CheckpointDamaged(CheckpointError):
    """A file of a checkpoint is missing, or not as it was written; the message names it. An older checkpoint may be whole."""


class StorageError(PacelineError):
    """A file could not be written: no space, no permission, a failing disk; the message names it. What was there before is whole."""


class EngineError(PacelineError):
    """A rollout engine refused or lost work; the message names the trajectory and the instance."""


class StateFileError(EngineError):
    """A file for trajectories on their way between engines cannot be written or read; the message names it. The engine is well."""


class TrainerError(PacelineError):
    """The trainer could not finish a dispatch or an update; the message names the groups."""


class WorkerLost(PacelineError):
    """A worker process ended or stopped answering; the message names it and what it was doing."""


class WorkerSilent(WorkerLost):
    """A worker did not answer by its deadline and was killed for it: the same call would take as long again."""


class TrainerLost(WorkerLost):
    """The trainer was lost, and with it every update since the last checkpoint: this life of the run is over."""


class RuleViolated(PacelineError):
    """One of the rules 1-8 does not hold: a fault of paceline itself, never of the user."""


class LedgerError(PacelineError):
    """The ledger cannot be read or written: damaged, locked, or no space; the message names the file."""


class RecordError(PacelineError, ValueError):
    """A recorded event or command cannot be read: another schema, an unknown kind or field, or a value of the wrong type."""
