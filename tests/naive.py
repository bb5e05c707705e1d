"""The probes once more, as naively as they can be written: plain hooks on modules, one full forward pass per
intervention, loops over tokens, float64. It shares no line with the engine; where to read stands in a table of its own,
written from transformers' source."""

from __future__ import annotations

import copy
import itertools
import math
import types
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

LLAMA = ("model.layers", "model.norm")
GPT = ("transformer.h", "transformer.ln_f")
POST_NORM = (*LLAMA, "post_attention_layernorm", "post_feedforward_layernorm")
PLAIN = (*LLAMA, "self_attn", "mlp")
WHERE = {  # model_types: blocks, final norm, what attention adds, what the MLP adds ("|" where blocks differ)
    "llama qwen2 qwen3 mistral ministral ministral3 mixtral qwen2_moe qwen3_moe gemma olmo olmoe phi3 phimoe gpt_oss "
    "stablelm starcoder2 smollm3 nemotron granite glm cohere cohere2 deepseek_v2 deepseek_v3 ed_looped": PLAIN,
    "ouro": (*LLAMA, "input_layernorm_2", "post_attention_layernorm_2"),
    "olmo2 olmo3 gemma2 gemma3_text gemma4_text exaone4": POST_NORM,
    "gemma3 gemma4": ("model.language_model.layers", "model.language_model.norm", *POST_NORM[2:]),
    "glm4": (*LLAMA, "post_self_attn_layernorm", "post_mlp_layernorm"),
    "llama4_text llama4": (*LLAMA, "self_attn", "feed_forward"),
    "qwen3_next": (*LLAMA, "self_attn|linear_attn", "mlp"),
    "granitemoe": (*LLAMA, "self_attn", "block_sparse_moe"),
    "granitemoehybrid": (*LLAMA, "self_attn", "shared_mlp"),
    "phi": ("model.layers", "model.final_layernorm", "self_attn", "mlp"),
    "gpt2 gpt_neo gptj gpt_bigcode": (*GPT, "attn", "mlp"),
    "gpt_neox": ("gpt_neox.layers", "gpt_neox.final_layer_norm", "attention", "mlp"),
    "opt": ("model.decoder.layers", "model.decoder.final_layer_norm", "self_attn", "fc2"),
    "bloom": (*GPT, "self_attention.dense", "mlp.dense_4h_to_h"),
    "mpt": ("transformer.blocks", "transformer.norm_f", "attn", "ffn.down_proj"),
    "falcon": (*GPT, "self_attention", "mlp"),
}
READ = {model_type: where for model_types, where in WHERE.items() for model_type in model_types.split()}
PARALLEL = {  # model_type: whether attention and MLP both read the block's input
    **dict.fromkeys(("phi", "gptj", "cohere", "cohere2"), lambda config: True),
    **dict.fromkeys(("gpt_neox", "stablelm"), lambda config: config.use_parallel_residual),
    "falcon": lambda config: config.new_decoder_architecture or config.parallel_attn,
}
# these add a third thing and scale the stream: the update is what the stream changes by
SCALED = ("gemma4_text", "gemma4")
PASSES = {"ed_looped": "n_loops", "ouro": "total_ut_steps"}  # model_type: how often the blocks run
PARTS = {"layer": ("attention", "mlp"), "attention": ("attention",), "mlp": ("mlp",)}


@dataclass
class Pass:
    """One forward pass: `resid[0..L]`, `attn[l]`, `mlp[l]` as `[T][d]`, `logits` as `[T][V]`; all float64. `left[l]` is
    what `l` blocks left: `resid[l]`, unless something stands between."""

    resid: list[torch.Tensor]
    left: list[torch.Tensor]
    attn: list[torch.Tensor]
    mlp: list[torch.Tensor]
    logits: torch.Tensor
    scaled: bool = False

    def update(self, layer: int) -> torch.Tensor:
        return self.left[layer + 1] - self.resid[layer] if self.scaled else self.attn[layer] + self.mlp[layer]


