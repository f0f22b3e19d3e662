"""Classes that a model file may hold, and checks of what was read from a file.

A class declares with `@stored` that a model file may hold its objects. The file names the class by
its name alone, and nothing is imported by a name that a file brings: a name that no class has
declared is refused. A file is data that enter, so every check raises a ValueError that says what
does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints, overload

import numpy as np

# Tags of values that are not of our classes. No class that is stored may have one of these names.
VALUE_TAGS = (
    *("dict", "Bunch", "tuple", "set", "slice", "float", "dtype"),
    *("array", "objects", "csr", "RandomState"),
)

Stored = TypeVar("Stored", bound=type)


# classes


@dataclass(frozen=True)
class StoredClass:
    """A class that a model file may hold, with what takes an object apart and makes it again."""

    kind: type
    take: Callable[[Any], dict[str, Any]]
    make: Callable[..., Any]


_BY_NAME: dict[str, StoredClass] = {}


def fields_of(made: Any) -> dict[str, Any]:
    """Return what the constructor of an object's class takes: its fields, or all its attributes."""
    if is_dataclass(made):
        return {field.name: getattr(made, field.name) for field in fields(made) if field.init}
    return made._asdict() if hasattr(made, "_asdict") else dict(vars(made))


@overload
def stored(kind: Stored, /) -> Stored: ...
@overload
def stored(
    *, take: Callable[[Any], dict[str, Any]] = ..., make: Callable[..., Any] | None = ...
) -> Callable[[Stored], Stored]: ...
def stored(
    kind: Any = None,
    /,
    *,
    take: Callable[[Any], dict[str, Any]] = fields_of,
    make: Callable[..., Any] | None = None,
) -> Any:
    """Declare that a model file may hold objects of a class, but not those of its subclasses.

    take : returns what is written of an object, as a mapping from names to values that a file can
        hold. By default, these are the fields of a dataclass or of a named tuple.
    make : returns an object, from these values as keyword arguments. By default, it is the class.

    The types that the class declares for its attributes are compared with what was read, so its
    annotations must be such that `typing.get_type_hints` can evaluate them.

    >>> @stored
    ... @dataclass(frozen=True)
    ... class Interval:
    ...     low: float
    ...     high: float
    >>> known = stored_by_name("Interval")
    >>> known.make(**known.take(Interval(0.0, 1.0)))
    Interval(low=0.0, high=1.0)
    >>> forget(Interval)
    >>> stored_by_name("Interval") is None
    True
    """

    def declare(kind: Stored) -> Stored:
        name, before = kind.__name__, _BY_NAME.get(kind.__name__)
        if name in VALUE_TAGS or (before is not None and not _is_same(kind, before.kind)):
            holds = "values of that name" if before is None else f"{before.kind.__module__}.{name}"
            this = f"{kind.__module__}.{name}"
            raise TypeError(f"a model file holds {holds} already: give {this} another name")
        _BY_NAME[name] = StoredClass(kind, take, kind if make is None else make)
        return kind

    return declare if kind is None else declare(kind)


def _is_same(kind: type, before: type) -> bool:
    """Return whether a class is a new definition of one that is known: its module was reloaded."""
    return (kind.__module__, kind.__qualname__) == (before.__module__, before.__qualname__)


def stored_by_type(kind: type) -> StoredClass | None:
    """Return how objects of a class are stored, None where the class has not declared it."""
    known = _BY_NAME.get(kind.__name__)
    return known if known is not None and known.kind is kind else None


def stored_by_name(name: str) -> StoredClass | None:
    """Return how objects of the class of that name are stored, None where there is none."""
    return _BY_NAME.get(name)


def stored_classes() -> Iterator[type]:
    """Return the classes that a model file may hold."""
    return iter([known.kind for known in _BY_NAME.values()])


def forget(kind: type) -> None:
    """Take back that a model file may hold objects of a class."""
    if stored_by_type(kind) is not None:
        del _BY_NAME[kind.__name__]


# checks


def must(right: Any, what: str) -> None:
    """Raise a ValueError that says `what` is wrong, unless all is right."""
    if not right:
        raise ValueError(what)


def must_be_numbers(
    array: Any,
    shape: tuple[int, ...],
    what: str,
    dtypes: tuple[Any, ...] = (np.float64,),
) -> None:
    """Raise a ValueError unless these are finite numbers of one of these types, in this shape."""
    typed = isinstance(array, np.ndarray) and array.dtype in dtypes
    must(typed, f"{what} is not an array of {np.dtype(dtypes[0]).name}")
    must(array.shape == shape, f"{what} has the shape {array.shape}, and {shape} is needed")
    must(np.isfinite(array).all(), f"{what} holds what is not a finite number")


def must_be_indices(array: Any, stop: int, what: str, size: int | None = None) -> None:
    """Raise a ValueError unless these are different whole numbers from 0 to below `stop`."""
    whole = isinstance(array, np.ndarray) and array.dtype.kind == "i" and array.ndim == 1
    must(whole, f"{what} are not whole numbers")
    must(size is None or array.size == size, f"{what} are {array.size}, and {size} are needed")
    inside = not array.size or (array.min() >= 0 and array.max() < stop)
    must(inside, f"{what} point outside of {stop}")
    must(np.unique(array).size == array.size, f"{what} name one row twice")


def are_finite(*values: float) -> bool:
    """Return whether all values are finite numbers."""
    return bool(np.isfinite(values).all())


def must_be_typed(made: Any) -> None:
    """Raise a ValueError unless the attributes of an object have the types that it declares."""
    known = vars(made) if hasattr(made, "__dict__") else fields_of(made)
    for name, hint in get_type_hints(type(made)).items():
        if name in known:
            value = getattr(made, name)
            what = f"{name} of a {type(made).__name__} is {type(value).__name__}"
            must(is_of_type(value, hint), what)


def is_of_type(value: Any, hint: Any) -> bool:
    """Return whether a value is of a declared type.

    What is declared as a callable cannot come from a file, and is None there.
    """
    origin, inside = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(is_of_type(value, one) for one in inside)
    if origin is list:
        return isinstance(value, list) and all(is_of_type(item, inside[0]) for item in value)
    if origin is dict:
        if not isinstance(value, dict):
            return False
        keys, items = list(value), list(value.values())
        parts = ((keys, inside[0]), (items, inside[1]))
        return all(is_of_type(one, hint) for ones, hint in parts for one in ones)
    if origin is tuple:
        if inside[-1] is Ellipsis:
            return isinstance(value, tuple) and all(is_of_type(item, inside[0]) for item in value)
        fits = isinstance(value, tuple) and len(value) == len(inside)
        return fits and all(map(is_of_type, value, inside))
    if origin is Sequence:
        several = isinstance(value, list | tuple)
        return several and all(is_of_type(item, inside[0]) for item in value)
    if origin is not None:
        return False
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    return value is None if hint is NoneType else isinstance(value, hint)
