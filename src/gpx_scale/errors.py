"""The types of errors and warnings.

Every message says what is wrong, and then what to do about it.
"""


class GPXError(Exception):
    """The base class of all errors that gpx_scale raises on purpose.

    Each of them is also one of Python's own types of errors, so that code which knows nothing of
    gpx_scale can handle it.
    """


class InputError(GPXError, ValueError):
    """The data or an argument cannot be used as given.

    The message names the argument, the column or the file, and says what would be accepted.
    """


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
