"""From a `ModelRef` to weights and tokenizer on a device, or one clear refusal. Safetensors only, never a repository's
own code; a LoRA adapter is merged into the weights."""

from __future__ import annotations

import os
import warnings
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

from .. import machine, untrusted
from ..errors import (
    BrokenWeights,
    ModelError,
    ModelNotFound,
    ParameterError,
    PromptError,
    RefusedFamily,
    TooLarge,
    UnknownFamily,
    one_line,
    refused,
)
from ..machine import ROOM, free_memory, gigabytes
from . import controls, devices, loops, quantized, sizes, tokens, weights
from .architecture import Architecture
from .encoder import HARD_SAMPLES, Encoder
from .families import REFUSED, find, text_decoder, why_refused
from .modules import Config, Pretrained, Tokenizer, shuffle
from .ref import ModelRef
from .weights import ADAPTER_WEIGHTS, adapter_config, adapter_hash, header

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LOCAL: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}  # of `from_pretrained`
ALIGNED = 64  # bytes
TOGETHER = "take config.json and weights from one checkpoint"


class Loaded(NamedTuple):
    """What `load` returns: network, tokenizer and so on; `architecture` is None where the family is not described."""

    hf: Pretrained
    tokenizer: Tokenizer
    architecture: Architecture | None
    spec: ModelRef
    encoder: Encoder


def load(ref: ModelRef, architecture: Architecture | None = None) -> Loaded:
    """Load a model in `ref.precision` onto `ref.device`, or spread from there, and return network, tokenizer,
    architecture, reference and encoder; a `ModelError` where it cannot be opened. The architecture is None where the
    family is not described; the shuffled control of such a model is not shuffled yet."""
    quiet()
    devices.settle_arithmetic()
    controls.check(ref)
    ref.require_weights()
    ref = ref.ensure()
    if controls.needs_weights(ref):
        weights.check_complete(ref.place, ref.name)
    weights.check_files(ref.place)
    _require_same(ref)
    _refuse_adapters(ref)
    with quantized.no_kernels():
        config, architecture = _config(ref, architecture)
        unused: list[str] = []
        model = _pretrained(ref, config, unused) if controls.needs_weights(ref) else _untrained(ref, config)
        quantized.cure(model)
        if ref.adapter:
            model = merge_adapter(model, Path(ref.adapter))
        if ref.control == "shuffled" and architecture:
            shuffle(model, architecture, ref.control_seed)
        _align_experts(model)
        tokenizer, encoder = _tokenizer(ref)
    encoder.notes += _notes(ref, config, unused)
    return Loaded(model, tokenizer, architecture, ref, encoder)


def quiet() -> None:
    """Turn off transformers' progress bars and warnings in this process."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()


def skeleton(ref: ModelRef) -> Loaded:
    """Return what `load` does, but without weights: the network's modules are on the meta device."""
    config, architecture = _config(ref)
    with torch.device("meta"):
        model = _from_config(ref, config)
    tokenizer, encoder = _tokenizer(ref)
    return Loaded(model, tokenizer, architecture, ref, encoder)


def described(config: Config, name: str, architecture: Architecture | None = None) -> Architecture | None:
    """Return the architecture of a config (`architecture` where one is given), None where the family is not described;
    a `RefusedFamily` says why the model `name` is not read."""
    text = config.get_text_config()
    architecture = architecture or find(config.model_type)
    if architecture is None and text is not config:
        architecture = text_decoder(text.model_type)
    refusal = architecture.refusal(text) if architecture else why_refused(text if text is not config else config)
    if architecture and not refusal:
        passes, blocks = architecture.n_passes(text), text.num_hidden_layers
        if not (passes >= 1 and 1 <= passes * blocks <= untrusted.LAYERS):
            refusal = (
                f"its config asks for {blocks} layers, run {passes} times; expected 1 to {untrusted.LAYERS} in all"
            )
    if refusal:
        raise _refused(name, architecture.family if architecture else config.model_type, refusal)
    return architecture


def _notes(ref: ModelRef, config: Config, unused: list[str]) -> tuple[str, ...]:
    """Return notes on weights in the files that have no place (`unused`, by name), and on a class without a head."""
    notes = []
    if unused:
        notes.append(
            f"The files of {ref.name} hold weights that its config.json does not describe ({len(unused)}, the first "
            f"is {unused[0]}); they are not used."
        )
    named = (getattr(config, "architectures", None) or [""])[0]
    if named in MODEL_MAPPING_NAMES.values():
        notes.append(f"The config.json of {ref.name} names {named}, which has no head; the embedding is used as one.")
    return tuple(notes)


