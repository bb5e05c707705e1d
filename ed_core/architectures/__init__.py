"""Where a model family keeps what the probes read. A family is data; code that asks "which family is this?" exists nowhere else.

`a` is what attention adds to the residual stream, `m` what the MLP adds: the paths below must lead to the module whose output *is* that
addition (after any post-norm), up to the residual multiplier. Whether they do is not believed but measured: `LanguageModel.verify`.
"""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """Module paths and config fields of one family.

    `blocks`, `final_norm`: paths from the model. `attn`, `mlp`: paths from a block, the first that exists counts.
    `parallel`: True where the MLP reads the block's input beside attention; a string names the boolean config field that tells.
    `residual_multiplier`, `logit_divisor`, `logit_multiplier`, `logit_softcap`: names of config fields ("" = the family has none);
    a field that is None or absent counts as not set.
    """

    family: str
    model_types: tuple[str, ...]
    blocks: str = "model.layers"
    final_norm: str = "model.norm"
    attn: str = "self_attn"
    mlp: str = "mlp"
    parallel: bool | str = False
    residual_multiplier: str = ""
    logit_divisor: str = ""
    logit_multiplier: str = ""
    logit_softcap: str = ""

    def is_parallel(self, config) -> bool:
        return bool(getattr(config, self.parallel)) if isinstance(self.parallel, str) else self.parallel

    def number(self, config, role: str) -> float | None:
        """The value of the config field that plays `role` (for instance "logit_softcap"), or None."""
        field = getattr(self, role)
        value = getattr(config, field, None) if field else None
        return None if value is None else float(value)

    def modules_read(self) -> str:
        times = f" x config.{self.residual_multiplier}" if self.residual_multiplier else ""
        return f"attention's addition at {self.blocks}[l].{self.attn}{times}, the MLP's at {self.blocks}[l].{self.mlp}{times}"


def find(model_type: str) -> Architecture | None:
    """The architecture that describes a config's `model_type`, or None."""
    from .families import FAMILIES

    return next((family for family in FAMILIES if model_type in family.model_types), None)


def supported() -> list[str]:
    """Family names, for messages and listings."""
    from .families import FAMILIES

    return [family.family for family in FAMILIES]
