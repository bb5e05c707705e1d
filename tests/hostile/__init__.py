"""Whatever a stranger may hand over. `archives`: damaged and lying files of what is kept; `readers`, `commands`: every
reader and command with good input, from which `made` makes hostile ones; `forks`: each tried in a process of its own,
with limits; the tests say what holds for all."""

from .archives import (
    ARRAYS,
    MANIFEST,
    _files,
    _replaced,
    _wire_header,
    _with_result,
    _zip,
    handmade,
    mutated,
    resealed,
    sealed_anew,
)

__all__ = [
    "ARRAYS",
    "MANIFEST",
    "_files",
    "_replaced",
    "_wire_header",
    "_with_result",
    "_zip",
    "handmade",
    "mutated",
    "resealed",
    "sealed_anew",
]