class WrittenOut(torch.nn.Module):
    """A looped model with its blocks' weights written out for every pass: a plain list of blocks of their own, run one
    after the other. A norm, or the embedding once more, is added where a pass begins after another block: where the
    block before is of another pass, or this one the first of its own; if every block is there once, where the list
    comes to the end of as many as there are in a pass."""

    def __init__(self, hf):
        super().__init__()
        self.config, self.n = copy.deepcopy(hf.config), len(hf.model.layers)
        passes = getattr(hf.config, PASSES[hf.config.model_type])
        self.model, self.lm_head = torch.nn.Module(), copy.deepcopy(hf.lm_head)
        self.model.layers = torch.nn.ModuleList(
            copy.deepcopy(block) for _ in range(passes) for block in hf.model.layers
        )
        for number, block in enumerate(self.model.layers):
            block.number, block.self_attn.layer_idx = number, number
        self.config.num_hidden_layers = len(self.model.layers)
        self.all = list(range(len(self.model.layers)))
        self.model.norm, self.model.embed_tokens = copy.deepcopy(hf.model.norm), copy.deepcopy(hf.model.embed_tokens)
        self.rotary, self.between = hf.model.rotary_emb, []
        if self.config.model_type == "ouro":
            self.between.append(copy.deepcopy(hf.model.norm))
        elif self.config.loop_norm:
            self.between.append(copy.deepcopy(hf.model.loop_norm))

    def forward(self, input_ids, use_cache=False):
        x = embedded = self.model.embed_tokens(input_ids)
        T = input_ids.shape[1]
        mask = torch.full((T, T), -math.inf).triu(1)[None, None]
        cos_sin = self.rotary(x, position_ids=torch.arange(T)[None])
        numbers = [block.number for block in self.model.layers]
        places = self.all if sorted(numbers) == self.all else numbers
        for at, (place, block) in enumerate(zip(places, self.model.layers)):
            begins = at > 0 and (place % self.n == 0 or places[at - 1] // self.n != place // self.n)
            if begins:
                for between in self.between:
                    x = between(x)
                if getattr(self.config, "loop_input", False):
                    x = x + embedded
            x = block(x, attention_mask=mask, position_embeddings=cos_sin)
        return types.SimpleNamespace(logits=self.lm_head(self.model.norm(x)))


@cache
def plain(hf):
    """A looped model with its blocks' weights written out; any other as it is."""
    return WrittenOut(hf) if hf.config.model_type in PASSES else hf


def blocks_of(hf):
    return hf.get_submodule(READ[hf.config.model_type][0])


def branch_of(hf, layer: int, part: str):
    _, _, attention, mlp = READ[hf.config.model_type]
    inside = dict(blocks_of(hf)[layer].named_modules())
    return next(inside[path] for path in (attention if part == "attention" else mlp).split("|") if path in inside)


def final_norm_of(hf):
    return hf.get_submodule(READ[hf.config.model_type][1])


@contextmanager
def hooks(*handles):
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def rows(output: torch.Tensor) -> torch.Tensor:
    """[T][d] of one sequence, with or without a batch axis."""
    return output if output.dim() == 2 else output[0]


@torch.no_grad()
def run(hf, ids) -> Pass:
    """A full forward pass, with whatever hooks hang on the model, and everything it wrote."""
    resid, attn, mlp, left = [], [], [], []
    multiplier = getattr(hf.config, "residual_multiplier", 1.0)
    tensor = lambda output: rows(output[0] if isinstance(output, tuple) else output).double()
    handles = [final_norm_of(hf).register_forward_pre_hook(lambda module, args: resid.append(tensor(args)))]
    for layer, block in enumerate(blocks_of(hf)):
        entering = lambda module, args, kwargs: resid.append(tensor(args or (kwargs["hidden_states"],)))
        handles.append(block.register_forward_pre_hook(entering, with_kwargs=True))
        leaving = lambda module, args, output: left.append(tensor(output))
        handles.append(block.register_forward_hook(leaving))
        for part, into in (("attention", attn), ("mlp", mlp)):
            keep = lambda module, args, output, into=into: into.append(tensor(output) * multiplier)
            handles.append(branch_of(hf, layer, part).register_forward_hook(keep))
    with hooks(*handles):
        logits = hf(input_ids=torch.tensor([list(ids)]), use_cache=False).logits
    return Pass(resid, [resid[0], *left], attn, mlp, logits[0].double(), hf.config.model_type in SCALED)


def leave_out(hf, layer: int, part: str, positions):
    """Hooks under which block `layer` adds nothing at `positions`: its attention, its MLP, or both."""

    def zero(module, args, output):
        added = (output[0] if isinstance(output, tuple) else output).clone()
        for t in positions:
            rows(added)[t] = 0
        return (added, *output[1:]) if isinstance(output, tuple) else added

    def hand_on(module, args, kwargs, output):
        resid, output = args[0] if args else kwargs["hidden_states"], output.clone()
        output[:, list(positions)] = resid[:, list(positions)]
        return output

    handles = [branch_of(hf, layer, p).register_forward_hook(zero) for p in PARTS[part]]
    if part == "layer" and hf.config.model_type in SCALED:
        handles.append(blocks_of(hf)[layer].register_forward_hook(hand_on, with_kwargs=True))
    return hooks(*handles)


@torch.no_grad()
def lens(hf, ids, resid: torch.Tensor) -> torch.Tensor:
    """The logits the model gives where `resid` stands in the place of the last block's output."""
    put = lambda module, args: (resid.to(args[0].dtype)[None],)
    with hooks(final_norm_of(hf).register_forward_pre_hook(put)):
        return hf(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].double()


def norm(x) -> float:
    return math.sqrt(sum(v * v for v in x.tolist()))


def cosine(x, y) -> float:
    dot = sum(a * b for a, b in zip(x.tolist(), y.tolist()))
    return min(1.0, max(-1.0, dot / (max(norm(x), 1e-8) * max(norm(y), 1e-8))))


def contributions(hf, ids) -> dict[str, np.ndarray]:
    seen = run(hf, ids)
    n_layers, n_tokens = len(seen.attn), len(ids)
    parallel = PARALLEL.get(hf.config.model_type, lambda config: False)(hf.config)
    names = [f"{branch}_{what}" for branch in ("attn", "mlp", "layer") for what in ("ratio", "cos")]
    names += ["io_cos", "block_influence", "attn_norm", "mlp_norm"]
    out = {name: np.zeros((n_layers, n_tokens)) for name in names}
    out["resid_norm"] = np.array([[norm(h) for h in resid] for resid in seen.resid])
    for layer in range(n_layers):
        for t in range(n_tokens):
            h, a, m, after = seen.resid[layer][t], seen.attn[layer][t], seen.mlp[layer][t], seen.left[layer + 1][t]
            d = seen.update(layer)[t]
            reads = h if parallel else h + a
            out["attn_ratio"][layer, t] = norm(a) / max(norm(h), 1e-6)
            out["mlp_ratio"][layer, t] = norm(m) / max(norm(reads), 1e-6)
            out["layer_ratio"][layer, t] = norm(d) / max(norm(h), 1e-6)
            out["attn_cos"][layer, t] = cosine(a, h)
            out["mlp_cos"][layer, t] = cosine(m, reads)
            out["layer_cos"][layer, t] = cosine(d, h)
            out["io_cos"][layer, t] = cosine(h, after)
            out["block_influence"][layer, t] = 1 - cosine(h, after)
            out["attn_norm"][layer, t] = norm(a)
            out["mlp_norm"][layer, t] = norm(m)
    return out


def logit_lens(hf, ids, k: int) -> dict[str, np.ndarray]:
    seen = run(hf, ids)
    n_depths, n_tokens = len(seen.resid), len(ids)
    out = {name: np.zeros((n_depths, n_tokens)) for name in ("kl", "jsd", "entropy", "overlap", "top1_match", "rank")}
    out["top_ids"], out["top_probs"] = np.zeros((n_depths, n_tokens, k)), np.zeros((n_depths, n_tokens, k))
    top1 = np.zeros((n_depths, n_tokens))
    for depth in range(n_depths):
        logits = lens(hf, ids, seen.left[depth])
        for t in range(n_tokens):
            log_p, log_q = logits[t].log_softmax(-1), seen.logits[t].log_softmax(-1)
            p, q = log_p.exp(), log_q.exp()  # 0 where logits lie hundreds apart, as in Gemma 3; its logarithm is there
            log_middle = torch.logaddexp(log_p, log_q) - math.log(2)
            best = logits[t].argsort(descending=True)[:k].tolist()
            final = seen.logits[t].argsort(descending=True)[:k].tolist()
            out["kl"][depth, t] = (p * (log_p - log_q)).sum()
            from_middle = (p * (log_p - log_middle)).sum() + (q * (log_q - log_middle)).sum()
            out["jsd"][depth, t] = from_middle / 2 / math.log(2)
            out["entropy"][depth, t] = -(p * log_p).sum()
            out["overlap"][depth, t] = len(set(best) & set(final)) / k
            out["top1_match"][depth, t] = best[0] == final[0]
            out["rank"][depth, t] = 1 + (logits[t] > logits[t][final[0]]).sum()
            out["top_ids"][depth, t] = best
            out["top_probs"][depth, t] = p[best]
            top1[depth, t] = best[0]
    out["settle_depth"] = np.array(
        [min(l for l in range(n_depths) if (top1[l:, t] == top1[-1, t]).all()) for t in range(n_tokens)]
    )
    return out


def layer_skip(hf, ids, part: str = "layer", boundaries=None) -> dict[str, np.ndarray]:
    """Current mode without `boundaries`, future mode with them."""
    base = run(hf, ids)
    n_layers, n_tokens = len(base.attn), len(ids)
    bounds = boundaries or [n_tokens]
    effect, output = np.zeros((len(bounds), n_layers, n_layers)), np.zeros((len(bounds), n_layers))
    kept, output_pos = np.zeros((len(bounds), n_layers)), np.zeros((n_layers, n_tokens))
    for i, bound in enumerate(bounds):
        looked_at = range(bound, n_tokens) if boundaries else range(n_tokens)
        for s in range(n_layers):
            with leave_out(hf, s, part, range(1, bound)):
                changed = run(hf, ids)
            if part == "layer":
                skipped = changed.left[s + 1][1:bound] - changed.resid[s][1:bound]
                assert not skipped.any(), "the block was not left out"
            for l in range(n_layers):
                D, other = base.update(l), changed.update(l)
                effect[i, s, l] = max(norm(D[t] - other[t]) / max(norm(D[t]), 1e-6) for t in looked_at)
            for t in range(n_tokens):
                output_pos[s, t] = norm(base.logits[t].softmax(-1) - changed.logits[t].softmax(-1))
            output[i, s] = max(output_pos[s, t] for t in looked_at)
            kept[i, s] = np.mean([bool(base.logits[t].argmax() == changed.logits[t].argmax()) for t in looked_at])
    out = {
        "effect": effect.max(0),
        "output": output.max(0),
        "top1_kept": kept.min(0),
        "noise_floor": np.zeros(n_layers),
    }
    if boundaries:
        return out | {"boundaries": np.array(bounds), "effect_by_boundary": effect, "output_by_boundary": output}
    return out | {"output_pos": output_pos}


def direct_effect(hf, ids, part: str = "layer", boundaries=None) -> np.ndarray:
    """One full forward pass per pair of blocks: the later one's input is the original less what the skipped one
    added."""
    base = run(hf, ids)
    n_layers, n_tokens = len(base.attn), len(ids)
    added = {"layer": base.update, "attention": base.attn.__getitem__, "mlp": base.mlp.__getitem__}[part]
    effect = np.zeros((n_layers, n_layers))
    for bound in boundaries or [n_tokens]:
        looked_at = range(bound, n_tokens) if boundaries else range(n_tokens)
        for s in range(n_layers):
            for l in range(s + 1, n_layers):
                edited = base.resid[l].clone()
                edited[1:bound] -= added(s)[1:bound]

                def put(module, args, kwargs, edited=edited):
                    resid = edited.to(torch.float32)[None]
                    return ((resid, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": resid})

                with hooks(blocks_of(hf)[l].register_forward_pre_hook(put, with_kwargs=True)):
                    other = run(hf, ids)
                D, changed = base.update(l), other.update(l)
                effect[s, l] = max(effect[s, l], *(norm(D[t] - changed[t]) / max(norm(D[t]), 1e-6) for t in looked_at))
    return effect


def replace_resid(hf, depth: int, resid: torch.Tensor):
    """A hook under which `resid` [T][d] stands at this depth, whatever the blocks before made."""
    n_layers = len(blocks_of(hf))

    def put(module, args, kwargs):
        old = args[0] if args else kwargs["hidden_states"]
        new = resid.to(old.dtype).expand_as(old)
        return ((new, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": new})

    module = final_norm_of(hf) if depth == n_layers else blocks_of(hf)[depth]
    return hooks(module.register_forward_pre_hook(put, with_kwargs=True))


def residual_erasure(hf, ids, answer_start, background, target: str = "answer") -> np.ndarray:
    """One full forward pass per depth and position; `background` holds token ids of every background prompt."""
    base, n_tokens = run(hf, ids), len(ids)
    passes = [run(hf, other) for other in background]
    effect = np.zeros((len(base.resid), n_tokens))
    for depth in range(len(base.resid)):
        tokens = [h for seen in passes for h in seen.resid[depth]]
        mean = sum(tokens) / len(tokens)
        for t in range(n_tokens):
            erased = base.resid[depth].clone()
            erased[t] = mean
            with replace_resid(hf, depth, erased):
                changed = run(hf, ids)
            looked_at = range(answer_start - 1, n_tokens - 1) if target == "answer" else range(t + 1, n_tokens)
            changes = [norm(base.logits[p].softmax(-1) - changed.logits[p].softmax(-1)) for p in looked_at]
            effect[depth, t] = max(changes, default=math.nan)
    return effect


def patching(hf, ids, other_ids, answers) -> dict[str, np.ndarray]:
    """One full forward pass per depth and position. `ids`, `other_ids`: the two questions; `answers`: the first tokens
    of their answers."""
    own, other = run(hf, ids), run(hf, other_ids)
    last, shift, (alpha, beta) = len(ids) - 1, len(other_ids) - len(ids), answers
    favour = lambda logits: float(logits[-1][beta] - logits[-1][alpha])
    gap = favour(other.logits) - favour(own.logits)
    noise = np.random.default_rng(0).standard_normal((len(own.resid), own.resid[0].shape[1]))

    def patched(depth, t, vector):
        stream = own.resid[depth].clone()
        stream[t] = vector
        with replace_resid(hf, depth, stream):
            logits = run(hf, ids).logits
        return (favour(logits) - favour(own.logits)) / gap, int(logits[-1].argmax()) == beta

    found = {"patch": np.full((len(own.resid), len(ids)), np.nan), "gap": np.array(gap)}
    found |= {name: np.zeros(len(own.resid)) for name in ("last", "self", "random", "elsewhere", "decided")}
    reads = []
    for depth, stream in enumerate(other.resid):
        for t in range(max(0, -shift), len(ids)):
            found["patch"][depth, t], beta_leads = patched(depth, t, stream[t + shift])
        found["last"][depth], found["decided"][depth] = found["patch"][depth, last], beta_leads
        random = torch.tensor(noise[depth]) * norm(stream[-1]) / norm(noise[depth])
        found["random"][depth] = patched(depth, last, random)[0]
        found["elsewhere"][depth] = patched(depth, last, stream[(len(stream) - 1) // 2])[0]
        reads.append(int(lens(hf, other_ids, other.left[depth])[-1].argmax()) == beta)
    for name, there in (("commitment", found["decided"]), ("settle_depth", reads)):
        depths = [depth for depth in range(len(own.resid)) if all(there[depth:])]
        found[name] = np.array(depths[0] if depths else np.nan)
    return found


# 15 nodes of Kronrod's rule on [0, 1] with their weights, as QUADPACK prints them.
_AT = (0.991455371120812639, 0.949107912342758525, 0.864864423359769073, 0.741531185599394440, 0.586087235467691130)
_AT += (0.405845151377397167, 0.207784955007898468)
_OF = (0.022935322010529225, 0.063092092629978553, 0.104790010322250184, 0.140653259715525919, 0.169004726639267903)
_OF += (0.190350578064785410, 0.204432940075298892)
KRONROD = [((1 + s * x) / 2, w / 2) for x, w in zip(_AT, _OF) for s in (-1, 1)] + [(0.5, 0.209482141084727828 / 2)]


def integrated_gradients(
    hf, ids, answer_start, part: str = "layer", steps: int = 512, rule=(), layers=None
) -> np.ndarray:
    """Sums by the midpoint's rule, or by another of (alpha, weight), over whole forward and backward passes, one node
    at a time; NaN for blocks left out."""
    base, n_tokens = run(hf, ids), len(ids)
    n_layers = len(base.attn)
    rule = rule or [((i + 0.5) / steps, 1 / steps) for i in range(steps)]
    out = np.full((n_layers, n_tokens), np.nan)
    for layer in range(n_layers) if layers is None else layers:
        x = {"layer": base.resid[layer + 1], "attention": base.attn[layer], "mlp": base.mlp[layer]}[part].float()
        start = x.mean(0, keepdim=True).expand_as(x)
        total = torch.zeros_like(x, dtype=torch.float64)
        for alpha, weight in rule:
            point = (start + alpha * (x - start)).requires_grad_()

            def put(module, args, output):
                multiplier = getattr(hf.config, "residual_multiplier", 1.0)
                old = output[0] if isinstance(output, tuple) else output
                new = (point / multiplier).reshape(old.shape)
                return (new, *output[1:]) if isinstance(output, tuple) else new

            with (
                replace_resid(hf, layer + 1, point)
                if part == "layer"
                else hooks(branch_of(hf, layer, part).register_forward_hook(put))
            ):
                probabilities = hf(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].softmax(-1)
            sum(probabilities[t - 1, ids[t]] for t in range(answer_start, n_tokens)).backward()
            total += weight * point.grad
        out[layer] = ((x - start) * total).sum(-1)
    return out


@contextmanager
def ordered(hf, order):
    """The model's blocks as the list says."""
    blocks, config = blocks_of(hf), hf.config.get_text_config()
    was, n_layers, listed = list(blocks), config.num_hidden_layers, getattr(config, "layer_types", None)
    try:
        while len(blocks):
            del blocks[len(blocks) - 1]
        for block in order:
            blocks.append(was[block])
        config.num_hidden_layers = len(order)
        if listed is not None:
            config.layer_types = [listed[block] for block in order]
        yield
    finally:
        while len(blocks):
            del blocks[len(blocks) - 1]
        for block in was:
            blocks.append(block)
        config.num_hidden_layers = n_layers
        if listed is not None:
            config.layer_types = listed


def without(hf, drop):
    """Under which the blocks in `drop` hand their input on; of a looped model they are not there."""
    if isinstance(hf, WrittenOut):
        return ordered(hf, [block for block in range(len(blocks_of(hf))) if block not in drop])

    def through(module, args, kwargs, output):
        resid = args[0] if args else kwargs["hidden_states"]
        return (resid, *output[1:]) if isinstance(output, tuple) else resid

    return hooks(*(blocks_of(hf)[b].register_forward_hook(through, with_kwargs=True) for b in drop))


def pruned(hf, ids, drop) -> dict[str, np.ndarray]:
    """KL(whole || pruned), whether the best token stays, and the loss on the next token, per token."""
    whole = run(hf, ids).logits
    with without(hf, drop):
        other = run(hf, ids).logits
    n_tokens = len(ids)
    out = {"kl": np.zeros(n_tokens), "top1_kept": np.zeros(n_tokens), "nll": np.full(n_tokens, np.nan)}
    for t in range(n_tokens):
        p, q = whole[t].softmax(-1), other[t].softmax(-1)
        out["kl"][t] = (p * (p / q).log()).sum()
        out["top1_kept"][t] = whole[t].argmax() == other[t].argmax()
        if t + 1 < n_tokens:
            out["nll"][t] = -math.log(q[ids[t + 1]])
    return out


def in_order(hf, ids, order) -> Pass:
    """A full forward pass whose blocks run as the list says: every block is a copy that has a place of its own."""
    with ordered(hf, order):
        return run(hf, ids)


def surgery(hf, ids, order) -> dict[str, float]:
    """Mean loss, mean KL(whole || changed) and the share of best tokens kept, of the blocks in this order."""
    whole, other = run(hf, ids).logits, in_order(hf, ids, order).logits
    loss, kl, kept = [], [], []
    for t in range(len(ids)):
        p, q = whole[t].log_softmax(-1), other[t].log_softmax(-1)
        kl.append(float((p.exp() * (p - q)).sum()))
        kept.append(bool(whole[t].argmax() == other[t].argmax()))
        if t + 1 < len(ids):
            loss.append(-float(q[ids[t + 1]]))
    return {"loss": sum(loss) / len(loss), "kl": sum(kl) / len(kl), "top1_kept": sum(kept) / len(kept)}


def greedy(hf, ids, n_tokens: int) -> list[int]:
    """What the model writes, the whole read anew for every token."""
    ids = list(ids)
    for _ in range(n_tokens):
        ids.append(int(run(hf, ids).logits[-1].argmax()))
    return ids[-n_tokens:]


@torch.no_grad()
def exact_answer(hf, decode, ids, answer: str, n_tokens: int, drop) -> bool:
    """Whether the model without these blocks, writing `n_tokens` one by one with the whole read anew for each, begins
    with the answer, and with nothing of the same word behind it."""
    ids, written = list(ids), []
    with without(hf, drop):
        for _ in range(n_tokens):
            written.append(int(hf(input_ids=torch.tensor([ids + written]), use_cache=False).logits[0, -1].argmax()))
    text, answer = decode(written).lstrip(), answer.strip()
    behind = text[len(answer) : len(answer) + 1]
    return text[: len(answer)] == answer and not (answer[-1].isalnum() and behind.isalnum())


def numerics(hf, ids, eps: float, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Miss, rounding bound and norms, token by token; slopes by least squares over all elements, tokens scaled by what
    the stream moves. `scale`: what is read from attention and MLP is taken times this."""
    seen = run(hf, ids)
    n_layers, n_tokens = len(seen.attn), len(ids)
    out = {
        "miss": np.zeros((n_layers, n_tokens)),
        "rounding": np.zeros((n_layers, n_tokens)),
        "slopes": np.zeros((n_layers, 2)),
    }
    out["resid_norm"] = np.array([[norm(h) for h in resid] for resid in seen.resid])
    for layer in range(n_layers):
        left, right = [], []
        for t in range(n_tokens):
            h, a, m, after = (
                seen.resid[layer][t],
                seen.attn[layer][t] * scale,
                seen.mlp[layer][t] * scale,
                seen.left[layer + 1][t],
            )
            largest = max(norm(x) for x in (h, a, m, after))
            out["miss"][layer, t] = norm(h + a + m - after) / largest
            steps = [
                max(abs(x + y), abs(x + z), abs(y + z)) + abs(w)
                for x, y, z, w in zip(h.tolist(), a.tolist(), m.tolist(), after.tolist())
            ]
            out["rounding"][layer, t] = eps / 2 * math.sqrt(sum(s * s for s in steps)) / largest
            moved = after - h
            left.append(torch.stack([a, m], dim=-1) / norm(moved))
            right.append(moved / norm(moved))
        out["slopes"][layer] = np.linalg.lstsq(torch.cat(left).numpy(), torch.cat(right).numpy(), rcond=None)[0]
    return out


def token_mean(arrays, first_token: bool = True) -> np.ndarray:
    """Mean over all tokens of all prompts of `[…, T]` arrays."""
    tokens = [array[..., t] for array in arrays for t in range(0 if first_token else 1, array.shape[-1])]
    return sum(tokens) / len(tokens)


def writing(hf, ids, written, threshold: float, g: float, rho: float) -> dict[str, np.ndarray]:
    """What is told of every written token, from one full pass over everything before it and loops over the depths."""
    ids, n_layers = list(ids), len(blocks_of(hf))
    names = ("settle_depth", "exit_depth", "exit_ids", "exit_agrees", "deep_thinking_ratio")
    out = {name: np.zeros(len(written)) for name in names}
    out |= {name: np.zeros((n_layers + 1, len(written))) for name in ("jsd", "confidence", "best_ids")}
    late = 0
    for step, token in enumerate(written):
        lens = logit_lens(hf, ids, 1)
        best, jsd = lens["top_ids"][:, -1, 0], lens["jsd"][:, -1]
        sure = lens["top_probs"][:, -1, 0]
        out["jsd"][:, step], out["confidence"][:, step], out["best_ids"][:, step] = jsd, sure, best
        out["settle_depth"][step] = next(l for l in range(n_layers + 1) if all(b == best[-1] for b in best[l:]))
        leaves = next((l for l in range(n_layers) if sure[l] >= threshold), n_layers)
        out["exit_depth"][step], out["exit_ids"][step] = leaves, best[leaves]
        out["exit_agrees"][step] = best[leaves] == best[-1]
        late += next(l for l in range(n_layers + 1) if min(jsd[: l + 1]) <= g) >= math.ceil(rho * n_layers)
        out["deep_thinking_ratio"][step] = late / (step + 1)
        ids.append(token)
    return out


def answers(hf, decode, ids, start: int, answer: str, k: int) -> dict[str, np.ndarray]:
    """First depth with the answer among the lens's best k; whether greedy writing begins with it, and its mean loss, by
    the whole model and without each block."""
    seen = run(hf, ids)
    found = []
    for left in seen.left:
        logits = lens(hf, ids, left)
        found.append(all(1 + (logits[t - 1] > logits[t - 1][ids[t]]).sum() <= k for t in range(start, len(ids))))
    out = {"first_depth": np.array(float(found.index(True)) if any(found) else np.nan)}
    lasting = [depth for depth in range(len(found)) if all(found[depth:])]
    out["stays_depth"] = np.array(float(min(lasting)) if lasting else np.nan)
    for name, left_out in (("_whole", [()]), ("", [(b,) for b in range(len(blocks_of(hf)))])):
        exact, loss = [], []
        for drop in left_out:
            exact.append(exact_answer(hf, decode, ids[:start], answer, len(ids) - start + 1, drop))
            with without(hf, drop):
                logp = run(hf, ids).logits.log_softmax(-1)
            loss.append(-np.mean([float(logp[t - 1][ids[t]]) for t in range(start, len(ids))]))
        out |= {f"exact{name}": np.array(exact, float), f"loss{name}": np.array(loss)}
    return out | {f"{name}_whole": out[f"{name}_whole"][0] for name in ("exact", "loss")}


def turns(hf, ids) -> dict[str, np.ndarray]:
    """Angles in degrees between successive residuals, and between successive updates."""
    seen = run(hf, ids)
    through = list(zip(seen.resid, seen.left[1:]))
    updates = [after - before for before, after in through]

    def angles(pairs) -> np.ndarray:
        return np.array([[math.degrees(math.acos(cosine(x, y))) for x, y in zip(a, b)] for a, b in pairs])

    return {"stream_angle": angles(through), "update_angle": angles(itertools.pairwise(updates))}


def bootstrap_t(sums, counts):
    """5 and 95 % of a ratio of sums, resample by resample."""

    def ratio(s, w):
        m, n = s.sum() / w.sum(), len(s)
        return m, (n / (n - 1) * ((s - m * w) ** 2).sum()) ** 0.5 / w.sum()

    value, error = ratio(sums, counts)
    times = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=1000)
    draws = []
    for drawn in times:
        chosen = np.repeat(np.arange(len(sums)), drawn)
        again, own = ratio(sums[chosen], counts[chosen])
        draws.append(value - error * (again - value) / own)
    return np.quantile(draws, [0.05, 0.95])


def mean_depth(curve, name: str) -> float:
    """The mean over thresholds of the depth from which a curve stays below: its highest value from each depth on."""
    if name == "kl":
        return 1 + sum(max(curve[l:]) for l in range(1, len(curve))) / max(curve[1:])
    return sum(1 - min(curve[l:]) for l in range(len(curve)))
