"""A causal language model whose residual stream can be read, replayed block by block, and edited.

Blocks are called by hand: one traced pass records how each block was called, `run_block` repeats that call on any
batch. Hooks live only inside a locked call, because a hook belongs to the module: two users would otherwise run through
each other's interventions."""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .. import untrusted
from ..errors import IdentityFailed, NotFinite, PromptError
from ..prompts import check_length, check_text, max_characters, too_long
from ..types import Encoding, ModelSpec, Prompt, Request
from . import chat, controls
from .architecture import Architecture
from .devices import main_device
from .encoder import HARD_SAMPLES, Encoder
from .identities import Identities
from .modules import SEE_GUIDE, Config, Pretrained, Tokenizer, find_submodule, first, hooked, replace_first, split_call
from .quantized import held_bytes
from .ref import ModelRef
from .sizes import QUANTIZED
from .trace import BlockCall, Prefix, Trace, from_position, named_arguments, with_cache

Resid = Float[Tensor, "batch pos d_model"]
Edit = Callable[[Tensor], Tensor]
Hook = Callable[..., Any]


def _rows_of_embedding(hf_model: Pretrained) -> int | None:
    """How many tokens a model can read; None where its class does not name its embedding."""
    try:
        rows: int = hf_model.get_input_embeddings().weight.shape[0]
    except (NotImplementedError, AttributeError):
        return None
    return rows


