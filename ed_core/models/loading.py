"""From a `ModelSpec` to weights and tokenizer on a device, with a LoRA adapter merged into them, or one clear refusal.
Safetensors only, never a repository's own code."""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    BitsAndBytesConfig,
)
from transformers import __version__ as transformers_version
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_MAPPING_NAMES,
)
from transformers.utils import logging as transformers_logging

from .. import bounds, machine
from ..errors import (
    BrokenWeights,
    EffectiveDepthError,
    ModelError,
    ModelNotFound,
    ParameterError,
    PromptError,
    RefusedFamily,
    TooLarge,
    UnknownFamily,
    lost_device,
    ran_out,
    said,
)
from ..machine import ROOM, free_memory, gigabytes
from ..types import ModelSpec
from . import controls, conversion, devices, hub, looped, quantized, remote, sizes, tokens, weights
from .architecture import Architecture
from .encoder import HARD_SAMPLES, Encoder
from .families import REFUSED, find, text_decoder, why_refused
from .modules import Config, Pretrained, Tokenizer
from .specs import check_files, config_of, content_of, location, of_gguf
from .weights import ADAPTER_WEIGHTS, adapter_config, adapter_hash, header

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Options = dict[str, Any]  # of `from_pretrained`
ALIGNED = 64  # bytes
TOGETHER = "take config.json and weights from one checkpoint"


class Loaded(NamedTuple):
    hf: Pretrained
    tokenizer: Tokenizer
    architecture: Architecture | None
    spec: ModelSpec
    encoder: Encoder


def load(spec: ModelSpec, architecture: Architecture | None = None) -> Loaded:
    """The parts of a model, in eval mode, in `spec.precision`, on `spec.device` or spread from
    there; the architecture is None where nobody described the family (a shuffled twin of such a model has its blocks in
    their own order yet)."""
    quiet()
    devices.settle_arithmetic()
    with quantized.no_kernels():
        return _load(spec, architecture)


def quiet() -> None:
    """Let the library print nothing."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()


def skeleton(spec: ModelSpec) -> tuple[Pretrained, Tokenizer, Encoder]:
    """The model's modules without weights, on the meta device, its tokenizer and encoder."""
    _refuse_own_code(spec)
    options: Options = {"trust_remote_code": False, "local_files_only": True}
    config = _config(spec, options)
    with torch.device("meta"):
        model = _class(config, spec.name).from_config(
            config, attn_implementation=_attention(config), trust_remote_code=False
        )
    return model, *_tokenizer(spec, options)


def described(config: Config, name: str, architecture: Architecture | None = None) -> Architecture | None:
    """The architecture of a config, None where nobody described the family; a `RefusedFamily` says why the model
    `name` is not read. `architecture`: instead of the family's own."""
    text = config.get_text_config()
    architecture = architecture or find(config.model_type)
    if architecture is None and text is not config:
        architecture = text_decoder(text.model_type)
    refusal = architecture.refusal(text) if architecture else why_refused(text if text is not config else config)
    if architecture and not refusal:
        refusal = _too_many_passes(architecture, config.get_text_config())
    if refusal:
        raise _refused(name, architecture.family if architecture else config.model_type, refusal)
    return architecture


def _load(spec: ModelSpec, architecture: Architecture | None) -> Loaded:
    controls.check(spec)
    remote.require_here(spec.source)
    spec = hub.ensure(spec)
    if packed := of_gguf(spec):
        conversion.ensure(packed)
    if controls.needs_weights(spec):
        weights.check_complete(Path(location(spec)), spec.name)
    check_files(spec)
    _require_same(spec)
    _refuse_own_code(spec)
    _refuse_adapter(spec)
    options: Options = {"trust_remote_code": False, "local_files_only": True}
    config = _config(spec, options)
    architecture = described(config, spec.name, architecture)
    unused: list[str] = []
    model = _pretrained(spec, config, options, unused) if controls.needs_weights(spec) else _untrained(spec, config)
    quantized.cure(model)
    if spec.adapter:
        model = merge_adapter(model, Path(spec.adapter))
    if spec.control == "shuffled" and architecture:
        from .modules import shuffle

        shuffle(model, architecture, spec.control_seed)
    _align_experts(model)
    tokenizer, encoder = _tokenizer(spec, options)
    encoder.notes += _notes(spec, config, unused)
    return Loaded(model, tokenizer, architecture, spec, encoder)


