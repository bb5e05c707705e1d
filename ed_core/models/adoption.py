"""A family that is not described: read it under every known layout, and take the one whose identities hold.

What the sums cannot see is named instead of assumed away: config fields off their class's defaults that nothing here
knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from textwrap import shorten
from typing import Any, cast

from torch import nn

from ..errors import IdentityFailed, UnknownFamily
from ..types import ModelSpec
from .architecture import Architecture
from .encoder import Encoder
from .families import FAMILIES
from .identities import Identities
from .language_model import LanguageModel
from .modules import SEE_GUIDE, Config, Pretrained, Tokenizer, find_submodule
from .verify import verify

ROLES = ("residual_multiplier", "logit_divisor", "logit_multiplier", "logit_softcap")
# Config fields that say how large a part is or how it works inside; none changes what is added to the stream or read
# from its end.
_HARMLESS = """
architectures attention_bias attention_dropout attn_implementation attn_pdrop bos_token_id chunk_size_feed_forward
conv_kernel dtype embd_pdrop embed_dropout eos_token_id ffn_dim head_dim hidden_act hidden_activation hidden_dropout
hidden_dropout_prob hidden_size id2label initializer_range intermediate_size is_decoder is_encoder_decoder label2id
layer_norm_eps layer_norm_epsilon layer_types max_position_embeddings mlp_bias model_type moe_intermediate_size
n_ctx n_embd n_head n_inner n_layer n_positions norm_eps norm_topk_prob num_attention_heads num_experts
num_experts_per_tok num_hidden_layers num_key_value_heads num_local_experts output_attentions output_hidden_states
output_router_logits pad_token_id partial_rotary_factor problem_type resid_pdrop return_dict rms_norm_eps
rope_parameters rope_scaling rope_theta rotary_dim router_aux_loss_coef sliding_window tie_word_embeddings
tokenizer_class transformers_version use_cache use_qk_norm vocab_size activation_function
"""
HARMLESS = frozenset(_HARMLESS.split())


def adopt(hf_model: Pretrained, tokenizer: Tokenizer, spec: ModelSpec, encoder: Encoder | None = None) -> LanguageModel:
    """The model under the first known layout whose identities hold, with a note for the user; `UnknownFamily` where
    none does."""
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
    """Known layouts whose modules exist here: places of blocks and final norm times ways of reading a block; without,
    then with, the multipliers and caps that the config names."""
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
        branches = (
            family.paths("attn"),
            family.paths("mlp"),
            family.third,
            family.stream_scale,
            family.in_place,
            family.per_row,
        )
        known = (blocks, final_norm, branches, bool(roles))
        inside = cast(nn.ModuleList | None, find_submodule(hf_model, (blocks,)))
        if (
            known in tried
            or inside is None
            or find_submodule(hf_model, (final_norm,)) is None
            or not all(find_submodule(b, family.paths(role)) for b in inside for role in ("attn", "mlp"))
        ):
            continue
        tried.add(known)
        yield replace(
            family,
            blocks=blocks,
            final_norm=final_norm,
            parallel=False,
            refused=(),
            **(dict.fromkeys(ROLES, "") | roles),
        )


def _accepted(model: LanguageModel, figures: Identities) -> LanguageModel:
    """The model with its figures, and a note on how it is read and what is not known of its config."""
    model_type, layout, worst = model.hf.config.model_type, model.architecture, figures.to_json()
    order = "reading the same stream as" if model.parallel else "after"
    note = (
        f"The family '{model_type}' is not described here. It was accepted because its sums hold when it is read like "
        f"{layout.family}, the MLP {order} attention ({layout.modules_read()}): miss {worst['miss']:.0e}, slopes "
        f"within {worst['slope_error'] or 0:.0e} of 1, closure {worst['closure']:.0e}, "
        f"replay {worst['replay']:.0e}, in {worst['dtype']}."
    )
    unknown = unknown_fields(model.config, layout).items()
    if odd := ", ".join(f"{name}={shorten(repr(value), 40, placeholder='…')}" for name, value in unknown):
        note += f" Config fields off their defaults that nothing here knows: {odd}."
    model.architecture = replace(
        layout, family=f"{model_type} (read like {layout.family})", model_types=(), parallel=model.parallel, note=note
    )
    model.identities = figures
    return model


def unknown_fields(config: Config, architecture: Architecture) -> dict[str, Any]:
    """Config fields off their class's defaults (or that the class does not have) that are neither harmless nor read
    here."""
    try:
        defaults = type(config)().to_dict()
    except Exception:  # a class without defaults: every field counts
        defaults = {}
    handled = HARMLESS | {getattr(architecture, role) for role in ROLES}
    return {
        name: value
        for name, value in config.to_dict().items()
        if name not in handled and not name.startswith("_") and value != defaults.get(name)
    }
