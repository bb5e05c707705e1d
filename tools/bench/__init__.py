"""Speed and memory against targets; docs/benchmarks.md says what each row means."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure and its target."""

    what: str
    measured: str
    target: str
    ok: bool

    def __str__(self) -> str:
        return f"{self.what:<62} {self.measured:<36} {self.target:<22} {'ok' if self.ok else 'missed'}"
