"""Messages: what was seen, what is needed, what to try."""


class GPXError(Exception):
    """Base of every error that gpx_scale raises on purpose."""


class InputError(GPXError, ValueError):
    """The data or an argument cannot be used as given."""


class MemoryLimitError(GPXError, MemoryError):
    """More memory is needed than `memory_limit` allows; raised before anything is allocated."""


class NotPositiveDefinite(GPXError, ArithmeticError):
    """The covariance has no Cholesky factor, even with jitter."""


class NotConverged(GPXError, ArithmeticError):
    """An iterative solve did not reach its tolerance; the message has the residual and the remedy."""


class SolverUnavailable(GPXError, NotImplementedError):
    """A solver, or an answer, that this model, kernel or data cannot have."""


class GPXWarning(UserWarning):
    """The result is usable, but something was done that the user should know of."""


class JitterWarning(GPXWarning):
    """Jitter was added to the diagonal of a nearly singular covariance."""
