"""The types of errors and warnings.

Every message says what is wrong, and then what to do about it.
"""

from typing import Any


class GPXError(Exception):
    """The base class of all errors that gpx_scale raises on purpose.

    Each of them is also one of Python's own types of errors, so that code which knows nothing of
    gpx_scale can handle it.
    """


class InputError(GPXError, ValueError):
    """The data or an argument cannot be used as given.

    The message names the argument, the column or the file, and says what would be accepted.
    """


class Problems:
    """The errors of several columns, each of which is caught inside of a `with` statement."""

    def __init__(self) -> None:
        self.found: list[InputError] = []

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        """Keep an InputError for later."""
        if isinstance(error, InputError):
            self.found.append(error)
            return True
        return False

    def raise_all(self) -> None:
        """Raise one InputError with all that were caught, if there are any."""
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            lines = "".join(f"\n- {error}" for error in self.found)
            raise InputError(f"There are {len(self.found)} problems:{lines}")


class MemoryLimitError(GPXError, MemoryError):
    """More memory is needed than `memory_limit` allows.

    This error is raised before anything is allocated. The message has both sizes.
    """


class NotPositiveDefinite(GPXError, ArithmeticError):
    """The covariance matrix has no Cholesky factor, even with jitter on its diagonal."""


class NotConverged(GPXError, ArithmeticError):
    """An iterative solver did not reach its tolerance.

    The message has the residual that was reached, and the arguments that help.
    """


class SolverUnavailable(GPXError, NotImplementedError):
    """The solver cannot fit this model, kernel or data, or cannot give the result asked for."""


class GPXWarning(UserWarning):
    """The result can be used, but something was done that the user should know of."""


class SlowFitWarning(GPXWarning):
    """No solver is predicted to fit this many rows in the time that a person waits for."""


class UnresolvedKernelWarning(GPXWarning):
    """The kernel is too rough for the functions of a basis, or for a grid.

    Standard deviations may be too small. The message says how much of the prior variance is missed.
    """


class FewPointsWarning(GPXWarning):
    """The means of inducing points are several standard deviations off between the points."""


class JitterWarning(GPXWarning):
    """Jitter was added to the diagonal of a nearly singular covariance matrix."""
