"""Controls: twins of a model in which nothing was learned, or nothing is in its place. Torch-free; `models` makes them.

A depth curve that an untrained copy shows as well speaks of the architecture, not of what was learned. Two kinds:

untrained   same config and tokenizer, weights drawn as the family's own code draws them before training, from a seed.
            Needs no weights; not in int8 or 4bit.
shuffled    the model's own blocks in a seeded random order; only blocks of one kind change places. In every precision.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import ParameterError
from ..types import ModelSpec
from .remote import SERVED
from .sizes import BYTES

KINDS = {"untrained": "untrained copy", "shuffled": "shuffled layers"}
MEANING = {
    "untrained": "same config and tokenizer, weights drawn at random as before training",
    "shuffled": "the model's own layers in a random order",
}
MOST = 2**32 - 1  # of a seed
SEEDS = range(5)  # of the untrained copies that a sentence rests on


def label(spec: ModelSpec) -> str:
    """Return a control's label, like "untrained copy, seed 0"; "" for a model that is no control."""
    return f"{KINDS[spec.control]}, seed {spec.control_seed}" if spec.control else ""


def full_name(spec: ModelSpec, precision: bool = True) -> str:
    """Return a model's name with precision (unless left out), adapter and control in brackets, like "ed-demo-8 (fp32,
    untrained copy, seed 0)"."""
    adapter = f"with {Path(spec.adapter).name}" if spec.adapter else ""
    further = ", ".join(filter(None, (spec.precision * precision, adapter, label(spec))))
    return f"{spec.name} ({further})" if further else spec.name


def note(spec: ModelSpec) -> str:
    """Return the sentence shown next to every number measured on a control; "" for a model that is none."""
    return (
        f"This is no model's own result but a control's: {label(spec)} ({MEANING[spec.control]})."
        if spec.control
        else ""
    )


def check(spec: ModelSpec) -> None:
    """Raise `ParameterError` for a control that does not exist, or that this precision, adapter or seed rules out."""
    if not spec.control:
        if spec.control_seed:
            raise ParameterError(
                f"The seed {spec.control_seed} belongs to a control, and none was asked for; expected a control, "
                f"{' or '.join(KINDS)}, with it."
            )
        return
    if spec.precision == SERVED:
        raise ParameterError(
            f"A control is made of the model's own parts, and those of {spec.source} are elsewhere; take none."
        )
    if spec.control not in KINDS:
        raise ParameterError(f"The control is {spec.control!r}; expected {' or '.join(KINDS)}.")
    if type(spec.control_seed) is not int or not 0 <= spec.control_seed <= MOST:
        raise ParameterError(f"The control's seed is {spec.control_seed!r}; expected 0 to {MOST}, a whole number.")
    reason = ""
    if spec.control == "shuffled":
        return
    if spec.precision not in (*BYTES, "auto"):
        reason = f"has no {spec.precision} weights: quantization is fitted to trained ones; open it in bf16 or fp32"
    elif spec.adapter:
        reason = "keeps nothing of the weights that an adapter could be merged into; leave the adapter out"
    elif spec.offload:
        reason = "cannot be offloaded, as it is made in memory; leave --offload out, or choose a smaller model"
    if reason:
        raise ParameterError(f"An untrained copy {reason}.")


def needs_weights(spec: ModelSpec) -> bool:
    """Return whether opening the model needs weights here: an untrained copy needs only config and tokenizer."""
    return spec.control != "untrained"
