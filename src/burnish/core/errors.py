"""One tree of errors; each says what, where and how to fix it.

    BurnishError
    ├── InputError             exit 2   the user's recipe, data or model is at fault
    │   ├── ConfigError                 a recipe key, type or value
    │   ├── DataError                   a row, a file, an encoding
    │   ├── TemplateError               a chat template that cannot be trained on
    │   ├── ModelError                  a model that is missing, unreadable or of no supported kind
    │   ├── ResourceError               too little memory or disk, a read-only or occupied folder
    │   ├── IntegrityError              bytes on disk that are not the bytes once written
    │   ├── VerifierError               a verifier that does not pass its own cases, or gold it rejects
    │   └── MissingDependencyError      an optional package that this feature needs
    ├── RunError               exit 1   the run itself went wrong
    │   ├── PolicyMismatchError         sampler and trainer do not speak for the same policy
    │   ├── NonFiniteError              a NaN or an infinity in loss, gradient or weights
    │   ├── FaultBudgetError            too many undecided verdicts or failed rollouts
    │   └── RefusedError                a stage that measured evidence says cannot work
    └── GateRefusedError       exit 3   the last gate did not promote

Leaves out `KeyboardInterrupt` (exit 130), which `cli` maps itself.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes of every `burnish` verb."""

    OK = 0
    RUN_FAILED = 1
    BAD_INPUT = 2
    GATE_REFUSED = 3
    INTERRUPTED = 130


class BurnishError(Exception):
    """An error a person can act on.

    Parameters: `what` happened (with the offending value), `where` (a path one can open: config key,
    file:line, task id), `fix` (an order). `str()` gives the three lines that the command line prints.
    """

    exit_code: ExitCode = ExitCode.RUN_FAILED

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (_rebuild, (type(self), self.what, self.where, self.fix))

    def to_json(self) -> dict[str, str | int]:
        """Machine-readable form for `--json`: kind, what, where, fix, exit_code."""
        return {
            "error": type(self).__name__,
            "what": self.what,
            "where": self.where,
            "fix": self.fix,
            "exit_code": int(self.exit_code),
        }


def _rebuild(cls: type[BurnishError], what: str, where: str, fix: str) -> BurnishError:
    return cls(what, where=where, fix=fix)


class InputError(BurnishError):
    """The user's input is at fault; nothing was written."""

    exit_code = ExitCode.BAD_INPUT


class ConfigError(InputError):
    """A recipe key, type or value is wrong."""


class DataError(InputError):
    """A data file or one of its rows is wrong; `where` is file:line."""


class TemplateError(InputError):
    """The chat template cannot be trained on as it is."""


class ModelError(InputError):
    """A model is missing, unreadable, or of an unsupported kind."""


class ResourceError(InputError):
    """Too little memory or disk, or a folder that cannot be written or is taken."""


class IntegrityError(InputError):
    """Bytes on disk are not the bytes that were written."""


class VerifierError(InputError):
    """A verifier fails its own cases, or rejects the gold answer of a task."""


class MissingDependencyError(InputError):
    """An optional package is needed; `fix` is the install command."""


class RunError(BurnishError):
    """The run went wrong for no fault of the input."""


class PolicyMismatchError(RunError):
    """The sampler does not speak for the trainer's policy."""


class NonFiniteError(RunError):
    """A NaN or an infinity where a number is needed."""


class FaultBudgetError(RunError):
    """More undecided verdicts or failed rollouts than the run allows."""


class RefusedError(RunError):
    """A stage was refused because measured evidence says that it cannot work."""


class GateRefusedError(BurnishError):
    """The last gate did not promote."""

    exit_code = ExitCode.GATE_REFUSED
