"""A model that the caller has in memory, measured as it is, also while it trains.

The engine never runs the model itself. It runs a *shadow*: a copy of the tree of modules over the same storage, with
its own modes, hooks and config. So modes, `requires_grad`, gradients, hooks and config of the model are never written,
also where a measurement raises; what belongs to the process (random states, how torch multiplies) is restored.

A shadow is made for each measurement: it costs milliseconds, and has the weights of that moment. Forward hooks of the
model do not run, except those by which torch computes a weight (`torch.nn.utils`)."""

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

from ..errors import IdentityFailed, ParameterError, RefusedFamily, one_line, refused
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

SMALL = 1 << 20  # bytes of a buffer that the shadow copies: a forward pass may write into one
WORDS = 1 << 16  # whole numbers of a tensor's bits that are summed together
FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
HOOKS = (
    *FORWARD_HOOKS,
    *("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_backward_hooks", "_backward_pre_hooks"),
)
PARTS = ("_parameters", "_buffers", "_modules")
OUTPUTS = ("output_hidden_states", "output_attentions", "output_router_logits")  # that a config asks for
OF_TRAINING = ("training", "gradient_checkpointing")  # settings of a module that change no number here


class MemoryModel:
    """A causal language model in memory with its tokenizer. `name`: what results and messages call it. `keep`: whether
    its identity is a hash of its weights, under which results may be kept; else it is valid in this object only."""

    def __init__(self, model: Pretrained, tokenizer: Tokenizer, name: str = "", keep: bool = False):
        self.outer, self.inner = unwrapped(model)
        self.tokenizer, self.keep = _copied(tokenizer), keep
        self.encoder = Encoder(self.tokenizer.backend_tokenizer, self.tokenizer.bos_token or "", _add_bos(tokenizer))
        self.name = name or _name(self.inner)
        # what does not change: all that counts of the tokenizer, and what no other object has
        self._fixed = [*_rules(self.tokenizer), "" if keep else secrets.token_hex(16)]
        self._verified: dict[str, Identities] = {}  # of the latest weights
        self.architecture = described(self.inner.config, self.name)
        with self.opened() as opened:
            self.architecture = opened.architecture

    @property
    def spec(self) -> ModelSpec:
        """The model's identity now: name, precision, device, and a hash that changes with any weight."""
        return ModelSpec(
            self.name,
            content_hash=digest(self.inner, self._fixed),
            precision=_precision(self.inner, self.name),
            device=str(main_device(self.inner)),
        )

    @contextmanager
    def opened(self) -> Iterator[LanguageModel]:
        """Yield the model, to be measured until the block ends; identities are checked after weights have changed."""
        with undisturbed(main_device(self.inner)):
            spec = self.spec
            yield explained(spec, lambda: self._checked(spec))

    def _checked(self, spec: ModelSpec) -> LanguageModel:
        """Return a copy over the same weights, opened; `IdentityFailed` where its identities do not hold."""
        outer, inner = shadow(self.outer, self.inner)
        quantized.cure(inner)
        model = (
            LanguageModel(inner, self.tokenizer, self.architecture, spec, self.encoder)
            if self.architecture
            else adopt(inner, self.tokenizer, spec, self.encoder)
        )
        model.unmeasured = _hooks_note(self.outer)
        if spec.key in self._verified:
            model.identities = self._verified[spec.key]
            return model
        identities = model.identities or verify(model)
        identities.require(model.architecture)
        if sanity := check_device(model):
            sanity.require(str(model.device))
        if outer is not inner:
            _require_same_output(outer, model)
        self._verified = {spec.key: identities}
        return model


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Run the block under torch's plain settings, then restore these and all random states (Python's, numpy's,
    torch's). Within, gradients can be taken, nothing is cast, float32 is float32, and tensors are made on the CPU."""
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        gpus = range(torch.cuda.device_count()) if device.type == "cuda" else ()
        stack.enter_context(torch.random.fork_rng(devices=gpus))
        if device.type == "mps":
            stack.callback(torch.mps.set_rng_state, torch.mps.get_rng_state())
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        stack.enter_context(devices.settled_arithmetic())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in {"cpu", device.type}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


