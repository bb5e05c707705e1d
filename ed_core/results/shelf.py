"""An in-memory cache bounded by size, shared by all threads. Torch-free."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Generic, TypeVar, overload

from ..types import ProbeResult

T = TypeVar("T")
LONG = 256  # bytes of an array, beyond which its hash is used
SCALARS = (bool, int, float, type(None), Enum)


class Shelf(Generic[T]):
    """A thread-safe LRU cache of at most `most` by the sum of `size(value)`. Values are shared: do not change them."""

    def __init__(self, most: int, size: Callable[[T], int] = lambda _: 1):
        self._most, self._size, self._taken, self._lock = most, size, 0, threading.Lock()
        self._held: OrderedDict[Hashable, T] = OrderedDict()

    @overload
    def get(self, key: Hashable, make: Callable[[], T]) -> T: ...
    @overload
    def get(self, key: Hashable, make: Callable[[], T | None]) -> T | None: ...
    def get(self, key: Hashable, make: Callable[[], T | None]) -> T | None:
        """Return the cached value, or else the result of `make()`, which is cached unless None."""
        with self._lock:
            if (value_of := self._held.get(key)) is not None:
                self._held.move_to_end(key)
                return value_of
        value_of = make()  # twice where two ask at once, which is harmless
        if value_of is not None:
            with self._lock:
                if key not in self._held:
                    self._held[key] = value_of
                    self._taken += self._size(value_of)
                while self._taken > self._most:
                    self._taken -= self._size(self._held.popitem(last=False)[1])
        return value_of

    def made(self, make: Callable[..., T], *given: Any, **named: Any) -> T:
        """Return `make(*given, **named)` for a pure function, cached by its arguments where all have a key."""
        try:
            key = make, frozen(given), frozen(named)
        except TypeError:
            return make(*given, **named)
        return self.get(key, lambda: make(*given, **named))


def frozen(value: Any) -> Hashable:
    """Return a hashable key for a value, equal for equal contents. A `ProbeResult` is keyed by object, not content.
    Raises `TypeError` for a type without a key."""
    if isinstance(value, str):
        return value
    if isinstance(value, SCALARS):
        return type(value), repr(value)  # 1, 1.0 and True are written differently, and no NaN equals another
    if isinstance(value, ProbeResult):
        return value.itself
    if hasattr(value, "dtype") and value.dtype != object:  # an array, or one number of numpy's
        data = value.tobytes()
        return value.dtype.str, value.shape, data if len(data) <= LONG else hashlib.sha256(data).digest()
    if isinstance(value, Mapping):
        return Mapping, tuple((frozen(key), frozen(member)) for key, member in value.items())
    if isinstance(value, (tuple, list)):
        return tuple(map(frozen, value))
    if isinstance(value, (set, frozenset)):
        return frozenset(map(frozen, value))
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple(frozen(getattr(value, f.name)) for f in fields(value))
    raise TypeError(f"there is no key for a {type(value).__name__}")
