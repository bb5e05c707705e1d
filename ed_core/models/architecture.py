"""Where a model family keeps what the probes read. A family is data; no other code asks which family a model is of.

Attention's and the MLP's paths lead to the module whose output *is* what is added to the residual stream (after any
post-norm), up to the residual multiplier. Whether they do is measured: `models.identities`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """Module paths and config fields of one family; "" or () for what it does not have. Of several paths the first that
    exists counts, block by block.

    `blocks`, `final_norm`: paths from the model. `attn`, `mlp`, `third`: paths from a block; `third` is another branch.
    `stream_scale`: a block's attribute by which it multiplies the whole stream at its end.
    `parallel`: whether the MLP reads the same stream as attention; a string names config fields, any of which says so.
    `residual_multiplier`, `logit_divisor`, `logit_multiplier`, `logit_softcap`: config fields; None there is not set.
    `in_place`: the block adds in place to what a branch returned. `per_row`: block arguments with rows per sequence,
    repeated for a batch.
    `passes`: the config field with the number of times that the blocks run. `between`: path from the model to the norm
    between two passes; `reentry`: the boolean config field that adds the embedding there once more. `exit_gate`: path
    to the map that reads the normed stream after each pass and gives the logit of leaving.
    `refused`: `(config field, accepted values, reason)`: variants of the family whose stream is no plain sum.
    `layers`: the kinds of layers (config field `layer_types`) that are read; () for all.
    `note`: goes with every result of an undescribed family."""

    family: str
    model_types: tuple[str, ...]
    blocks: str | tuple[str, ...] = "model.layers"
    final_norm: str | tuple[str, ...] = "model.norm"
    attn: str | tuple[str, ...] = "self_attn"
    mlp: str | tuple[str, ...] = "mlp"
    third: str | tuple[str, ...] = ()
    stream_scale: str = ""
    parallel: bool | str | tuple[str, ...] = False
    residual_multiplier: str = ""
    logit_divisor: str = ""
    logit_multiplier: str = ""
    logit_softcap: str = ""
    in_place: bool = False
    per_row: tuple[str, ...] = ()
    passes: str = ""
    between: str | tuple[str, ...] = ()
    reentry: str = ""
    exit_gate: str | tuple[str, ...] = ()
    refused: tuple[tuple[str, tuple[Any, ...], str], ...] = ()
    layers: tuple[str, ...] = ()
    note: str = ""

    def paths(self, role: str) -> tuple[str, ...]:
        """Return the module paths for a role ("blocks", "attn", …), in the order in which they are tried."""
        paths = getattr(self, role)
        return paths if isinstance(paths, tuple) else (paths,)

    def is_parallel(self, config: object) -> bool:
        """Return whether, under this config, attention and MLP of a block read the same stream."""
        if isinstance(self.parallel, bool):
            return self.parallel
        return any(getattr(config, field, False) for field in self.paths("parallel"))

    def n_passes(self, config: object) -> int:
        """Return how often the blocks run in one forward pass: 1, but for looped models. `config`: the library's
        object, or the fields of a config.json."""
        if not self.passes:
            return 1
        passes = config.get(self.passes) if isinstance(config, Mapping) else getattr(config, self.passes, None)
        return passes if isinstance(passes, int) and not isinstance(passes, bool) else 1

    def number(self, config: object, role: str) -> float | None:
        """Return the value of the config field that the family names for `role` (like "logit_softcap"); None where the
        family names none or the config leaves it out."""
        field = getattr(self, role)
        value = getattr(config, field, None) if field else None
        return None if value is None else float(value)

    def refusal(self, config: object) -> str:
        """Return the reason to refuse a model of this family with this config; "" where it can be read."""
        for field, fine, reason in self.refused:
            if (value := getattr(config, field, None)) not in fine:
                return f"{field} is {value}: {reason}"
        if self.layers and (other := layer_kinds(config) - set(self.layers)):
            return f"some of its layers are {' and '.join(sorted(other))} instead of attention, which are not read"
        return ""

    def modules_read(self) -> str:
        """Return, in words, the module paths at which attention's and the MLP's additions to the stream are read."""
        times = f" x config.{self.residual_multiplier}" if self.residual_multiplier else ""
        blocks = " or ".join(self.paths("blocks"))

        def place(role: str) -> str:
            return f"{blocks}[l].{' or '.join(self.paths(role))}{times}"

        third = f", a third branch's at {place('third')}" if self.third else ""
        scale = f", the stream scaled by {blocks}[l].{self.stream_scale} at the end" if self.stream_scale else ""
        loop = f", config.{self.passes} passes" if self.passes else ""
        between = [" or ".join(self.paths("between"))] if self.between else []
        between += [f"the embedding where config.{self.reentry}"] if self.reentry else []
        loop += f" with {' and '.join(between)} in between" if between else ""
        return f"attention's addition at {place('attn')}, the MLP's at {place('mlp')}{third}{scale}{loop}"


def layer_kinds(config: object) -> set[str]:
    """Return the kinds of layers that a config lists, like "attention" and "mamba"; empty where it lists none."""
    listed = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    return set(map(str, listed))