def _notes(spec: ModelSpec, config: Config, unused: list[str]) -> tuple[str, ...]:
    """What a model's files say that the opened model is not: weights without a place, a class without a head."""
    notes = []
    if unused:
        notes.append(
            f"The files of {spec.name} hold weights that its config.json does not describe ({len(unused)}, the first "
            f"is {unused[0]}); they are not used."
        )
    named = (getattr(config, "architectures", None) or [""])[0]
    if named in MODEL_MAPPING_NAMES.values():
        notes.append(f"The config.json of {spec.name} names {named}, which has no head; the embedding is used as one.")
    return tuple(notes)


def _align_experts(model: Pretrained) -> None:
    """Copy experts' weights that a file maps to an address no multiple of `ALIGNED`: the product over several experts
    takes another kernel there, and its last bit differs from that of the same weights elsewhere."""
    for weight in model.parameters():
        if weight.ndim == 3 and weight.device.type == "cpu" and weight.data_ptr() % ALIGNED:
            weight.data = weight.data.clone()


def _refused(name: str, family: str, why: str) -> RefusedFamily:
    return RefusedFamily(
        f"Refused: {name} is of the family '{family}', and {why}. `python -m ed_core models --families` lists "
        "what is read."
    )


def _too_many_passes(architecture: Architecture, config: Config) -> str:
    """Why a looped model's config is refused, or ""."""
    passes, blocks = architecture.n_passes(config), config.num_hidden_layers
    if passes >= 1 and 1 <= passes * blocks <= bounds.LAYERS:
        return ""
    return f"its config asks for {blocks} layers, run {passes} times; expected 1 to {bounds.LAYERS} layers in all"


def _pretrained(spec: ModelSpec, config: Config, options: Options, unused: list[str]) -> Pretrained:
    """The model with its own weights, all of them; names in `unused` what the files hold besides."""
    try:
        loaded: Any = _class(config, spec.name).from_pretrained(
            location(spec),
            config=config,
            attn_implementation=_attention(config),
            dtype=DTYPES[sizes.compute_name(spec.precision)],
            use_safetensors=True,
            output_loading_info=True,
            **_quantization(spec),
            **_placement(spec),
            **options,
        )
        model, report = loaded
    except EffectiveDepthError:
        raise
    except Exception as error:
        if ran_out(error) or lost_device(error):
            raise  # `opening` says so
        if packed := sizes.stored_precision(config_of(spec)):
            why = "transformers does not read it." if packed == "mlx" else _one_line(error)
            raise ModelError(
                f"{spec.name} is stored in the quantization format {packed}, which cannot be opened here: {why} Choose "
                "a checkpoint of the model that is not quantized."
            ) from error
        if isinstance(error, SafetensorError):
            raise BrokenWeights(
                f"The weights of {spec.name} are damaged: {_one_line(error)} Download or copy the model again."
            ) from error
        if "ignore_mismatched_sizes" in str(error):
            raise BrokenWeights(
                f"The weights of {spec.name} have other shapes than its config.json says; {TOGETHER}."
            ) from error
        raise ModelError(f"transformers cannot open {spec.name}: {type(error).__name__}: {_one_line(error)}") from error
    unused += sorted(report["unexpected_keys"])
    missing = sorted(report["missing_keys"]) + sorted(str(k) for k in report.get("mismatched_keys", ()))
    head = model.get_output_embeddings()
    of_head = {name for name, weight in model.named_parameters() if head is not None and weight is head.weight}
    if head is None or (missing and of_head.issuperset(missing)):
        made_for = ", ".join(getattr(config, "architectures", None) or ()) or "no class"
        raise RefusedFamily(
            f"Refused: {spec.name} has no output head over tokens (its config names {made_for}), so nothing can be "
            "read as a prediction; choose a causal language model."
        )
    if missing:
        raise BrokenWeights(
            f"{len(missing)} weights of {spec.name} that its config.json asks for are missing, the first is "
            f"{missing[0]}; {TOGETHER}."
        )
    return model


