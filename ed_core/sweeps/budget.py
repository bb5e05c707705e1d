"""How much of a sweep is held at once. Torch-free.

Sizes follow from the request and the budget alone, so a number does not depend on what else was running. Where memory
runs out anyway the call is halved and goes on, and the provenance says so: a reader may then know why two runs
differ in the last digit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

from .. import settings
from ..errors import OutOfMemory, ParameterError, one_line, ran_out
from ..machine import free_cache, probe_bytes

T = TypeVar("T")
# Rows x positions of one block call; larger batches gain nothing on a CPU and leave its cache; elsewhere 16 384
TOKENS_PER_CALL = {"cpu": 768}
# What logits compared at once may take; larger arrays cost a page fault per 4 KB, each time; elsewhere 256 MiB
LOGIT_BYTES = {"cpu": 32 << 20}
# The same where a lens is read; the logits of all depths and positions never exist together. Elsewhere 1 GiB
LENS_BYTES = {"cpu": 150 << 20}


def lens_bytes(device: str) -> int:
    """Return how many bytes of logits to compare at once when reading a lens, on a device type such as "cpu"."""
    return LENS_BYTES.get(device, 1 << 30)


class Budget:
    """The memory that one computation may use besides model and trace, and how often that was halved.

    `n_bytes`: None takes the setting `probe_memory`, else what suits the device. `total`: the device's bytes, 0 if not
    known. `what`: the computation's name in messages."""

    def __init__(self, n_bytes: int | None = None, device: str = "cpu", what: str = "The computation", total: int = 0):
        self.bytes = n_bytes or settings.current().probe_memory or probe_bytes(device, total)
        self.tokens_per_call = TOKENS_PER_CALL.get(device, 16384)
        self.logit_bytes = min(LOGIT_BYTES.get(device, 256 << 20), self.bytes // 2)
        self.lens_bytes = min(lens_bytes(device), self.bytes)
        self.what, self.halvings = what, 0

    def fit(self, bytes_each: int | float) -> int:
        """Return how many items of this size fit into half of the budget, at least one. What a sweep keeps may take one
        half, a single call the other."""
        return max(1, int(self.bytes / 2 / max(bytes_each, 1)) >> self.halvings)

    def rows(self, tokens_each: int, bytes_per_token: int | float) -> int:
        """Return the rows of one block call, at least one, that suit the device and fit memory."""
        well = (self.tokens_per_call // max(tokens_each, 1)) >> self.halvings
        return max(1, min(well, self.fit(tokens_each * bytes_per_token)))

    def each(self, n_rows: int, most: Callable[[], int], work: Callable[[slice], T]) -> Iterator[T]:
        """Yield the results of `work` on successive slices of `n_rows` rows, `most()` at most each, evenly. A call that
        runs out of memory is repeated with about half the rows, so `work` must compute first and write last. Raises
        `OutOfMemory` if one row does not fit."""
        begin = 0
        while begin < n_rows:
            for rows in even_chunks(n_rows - begin, most()):
                rows = slice(begin + rows.start, begin + rows.stop)
                done = self._attempt(work, rows, most)
                if done is None:
                    begin = rows.start
                    break
                yield done[0]
            else:
                return

    def run(self, n_rows: int, most: Callable[[], int], work: Callable[[slice], object]) -> None:
        """Call `work` on slices of rows as `each` does, ignoring results."""
        for _ in self.each(n_rows, most, work):
            pass

    def _attempt(self, work: Callable[[slice], T], rows: slice, most: Callable[[], int]) -> tuple[T] | None:
        """Return the result of `work` as a 1-tuple, or None if memory ran out; then the budget was halved until `most`
        asks for fewer rows."""
        try:
            return (work(rows),)
        except Exception as error:
            if not ran_out(error):
                raise
            why = one_line(error)
        if rows.stop - rows.start == 1:  # here nothing holds what filled the memory
            raise OutOfMemory(
                f"{self.what} ran out of memory with a single row at a time ({why}); use a shorter prompt, a smaller "
                "model or a narrower precision."
            )
        while most() >= rows.stop - rows.start:
            self.halvings += 1
        free_cache()
        return None

    def certificate(self) -> dict[str, int]:
        """Return the budget in bytes and the number of halvings, for a result's provenance."""
        return {"budget_bytes": self.bytes, "halved": self.halvings}


def even_chunks(n_rows: int, most: int) -> list[slice]:
    """Return the fewest slices of at most `most` rows that cover `n_rows`, all of nearly equal size."""
    n_chunks = -(-n_rows // most)
    ends = [n_rows * i // max(n_chunks, 1) for i in range(n_chunks + 1)]
    return [slice(begin, end) for begin, end in itertools.pairwise(ends)]


def parse(text: str) -> int | None:
    """Return the bytes that a text such as "2G", "500M" or a plain number means; None for an empty text. Raises
    `ParameterError`."""
    if not text:
        return None
    try:
        n_bytes = settings.in_bytes(text)
    except ValueError:
        n_bytes = 0
    if not n_bytes:
        raise ParameterError(f"The memory budget is {text!r}; expected bytes like 500M or 2G.")
    return n_bytes
