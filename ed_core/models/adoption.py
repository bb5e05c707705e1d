"""A family that is not described: read it under every known layout, and take the one whose identities hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import cast

from torch import nn

from ..errors import IdentityFailed, UnknownFamily
from ..types import ModelSpec
from .architecture import Architecture
from .encoder import Encoder
from .families import FAMILIES
from .identities import Identities
from .language_model import LanguageModel
from .modules import SEE_GUIDE, Pretrained, Tokenizer, find_submodule
from .verify import verify

ROLES = ("residual_multiplier", "logit_divisor", "logit_multiplier", "logit_softcap")
OF_A_BLOCK = ("attn", "mlp", "third", "stream_scale", "in_place", "per_row")


def adopt(hf_model: Pretrained, tokenizer: Tokenizer, spec: ModelSpec, encoder: Encoder | None = None) -> LanguageModel:
    """Return the model read by the first known layout (a family's module paths) under which its residual identities
    hold.

    For a family without a description. The model gets a note for the user; `UnknownFamily` where no layout fits."""
    failed: list[tuple[float, float, str]] = []  # number of failures, miss, sentence
    for layout in layouts(hf_model):
        try:
            model = LanguageModel(hf_model, tokenizer, layout, spec, encoder)
            figures = verify(model)
        except IdentityFailed as error:
            failed.append((float("inf"), 0.0, f"read like {layout.family}: {error}"))
            continue
        moves = [change for change in figures.mlp_moves if change is not None]
        model.parallel = not any(moves)
        figures = replace(figures, parallel=model.parallel)
        failures = figures.failures()
        if not moves or 0 < max(moves) <= figures.miss_limit:
            failures.append("attention adds too little on the test prompt to show whether the MLP follows it")
        if not failures:
            return _accepted(model, figures)
        sentence = f"read like {layout.family} ({layout.modules_read()}), {failures[0]}"
        failed.append((len(failures), max(figures.miss), sentence))
    nothing = (0, 0.0, "no module was found where any known family keeps its layers, final norm and branches")
    *_, best = min(failed, default=nothing, key=lambda one: one[:2])
    raise UnknownFamily(
        f"Refused: {spec.name} is of the family '{hf_model.config.model_type}', which is not described, and under none "
        f"of the known layouts do its sums hold; the nearest: {best}; {SEE_GUIDE}."
    )


def layouts(hf_model: Pretrained) -> Iterator[Architecture]:
    """Yield the known layouts with module paths that exist in this model: paths of blocks and final norm times ways of
    reading a block; first without, then with the multipliers and caps that the config names."""
    config = hf_model.config.get_text_config()
    stems = dict.fromkeys(
        stem for family in FAMILIES for stem in zip(family.paths("blocks"), family.paths("final_norm"))
    )
    present = {
        role: name
        for family in FAMILIES
        for role in ROLES
        if (name := getattr(family, role)) and getattr(config, name, None) is not None
    }
    tried = set()
    for roles, (blocks, final_norm), family in product([{}, present] if present else [{}], stems, FAMILIES):
        known = (blocks, final_norm, bool(roles), *(getattr(family, name) for name in OF_A_BLOCK))
        inside = cast(nn.ModuleList | None, find_submodule(hf_model, (blocks,)))
        if (
            known in tried
            or inside is None
            or find_submodule(hf_model, (final_norm,)) is None
            or not all(find_submodule(b, family.paths(role)) for b in inside for role in ("attn", "mlp"))
        ):
            continue
        tried.add(known)
        places = {"blocks": blocks, "final_norm": final_norm, **dict.fromkeys(ROLES, ""), **roles}
        yield replace(family, **places, parallel=False, refused=())


def _accepted(model: LanguageModel, figures: Identities) -> LanguageModel:
    """Return the model with `figures` as its identities, and a note that says as which family it is read."""
    model_type, layout, worst = model.hf.config.model_type, model.architecture, figures.to_json()
    order = "reading the same stream as" if model.parallel else "after"
    note = (
        f"The family '{model_type}' is not described here. It was accepted because its sums hold when it is read like "
        f"{layout.family}, the MLP {order} attention ({layout.modules_read()}): miss {worst['miss']:.0e}, slopes "
        f"within {worst['slope_error'] or 0:.0e} of 1, closure {worst['closure']:.0e}, "
        f"replay {worst['replay']:.0e}, in {worst['dtype']}."
    )
    model.architecture = replace(
        layout, family=f"{model_type} (read like {layout.family})", model_types=(), parallel=model.parallel, note=note
    )
    model.identities = figures
    return model