def _class(config: Config, name: str) -> Any:
    """The library's class that reads these weights: of a vision-language checkpoint the one that also sees."""
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForCausalLM
    if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return AutoModelForImageTextToText
    raise UnknownFamily(
        f"Refused: transformers has no class that writes text for the family '{config.model_type}' of {name}; choose a "
        "causal language model."
    )


def _untrained(spec: ModelSpec, config: Config) -> Pretrained:
    """The model as it was before training: weights drawn by the family's own initialisation, from the control's seed.
    Drawn in float32 on the CPU and rounded then, so that a seed is one twin in every precision and on every device."""

    def drawn(dtype: torch.dtype) -> Pretrained:
        return _class(config, spec.name).from_config(
            config, attn_implementation=_attention(config), dtype=dtype, trust_remote_code=False
        )

    dtype = DTYPES[spec.precision]
    with torch.device("meta"):
        needed = sum(p.numel() for p in drawn(dtype).parameters()) * (
            4 + (dtype.itemsize if dtype != torch.float32 else 0)
        )
    if needed > ROOM * free_memory():
        raise TooLarge(
            f"An untrained twin of {spec.name} is drawn in float32 and takes {gigabytes(needed)}, and "
            f"{gigabytes(free_memory())} are free; take "
            "shuffled layers as the control, or a smaller model of the family."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.control_seed)
        model = drawn(torch.float32)
        if dtype != torch.float32:
            rounded = drawn(dtype)  # its buffers have the dtypes that the library wants them in
            rounded.load_state_dict(model.state_dict())
            model = rounded
    home = _placement(spec)["device_map"]
    if not isinstance(home, dict):
        raise TooLarge(
            f"An untrained twin is not spread over devices, and {spec.name} fits no single one; choose a smaller model "
            "of the family."
        )
    return model.to(home[""])


def _quantization(spec: ModelSpec) -> dict[str, Any]:
    """How the library is to quantize; nothing for a checkpoint that is quantized already: it says so itself."""
    stored = sizes.stored_precision(config_of(spec))
    if spec.precision in DTYPES or stored not in ("", *sizes.QUANTIZED):
        return {}
    machine.require_package("bitsandbytes", f"The precision {spec.precision}")
    quantized.prepare()
    if stored:
        return {}
    if spec.precision == "int8":
        return {"quantization_config": BitsAndBytesConfig(load_in_8bit=True)}
    if spec.precision != "4bit":
        raise ParameterError(f"The precision is {spec.precision!r}; expected one of {', '.join(sizes.PRECISIONS)}.")
    nf4 = {
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": DTYPES[sizes.compute_name("4bit")],
    }
    return {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, **nf4)}


def _placement(spec: ModelSpec) -> dict[str, Any]:
    """Where the weights go, from their size; refuses what fits nowhere. A family whose size cannot be told goes to its
    device as it is."""
    try:
        needed = sizes.read(config_of(spec)).weight_bytes(spec.precision)
    except ParameterError:
        return {"device_map": {"": spec.device}}
    return devices.plan(spec, needed)


