"""A causal language model whose residual stream can be read, replayed block by block, and edited.

    model.encode(prompt)            a prompt's tokens, encoded as they are for every probe
    model.trace(ids)                one forward pass, recorded (`trace.Trace`)
    model.run_block(trace, l, h)    block l on another stream, called as in the traced pass, its branches edited
    model.unembed(h)                final norm, head and what follows it
    model.write(ids, n, choose)     text, token by token

A hook belongs to its module, so that two users would run through each other's interventions: hooks exist only inside a
locked call.

Shapes: ids [batch, pos]; resid, and what a branch adds, [batch, pos, d_model]; logits [batch, kept, v], `kept` of
the last positions. Layers run 0..L-1; resid[l] enters block l, resid[L] the final norm. In a looped model of R passes
over N blocks, L = R N, and pass r of block n is layer r N + n."""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .. import untrusted
from ..errors import IdentityFailed, NotFinite, PromptError
from ..prompts import check_length, check_text, max_characters, too_long
from ..types import Encoding, ModelSpec, Prompt, Request
from . import chat, controls
from .architecture import Architecture
from .devices import main_device
from .encoder import HARD_SAMPLES, Encoder
from .identities import Identities
from .layouts import Edit, Ids, Logits, Resid
from .modules import SEE_GUIDE, Config, Pretrained, Tokenizer, find_submodule, first, replace_first, split_call
from .quantized import held_bytes
from .sizes import QUANTIZED
from .trace import BlockCall, Prefix, Trace, from_position, named_arguments, with_cache

Hook = Callable[..., Any]
OnBlock = Callable[[int, Trace], None]


