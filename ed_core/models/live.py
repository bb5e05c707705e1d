"""A model that somebody holds in memory, measured as it stands: also while it trains.

The engine never runs the model itself. It runs a *stand-in*: the same tree of modules over the same storage, with its
own modes, hooks and config. So there is nothing to put back: modes, `requires_grad`, gradients, hooks and config of the
model are never written, also where a measurement raises. What belongs to the process, random states and how torch
multiplies, is put back (`undisturbed`).

The weights stand in for themselves, so a stand-in is made for each measurement: it costs milliseconds, and sees weights
that were exchanged meanwhile. Forward hooks of the model do not run, except those by which torch computes a weight
(`torch.nn.utils`); what other hooks change is not measured."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import os
import random
import secrets
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from torch import Tensor, nn

from ..errors import EffectiveDepthError, IdentityFailed, ParameterError, RefusedFamily, lost_device, one_line, ran_out
from ..types import ModelSpec
from . import devices, quantized, tokens
from .adoption import adopt
from .devices import main_device
from .encoder import Encoder
from .identities import MISS_LIMIT, Identities
from .language_model import LanguageModel
from .loading import DTYPES, described
from .modules import Pretrained, Tokenizer
from .opening import explained
from .verify import check_device, relative, short_prompt, verify

SMALL = 1 << 20  # bytes of a buffer that the stand-in has a copy of: a forward pass may write into one
WORDS = 1 << 12  # whole numbers of a tensor's bits that are summed together
FORWARD = ("_forward_hooks", "_forward_pre_hooks")
HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_hooks",
    "_backward_pre_hooks",
)
ASKS_FOR_MORE = ("output_hidden_states", "output_attentions", "output_router_logits")  # of a config: not needed here
OF_TRAINING = ("training", "gradient_checkpointing")  # settings of a module that change no number here


class Live:
    """A causal language model in memory with its tokenizer. `name`: what results and sentences call it. `keep`: whether
    its identity is a hash of its weights, under which results may be kept; else no two states of it are alike."""

    def __init__(self, given: Pretrained, tokenizer: Tokenizer, name: str = "", keep: bool = False):
        self.outer, self.inner = unwrapped(given)
        self.tokenizer, self.keep = _tokenizer(tokenizer), keep
        self.encoder = Encoder(self.tokenizer.backend_tokenizer, self.tokenizer.bos_token or "", _add_bos(tokenizer))
        self.name = name or _name(self.inner)
        self.precision = _precision(self.inner, self.name)
        self._opening = secrets.token_hex(16)
        self._verified: dict[str, Identities] = {}  # of the latest weights
        self.architecture = described(self.inner.config, self.name)
        with self.opened() as model:
            self.architecture = model.architecture

    @property
    def spec(self) -> ModelSpec:
        """What it is now. Where results are kept its hash is one of all its weights; else of their sums, which change
        with any weight as well, are quicker to take, and are worth nothing outside of this opening."""
        state = digest(self.inner, self.tokenizer) if self.keep else self._state()
        return ModelSpec(self.name, content_hash=state, precision=self.precision, device=str(main_device(self.inner)))

    def _state(self) -> str:
        """torch's own count of changes would not do: fused optimizers write without it."""
        found = hashlib.sha256(json.dumps([self._opening, _settings(self.inner)]).encode())
        for name, tensor in _tensors(self.inner).items():
            found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {tensor.data_ptr()}".encode())
            found.update(_sums(tensor).cpu().numpy().tobytes())
        return found.hexdigest()

    @contextmanager
    def opened(self) -> Iterator[LanguageModel]:
        """The model, to be measured until the block ends; its identities are checked wherever its weights have
        changed."""
        with undisturbed(main_device(self.inner)):
            spec = self.spec
            yield explained(spec, lambda: self._checked(spec))

    def _checked(self, spec: ModelSpec) -> LanguageModel:
        outer, inner = stand_in(self.outer, self.inner)
        quantized.cure(inner)
        model = (
            LanguageModel(inner, self.tokenizer, self.architecture, spec, self.encoder)
            if self.architecture
            else adopt(inner, self.tokenizer, spec, self.encoder)
        )
        model.unmeasured = _hooks(self.outer)
        if spec.key in self._verified:
            model.identities = self._verified[spec.key]
            return model
        (model.identities or verify(model)).require(model.architecture)
        if self.precision in DTYPES and (found := check_device(model, reference=lambda: _on_cpu(model))):
            found.require(str(model.device))
        if outer is not inner:
            _same_from_outside(outer, model)
        assert model.identities is not None
        self._verified = {spec.key: model.identities}
        return model


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Random states (Python's, numpy's, torch's) and how torch computes are afterwards what they were before. Within,
    gradients can be taken, nothing is cast, float32 is float32, and what is made is made on the CPU, whatever surrounds
    it."""
    ours, numpys = random.getstate(), np.random.get_state()
    default = torch.get_default_dtype()
    with ExitStack() as around:
        around.callback(random.setstate, ours)
        around.callback(np.random.set_state, numpys)
        gpus = range(torch.cuda.device_count()) if device.type == "cuda" else ()
        around.enter_context(torch.random.fork_rng(devices=gpus))
        if device.type == "mps":
            around.callback(torch.mps.set_rng_state, torch.mps.get_rng_state())
        if torch.get_default_device().type != "cpu":
            around.enter_context(torch.device("cpu"))
        around.callback(torch.set_default_dtype, default)
        torch.set_default_dtype(torch.float32)
        around.enter_context(devices.settled_arithmetic())
        around.enter_context(torch.inference_mode(False))
        around.enter_context(torch.enable_grad())
        for kind in {"cpu", device.type}:
            around.enter_context(torch.autocast(kind, enabled=False))
        yield


def unwrapped(given: Pretrained) -> tuple[nn.Module, Pretrained]:
    """What is to be run as a whole, and the causal language model in it: wrappers of `torch.compile`, of several
    processes and of accelerate are taken off; a wrapper that brings something to the model (peft) is the outer of the
    two."""
    outer = inner = given
    for _ in range(8):
        if isinstance(found := getattr(inner, "_orig_mod", None), nn.Module) or (
            isinstance(found := getattr(inner, "module", None), nn.Module)
        ):
            inner, outer = found, found if outer is inner else outer
        elif callable(base := getattr(inner, "get_base_model", None)) and base() is not inner:
            inner = base()
        else:
            break
    kind = type(inner).__name__
    if not (isinstance(inner, nn.Module) and hasattr(getattr(inner, "config", None), "model_type")):
        raise ParameterError(
            f"The model is of the class {kind}; expected the name of a model, or a causal language model of "
            "transformers with its tokenizer: ed_core.open(model, tokenizer)."
        )
    if getattr(inner, "get_output_embeddings", lambda: None)() is None:
        raise RefusedFamily(
            f"Refused: {kind} has no head that gives logits over tokens; give a causal language model (…ForCausalLM)."
        )
    if divided := _divided(given):
        raise RefusedFamily(
            f"Refused: {kind} is divided over several processes ({divided}), and none of them has its weights; measure "
            "a checkpoint of it, or train it whole."
        )
    if elsewhere := [name for name, tensor in _tensors(inner).items() if tensor.is_meta]:
        raise RefusedFamily(
            f"Refused: {len(elsewhere)} weights of {kind} are offloaded, the first is {elsewhere[0]}, and are measured "
            "in memory alone; load it without offloading, or save it and open the folder with offload=…."
        )
    return outer, inner


def _divided(model: nn.Module) -> str:
    """By whom the weights are divided over processes; "" where they are whole."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        return "FSDP"
    for parameter in model.parameters():
        if type(parameter.data).__name__ == "DTensor":
            return "DTensor"
        if hasattr(parameter, "ds_id"):
            return "DeepSpeed ZeRO 3"
    return ""


def _tokenizer(given: Tokenizer) -> Tokenizer:
    """A copy: encoding sets how a tokenizer cuts and pads."""
    if given is None or isinstance(given, str) or not callable(given):
        raise ParameterError(
            "A model in memory needs its tokenizer; expected ed_core.open(model, tokenizer), with a fast tokenizer of "
            "transformers."
        )
    if not getattr(given, "is_fast", False):
        raise ParameterError(
            f"The tokenizer is of the class {type(given).__name__}, which does not tell where a token's characters "
            "are; expected a fast one: AutoTokenizer.from_pretrained(…, use_fast=True)."
        )
    return copy.deepcopy(given)


def _add_bos(tokenizer: Tokenizer) -> bool | None:
    """Whether the files that the tokenizer was loaded from ask for BOS, which transformers 5 may leave out; None where
    they are silent or not here."""
    name = str(tokenizer.name_or_path)
    try:
        file = None if os.path.isdir(name) else try_to_load_from_cache(name, tokens.SETTINGS)
    except HFValidationError:
        return None
    return tokens.add_bos(Path(file).parent if isinstance(file, str) else Path(name))


def _name(inner: Pretrained) -> str:
    of_folder = str(getattr(inner.config, "_name_or_path", "") or "").rstrip("/").rsplit("/", 1)[-1]
    return f"{of_folder or type(inner).__name__} in memory"


def _precision(inner: Pretrained, name: str) -> str:
    """The precision by name, from the weights."""
    classes = {type(module).__name__ for module in inner.modules()}
    if any(getattr(getattr(p, "quant_state", None), "packing_format_for_cpu", False) for p in inner.parameters()):
        raise IdentityFailed(
            f"Refused: the 4-bit weights of {name} were packed anew for this processor by an earlier pass, and their "
            "gradients would be wrong; load the model again and open it before it runs."
        )
    for kind, precision in (("Linear4bit", "4bit"), ("Linear8bitLt", "int8")):
        if kind in classes:
            return precision
    dtype = next((p.dtype for p in inner.parameters() if p.is_floating_point()), None)
    found = next((precision for precision, known in DTYPES.items() if known == dtype), "")
    if not found:
        raise RefusedFamily(
            f"Refused: the weights of {name} are {str(dtype).removeprefix('torch.')}; expected float32, bfloat16 or "
            "float16: convert a copy of the model first."
        )
    return found


# ---------------------------------------------------------------- the stand-in


def stand_in(outer: nn.Module, inner: nn.Module) -> tuple[nn.Module, Pretrained]:
    """The same modules over the same storage, with modes, hooks and configs of their own, in eval mode, without
    gradients of weights."""
    try:
        made = _StandIn(outer)
        whole = made.module(outer)
        return whole.eval(), made.module(inner)
    except EffectiveDepthError:
        raise
    except Exception as error:  # whatever modules that are made in another way than torch's provoke
        if ran_out(error) or lost_device(error):
            raise
        raise IdentityFailed(
            f"Refused: {type(inner).__name__} cannot be measured beside itself ({one_line(error)}); save it with "
            "save_pretrained and open the folder."
        ) from error


def _hooks(of: nn.Module) -> str:
    """The note on forward hooks that do not run in the stand-in; "" where there are none."""
    n = sum(_left_out(hook) for module in of.modules() for name in FORWARD for hook in getattr(module, name).values())
    hooks = "1 forward hook of the model does" if n == 1 else f"{n} forward hooks of the model do"
    return f"{hooks} not run here, so what {'it changes' if n == 1 else 'they change'} is not measured." if n else ""


def _left_out(hook: object) -> bool:
    return not type(hook).__module__.startswith("torch.nn.utils")


class _StandIn:
    """Modules, weights and configs that were met, each once: what is tied stays tied."""

    def __init__(self, outer: nn.Module) -> None:
        self._inside = {id(module) for module in outer.modules()}
        self._modules: dict[int, nn.Module] = {}
        self._tensors: dict[int, Tensor] = {}
        self._configs: dict[int, Any] = {}
        self._held: list[Any] = []  # what ids stand for stays

    def module(self, of: nn.Module) -> nn.Module:
        compiled = getattr(of, "_orig_mod", None)
        of = compiled if isinstance(compiled, nn.Module) else of
        if id(of) in self._modules:
            return self._modules[id(of)]
        self._held.append(of)
        new = self._modules[id(of)] = of.__class__.__new__(of.__class__)
        own = vars(new)
        named = {k: self._parameter(p) for k, p in of._parameters.items()}
        buffers = {k: self._buffer(b) for k, b in of._buffers.items()}
        own.update(vars(of), _parameters=named, _buffers=buffers, _compiled_call_impl=None)
        own["_modules"] = {k: None if m is None else self.module(m) for k, m in of._modules.items()}
        for hooks in HOOKS:
            if hooks in own:
                kept = {k: h for k, h in own[hooks].items() if not _left_out(h)}
                own[hooks] = type(own[hooks])(kept)
        if "_original_forward" in own:  # accelerate's cast around the whole model
            del own["_original_forward"]
            own.pop("forward", None)
        self._check_forward(of, own.get("forward"))
        for name, value in list(own.items()):
            if name not in ("_parameters", "_buffers", "_modules", *HOOKS):
                own[name] = self._value(value)
        return new

    def _check_forward(self, of: nn.Module, forward: Any) -> None:
        """A forward pass that was put in the place of the class' own must be that of a module of the model."""
        parts = (getattr(forward, "__self__", None), *getattr(forward, "args", ()))
        if forward is not None and not any(id(part) in self._inside for part in parts):
            raise IdentityFailed(
                f"Refused: the forward pass of a {type(of).__name__} was replaced by a function that cannot be called "
                "without the model itself; undo that, measure, and put it back."
            )

    def _parameter(self, of: nn.Parameter | None) -> nn.Parameter | None:
        if of is None:
            return None
        if id(of) not in self._tensors:
            self._held.append(of)
            if type(of) is nn.Parameter:
                new = nn.Parameter(of.detach(), requires_grad=False)
            elif hasattr(of, "SCB"):  # int8: its constants move to the module in the first pass
                packed = cast(Any, of)
                more = {name: getattr(packed, name) for name in ("has_fp16_weights", "CB", "SCB")}
                new = type(packed)(packed.data, requires_grad=False, **more)
            else:
                new = copy.copy(of)
            self._tensors[id(of)] = new
        return cast(nn.Parameter, self._tensors[id(of)])

    def _buffer(self, of: Tensor | None) -> Tensor | None:
        if of is None:
            return None
        if id(of) not in self._tensors:
            self._held.append(of)
            small = of.numel() * of.element_size() <= SMALL
            self._tensors[id(of)] = of.detach().clone() if small else of.detach()
        return self._tensors[id(of)]

    def _value(self, value: Any) -> Any:
        """An attribute of a module as the stand-in has it: whatever leads to a module leads to its stand-in."""
        if isinstance(value, nn.Module):
            return self.module(value)
        if isinstance(value, types.MethodType) and isinstance(value.__self__, nn.Module):
            return types.MethodType(value.__func__, self.module(value.__self__))
        if isinstance(value, functools.partial):
            named = {k: self._value(v) for k, v in value.keywords.items()}
            return functools.partial(self._value(value.func), *map(self._value, value.args), **named)
        if type(value) in (list, tuple, set):
            return type(value)(map(self._value, value))
        if type(value) is dict:
            return {k: self._value(v) for k, v in value.items()}
        if hasattr(value, "to_diff_dict") and hasattr(value, "model_type"):
            return self._config(value)
        if type(value).__name__ == "MatmulLtState":
            return copy.copy(value)
        return value

    def _config(self, of: Any) -> Any:
        new = copy.deepcopy(of, self._configs)
        for name in ASKS_FOR_MORE:
            if getattr(new, name, False):
                setattr(new, name, False)
        if getattr(new, "return_dict", True) is False:
            new.return_dict = True
        return new


def _same_from_outside(outer: nn.Module, model: LanguageModel) -> None:
    """Refuse a wrapper that brings something to the model besides its layers: tokens in front of the prompt, for
    instance."""
    ids = short_prompt(model)
    with torch.no_grad():
        own = model.logits(ids)
        found = outer(input_ids=ids, use_cache=False).logits.float()
    off = relative(found, own) if found.shape == own.shape else float("inf")
    if not off <= MISS_LIMIT[model.dtype]:
        by = "has other tokens" if found.shape != own.shape else f"differs by {off:.2g}"
        raise IdentityFailed(
            f"Refused: what {type(outer).__name__} brings to {type(model.hf).__name__} is not in its layers (its "
            f"output {by}); expected an adapter within the layers, like LoRA."
        )


def _on_cpu(model: LanguageModel) -> LanguageModel:
    """A float32 copy on the CPU, which a device is held against."""
    plain = copy.deepcopy(model.hf).to("cpu", torch.float32)
    return LanguageModel(plain, model.tokenizer, model.architecture, model.spec, model.encoder)


# ---------------------------------------------------------------- what tells two states apart


def digest(model: nn.Module, tokenizer: Tokenizer) -> str:
    """SHA-256 over all that a number depends on: every weight and buffer, the settings of every module, config and
    tokenizer. As long as reading the weights once: about a second for each gigabyte."""
    found = hashlib.sha256(json.dumps([_settings(model), _rules(tokenizer)]).encode())
    for name, tensor in _tensors(model).items():
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().contiguous().cpu().reshape(-1)
        found.update(flat.view(torch.uint8).numpy().data)
    return found.hexdigest()


def _sums(tensor: Tensor) -> Tensor:
    """Of a tensor's bits, eight bytes as one whole number: the sum of every `WORDS` of them, each times an odd number
    of its own, so that weights that change places change it. A few MB at a time."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    over = -len(flat) % 8
    if over or flat.storage_offset() % 8:
        flat = torch.cat([flat, flat.new_zeros(over)])
    words = flat.view(torch.int64)
    odd = torch.arange(1, 2 * WORDS, 2, device=words.device)
    whole = len(words) // WORDS * WORDS
    sums = [(part * odd).sum(1) for part in words[:whole].view(-1, WORDS).split(1 << 9)]
    return torch.cat([*sums, (words[whole:] * odd[: len(words) - whole]).sum()[None]])


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers by their first name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _settings(model: nn.Module) -> list[Any]:
    """Classes, plain settings and config: a LoRA's scale is one."""
    of_modules = [(name, type(module).__qualname__, _plain(module)) for name, module in model.named_modules()]
    config = cast(Any, model).config
    fields = {k: v for k, v in config.to_dict().items() if not k.startswith("_") and k != "transformers_version"}
    return [of_modules, repr(sorted(fields.items())), str(getattr(config, "_attn_implementation", ""))]


def _plain(module: nn.Module) -> list[tuple[str, str]]:
    """Attributes that are numbers, words, or lists and tables of them."""

    def plain(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return all(map(plain, value))
        if isinstance(value, dict):
            return all(plain(k) and plain(v) for k, v in value.items())
        return value is None or isinstance(value, (bool, int, float, str))

    hidden = ("_parameters", "_buffers", "_modules", "_is_hf_initialized", *HOOKS, *OF_TRAINING)
    return sorted((name, repr(v)) for name, v in vars(module).items() if name not in hidden and plain(v))


def _rules(tokenizer: Tokenizer) -> list[str]:
    """A tokenizer's table and rules, and its chat template."""
    table = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
    return [table, str(getattr(tokenizer, "chat_template", "") or ""), str(_add_bos(tokenizer))]