def _require_same(spec: ModelSpec) -> None:
    """Refuse files that are others than those that the spec names: results would be kept under the former content. Of
    what needs no weights it may name these too."""
    named = spec.content_hash
    same = not named or any(named == content_of(spec, whole) for whole in (controls.needs_weights(spec), True))
    if not same or (spec.adapter_hash and adapter_hash(Path(spec.adapter)) != spec.adapter_hash):
        raise BrokenWeights(
            f"The files of {spec.name}{' or its adapter' * bool(spec.adapter)} have changed since it was asked for; "
            "ask for it again."
        )


def _refuse_adapter(spec: ModelSpec) -> None:
    """One beside a model's own weights would be applied by the library, unchecked and unnamed."""
    if os.path.lexists(Path(location(spec)) / weights.ADAPTER_CONFIG):
        raise ParameterError(
            f"{spec.name} has an adapter beside its weights ({weights.ADAPTER_CONFIG}); move that to a folder of its "
            "own, to be given as --adapter, or remove it."
        )
    if spec.adapter and (spec.precision not in DTYPES or spec.offload):
        kind = (
            f"{spec.precision} weights without rounding them a second time"
            if spec.precision not in DTYPES
            else "weights that are offloaded"
        )
        raise ParameterError(
            f"An adapter cannot be merged into {kind}; open it in bf16 or fp32, or merge it into the base and save "
            "that first."
        )


def _refuse_own_code(spec: ModelSpec) -> None:
    """A repository that brings its own modelling code is refused by name, unless that code is what the library itself
    has for the family, or what stands in `looped`."""
    config = config_of(spec)
    own = config.get("auto_map")
    wanted = str(own.get("AutoModelForCausalLM", "")) if isinstance(own, dict) else ""
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES | {c.model_type: m.__name__ for c, m in looped.CLASSES.items()}
    if wanted and (why := REFUSED.get(str(config.get("model_type")))):
        raise _refused(spec.name, str(config["model_type"]), why)
    if wanted and wanted.rpartition(".")[2] != known.get(config.get("model_type", "")):
        raise UnknownFamily(
            f"{spec.name} needs its own code ({wanted}, named by auto_map in its config.json), and a repository's code "
            "is never run here; "
            "look for a version of the model that transformers supports itself."
        )


def _config(spec: ModelSpec, options: Options) -> Config:
    try:
        config: Config = AutoConfig.from_pretrained(location(spec), **options)
        config._attn_implementation = config._experts_implementation = None  # and in the parts it has; see `foreign`
        return config
    except StrictDataclassError as error:  # as of layer_types that are not as many as the layers
        raise ModelNotFound(
            f"The config.json of {spec.name} is not valid: {_one_line(error.__cause__ or error)} Correct it there."
        ) from error
    except Exception as error:  # whatever a stranger's config provokes inside the library
        family = config_of(spec).get("model_type")
        if family and family not in CONFIG_MAPPING:
            raise UnknownFamily(
                f"transformers {transformers_version} does not know the family {family!r} of {spec.name}; choose "
                "another model, or a newer version of transformers."
            ) from error
        raise ModelNotFound(f"The config.json of {spec.name} cannot be read: {_one_line(error)}") from error


def _attention(config: Config) -> str:
    """How attention is computed, whatever the folder asks for: torch's own function, or the family's where it has no
    other."""
    kind = type(config)
    family: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(kind, None) or MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(kind, None)
    return "sdpa" if getattr(family, "_supports_sdpa", False) else "eager"


