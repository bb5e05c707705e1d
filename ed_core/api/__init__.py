"""The engine as a library, for a notebook, a script or a training: the names that `ed_core` offers.

    import ed_core

    model = ed_core.open("ed-demo-16")
    lens = model.run(ed_core.LogitLens(), "5 + 7 = ", answer="2")
    lens.kl, lens.to_dataframe("kl"), lens.plot()

Every import of the engine imports this file: torch and all else that takes time is imported when it is used."""

from __future__ import annotations

import os
from importlib import import_module
from operator import index
from os import PathLike
from typing import TYPE_CHECKING, Any, SupportsIndex

from ..errors import ParameterError

if TYPE_CHECKING:
    from .model import Model


OFFERED = {  # the module of each name that is not this file's or a probe's
    "DepthCallback": "api.callback",
    "Prompt": "types",
    "compare": "api.model",
    "read_jsonl": "prompts",
}


def open(
    source: Any,
    tokenizer: Any = None,
    precision: str = "fp32",
    device: str = "auto",
    adapter: str | PathLike[str] = "",
    offload: str | PathLike[str] = "",
    control: str = "",
    control_seed: int = 0,
    *,
    name: str = "",
    keep: bool = False,
) -> Model:
    """Return an opened model: a bundled name, a folder, a GGUF file, or a hub id (`org/name`, or `org/name@revision`),
    which is downloaded where necessary; `ndif:ORG/NAME`, which is measured remotely; or a `transformers` causal
    language model in memory, with its tokenizer. A `ModelError` says why a model cannot be used.

    Of a name: `precision`: auto, fp32, bf16, fp16, int8 or 4bit. `device`: auto (a GPU if any), cpu, cuda (as many GPUs
    as it takes), cuda:1 or mps. `adapter`: a LoRA adapter's folder. `offload`: a folder for weights that fit into no
    memory. `control`, `control_seed`: a copy in the model's place, "untrained" (random weights) or "shuffled" (layers
    in random order), and which one.

    Of a model in memory: it is measured as it is at each `run`, wrapped by peft or accelerate, in training or not, and
    nothing of it changes: modes, weights, gradients, hooks, config, random states. Dropout is off in what is measured,
    and forward hooks of yours do not run. `name`: what results call it. `keep`: store its results, under a hash of its
    weights; without it nothing is stored."""
    from .model import InMemory, Model, ref_of

    of_names = (precision, device, adapter, offload, control, control_seed)
    if not isinstance(source, (str, PathLike)):
        if of_names != ("fp32", "auto", "", "", "", 0):
            raise ParameterError(
                "A model in memory is measured as it is: precision, device, adapter, offload and control are for "
                "models that are opened by name; leave them out."
            )
        return InMemory(source, tokenizer, name, keep)
    if tokenizer is not None or name or keep:
        raise ParameterError(
            "A tokenizer, name and keep go with a model in memory; for one that is opened by name leave them out, and "
            "give the rest by name, like precision='bf16'."
        )
    adapter, offload = (os.fspath(place) if place else "" for place in (adapter, offload))
    if isinstance(control_seed, SupportsIndex) and not isinstance(control_seed, bool):
        control_seed = index(control_seed)  # also numpy's
    model = Model(ref_of(str(source), precision, device, adapter, control, offload=offload, control_seed=control_seed))
    with model.undisturbed():
        _ = model.language_model
    return model


def offered() -> list[str]:
    """Return the names of `ed_core` that are no modules: `open`, the rest of the interface, and the probes."""
    from ..probes import PROBES

    return ["open", *OFFERED, *(probe.__name__ for probe in PROBES)]


def __getattr__(name: str) -> Any:
    """Return one of `OFFERED`, or a probe's class. A module's name must import nothing: Python asks here before it
    imports."""
    if name in OFFERED:
        return getattr(import_module(f"ed_core.{OFFERED[name]}"), name)
    if name[:1].isupper():
        from ..probes import PROBES

        for probe in PROBES:
            if probe.__name__ == name:
                return probe
    raise AttributeError(f"module 'ed_core' has no attribute {name!r}")
