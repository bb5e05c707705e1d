"""The engine as a library, for a notebook or a script; what stands here is what `ed_core` itself offers.

    import ed_core

    model = ed_core.open("ed-demo-16")
    lens = model.run(ed_core.LogitLens(), "5 + 7 = ", answer="2")
    lens.kl, lens.to_dataframe("kl"), lens.plot()

Every import of the engine passes here: torch and all else that takes time is imported when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model import Model


def open(
    source: str,
    precision: str = "fp32",
    device: str = "auto",
    adapter: str = "",
    offload: str = "",
    control: str = "",
    control_seed: int = 0,
) -> Model:
    """The opened model: a bundled name, a folder, or a hub id (`org/name`, or `org/name@revision`), which is downloaded
    where it is not here. A `ModelError` says why a model cannot be used.

    `precision`: auto, fp32, bf16, fp16, int8 or 4bit. `device`: auto (a GPU where there is one), cpu, cuda (as many
    GPUs as it takes), cuda:1 or mps. `adapter`: a LoRA adapter's folder. `offload`: a folder for weights that fit into
    no memory. `control`, `control_seed`: a twin in the model's place, "untrained" or "shuffled", and which one."""
    from .model import Model, spec_of

    model = Model(spec_of(source, precision, device, adapter, control, offload=offload, control_seed=control_seed))
    _ = model.language_model
    return model


def offered() -> list[str]:
    """What `ed_core` has beside its modules."""
    from ..probes import PROBES

    return ["Prompt", "open", "read_jsonl", *(probe.__name__ for probe in PROBES)]


def __getattr__(name: str) -> Any:
    """`Prompt`, `read_jsonl` and the probes' classes. The name of a module must import nothing: Python asks here before
    it imports one."""
    if name == "Prompt":
        from ..types import Prompt

        return Prompt
    if name == "read_jsonl":
        from ..prompts import read_jsonl

        return read_jsonl
    if name[:1].isupper():
        from ..probes import PROBES

        for probe in PROBES:
            if probe.__name__ == name:
                return probe
    raise AttributeError(f"module 'ed_core' has no attribute {name!r}")