class LanguageModel:
    """A causal language model opened for measuring, made by `opening.open_model`; the constructor takes the parts.
    `identities` are the figures of the last `verify`, None before."""

    def __init__(
        self,
        hf_model: Pretrained,
        tokenizer: Tokenizer,
        architecture: Architecture,
        spec: ModelSpec,
        encoder: Encoder | None = None,
    ):
        self.hf = hf_model.eval().requires_grad_(False)
        self.tokenizer, self.architecture, self.spec = tokenizer, architecture, spec
        self.encoder = encoder or Encoder(tokenizer.backend_tokenizer, tokenizer.bos_token or "")
        self.config: Config = hf_model.config.get_text_config()

        self.stack = cast(nn.ModuleList, self._module(hf_model, "blocks"))
        self.n_passes = architecture.n_passes(self.config)
        self.blocks = [*self.stack] * self.n_passes  # in the order they run
        self.branches = [(self._module(b, "attn"), self._module(b, "mlp")) for b in self.stack] * self.n_passes
        self.thirds = [find_submodule(b, architecture.paths("third")) for b in self.stack] * self.n_passes
        self.final_norm = self._module(hf_model, "final_norm")
        self.head = hf_model.get_output_embeddings()
        self.pass_norm = find_submodule(hf_model, architecture.paths("between")) if architecture.between else None
        self.reentry = bool(architecture.reentry and getattr(self.config, architecture.reentry, False))
        self.exit_gate = find_submodule(hf_model, architecture.paths("exit_gate")) if architecture.exit_gate else None
        self.parallel = architecture.is_parallel(self.config)
        self.multiplier = architecture.number(self.config, "residual_multiplier") or 1.0
        self.block_order: tuple[int, ...] | None = getattr(hf_model, "block_order", None)  # of a shuffled twin

        self.n_layers = len(self.blocks)
        self.d_model: int = self.config.hidden_size
        self.d_vocab: int = self.head.weight.shape[0]
        self.n_positions: int | None = getattr(self.config, "max_position_embeddings", None)
        self.device = main_device(hf_model)
        floats = (p.dtype for p in hf_model.parameters() if p.is_floating_point())
        self.dtype = next(floats)  # of the embeddings, which are never quantized
        self.bytes = held_bytes(hf_model)

        self.identities: Identities | None = None
        self.identities_kept = False  # measured at an earlier opening
        self.unmeasured = ""  # a note on hooks of a model in memory that do not run
        self.elsewhere: dict[str, Any] = {}  # who measures a remote model, for the birth certificate
        self.say: Callable[[str], None] = lambda text: None  # gets what a remote model waits for
        self.trace_bytes = 0  # that the latest traces may take together, kept for the next probe of the same prompts
        self._traces: OrderedDict[tuple[int, torch.Size, tuple[int, ...]] | None, Trace] = OrderedDict()  # latest last
        self._chats: dict[str, tuple[str, list[str]]] = {}  # messages through the chat template, with notes
        self._arguments = inspect.signature(hf_model.forward).parameters
        self._lock = threading.RLock()

    def _module(self, root: nn.Module, role: str) -> nn.Module:
        """Return the module under `root` with a role ("attn", …) of the architecture; `IdentityFailed` without one."""
        paths = self.architecture.paths(role)
        if (module := find_submodule(root, paths)) is None:
            raise IdentityFailed(
                f"Refused: {self.spec.name} has no module {' or '.join(paths)}, where {self.architecture.family} "
                f"models are read ({role}); {SEE_GUIDE}."
            )
        return module

    # ---------------------------------------------------------------- probes

    def expect(self, requests: Sequence[tuple[Any, Request]]) -> Sequence[tuple[Any, Request]]:
        """Return the requests in the order to measure them in: a remote model answers all of one prompt at once."""
        return requests

    def measure(self, probe: Any, encoding: Encoding, record: Any) -> None:
        """Compute a probe on an encoded prompt, so that its measures are written into `record`."""
        probe.compute(self, encoding, record)

    # ---------------------------------------------------------------- text

    def encode(self, prompt: Prompt, max_tokens: int | None = None) -> Encoding:
        """Return the tokens of `text + answer`, encoded once and jointly. `PromptError` where they are more than
        `max_tokens` or than the model has positions; nothing is truncated."""
        check_text(prompt)
        check_length(prompt)
        text, special, notes = prompt.text, prompt.special_tokens, self.notes
        if prompt.template == "chat":
            text, of_template = self._in_chat(text)
            special, notes = False, [*notes, *of_template]
        encoding = self.encoder.encode(text, prompt.answer, special)
        if why := too_long(len(encoding), max_tokens, self.n_positions):
            raise PromptError(why)
        return replace(encoding, notes=(*notes, *encoding.notes))

    def _in_chat(self, text: str) -> tuple[str, list[str]]:
        """Return `text` as one user message written through the chat template, and notes on what the template changed.
        `PromptError` without a template."""
        template = getattr(self.tokenizer, "chat_template", None)
        several = template if isinstance(template, dict) else {}
        template = several.get("default") if several else template
        if not template:
            names = f"the chat templates {', '.join(several)} and no default" if several else "no chat template"
            raise PromptError(f"{self.spec.name} has {names}; use the prompt as raw text instead.")
        if text not in self._chats:
            most = max_characters() + untrusted.TEMPLATE
            self._chats[text] = chat.render(template, text, self.tokenizer.special_tokens_map, most)
        return self._chats[text]

    def tensor(self, encoding: Encoding | tuple[int, ...]) -> Ids:
        """Return an encoding, or token ids, as a tensor `[1, pos]` on the model's device; `PromptError` for an id that
        has no embedding."""
        ids = encoding.ids if isinstance(encoding, Encoding) else encoding
        embedding = self._embedding
        rows = max(ids) + 1 if embedding is None else embedding.shape[0]
        if (wrong := next((i for i in ids if not 0 <= i < rows), None)) is not None:
            raise PromptError(
                f"The tokenizer of {self.spec.name} gives token {wrong}, and the model has embeddings for 0 to "
                f"{rows - 1}; take tokenizer and weights from one checkpoint."
            )
        return torch.tensor([ids]).to(self.device, non_blocking=True)

    @property
    def notes(self) -> list[str]:
        """Sentences that go with every prompt measured on this model, as on a control or an untied head."""
        notes = [controls.note(self.spec), self.architecture.note, self.unmeasured]
        if self.config is not self.hf.config:
            notes.append(f"{self.spec.name} also sees; its text decoder alone is measured.")
        if getattr(self.config, "tie_word_embeddings", False) and not self.tied:
            notes.append(
                "The configuration says that the head is tied to the embedding; as loaded they differ, and the head's "
                "own weights are used."
            )
        return [note for note in notes if note]

    @property
    def text_identities(self) -> dict[str, object]:
        """Return figures of the tokenizer and the output head, which every result's provenance carries.

        Of `samples` difficult texts, `tokens_differ` have other ids in tokenizer.json than from the library (None:
        there is no such file), and `changed` do not come back from their ids. `added`: special tokens before and
        after every prompt. `template`: whether there is a chat template. `tied`: whether head and embedding share
        weights. `positions`: the longest text that the model reads. `rescaled_at`: the length beyond which the
        rotary frequencies change."""
        return {
            "samples": len(HARD_SAMPLES),
            "tokens_differ": self.encoder.differ,
            "changed": sum(self.encoder.changes(text) is not None for text in HARD_SAMPLES),
            "added": [list(tokens) for tokens in self.encoder.added()],
            "template": bool(getattr(self.tokenizer, "chat_template", None)),
            "tied": self.tied,
            "positions": self.n_positions,
            "rescaled_at": self._rope_changes_at(),
        }

    @property
    def tied(self) -> bool:
        """Whether head and embedding are the same tensor, as loaded."""
        return self.head.weight is self._embedding

    @property
    def _embedding(self) -> Tensor | None:
        """The embedding's weights `[d_vocab, d_model]`; None where the model's class does not name it."""
        try:
            weight: Tensor = self.hf.get_input_embeddings().weight
        except (NotImplementedError, AttributeError):
            return None
        return weight

    # ---------------------------------------------------------------- one forward pass

    @torch.no_grad()
    def logits(self, ids: Ids, keep: int = 0) -> Logits:
        """Return the model's own logits, float32: of all positions, or of the last `keep` where the family can."""
        with self._lock:
            return self._home(self.hf(input_ids=ids, use_cache=False, **self._keep(keep)).logits).float()

    def _keep(self, last: int) -> dict[str, int | Tensor]:
        """Return the argument of the forward pass that asks for the logits of the `last` positions only; {} for all
        (0), and where the family cannot."""
        return {"logits_to_keep": last} if last and "logits_to_keep" in self._arguments else {}

    @torch.no_grad()
    def trace(self, ids: Ids, on_block: OnBlock | None = None, keep: int = 0) -> Trace:
        """Return one forward pass, recorded, with the logits of `logits(ids, keep)`. It may be shared with earlier
        callers: change nothing in it. `on_block(l, trace)` is called when block l is done; what it raises ends the
        pass."""
        key = (keep, ids.shape, tuple(ids.flatten().tolist())) if self.trace_bytes else None
        if earlier := self._traces.get(key):
            self._traces.move_to_end(key)
            if on_block is not None:
                for layer in range(self.n_layers):
                    on_block(layer, earlier)
            return earlier
        self._make_room((3 * self.n_layers + 1) * ids.numel() * self.d_model * self.dtype.itemsize)
        trace = Trace(ids)
        with self._lock, ExitStack() as hooks:
            for handle in self._recorders(trace, on_block):
                hooks.enter_context(handle)
            trace.logits = self.logits(ids, keep)
        self._check(trace)
        if key is not None and trace.bytes <= self.trace_bytes:
            self._traces[key] = trace
            self._make_room(0)
        return trace

    def _recorders(self, trace: Trace, on_block: OnBlock | None) -> Iterator[RemovableHandle]:
        """Register the hooks of one pass, which fill `trace`, on blocks and branches, and yield their handles."""
        n = len(self.stack)
        ends_of_passes = range(n, self.n_layers, n) if self.between_passes else range(0)
        third_out: Tensor | None = None  # of the block that runs

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nonlocal third_out
            resid, rest, named = split_call(args, kwargs)
            trace.resid.append(self._home(resid))
            trace.calls.append(BlockCall(rest, named))
            third_out = None

        def branch(outputs: list[Tensor], module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            outputs.append(self._home(self._added(output, trace.resid[-1])))

        def other_branch(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            nonlocal third_out
            third_out = self._home(first(output).detach())

        def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            layer = len(trace.calls) - 1
            if layer >= self.n_layers:
                return  # more runs than layers, which `_check` refuses
            sums = trace.resid[layer], trace.attn_out[layer], trace.mlp_out[layer]
            trace.other_out.append(self._other(layer, *sums, third_out))
            if layer + 1 in ends_of_passes:
                trace.left[layer + 1] = self._home(first(output))
            if layer == self.n_layers - 1:
                trace.resid.append(self._home(first(output)))
            if on_block is not None:
                on_block(layer, trace)

        for block, (attn, mlp), third in zip(self.stack, self.branches, self.thirds):
            yield block.register_forward_pre_hook(before, with_kwargs=True)
            yield attn.register_forward_hook(partial(branch, trace.attn_out))
            yield mlp.register_forward_hook(partial(branch, trace.mlp_out))
            if third is not None:
                yield third.register_forward_hook(other_branch)
            yield block.register_forward_hook(after)

    def _check(self, trace: Trace) -> None:
        """Raise `IdentityFailed` for a pass that did not run every block once, `NotFinite` for NaN or infinities."""
        assert trace.logits is not None
        n_runs = len(trace.resid) - 1, len(trace.attn_out), len(trace.mlp_out)
        if n_runs != (self.n_layers,) * 3:
            raise IdentityFailed(
                f"Refused: in one pass {self.spec.name} ran its {self.n_layers} layers {n_runs[0]} times, attention's "
                f"modules {n_runs[1]} and the MLP's {n_runs[2]} times (expected once each). Read: "
                f"{self.architecture.modules_read()}; {SEE_GUIDE}."
            )
        if not torch.isfinite(trace.resid[-1]).all() & torch.isfinite(trace.logits).all():
            bad = (l for l, h in enumerate(trace.resid) if not torch.isfinite(h).all())
            where = next((f"from residual {l} of {self.n_layers} on" for l in bad), "in its logits alone")
            raise NotFinite(
                f"{self.spec.name} gives NaN or infinite values {where}; the weights may be damaged or the precision "
                "too narrow: try fp32 or bf16."
            )

    def _make_room(self, n_bytes: int) -> None:
        """Forget kept traces, the one used longest ago first, until `n_bytes` more fit within `trace_bytes`."""
        while self._traces and sum(trace.bytes for trace in self._traces.values()) + n_bytes > self.trace_bytes:
            self._traces.popitem(last=False)

    def keeps(self, trace: Trace, n_bytes: int) -> bool:
        """Return whether `trace` is among the kept ones and `n_bytes` more fit within `trace_bytes`."""
        sizes = [kept.bytes for kept in self._traces.values()]
        return any(kept is trace for kept in self._traces.values()) and sum(sizes) + n_bytes <= self.trace_bytes

    def logits_from(self, ids: Ids, resid: Resid) -> Logits:
        """Return the model's own logits when `resid` enters block 0 of the first pass in place of the embedding."""
        entered = False

        def put(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
            nonlocal entered
            if entered:  # a later pass
                return args, kwargs
            entered = True
            return ((resid, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": resid})

        with self._lock, self.blocks[0].register_forward_pre_hook(put, with_kwargs=True):
            return self.logits(ids)

    def unembed(self, resid: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch v"]:
        """Return float32 logits of a stream: final norm, head, and what follows it (soft-cap, logit scale)."""
        logits = self._home(self.head(self.final_norm(resid)))
        roles = ("logit_divisor", "logit_multiplier", "logit_softcap")
        divisor, factor, cap = (self.architecture.number(self.config, role) for role in roles)
        if divisor is not None:
            logits = logits / divisor
        if factor is not None:
            logits = logits * factor
        if cap is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits.float()

    # ---------------------------------------------------------------- one block

    def run_block(
        self,
        trace: Trace,
        layer: int,
        resid: Resid,
        attn_edit: Edit | None = None,
        mlp_edit: Edit | None = None,
        start: int = 0,
        crosses: bool | None = None,
    ) -> tuple[Resid, Resid, Resid]:
        """Return `(attn_out, rest_out, resid_post)` of block `layer` run on another stream, called as in `trace`.

        `rest_out` is what the MLP adds, with a third branch's addition where the family has one: `attn_out + rest_out`
        is the update. An edit gets what is about to be added to the stream and returns what is added instead; that is
        what comes back. Gradients flow to `resid` and to an edit's tensors; never to the weights.

        `start`: `resid` holds positions `start..T-1` only; keys and values of the earlier ones are those of the trace.
        Only for models with `identities.suffix_holds`. `crosses`: whether `resid_post` includes what happens between
        two passes; by default, where the block ends a pass and another one follows."""
        (attn, mlp), third = self.branches[layer], self.thirds[layer]
        call = BlockCall((), self._suffix_arguments(trace, layer, start)) if start else trace.calls[layer]
        args, kwargs = self._for_batch(call, resid.shape[0] // trace.ids.shape[0])
        added: dict[str, Tensor] = {}
        with self._lock, ExitStack() as hooks:
            hooks.enter_context(attn.register_forward_hook(self._reader(resid, added, "attn", attn_edit)))
            hooks.enter_context(mlp.register_forward_hook(self._reader(resid, added, "mlp", mlp_edit)))
            if third is not None:
                hooks.enter_context(third.register_forward_hook(self._reader(resid, added, "third")))
            post = first(self.blocks[layer](resid, *args, **kwargs))
            if self.crosses(layer, layer + 1) if crosses is None else crosses:
                post = self.between(trace, self._home(post), start)
        other = self._other(layer, resid, added["attn"], added["mlp"], added.get("third"))
        return added["attn"], added["mlp"] if other is None else added["mlp"].float() + other, self._home(post)

    def _reader(self, resid: Resid, added: dict[str, Tensor], name: str, edit: Edit | None = None) -> Hook:
        """Return a hook that puts what a branch adds to the stream into `added[name]`: with an `edit` the edited
        addition, which the block then adds too. `resid`: a stream of the same shape."""

        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            added[name] = value = self._home(self._added(output, resid))
            if edit is None:
                return None
            added[name] = edited = edit(value)
            return replace_first(output, self._as_output(first(output), value, edited))

        return hook

    def _as_output(self, output: Tensor, value: Tensor, edited: Tensor) -> Tensor:
        """Return the output with which a branch makes the block add `edited` where it would add `value`. Elements that
        an edit leaves as they are stay so to the last bit, while the gradient is the edit's."""
        edited, value = edited.to(output.device), value.to(output.device)
        if self.multiplier != 1.0:
            divided = edited / self.multiplier
            unchanged = divided + (output.reshape(divided.shape) - divided).detach()
            edited = torch.where(edited == value, unchanged, divided)
        edited = edited.clone() if self.architecture.in_place else edited
        return edited.reshape(output.shape)

    def _added(self, output: Any, like: Tensor) -> Tensor:
        """What a branch adds to the stream: its output times the residual multiplier, in the stream's shape."""
        value = first(output)
        if not isinstance(value, Tensor) or value.numel() != like.numel():
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise IdentityFailed(
                f"Refused: what is read from {self.spec.name} has the shape {shape}, the stream {tuple(like.shape)}. "
                f"Read: {self.architecture.modules_read()}; {SEE_GUIDE}."
            )
        value = value.reshape(like.shape)
        if self.multiplier != 1.0:
            return value * self.multiplier
        return value.clone() if self.architecture.in_place else value  # the block adds to the very tensor it gets

    def _other(self, layer: int, h: Tensor, a: Tensor, m: Tensor, third: Tensor | None) -> Tensor | None:
        """What block `layer` adds besides attention and MLP, float32: a third branch, and what scaling the whole stream
        at its end changes. None where the family has neither."""
        name = self.architecture.stream_scale
        scale = getattr(self.blocks[layer], name, None) if name else None
        if third is None and scale is None:
            return None
        other = torch.zeros_like(h, dtype=torch.float32) if third is None else third.float()
        if scale is not None:
            other = other + (self._home(scale).float() - 1) * (h.float() + a.float() + m.float() + other)
        return other

    def _for_batch(self, call: BlockCall, times: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a recorded call's arguments for a batch `times` as large. Masks and rotary embeddings broadcast by
        themselves; some families' arguments have a row per sequence, or per head of each sequence."""
        per_row = {name: call.kwargs.get(name) for name in self.architecture.per_row}
        repeated = {name: x.repeat(times, *[1] * (x.dim() - 1)) for name, x in per_row.items() if x is not None}
        return call.args, call.kwargs | repeated

    @torch.no_grad()
    def _suffix_arguments(self, trace: Trace, layer: int, start: int) -> dict[str, Any]:
        """Block `layer`'s arguments for positions `start..T-1`; the trace keeps the whole prompt's keys and values."""
        named, n_tokens = named_arguments(self.blocks[layer], trace.calls[layer]), trace.ids.shape[1]
        if layer not in trace.keys_values:
            cache = Prefix()
            with self._lock:
                self.blocks[layer](trace.resid[layer], **with_cache(named, cache))
            if cache.seen is None:
                raise RuntimeError("attention hands no keys and values to a cache")
            trace.keys_values[layer] = cache.seen
        keys, values = (x[..., :start, :] for x in trace.keys_values[layer])
        named = from_position(named, start, n_tokens, trace.resid[layer].device)
        return with_cache(named, Prefix((keys, values)))

    def call_bytes(self, n_keys: int, gradients: bool = False) -> int:
        """Return about how many bytes per token one block call takes, `n_keys` tokens being attended to; with
        `gradients`, how many it keeps for the backward pass. From the config alone, so that chunks follow from the
        request."""
        size: int = self.dtype.itemsize
        d_mlp: int = getattr(self.config, "intermediate_size", None) or 4 * self.d_model
        heads: int = getattr(self.config, "num_attention_heads", 1)
        grouped = getattr(self.config, "num_key_value_heads", heads) != heads
        # For grouped queries in float32 on a GPU torch has only the plain kernel, which writes the scores out.
        plain_kernel = self.device.type == "cuda" and self.dtype == torch.float32 and grouped
        eager = getattr(self.config, "_attn_implementation", "") == "eager"
        scores: int = heads * n_keys * (2 * size + 4) if eager or plain_kernel else 0
        streams, widths = (14, 5) if gradients else (8, 4)
        return streams * size * self.d_model + widths * size * d_mlp + 12 * self.d_model + scores

    # ---------------------------------------------------------------- between two passes

    @property
    def between_passes(self) -> bool:
        """Whether a looped model does anything (norm, embedding added again) between two passes through its blocks."""
        return self.n_passes > 1 and (self.pass_norm is not None or self.reentry)

    def crosses(self, block: int, following: int) -> bool:
        """Return whether two blocks of a looped model, run one after the other, have a border of passes between them:
        they are of different passes, or the second begins one. `block` -1 is the embedding, `following` L the final
        norm."""
        n = len(self.stack)
        inside = self.between_passes and block >= 0 and following < self.n_layers
        return inside and (block // n != following // n or following % n == 0)

    def between(self, trace: Trace, resid: Resid, start: int = 0) -> Resid:
        """Return a stream after what a looped model does between two passes, from position `start` on: the norm, then
        the traced pass' embedding added once more."""
        if self.pass_norm is not None:
            resid = self._home(self.pass_norm(resid))
        if self.reentry:
            embedded = trace.resid[0][:, start:]
            resid = resid + embedded.repeat(resid.shape[0] // embedded.shape[0], 1, 1)
        return resid

    def entering(self, trace: Trace, depth: int, block: int) -> Resid:
        """Return the traced stream after `depth` blocks as it would enter `block`, which may be any other one."""
        left = trace.after(depth)
        return self.between(trace, left) if self.crosses(depth - 1, block) else left

    # ---------------------------------------------------------------- writing

    @property
    def ends(self) -> set[int]:
        """Ids of the tokens with which the model ends its text."""
        owners = getattr(self.hf, "generation_config", None), self.tokenizer
        ids = [getattr(owner, "eos_token_id", None) for owner in owners]
        return {token for one in ids if one is not None for token in (one if isinstance(one, list) else [one])}

    def room(self, n_read: int, n_tokens: int, note: Callable[[str], None]) -> int:
        """Return how many of `n_tokens` new tokens the model's positions allow after `n_read` tokens, the last one not
        being read; `note` gets a sentence where these are fewer."""
        if not self.n_positions or n_read + n_tokens - 1 <= self.n_positions:
            return n_tokens
        left = self.n_positions + 1 - n_read
        note(
            f"The model has {self.n_positions} positions; {left} of {n_tokens} tokens {'is' if left == 1 else 'are'} "
            "written. Shorten the prompt for more."
        )
        return left

    def continuation(self, ids: Ids, n_tokens: int, on_token: Callable[[int, Tensor], None]) -> None:
        """Continue `ids` greedily by `n_tokens`, or to where the model ends its text; calls `on_token(step,
        logits[d_vocab])` after each step."""
        ends = self.ends

        def best(step: int, logits: Tensor) -> int | None:
            on_token(step, logits)
            token = int(logits.argmax())
            return None if token in ends else token

        self.write(ids, n_tokens, best)

    @property
    def uses_cache(self) -> bool:
        """Whether the library can keep keys and values; not in int8, which rounds tokens read together, and 4bit."""
        return "past_key_values" in self._arguments and self.spec.precision not in QUANTIZED

    @torch.no_grad()
    def write(
        self,
        ids: Ids,
        n_tokens: int,
        choose: Callable[[int, Tensor], int | None],
        at_depths: bool = False,
    ) -> None:
        """Write at most `n_tokens` after `ids`: `choose(step, logits[d_vocab])` gives the next token's id, or None to
        end.

        `at_depths`: `choose` gets `[L + 1, d_vocab]`, the stream at every depth unembedded together; the model's own
        head is then not run, where the family can do without. Where the family has no cache, its identity does not
        hold, or the rotary scaling has changed, the whole text is read again for each token."""
        cached = self.uses_cache and (self.identities is None or self.identities.cache_holds)
        rescaled_at = self._rope_changes_at() or ids.shape[1] + n_tokens
        cache, unread = None, ids
        for step in range(n_tokens):
            if ids.shape[1] > rescaled_at:  # changes the keys of every token before
                cached, cache, unread = False, None, ids
            logits, cache = self._read(unread, cache, cached, at_depths)
            if (token := choose(step, logits)) is None:
                return
            last = torch.tensor([[token]]).to(ids.device, non_blocking=True)
            ids = torch.cat([ids, last], dim=1)
            unread = ids if cache is None else last

    def _read(self, ids: Tensor, cache: Any, cached: bool, at_depths: bool) -> tuple[Tensor, Any]:
        """Return the last token's logits (with `at_depths` at every depth), and the key-value cache after it, None
        where none is used."""
        options: dict[str, Any] = {"use_cache": cached} | ({"past_key_values": cache} if cached else {}) | self._keep(1)
        if at_depths and "logits_to_keep" in options:
            options["logits_to_keep"] = ids.new_empty(0)
        resid: list[Tensor] = []

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not resid or module is not self.stack[0]:  # what ended a pass is in already, as it was left
                resid.append(self._home(split_call(args, kwargs)[0][0, -1]))

        def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            resid.append(self._home(first(output)[0, -1]))

        with self._lock, ExitStack() as hooks:
            for block in self.stack if at_depths else ():
                hooks.enter_context(block.register_forward_pre_hook(before, with_kwargs=True))
            if at_depths:
                hooks.enter_context(self.stack[-1].register_forward_hook(after))
            output = self.hf(input_ids=ids, **options)
        logits = self.unembed(torch.stack(resid)) if at_depths else self._home(output.logits)[0, -1].float()
        return logits, getattr(output, "past_key_values", None) if cached else None

    def _rope_changes_at(self) -> int | None:
        """The length beyond which the rotary frequencies change; None where they never do."""
        rope = getattr(self.config, "rope_parameters", None)
        if not isinstance(rope, dict) or rope.get("rope_type") not in ("longrope", "dynamic"):
            return None
        name = "original_max_position_embeddings"
        return int(rope.get(name) or getattr(self.config, name, None) or self.config.max_position_embeddings)

    def _home(self, tensor: Tensor) -> Tensor:
        """The tensor on the model's main device, wherever its block is: probes see one device."""
        return tensor.to(self.device)