class LanguageModel:
    """An opened model. `opening.open_model` is the way in; the constructor takes the parts (tests hand in small random
    models). `identities` are the figures of the last `verify`."""

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
        config = hf_model.config
        self.config: Config = config.get_text_config() if hasattr(config, "get_text_config") else config
        self.stack = cast(nn.ModuleList, self._module(hf_model, "blocks"))
        self.n_passes = architecture.n_passes(self.config)
        self.blocks = [*self.stack] * self.n_passes  # in the order they run: pass r of block n is number r * N + n
        self.final_norm = self._module(hf_model, "final_norm")
        self.head = hf_model.get_output_embeddings()
        self.branches = [(self._module(b, "attn"), self._module(b, "mlp")) for b in self.stack] * self.n_passes
        self.thirds = [find_submodule(b, architecture.paths("third")) for b in self.stack] * self.n_passes
        self.pass_norm = find_submodule(hf_model, architecture.paths("between")) if architecture.between else None
        self.reentry = bool(architecture.reentry and getattr(self.config, architecture.reentry, False))
        self.exit_gate = find_submodule(hf_model, architecture.paths("exit_gate")) if architecture.exit_gate else None
        self.parallel = architecture.is_parallel(self.config)
        self.multiplier = architecture.number(self.config, "residual_multiplier") or 1.0
        self.n_layers = len(self.blocks)
        self.d_model: int = self.config.hidden_size
        self.d_vocab: int = self.head.weight.shape[0]
        self.n_embedded = _rows_of_embedding(hf_model)
        self.device = main_device(hf_model)
        self.dtype = next(
            p.dtype for p in hf_model.parameters() if p.is_floating_point()
        )  # of the embeddings, which are never quantized
        self.bytes = held_bytes(hf_model)
        self.block_order: tuple[int, ...] | None = getattr(hf_model, "block_order", None)  # of a shuffled twin
        self.identities: Identities | None = None
        self.unmeasured = ""  # of a model in memory: a note on its hooks that do not run
        self.identities_kept = False  # they were measured at an earlier opening
        self.elsewhere: dict[str, Any] = {}  # of a model that is measured elsewhere: by whom, for the birth certificate
        self.say: Callable[[str], None] = lambda told: None  # is told what such a model waits for
        self.trace_bytes = 0  # that the latest traces may take together, kept for the next probe of the same prompts
        self._traces: OrderedDict[tuple[int, torch.Size, tuple[int, ...]], Trace] = OrderedDict()  # latest last
        self._lock = threading.RLock()
        self._chats: dict[str, tuple[str, list[str]]] = {}  # messages through the chat template, with notes

    def _module(self, root: nn.Module, role: str) -> nn.Module:
        found = find_submodule(root, self.architecture.paths(role))
        if found is None:
            raise IdentityFailed(
                f"Refused: {self.spec.name} has no module {' or '.join(self.architecture.paths(role))}, where "
                f"{self.architecture.family} models "
                f"are read ({role}); {SEE_GUIDE}."
            )
        return found

    # ---------------------------------------------------------------- probes

    def expect(self, todo: Sequence[tuple[Any, Request]]) -> Sequence[tuple[Any, Request]]:
        """What will be asked for, probe and request, in the order in which it should be: a model that is elsewhere asks
        for all of one prompt at once."""
        return todo

    def measure(self, probe: Any, encoding: Encoding, record: Any) -> None:
        """Let a probe fill its record on this model."""
        probe.compute(self, encoding, record)

    # ---------------------------------------------------------------- tokens

    def encode(self, prompt: Prompt, max_tokens: int | None = None) -> Encoding:
        """Tokens of `text + answer`, encoded once and jointly; refuses with a `PromptError`, never truncates."""
        check_text(prompt)
        check_length(prompt)
        text, special, notes = prompt.text, prompt.special_tokens, self.notes
        if prompt.template == "chat":
            text, more = self._in_chat(text)
            special, notes = False, [*notes, *more]
        found = self.encoder.encode(text, prompt.answer, special)
        if why := too_long(len(found), max_tokens, self.n_positions):
            raise PromptError(why)
        return replace(found, notes=(*notes, *found.notes))

    @property
    def notes(self) -> list[str]:
        """What goes with every prompt measured on this model."""
        found = [controls.note(self.spec), self.architecture.note, self.unmeasured]
        if isinstance(self.spec, ModelRef):
            found.append(self.spec.note)
        if self.config is not self.hf.config:
            found.append(f"{self.spec.name} also sees; its text decoder alone is measured.")
        if getattr(self.config, "tie_word_embeddings", False) and not self.tied:
            found.append(
                "The configuration says that the head is tied to the embedding; as loaded they differ, and the head's "
                "own weights are used."
            )
        return [note for note in found if note]

    @property
    def text_identities(self) -> dict[str, object]:
        """What was found of tokenizer and head at the opening, for the birth certificate. Of `samples` hard texts, on
        `tokens_differ` the library's ids are not those of tokenizer.json (None: there is none), and `changed` do not
        come back from their ids. `rescaled_at`: the length from which the rotary frequencies are others."""
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
        try:
            return self.head.weight is self.hf.get_input_embeddings().weight
        except (NotImplementedError, AttributeError):
            return False

    def _in_chat(self, text: str) -> tuple[str, list[str]]:
        """One user message through the chat template, and notes on what it did to the text."""
        has = getattr(self.tokenizer, "chat_template", None)
        if isinstance(has, dict):
            if "default" not in has:
                raise PromptError(
                    f"{self.spec.name} has the chat templates {', '.join(map(str, has))} and none of them is its "
                    "default; use the prompt as raw text instead."
                )
            has = has["default"]
        if not has:
            raise PromptError(f"{self.spec.name} has no chat template; use the prompt as raw text instead.")
        if text not in self._chats:
            most = max_characters() + untrusted.TEMPLATE
            self._chats[text] = chat.render(has, text, self.tokenizer.special_tokens_map, most)
        return self._chats[text]

    def tensor(self, encoding: Encoding | tuple[int, ...]) -> Int[Tensor, "1 pos"]:
        """An encoding, or token ids, as a batch of one on the model's device."""
        ids = encoding.ids if isinstance(encoding, Encoding) else encoding
        rows = self.n_embedded
        if rows is not None and (wrong := next((i for i in ids if not 0 <= i < rows), None)) is not None:
            raise PromptError(
                f"The tokenizer of {self.spec.name} gives token {wrong}, and the model has embeddings for 0 to "
                f"{rows - 1}; take tokenizer and weights from one checkpoint."
            )
        return torch.tensor([ids]).to(self.device, non_blocking=True)

    def token_text(self, token_id: int) -> str:
        """The label of a token (`Encoder.label`)."""
        return self.encoder.label(token_id)

    # ---------------------------------------------------------------- forward passes

    @torch.no_grad()
    def logits(self, ids: Int[Tensor, "batch pos"], keep: int = 0) -> Float[Tensor, "batch kept d_vocab"]:
        """The model's own logits, float32; `keep` > 0 asks for the last positions only, where the family can."""
        with self._lock:
            return self._home(self.hf(input_ids=ids, use_cache=False, **self._keep(keep)).logits).float()

    def _keep(self, last: int) -> dict[str, int | Tensor]:
        """The argument that asks for the logits of the last positions only, where the family can."""
        return {"logits_to_keep": last} if last and "logits_to_keep" in self._takes() else {}

    def _takes(self) -> Collection[str]:
        """What the model's own forward pass can be called with."""
        return inspect.signature(self.hf.forward).parameters

    @torch.no_grad()
    def trace(
        self, ids: Int[Tensor, "batch pos"], on_block: Callable[[int, Trace], None] | None = None, keep: int = 0
    ) -> Trace:
        """One forward pass, recorded. `on_block(l, trace)` is called when block l is done; what it raises ends the
        pass.

        `trace.logits` are the model's own, float32: all positions, or the last `keep` where the family can give just
        those. Nobody changes what is in a trace: it may be an earlier one, given again."""
        named = (keep, ids.shape, tuple(ids.flatten().tolist())) if self.trace_bytes else None
        if named is not None and (again := self._traces.get(named)) is not None:
            self._traces.move_to_end(named)
            if on_block is not None:
                for layer in range(self.n_layers):
                    on_block(layer, again)
            return again
        self._make_room((3 * self.n_layers + 1) * ids.numel() * self.d_model * self.dtype.itemsize)
        record = Trace(ids)
        third: dict[int, Tensor] = {}
        ends = range(len(self.stack), self.n_layers, len(self.stack)) if self.between_passes else ()

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden, rest, named = split_call(args, kwargs)
            record.resid.append(self._home(hidden))
            record.calls.append(BlockCall(rest, named))

        def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            layer = len(record.calls) - 1
            if layer >= self.n_layers:
                return  # more blocks than were announced: told below
            h, a, m = record.resid[layer], record.attn_out[layer], record.mlp_out[layer]
            record.other_out.append(self._other(layer, h, a, m, third.get(layer)))
            if layer + 1 in ends:
                record.left[layer + 1] = self._home(first(output))
            if layer == self.n_layers - 1:
                record.resid.append(self._home(first(output)))
            if on_block is not None:
                on_block(layer, record)

        def keeper(into: list[Tensor]) -> Hook:
            return lambda module, args, output: into.append(self._home(self._added(output, record.resid[-1])))

        def third_keeper(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            third[len(record.calls) - 1] = self._home(first(output).detach())

        with self._lock, ExitStack() as hooks:
            for block, (attn, mlp), beside in zip(self.stack, self.branches, self.thirds):
                hooks.enter_context(hooked(block.register_forward_pre_hook(before, with_kwargs=True)))
                hooks.enter_context(hooked(attn.register_forward_hook(keeper(record.attn_out))))
                hooks.enter_context(hooked(mlp.register_forward_hook(keeper(record.mlp_out))))
                if beside is not None:
                    hooks.enter_context(hooked(beside.register_forward_hook(third_keeper)))
                hooks.enter_context(hooked(block.register_forward_hook(after)))
            record.logits = self.logits(ids, keep)
        ran = len(record.resid) - 1, len(record.attn_out), len(record.mlp_out)
        if ran != (self.n_layers,) * 3:
            raise IdentityFailed(
                f"Refused: in one pass {self.spec.name} ran its {self.n_layers} layers {ran[0]} times, attention's "
                f"modules {ran[1]} and the MLP's "
                f"{ran[2]} times (expected once each). Read: {self.architecture.modules_read()}; {SEE_GUIDE}."
            )
        if not torch.isfinite(record.resid[-1]).all() & torch.isfinite(record.logits).all():
            bad = (l for l, h in enumerate(record.resid) if not torch.isfinite(h).all())
            where = next((f"from residual {l} of {self.n_layers} on" for l in bad), "in its logits alone")
            raise NotFinite(
                f"{self.spec.name} gives NaN or infinite values {where}; "
                "the weights may be damaged or the precision too narrow: try fp32 or bf16."
            )
        if named is not None and record.bytes <= self.trace_bytes:
            self._traces[named] = record
            self._make_room(0)
        return record

    def _make_room(self, n_bytes: int) -> None:
        """Forget the traces that were asked for longest ago, until so many bytes more have room."""
        while self._traces and sum(trace.bytes for trace in self._traces.values()) + n_bytes > self.trace_bytes:
            self._traces.popitem(last=False)

    def keeps(self, trace: Trace, n_bytes: int) -> bool:
        """Whether a trace is kept, and so many bytes beside it have room."""
        held = [one.bytes for one in self._traces.values()]
        return any(one is trace for one in self._traces.values()) and sum(held) + n_bytes <= self.trace_bytes

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
        """Block `layer` on another residual, called as in `trace`: `(attn_out, rest_out, resid_post)`, each `[batch,
        pos, d_model]`.

        `rest_out` is what the MLP adds, with a third branch's addition where the family has one: `attn_out + rest_out`
        is the update. An edit gets what is about to be added to the stream and returns what shall be added instead;
        what comes back is what was added. Gradients flow where `resid` or an edit's tensor asks for them; the weights
        never do.

        `start`: `resid` holds positions `start..T-1` only, and what stands before is as in the trace (its keys and
        values are used, it is not computed). Only for models whose `identities.suffix_holds`.

        `crosses`: whether what stands between two passes follows, and is part of `resid_post`; unless given, where the
        block ends a pass and is followed by another."""
        call, (attn, mlp), third = trace.calls[layer], self.branches[layer], self.thirds[layer]
        if start:
            call = BlockCall((), self._suffix_arguments(trace, layer, start))
        args, kwargs = self._for_batch(call, resid.shape[0] // trace.ids.shape[0])
        added: dict[str, Tensor] = {}

        def reader(name: str, edit: Edit | None) -> Hook:
            def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
                added[name] = value = self._home(self._added(output, resid))
                if edit is None:
                    return None
                added[name] = edited = edit(value)
                edited, value = edited.to(first(output).device), value.to(first(output).device)
                if (
                    self.multiplier != 1.0
                ):  # where nothing is changed nothing may change, not even by rounding there and back
                    put = edited / self.multiplier
                    as_it_was = put + (first(output).reshape(put.shape) - put).detach()  # the gradient stays the edit's
                    edited = torch.where(edited == value, as_it_was, put)
                edited = edited.clone() if self.architecture.in_place else edited
                return replace_first(output, edited.reshape(first(output).shape))

            return hook

        with self._lock, ExitStack() as hooks:
            hooks.enter_context(hooked(attn.register_forward_hook(reader("attn", attn_edit))))
            hooks.enter_context(hooked(mlp.register_forward_hook(reader("mlp", mlp_edit))))
            if third is not None:
                hooks.enter_context(hooked(third.register_forward_hook(reader("third", None))))
            post = first(self.blocks[layer](resid, *args, **kwargs))
            if self.crosses(layer, layer + 1) if crosses is None else crosses:
                post = self.between(trace, self._home(post), start)
        other = self._other(layer, resid, added["attn"], added["mlp"], added.get("third"))
        return added["attn"], added["mlp"] if other is None else added["mlp"].float() + other, self._home(post)

    # ---------------------------------------------------------------- between two passes

    @property
    def between_passes(self) -> bool:
        """Whether anything stands between two passes."""
        return self.n_passes > 1 and (self.pass_norm is not None or self.reentry)

    def crosses(self, block: int, following: int) -> bool:
        """Whether what stands between passes is done between these two blocks, run one after the other: where they are
        of different passes, or the second is the first of its own. `block` -1 is the embedding, `following` L the final
        norm."""
        n = len(self.stack)
        inside = self.between_passes and block >= 0 and following < self.n_layers
        return inside and (block // n != following // n or following % n == 0)

    def between(self, trace: Trace, resid: Resid, start: int = 0) -> Resid:
        """What stands between two passes, done to a stream `[batch, pos, d_model]` from position `start` on: the norm,
        then the traced pass' embedding added once more."""
        if self.pass_norm is not None:
            resid = self._home(self.pass_norm(resid))
        if self.reentry:
            embedded = trace.resid[0][:, start:]
            resid = resid + embedded.repeat(resid.shape[0] // embedded.shape[0], 1, 1)
        return resid

    def entering(self, trace: Trace, depth: int, block: int) -> Resid:
        """The traced stream behind `depth` blocks as it enters `block`, wherever that stands."""
        left = trace.after(depth)
        return self.between(trace, left) if self.crosses(depth - 1, block) else left

    def logits_from(self, ids: Int[Tensor, "batch pos"], resid: Resid) -> Float[Tensor, "batch pos d_vocab"]:
        """The model's own logits where `resid` enters block 0 for the first time, whatever the embedding says."""

        entered = False

        def put(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
            nonlocal entered
            if entered:  # a later pass
                return args, kwargs
            entered = True
            return ((resid, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": resid})

        with self._lock, hooked(self.blocks[0].register_forward_pre_hook(put, with_kwargs=True)):
            return self.logits(ids)

    @torch.no_grad()
    def _suffix_arguments(self, trace: Trace, layer: int, start: int) -> dict[str, Any]:
        """Block `layer`'s arguments for positions `start..T-1`; the whole prompt's keys and values are computed once
        and kept in the trace."""
        named, n_tokens = named_arguments(self.blocks[layer], trace.calls[layer]), trace.ids.shape[1]
        if layer not in trace.keys_values:
            cache = Prefix()
            with self._lock:
                self.blocks[layer](trace.resid[layer], **with_cache(named, cache))
            if cache.seen is None:
                raise RuntimeError("attention hands no keys and values to a cache")
            trace.keys_values[layer] = cache.seen
        keys, values = (x[..., :start, :] for x in trace.keys_values[layer])
        return with_cache(from_position(named, start, n_tokens), Prefix((keys, values)))

    def call_bytes(self, n_keys: int, gradients: bool = False) -> int:
        """About how many bytes per token one block call takes, `n_keys` tokens being attended to; with `gradients`, how
        many it keeps for the way back. From the config alone, so that chunks follow from the request."""
        size: int = self.dtype.itemsize
        d_mlp: int = getattr(self.config, "intermediate_size", None) or 4 * self.d_model
        heads: int = getattr(self.config, "num_attention_heads", 1)
        grouped = getattr(self.config, "num_key_value_heads", heads) != heads
        # torch has no kernel for grouped queries in float32 on a GPU but the plain one, which writes the scores out
        written = self.device.type == "cuda" and self.dtype == torch.float32 and grouped
        eager = getattr(self.config, "_attn_implementation", "") == "eager"
        scores: int = heads * n_keys * (2 * size + 4) if eager or written else 0
        return (
            (14 if gradients else 8) * size * self.d_model
            + (5 if gradients else 4) * size * d_mlp
            + 12 * self.d_model
            + scores
        )

    def unembed(self, resid: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_vocab"]:
        """Final norm, head, and everything the model does after it (soft-cap, logit scale): float32 logits."""
        logits = self._home(self.head(self.final_norm(resid)))

        def number(role: str) -> float | None:
            return self.architecture.number(self.config, role)

        if (divisor := number("logit_divisor")) is not None:
            logits = logits / divisor
        if (factor := number("logit_multiplier")) is not None:
            logits = logits * factor
        if (cap := number("logit_softcap")) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits.float()

    @property
    def n_positions(self) -> int | None:
        """How many tokens the model was made to read; None where nobody says."""
        found: int | None = getattr(self.config, "max_position_embeddings", None)
        return found

    def room(self, n_read: int, n_tokens: int, note: Callable[[str], None]) -> int:
        """How many of `n_tokens` the model can write behind `n_read`, the last of which it does not read; `note` is
        told where these are fewer."""
        if not self.n_positions or n_read + n_tokens - 1 <= self.n_positions:
            return n_tokens
        left = self.n_positions + 1 - n_read
        note(
            f"The model has {self.n_positions} positions; {left} of {n_tokens} tokens {'is' if left == 1 else 'are'} "
            "written, to there. Shorten the prompt for more."
        )
        return left

    @property
    def ends(self) -> set[int]:
        """The tokens with which the model ends its text."""
        told = getattr(self.hf, "generation_config", None)
        found = [getattr(told, "eos_token_id", None), getattr(self.tokenizer, "eos_token_id", None)]
        return {token for one in found if one is not None for token in (one if isinstance(one, list) else [one])}

    def continuation(self, ids: Int[Tensor, "1 pos"], n_tokens: int, on_token: Callable[[int, Tensor], None]) -> None:
        """Greedy continuation, to where the model ends its text: `on_token(step, logits[d_vocab])` after each step."""
        ends = self.ends

        def best(step: int, logits: Tensor) -> int | None:
            on_token(step, logits)
            token = int(logits.argmax())
            return None if token in ends else token

        self.write(ids, n_tokens, best)

    @torch.no_grad()
    def write(
        self,
        ids: Int[Tensor, "1 pos"],
        n_tokens: int,
        choose: Callable[[int, Tensor], int | None],
        at_depths: bool = False,
    ) -> None:
        """Token by token: `choose(step, logits[d_vocab])` gives the next one, or None to end. `at_depths`: it gets
        `[depth, d_vocab]`, the stream at every depth unembedded together, the output last; the model's own head is
        then not run, where the family can do without.

        A further token costs one token where the library keeps the keys and values of what was read. The whole is read
        again where a family hands none back or they give something else (`Identities.cache_holds`), past a change of
        the rotary scaling, and for quantized models: int8 rounds a token by what is read with it."""
        rescaled = self._rope_changes_at()
        cached = "past_key_values" in self._takes() and self.spec.precision not in QUANTIZED
        cached = cached and (self.identities is None or self.identities.cache_holds)
        cache, unread, keep = None, ids, self._keep(1)
        resid: list[Tensor] = []
        if at_depths and keep:
            keep = {"logits_to_keep": ids.new_empty(0)}

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not resid or module is not self.stack[0]:  # what ended a pass is there as it left it
                resid.append(self._home(split_call(args, kwargs)[0][0, -1]))

        def behind(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            resid.append(self._home(first(output)[0, -1]))

        for step in range(n_tokens):
            resid.clear()
            with self._lock, ExitStack() as hooks:
                if at_depths:
                    for block in self.stack:
                        hooks.enter_context(hooked(block.register_forward_pre_hook(before, with_kwargs=True)))
                    hooks.enter_context(hooked(self.stack[-1].register_forward_hook(behind)))
                if rescaled is not None and ids.shape[1] > rescaled:  # other keys for every token read so far
                    cached, cache, unread = False, None, ids
                kept = {"use_cache": cached} | ({"past_key_values": cache} if cached else {})
                output = self.hf(input_ids=unread, **kept, **keep)
            logits = self.unembed(torch.stack(resid)) if at_depths else self._home(output.logits)[0, -1].float()
            chosen = choose(step, logits)
            if chosen is None:
                return
            cache = getattr(output, "past_key_values", None) if cached else None
            token = torch.tensor([[chosen]]).to(ids.device, non_blocking=True)
            ids = torch.cat([ids, token], dim=1)
            unread = ids if cache is None else token

    def _rope_changes_at(self) -> int | None:
        """The length beyond which the rotary frequencies are others; None where they stay."""
        rope = getattr(self.config, "rope_parameters", None) or {}
        if not isinstance(rope, dict) or rope.get("rope_type") not in ("longrope", "dynamic"):
            return None
        at = rope.get("original_max_position_embeddings") or getattr(
            self.config, "original_max_position_embeddings", None
        )
        return int(at or self.config.max_position_embeddings)

    def _home(self, tensor: Tensor) -> Tensor:
        """On the model's main device, wherever its block lies: probes see one device (nothing happens where there is
        only one)."""
        return tensor.to(self.device)

    def _added(self, output: Any, like: Tensor) -> Tensor:
        """What a branch adds to the stream: its output times the family's residual multiplier, in the stream's
        shape."""
        value = first(output)
        if not isinstance(value, Tensor) or value.numel() != like.numel():
            found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise IdentityFailed(
                f"Refused: what is read from {self.spec.name} has the shape {found}, the stream {tuple(like.shape)}. "
                f"Read: {self.architecture.modules_read()}; {SEE_GUIDE}."
            )
        value = value.reshape(like.shape)
        if self.multiplier != 1.0:
            return value * self.multiplier
        return (
            value.clone() if self.architecture.in_place else value
        )  # such a block adds to the very tensor it is handed

    def _other(self, layer: int, h: Tensor, a: Tensor, m: Tensor, third: Tensor | None) -> Tensor | None:
        """What block `layer` adds besides attention and MLP, float32: a third branch, and what scaling the whole stream
        at its end changes. None where the family has neither."""
        scale = (
            getattr(self.blocks[layer], self.architecture.stream_scale, None)
            if self.architecture.stream_scale
            else None
        )
        scale = None if scale is None else self._home(scale)  # of a spread model it lies where its block does
        if third is None and scale is None:
            return None
        other = torch.zeros_like(h, dtype=torch.float32) if third is None else third.float()
        if scale is not None:
            other = other + (scale.float() - 1) * (h.float() + a.float() + m.float() + other)
        return other

    def _for_batch(self, call: BlockCall, times: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A recorded call's arguments for a larger batch. Masks and rotary embeddings broadcast by themselves; some
        families' arguments have a row per sequence or per head of each sequence."""
        repeated = {
            k: v.repeat(times, *[1] * (v.dim() - 1))
            for k in self.architecture.per_row
            if (v := call.kwargs.get(k)) is not None
        }
        return call.args, call.kwargs | repeated