def _align_experts(model: Pretrained) -> None:
    """Copy experts' weights that a file maps to an address that is no multiple of `ALIGNED`: the product over several
    experts takes another kernel there, and its last bit differs from that of the same weights elsewhere."""
    for weight in model.parameters():
        if weight.ndim == 3 and weight.device.type == "cpu" and weight.data_ptr() % ALIGNED:
            weight.data = weight.data.clone()


def _refused(name: str, family: str, why: str) -> RefusedFamily:
    """Return the refusal of the model `name` with the reason `why`."""
    return RefusedFamily(
        f"Refused: {name} is of the family '{family}', and {why}. `python -m ed_core models --families` lists "
        "what is read."
    )


# ---------------------------------------------------------------- weights


def _pretrained(ref: ModelRef, config: Config, unused: list[str]) -> Pretrained:
    """Return the model with all of its own weights; `unused` gets the names of what else the files hold. Raises a
    `ModelError` where weights or head are missing."""
    with refused(lambda error: _unreadable(ref, error)):
        loaded: Any = _class(config, ref.name).from_pretrained(
            str(ref.place),
            config=config,
            attn_implementation=_attention(config),
            dtype=DTYPES[sizes.compute_name(ref.precision)],
            use_safetensors=True,
            output_loading_info=True,
            **_quantization(ref),
            **_placement(ref),
            **LOCAL,
        )
    model, report = loaded
    unused += sorted(report["unexpected_keys"])
    missing = sorted(report["missing_keys"]) + sorted(str(k) for k in report.get("mismatched_keys", ()))
    head = model.get_output_embeddings()
    names_of_head = {name for name, weight in model.named_parameters() if head is not None and weight is head.weight}
    if head is None or (missing and names_of_head.issuperset(missing)):
        made_for = ", ".join(getattr(config, "architectures", None) or ()) or "no class"
        raise RefusedFamily(
            f"Refused: {ref.name} has no output head over tokens (its config names {made_for}), so nothing can be "
            "read as a prediction; choose a causal language model."
        )
    if missing:
        raise BrokenWeights(
            f"{len(missing)} weights of {ref.name} that its config.json asks for are missing, the first is "
            f"{missing[0]}; {TOGETHER}."
        )
    return model


def _unreadable(ref: ModelRef, error: Exception) -> ModelError:
    """Return the refusal that explains an error of `from_pretrained`."""
    if packed := sizes.stored_precision(ref.config()):
        why = "transformers does not read it." if packed == "mlx" else _sentence(error)
        return ModelError(
            f"{ref.name} is stored in the quantization format {packed}, which cannot be opened here: {why} Choose a "
            "checkpoint of the model that is not quantized."
        )
    if isinstance(error, SafetensorError):
        return BrokenWeights(f"The weights of {ref.name} are damaged: {_sentence(error)} Download or copy them again.")
    if "ignore_mismatched_sizes" in str(error):
        return BrokenWeights(f"The weights of {ref.name} have other shapes than its config.json says; {TOGETHER}.")
    return ModelError(f"transformers cannot open {ref.name}: {type(error).__name__}: {_sentence(error)}")


def _class(config: Config, name: str) -> Any:
    """Return transformers' Auto class for a config: of causal language models, or of those that also see.
    `UnknownFamily` where it has none; `name`: the model's, for the message."""
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForCausalLM
    if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return AutoModelForImageTextToText
    raise UnknownFamily(
        f"Refused: transformers has no class that writes text for the family '{config.model_type}' of {name}; choose a "
        "causal language model."
    )


def _from_config(ref: ModelRef, config: Config, **more: Any) -> Pretrained:
    """Return a model made of its config, with weights drawn at random; `more` goes to `from_config`."""
    options: dict[str, Any] = {"attn_implementation": _attention(config), "trust_remote_code": False}
    return _class(config, ref.name).from_config(config, **options, **more)