# ---------------------------------------------------------------- what the caller has


def unwrapped(model: Pretrained) -> tuple[nn.Module, Pretrained]:
    """Return `(outer, inner)`: the module that runs as a whole, and the causal language model in it. Wrappers of
    `torch.compile`, of several processes and of accelerate are taken off; one that changes the model (peft) stays as
    `outer`. `ParameterError` or `RefusedFamily` for a model that cannot be measured."""
    outer = inner = model
    for _ in range(8):
        wrapped = next(
            (m for name in ("_orig_mod", "module") if isinstance(m := getattr(inner, name, None), nn.Module)), None
        )
        if wrapped is not None:
            inner, outer = wrapped, wrapped if outer is inner else outer
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
    if library := _sharded_by(model):
        raise RefusedFamily(
            f"Refused: {kind} is divided over several processes ({library}), and none of them has its weights; measure "
            "a checkpoint of it, or train it whole."
        )
    if offloaded := [name for name, tensor in _tensors(inner).items() if tensor.is_meta]:
        raise RefusedFamily(
            f"Refused: {len(offloaded)} weights of {kind} are offloaded, the first is {offloaded[0]}; load it without "
            "offloading, or save it and open the folder with offload=…."
        )
    return outer, inner


def _sharded_by(model: nn.Module) -> str:
    """Return the name of what divides the weights over processes, like "FSDP"; "" where they are whole."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        return "FSDP"
    if any(type(parameter.data).__name__ == "DTensor" for parameter in model.parameters()):
        return "DTensor"
    return "DeepSpeed ZeRO 3" if any(hasattr(parameter, "ds_id") for parameter in model.parameters()) else ""


def _copied(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy of the tokenizer, as encoding sets how one cuts and pads; `ParameterError` for a slow one."""
    if not getattr(tokenizer, "is_fast", False):
        state = "missing" if tokenizer is None else f"of the class {type(tokenizer).__name__}"
        raise ParameterError(
            f"The tokenizer is {state}; a model in memory needs a fast tokenizer of transformers, which maps tokens to "
            "characters: ed_core.open(model, tokenizer)."
        )
    return copy.deepcopy(tokenizer)


def _add_bos(tokenizer: Tokenizer) -> bool | None:
    """Return whether the files that the tokenizer was loaded from ask for BOS, which transformers 5 may leave out; None
    where they are silent or not here."""
    name = str(tokenizer.name_or_path)
    try:
        file = None if os.path.isdir(name) else try_to_load_from_cache(name, tokens.SETTINGS)
    except HFValidationError:
        return None
    return tokens.add_bos(Path(file).parent if isinstance(file, str) else Path(name))


def _name(inner: Pretrained) -> str:
    """Return a name for messages, like "gpt2 in memory": of the model's folder or repository, or its class."""
    folder = str(getattr(inner.config, "_name_or_path", "") or "").rstrip("/").rsplit("/", 1)[-1]
    return f"{folder or type(inner).__name__} in memory"


def _precision(inner: Pretrained, name: str) -> str:
    """Return the name of the weights' precision, like "bf16" or "4bit"; raises for weights that cannot be measured."""
    classes = {type(module).__name__ for module in inner.modules()}
    if any(getattr(getattr(p, "quant_state", None), "packing_format_for_cpu", False) for p in inner.parameters()):
        raise IdentityFailed(
            f"Refused: an earlier pass repacked the 4-bit weights of {name} for this processor, and their gradients "
            "would be wrong; load the model again and open it before it runs."
        )
    for kind, precision in (("Linear4bit", "4bit"), ("Linear8bitLt", "int8")):
        if kind in classes:
            return precision
    dtype = next((p.dtype for p in inner.parameters() if p.is_floating_point()), None)
    if precision := next((name for name, known in DTYPES.items() if known == dtype), ""):
        return precision
    raise RefusedFamily(
        f"Refused: the weights of {name} are {str(dtype).removeprefix('torch.')}; expected float32, bfloat16 or "
        "float16: convert a copy of the model first."
    )


# ---------------------------------------------------------------- the shadow


