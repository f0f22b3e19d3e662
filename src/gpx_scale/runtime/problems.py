"""Several errors that are raised as one, so that a user can mend all of them at once."""

from __future__ import annotations

from typing import Any

from ..errors import InputError


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
