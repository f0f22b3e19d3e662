"""Classes that a model file may hold, and checks of what was read from a file.

A class declares with `@stored` that a model file may hold its objects. The file gives the name of
the class without its module, and nothing is ever imported by a name from a file: a name that no
class has declared is refused. A file may be damaged or hostile, so everything read from it is
checked, and every check raises a ValueError that says what does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints, overload

import numpy as np

# Tags of values in a model file that are not of our classes. A stored class may not have one of
# these names.
VALUE_TAGS = (
    *("dict", "Bunch", "tuple", "set", "slice", "float", "dtype"),
    *("array", "objects", "csr", "RandomState"),
    *("type", "ufunc", "function", "BSpline"),
)

Stored = TypeVar("Stored", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class StoredClass:
    """A class that a model file may hold, with the functions that write and read its objects.

    `take` returns the values of an object by name, and `make` returns an object from these values.
    """

    kind: type
    take: Callable[[Any], dict[str, Any]]
    make: Callable[..., Any]


_BY_NAME: dict[str, StoredClass] = {}
_FUNCTIONS: dict[str, Callable[..., Any]] = {}


def fields_of(made: Any) -> dict[str, Any]:
    """Return the arguments from which an object can be made again, by name.

    These are the fields of a dataclass or of a named tuple, or all attributes of another object.
    """
    if is_dataclass(made):
        return {field.name: getattr(made, field.name) for field in fields(made) if field.init}
    return dict(made._asdict()) if hasattr(made, "_asdict") else dict(vars(made))


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

    take : a function that returns the values to be written of an object, by name. The default is
        `fields_of`.
    make : a function that returns an object from these values, given as keyword arguments. The
        default is the class itself.

    The values read are compared with the types that the class declares for its attributes, so
    `typing.get_type_hints` must be able to evaluate its annotations.

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
            raise TypeError(f"A model file holds {holds} already: give {this} another name.")
        _BY_NAME[name] = StoredClass(kind, take, kind if make is None else make)
        return kind

    return declare if kind is None else declare(kind)


def stored_function(function: Function) -> Function:
    """Declare that a model file may name a function, such as a transformer.

    The file has the name alone. Who loads it must have declared the same function before, by
    importing the module that defines it.

    >>> @stored_function
    ... def thirds(table):
    ...     return table / 3
    >>> function_named("thirds") is thirds
    True
    """
    name = getattr(function, "__name__", "<lambda>")
    if not name.isidentifier():
        raise TypeError("A model file names functions: give this one a name, by def.")
    if (before := _FUNCTIONS.get(name)) is not None and not _is_same(function, before):
        raise TypeError(f"{before.__module__} has declared another function named {name}.")
    _FUNCTIONS[name] = function
    return function


def function_named(name: Any) -> Callable[..., Any] | None:
    """Return the declared function of that name, or None if there is none."""
    return _FUNCTIONS.get(name) if isinstance(name, str) else None


def _is_same(kind: Any, before: Any) -> bool:
    """Return whether both are one definition, which runs again if its module is reloaded."""
    return (kind.__module__, kind.__qualname__) == (before.__module__, before.__qualname__)


def stored_by_type(kind: type) -> StoredClass | None:
    """Return how objects of a class are stored, or None if the class has not declared it."""
    known = _BY_NAME.get(kind.__name__)
    return known if known is not None and known.kind is kind else None


def stored_by_name(name: str) -> StoredClass | None:
    """Return how objects of the class of that name are stored, or None if there is none."""
    return _BY_NAME.get(name)


def stored_classes() -> Iterator[type]:
    """Return the classes that a model file may hold."""
    return iter([known.kind for known in _BY_NAME.values()])


def forget(kind: type) -> None:
    """Take back that a model file may hold objects of a class."""
    if stored_by_type(kind) is not None:
        del _BY_NAME[kind.__name__]


def must(right: Any, what: str) -> None:
    """Raise a ValueError with the text `what`, unless the condition `right` holds."""
    if not right:
        raise ValueError(what)


def must_be_numbers(
    array: Any,
    shape: tuple[int, ...],
    what: str,
    dtypes: tuple[Any, ...] = (np.float64,),
) -> None:
    """Raise a ValueError unless `array` has this shape, one of these dtypes, and finite numbers."""
    typed = isinstance(array, np.ndarray) and array.dtype in dtypes
    must(typed, f"{what} is not an array of {np.dtype(dtypes[0]).name}")
    must(array.shape == shape, f"{what} has the shape {array.shape}, and {shape} is needed")
    must(np.isfinite(array).all(), f"{what} holds numbers that are not finite")


def must_be_indices(array: Any, stop: int, what: str, size: int | None = None) -> None:
    """Raise a ValueError unless `array` has distinct whole numbers from 0 to `stop` - 1.

    If `size` is given, there must be so many of them.
    """
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
            needed = hint.__name__ if isinstance(hint, type) else str(hint)
            found = f"{name} of a {type(made).__name__} is {type(value).__name__}"
            must(is_of_type(value, hint), f"{found}, and {needed} is needed")


def is_of_type(value: Any, hint: Any) -> bool:
    """Return whether a value is of a declared type.

    A declared callable is never of its type, because a file holds no code: declare it as optional.
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