def shadow(outer: nn.Module, inner: nn.Module) -> tuple[nn.Module, Pretrained]:
    """Return copies of `outer` and `inner` over the same storage, with modes, hooks and configs of their own, in eval
    mode, without gradients of weights. Weights that are tied stay tied."""
    memo: dict[int, Any] = {}  # by id, what takes the place of a part; all others are copied
    what = f"Refused: {type(inner).__name__} cannot be copied without its weights"
    advice = "save it with save_pretrained and open the folder."
    with refused(lambda error: IdentityFailed(f"{what} ({one_line(error)}); {advice}")):
        modules = list(outer.modules())
        for module in modules:
            _share(module, memo)
        for module in reversed(modules):  # inner ones first
            if isinstance(compiled := getattr(module, "_orig_mod", None), nn.Module):
                memo[id(module)] = copy.deepcopy(compiled, memo)
        copied = copy.deepcopy(outer, memo)
        for module in copied.modules():
            _settle(module)
    return copied.eval(), copy.deepcopy(inner, memo)


def _share(module: nn.Module, memo: dict[int, Any]) -> None:
    """Put into `memo`, by id, the parts of a module that its deep copy shares or drops: weights, large buffers, hooks,
    other libraries' objects."""
    own = vars(module)
    for parameter in filter(lambda p: p is not None, own["_parameters"].values()):
        memo.setdefault(id(parameter), _parameter(parameter))
    for buffer in filter(lambda b: b is not None, own["_buffers"].values()):
        small = buffer.numel() * buffer.element_size() <= SMALL
        memo.setdefault(id(buffer), buffer.detach().clone() if small else buffer.detach())
    for name in HOOKS:
        if hooks := own.get(name):
            memo[id(hooks)] = type(hooks)((k, hook) for k, hook in hooks.items() if not _skipped(hook))
    for name, value in own.items():
        if name not in (*PARTS, *HOOKS):
            _share_value(value, memo)


def _share_value(value: Any, memo: dict[int, Any]) -> None:
    """Put an attribute's value into `memo`, to be shared with the copy, unless it is a config or leads to a module; of
    containers, the values inside."""
    if type(value) is dict:
        value = list(value.values())
    if type(value) in (list, tuple, set):
        for part in value:
            _share_value(part, memo)
    elif isinstance(value, functools.partial):
        _share_value([*value.args, *value.keywords.values()], memo)
    elif type(value).__name__ == "MatmulLtState":  # of int8: a pass writes into it
        memo[id(value)] = copy.copy(value)
    elif not (isinstance(value, nn.Module | types.MethodType) or hasattr(value, "to_diff_dict")):
        memo[id(value)] = value


def _parameter(parameter: nn.Parameter) -> nn.Parameter:
    """Return another parameter over the same storage, without a gradient."""
    if type(parameter) is nn.Parameter:
        return nn.Parameter(parameter.detach(), requires_grad=False)
    if hasattr(parameter, "SCB"):  # int8: its constants move to the module in the first pass
        packed = cast(Any, parameter)
        constants = {name: getattr(packed, name) for name in ("has_fp16_weights", "CB", "SCB")}
        return cast(nn.Parameter, type(packed)(packed.data, requires_grad=False, **constants))
    return copy.copy(parameter)


def _settle(module: nn.Module) -> None:
    """Make a copied module compute without compiler, accelerate and requests for further outputs; `IdentityFailed`
    where a function that needs the original replaced its forward pass."""
    own = vars(module)
    own["_compiled_call_impl"] = None
    if "_original_forward" in own:  # accelerate's cast around the whole model
        del own["_original_forward"]
        own.pop("forward", None)
    forward = own.get("forward")
    parts = (getattr(forward, "__self__", None), *getattr(forward, "args", ()))
    if forward is not None and not any(isinstance(part, nn.Module) for part in parts):
        raise IdentityFailed(
            f"Refused: the forward pass of a {type(module).__name__} was replaced by a function that cannot be called "
            "without the model itself; undo that, measure, and put it back."
        )
    config: Any = own.get("config")
    for name in OUTPUTS:
        if getattr(config, name, False):
            setattr(config, name, False)
    if getattr(config, "return_dict", True) is False:
        config.return_dict = True