def _untrained(ref: ModelRef, config: Config) -> Pretrained:
    """Return the model as before training: weights drawn by the family's own initialisation, from the control's seed.
    In float32 on the CPU, then rounded, so that a seed is one model in every precision and on every device."""
    dtype = DTYPES[ref.precision]
    with torch.device("meta"):
        n_weights = sum(p.numel() for p in _from_config(ref, config, dtype=dtype).parameters())
    if (needed := n_weights * (4 + dtype.itemsize * (dtype != torch.float32))) > ROOM * free_memory():
        raise TooLarge(
            f"An untrained copy of {ref.name} is drawn in float32 and takes {gigabytes(needed)}, and "
            f"{gigabytes(free_memory())} are free; take shuffled layers as the control, or a smaller model of the "
            "family."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(ref.control_seed)
        model = _from_config(ref, config, dtype=torch.float32)
        if dtype != torch.float32:
            rounded = _from_config(ref, config, dtype=dtype)  # its buffers have the dtypes that the library wants
            rounded.load_state_dict(model.state_dict())
            model = rounded
    home = _placement(ref)["device_map"]
    if not isinstance(home, dict):
        raise TooLarge(
            f"An untrained copy is not spread over devices, and {ref.name} fits no single one; choose a smaller model "
            "of the family."
        )
    return model.to(home[""])


def _quantization(ref: ModelRef) -> dict[str, Any]:
    """Return the options of `from_pretrained` that quantize; {} where nothing is to be quantized any more."""
    stored = sizes.stored_precision(ref.config())
    if ref.precision in DTYPES or stored not in ("", *sizes.QUANTIZED):
        return {}
    assert ref.precision in sizes.QUANTIZED
    machine.require_package("bitsandbytes", f"The precision {ref.precision}")
    quantized.prepare()
    if stored:
        return {}
    how: dict[str, Any] = {"load_in_8bit": True}
    if ref.precision == "4bit":
        dtype = DTYPES[sizes.compute_name("4bit")]
        how = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
        how["bnb_4bit_compute_dtype"] = dtype
    return {"quantization_config": BitsAndBytesConfig(**how)}


def _placement(ref: ModelRef) -> dict[str, Any]:
    """Return the options of `from_pretrained` that say where the weights go; `TooLarge` where they fit nowhere."""
    try:
        needed = ref.size().weight_bytes(ref.precision)
    except ParameterError:
        return {"device_map": {"": ref.device}}
    return devices.plan(ref, needed)


def _require_same(ref: ModelRef) -> None:
    """Raise `BrokenWeights` for files other than those that the ref names: results would be kept under their content.
    The ref of a control that needs no weights may include them or not."""
    named = ref.content_hash
    same = not named or any(named == ref.content(weights) for weights in (controls.needs_weights(ref), True))
    if not same or (ref.adapter_hash and adapter_hash(Path(ref.adapter)) != ref.adapter_hash):
        raise BrokenWeights(
            f"The files of {ref.name}{' or its adapter' * bool(ref.adapter)} have changed since it was asked for; "
            "ask for it again."
        )


def _refuse_adapters(ref: ModelRef) -> None:
    """Refuse an adapter next to the weights, which the library would apply silently, and one that cannot be merged."""
    if os.path.lexists(ref.place / weights.ADAPTER_CONFIG):
        raise ParameterError(
            f"{ref.name} has an adapter next to its weights ({weights.ADAPTER_CONFIG}); move that to a folder of its "
            "own, to be given as --adapter, or remove it."
        )
    if ref.adapter and (ref.precision not in DTYPES or ref.offload):
        what = "weights that are offloaded"
        if ref.precision not in DTYPES:
            what = f"{ref.precision} weights without rounding them a second time"
        raise ParameterError(
            f"An adapter cannot be merged into {what}; open it in bf16 or fp32, or merge it into the base and save "
            "that first."
        )


def _refuse_own_code(ref: ModelRef) -> None:
    """Refuse a repository with its own modelling code, unless the library, or `loops`, has that class too."""
    config = ref.config()
    family, own = str(config.get("model_type", "")), config.get("auto_map")
    if not isinstance(own, dict) or not (wanted := str(own.get("AutoModelForCausalLM", ""))):
        return
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES | {c.model_type: m.__name__ for c, m in loops.CLASSES.items()}
    if why := REFUSED.get(family):
        raise _refused(ref.name, family, why)
    if wanted.rpartition(".")[2] != known.get(family):
        raise UnknownFamily(
            f"{ref.name} needs its own code ({wanted}, named by auto_map in its config.json), and a repository's code "
            "is never run here; look for a version that transformers supports itself."
        )


def _config(ref: ModelRef, architecture: Architecture | None = None) -> tuple[Config, Architecture | None]:
    """Return the library's config and its architecture (None: undescribed); a `ModelError` where one is refused."""
    _refuse_own_code(ref)
    with refused(lambda error: _bad_config(ref, error)):
        config: Config = AutoConfig.from_pretrained(str(ref.place), **LOCAL)
        config._attn_implementation = config._experts_implementation = None  # a folder does not choose code
    return config, described(config, ref.name, architecture)


def _bad_config(ref: ModelRef, error: Exception) -> ModelError:
    """Return the refusal that explains an error of the library at a config.json."""
    if isinstance(error, StrictDataclassError):  # as of layer_types that are not as many as the layers
        return ModelNotFound(
            f"The config.json of {ref.name} is not valid: {_sentence(error.__cause__ or error)} Correct it there."
        )
    family = ref.config().get("model_type")
    if family and family not in CONFIG_MAPPING:
        return UnknownFamily(
            f"transformers {transformers_version} does not know the family {family!r} of {ref.name}; choose another "
            "model, or a newer version of transformers."
        )
    return ModelNotFound(f"The config.json of {ref.name} cannot be read: {_sentence(error)}")


def _attention(config: Config) -> str:
    """Return how attention is computed, whatever the folder asks for: "sdpa", or "eager", the family's own."""
    kind = type(config)
    family: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(kind, None) or MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(kind, None)
    return "sdpa" if getattr(family, "_supports_sdpa", False) else "eager"


def _tokenizer(ref: ModelRef) -> tuple[Tokenizer, Encoder]:
    """Return the library's tokenizer, and the encoder of the folder's tokenizer.json; a note says if they differ."""
    own = tokens.encoder(ref)
    expected = "" if own else " Expected tokenizer.json next to the weights."
    none = f"{ref.name} has no usable tokenizer:"
    with refused(lambda error: ModelNotFound(f"{none} {_sentence(error)}{expected}")):
        tokenizer = AutoTokenizer.from_pretrained(str(ref.place), **LOCAL)
    if len(tokenizer) <= len(tokenizer.added_tokens_decoder):  # what the library makes of an empty folder
        raise ModelNotFound(f"{none} it knows special tokens alone.{expected}")
    if not tokenizer.is_fast:
        raise ModelNotFound(
            f"The tokenizer of {ref.name} is of the class {type(tokenizer).__name__}, which does not say where a "
            "token's characters are; expected a fast one: save it with its tokenizer.json next to the weights."
        )
    if own is None:
        return tokenizer, Encoder(tokenizer.backend_tokenizer, tokenizer.bos_token or "")
    library = Encoder(tokenizer.backend_tokenizer)
    try:
        differ = sum(library.ids(text, False) != own.ids(text, False) for text in HARD_SAMPLES)
    except PromptError as error:
        raise ModelNotFound(f"{none} it cannot encode plain text. {error}") from error
    note = (
        f"The library's tokenizer for {ref.name} gives other ids than its tokenizer.json on {differ} of "
        f"{len(HARD_SAMPLES)} test texts; the ids of tokenizer.json are used."
    )
    own = Encoder(own.tokenizer, own.bos, own.add_bos, differ, (note,) if differ else ())
    return tokenizer, own


def _sentence(error: BaseException) -> str:
    """Return an error's message as one sentence; another one where the weights need compiled code from a hub."""
    if "kernels" in str(error):
        return "its weights need compiled code from a hub, which is never fetched here."
    return f"{one_line(error)}."


def merge_adapter(hf_model: nn.Module, folder: Path) -> nn.Module:
    """Return the model with the LoRA adapter of a folder merged: `W + scale * B A` in place of every adapted `W`, in
    the model's own dtype. `BrokenWeights` for an adapter of another base."""
    adapter_config(folder)
    modules = dict(hf_model.named_modules())
    for key, (_, shape) in header(folder / ADAPTER_WEIGHTS).items():
        path, _, kind = key.removeprefix("base_model.model.").partition(".lora_")
        if not kind.startswith(("A.", "B.")):
            continue  # peft itself judges the rest (DoRA's magnitudes, whole modules saved)
        weight = getattr(modules.get(path), "weight", None)
        if weight is None or shape[kind[0] == "A"] not in weight.shape:
            base = "there is no such module" if weight is None else f"that is {' x '.join(map(str, weight.shape))}"
            raise BrokenWeights(
                f"The adapter {folder.name} belongs to another base: it changes {path} by {kind[0]} of {shape}, and "
                f"{base}."
            )
    machine.require_package("peft", "A LoRA adapter")
    if machine.installed("bitsandbytes"):
        quantized.prepare()  # peft imports it
    from peft import PeftModel

    what = f"The adapter {folder.name} cannot be merged"
    again = "save it again with peft, and open it on its own base."
    with warnings.catch_warnings(), refused(lambda error: BrokenWeights(f"{what}: {one_line(error)}; {again}")):
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("error", "Found missing adapter keys")  # of a base with more layers
        adapted = PeftModel.from_pretrained(hf_model, str(folder), local_files_only=True)
        _untie_adapted(adapted)
        merged: nn.Module = adapted.merge_and_unload()
    return merged


def _untie_adapted(model: nn.Module) -> None:
    """Give every adapted module that shares its weight, as a tied head does, a copy: merging would change both."""
    from peft.tuners.lora import LoraLayer

    users = Counter(id(module._parameters.get("weight")) for module in model.modules())
    for adapted in model.modules():
        if not isinstance(adapted, LoraLayer):
            continue
        base: Any = adapted.base_layer
        weight = getattr(base, "weight", None)
        if weight is not None and users[id(weight)] > 1:
            base.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
