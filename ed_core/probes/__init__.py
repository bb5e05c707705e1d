"""All probes, in the order the pages and the command line show them. Importing this costs no torch.

To add a probe: a file here, a line below, a test and a page. Store, estimate, comparison, spreads, case studies, export
and command line read what the probe declares; CONTRIBUTING.md walks through one."""

from __future__ import annotations

from ..errors import ParameterError
from .answers import Answers, ExactAnswers
from .base import Probe
from .contributions import Contributions, Turns
from .generation import Continuation, Generation
from .integrated_gradients import IntegratedGradients
from .layer_skip import LayerSkip
from .lenses import EarlyExit, Lenses, LogitLens
from .loops import Loops
from .numerics import Numerics
from .patching import Patching
from .residual_erasure import ResidualErasure
from .surgery import Prune, Surgery

PROBES: tuple[type[Probe], ...] = (
    Contributions,
    LogitLens,
    Lenses,
    LayerSkip,
    ResidualErasure,
    Patching,
    IntegratedGradients,
    Prune,
    Surgery,
    EarlyExit,
    ExactAnswers,
    Numerics,
    Generation,
    Turns,
    Answers,
    Continuation,
    Loops,
)


def find(name: str) -> type[Probe]:
    """Return the probe class of this name, including those defined in a notebook; raise `ParameterError` for an unknown
    name."""
    for probe in (*PROBES, *reversed(Probe.__subclasses__())):
        if probe.name == name:
            return probe
    raise ParameterError(f"There is no probe '{name}'; the probes are {', '.join(p.name for p in PROBES)}.")