def _tokenizer(spec: ModelSpec, options: Options) -> tuple[Tokenizer, Encoder]:
    """The library's tokenizer, and the encoder of the folder's own tokenizer.json: some families silently build another
    one instead, which a note then says."""
    own = tokens.encoder(spec)
    expected = "" if own else " Expected tokenizer.json next to the weights."
    try:
        tokenizer = AutoTokenizer.from_pretrained(location(spec), **options)
    except Exception as error:  # of whatever type: the folder's settings go unchecked into the library's arithmetic
        raise ModelNotFound(f"{spec.name} has no usable tokenizer: {_one_line(error)}{expected}") from error
    if len(tokenizer) <= len(tokenizer.added_tokens_decoder):  # what the library makes of a folder without one
        raise ModelNotFound(f"{spec.name} has no usable tokenizer: it knows special tokens alone.{expected}")
    if not tokenizer.is_fast:
        raise ModelNotFound(
            f"The tokenizer of {spec.name} is of the class {type(tokenizer).__name__}, which does not say where a "
            "token's characters are; expected a fast one: save it with its tokenizer.json next to the weights."
        )
    if own is None:
        return tokenizer, Encoder(tokenizer.backend_tokenizer, tokenizer.bos_token or "")
    library = Encoder(tokenizer.backend_tokenizer)
    try:
        differ = sum(library.ids(text, False) != own.ids(text, False) for text in HARD_SAMPLES)
    except PromptError as error:
        raise ModelNotFound(f"{spec.name} has no usable tokenizer: it cannot encode plain text. {error}") from error
    note = (
        f"The library's tokenizer for {spec.name} gives other ids than its tokenizer.json on {differ} of "
        f"{len(HARD_SAMPLES)} test texts; the ids of tokenizer.json are used."
    )
    own = Encoder(own.tokenizer, own.bos, own.add_bos, differ, (note,) if differ else ())
    return tokenizer, own


def _one_line(error: BaseException) -> str:
    """A library's message on one line, cut where it rambles."""
    text = textwrap.shorten(str(error), 300, placeholder=" …") or type(error).__name__
    if "kernels" in text:
        text = "its weights need compiled code from a hub, which is never fetched here."
    return text if text.endswith((".", "…")) else text + "."


def merge_adapter(hf_model: nn.Module, folder: Path) -> nn.Module:
    """The model with `W + scale * B A` in place of every adapted `W`, in the model's own dtype."""
    adapter_config(folder)
    modules = dict(hf_model.named_modules())
    for key, (_, shape) in header(folder / ADAPTER_WEIGHTS).items():
        path, _, kind = key.removeprefix("base_model.model.").partition(".lora_")
        if not kind.startswith(("A.", "B.")):
            continue  # peft itself judges the rest (DoRA's magnitudes, whole modules saved)
        target = modules.get(path)
        weight = getattr(target, "weight", None)
        there = tuple(weight.shape) if weight is not None else ()
        fits = shape[1] in there if kind[0] == "A" else shape[0] in there
        if not fits:
            found = f"{path} is {' x '.join(map(str, there))} there" if there else f"there is no {path}"
            raise BrokenWeights(
                f"The adapter {folder.name} belongs to another base: it changes {path} by {kind[0]} of {shape}, and "
                f"{found}."
            )
    machine.require_package("peft", "A LoRA adapter")
    if machine.installed("bitsandbytes"):
        quantized.prepare()  # peft imports it
    from peft import PeftModel

    try:
        adapted = PeftModel.from_pretrained(hf_model, str(folder), local_files_only=True)
        _untie_adapted(adapted)
        merged: nn.Module = adapted.merge_and_unload()
    except Exception as error:  # whatever a stranger's settings provoke inside the library
        raise BrokenWeights(
            f"The adapter {folder.name} cannot be merged: {said(error)}; save it again with peft."
        ) from error
    return merged


def _untie_adapted(model: nn.Module) -> None:
    """Give every adapted module a weight of its own where it shares one, as a tied head does with the embedding: the
    adapter is of one of the two, and merging would change both."""
    from peft.tuners.lora import LoraLayer

    users = Counter(id(module._parameters.get("weight")) for module in model.modules())
    for adapted in model.modules():
        if not isinstance(adapted, LoraLayer):
            continue
        base: Any = adapted.base_layer
        weight = getattr(base, "weight", None)
        if weight is not None and users[id(weight)] > 1:
            base.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