def _skipped(hook: object) -> bool:
    """Return whether the copy that is measured leaves out this hook: all but those by which torch computes a weight."""
    return not type(hook).__module__.startswith("torch.nn.utils")


def _hooks_note(model: nn.Module) -> str:
    """Return a note on the forward hooks of a model that do not run while it is measured; "" without any."""
    n = sum(_skipped(h) for module in model.modules() for name in FORWARD_HOOKS for h in getattr(module, name).values())
    return f"Of the model {n} forward hooks do not run here; what they change is not measured." if n else ""


def _require_same_output(outer: nn.Module, model: LanguageModel) -> None:
    """Raise `IdentityFailed` for a wrapper that adds something outside of the layers, like tokens before the prompt."""
    ids = short_prompt(model)
    with torch.no_grad():
        own = model.logits(ids)
        logits = outer(input_ids=ids, use_cache=False).logits.float()
    off = relative(logits, own) if logits.shape == own.shape else float("inf")
    if not off <= MISS_LIMIT[model.dtype]:
        difference = "has other tokens" if logits.shape != own.shape else f"differs by {off:.2g}"
        raise IdentityFailed(
            f"Refused: what {type(outer).__name__} brings to {type(model.hf).__name__} is not in its layers (its "
            f"output {difference}); expected an adapter within the layers, like LoRA."
        )


# ---------------------------------------------------------------- what tells two states apart


def digest(model: nn.Module, further: list[str]) -> str:
    """Return a SHA-256 over all that a number depends on: sums of the bits of every weight and buffer, the settings of
    every module, the config, and `further` texts. torch's count of changes would miss fused optimizers."""
    state = hashlib.sha256(json.dumps([_settings(model), further]).encode())
    for name, tensor in _tensors(model).items():
        state.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        state.update(_sums(tensor).cpu().numpy().tobytes())
    return state.hexdigest()


def _sums(tensor: Tensor) -> Tensor:
    """Return sums of a tensor's bits as whole numbers of four bytes: one of every `WORDS` numbers, each times a random
    number of eight bytes (modulo 2⁶⁴), so that other numbers give an equal sum with a chance of 2⁻³²."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    padding = -len(flat) % 4
    if padding or flat.storage_offset() % 4:
        flat = torch.cat([flat, flat.new_zeros(padding)])
    words, factors = flat.view(torch.int32), _factors(flat.device)
    return torch.stack([(part * factors[: len(part)]).sum() for part in words.split(WORDS)])


@functools.lru_cache(maxsize=16)
def _factors(device: torch.device) -> Tensor:
    """Return the same `WORDS` random whole numbers of eight bytes in every process."""
    return torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63, WORDS)).to(device)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return weights and buffers by name; one with several names under the first."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _settings(model: nn.Module) -> list[Any]:
    """Return what `digest` hashes besides tensors and tokenizer: the modules' classes, their plain attributes (a
    LoRA's scale is one), the config and the attention."""
    of_modules = [(name, type(module).__qualname__, _plain(module)) for name, module in model.named_modules()]
    config = cast(Any, model).config
    fields = {k: v for k, v in config.to_dict().items() if not k.startswith("_") and k != "transformers_version"}
    return [of_modules, repr(sorted(fields.items())), str(getattr(config, "_attn_implementation", ""))]


def _plain(module: nn.Module) -> list[tuple[str, str]]:
    """Return (name, repr) of a module's attributes that are numbers, words, or lists and tables of them."""

    def plain(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return all(map(plain, value))
        if isinstance(value, dict):
            return all(plain(k) and plain(v) for k, v in value.items())
        return value is None or isinstance(value, (bool, int, float, str))

    hidden = ("_parameters", "_buffers", "_modules", "_is_hf_initialized", *HOOKS, *OF_TRAINING)
    return sorted((name, repr(v)) for name, v in vars(module).items() if name not in hidden and plain(v))


def _rules(tokenizer: Tokenizer) -> list[str]:
    """Return what `digest` hashes of a tokenizer: its table and rules, its chat template, whether it asks for BOS."""
    table = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
    return [table, str(getattr(tokenizer, "chat_template", "") or ""), str(_add_bos(tokenizer))]
