"""What is computed where the weights are: these functions travel as source text, with `sweeps.metrics` and
`models.identities`, and run next to the model within one session. There is nothing else of this program there: they use
torch, and a `model` of nnsight, whose modules' inputs and outputs are read and written as it runs.

`plan`: plain numbers, names and lists, as `model.RemoteModel` makes it. What goes back are the measures of one prompt,
under the names and in the shapes that the probe declares."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..models.identities import miss, slopes
from ..sweeps.metrics import AgainstOutput, contributions, cosine, norm, overlap, relative_change, settle_depth


def measured(model: Any, plan: dict[str, Any]) -> dict[str, Any]:
    """Return tensors by name: the identities, then each part of the plan under its name; neither where a value is not
    finite. Besides them `dtype` and `torch`, as text."""
    with torch.no_grad():
        short, base = (forward(model, plan, plan[ids]) for ids in ("short", "ids"))
        finite = all(bool(torch.isfinite(x).all()) for run in (short, base) for x in (*run["resid"], run["logits"]))
        result: dict[str, Any] = {}
        if finite:
            result |= identities(model, plan, short)
            measure = {"contributions": read, "logit_lens": lens, "layer_skip": skips, "residual_erasure": erasure}
            for part in plan["parts"]:
                for name, values in measure[part["probe"]](model, plan, part, base).items():
                    result[part["name"] + "." + name] = values
        arrays = {
            name: (x.float() if x.is_floating_point() else x.int()).cpu().contiguous() for name, x in result.items()
        }
        return arrays | {"dtype": str(base["resid"][0].dtype).removeprefix("torch."), "torch": str(torch.__version__)}


# ---------------------------------------------------------------- forward passes


def at(root: Any, path: str) -> Any:
    """Return the submodule of `root` at a dotted path; a number in the path is an index."""
    for part in path.split("."):
        root = root[int(part)] if part.isdigit() else getattr(root, part)
    return root


def first(value: Any) -> Any:
    """Return the tensor of a module's output, by itself or at the beginning of a tuple."""
    return value[0] if isinstance(value, tuple) else value


def instead(value: Any, new: Tensor) -> Any:
    """Return a module's output with `new` as its first tensor."""
    new = new.reshape(first(value).shape).to(first(value).device, first(value).dtype)
    return (new, *value[1:]) if isinstance(value, tuple) else new


def forward(
    model: Any, plan: dict[str, Any], ids: Any, edits: Any = None, each: Any = None, keep: int = 0
) -> dict[str, Any]:
    """Return the tensors of one pass: `resid` [depth], `attn` and `mlp` [layer], each `[row, pos, d]`, and the
    `logits`, of the last `keep` positions where the family can give just those.

    `edits`, each by layer: `resid`, the stream that enters the layer instead; `attention` and `mlp`, masks `[row, pos]`
    where nothing is added; `layer`, a mask where the stream passes the layer by. With `each(layer, stream, attn, mlp)`,
    called layer by layer, none of these is kept, and `resid` is the last stream only; `each` may be "last", which asks
    for nothing but that."""
    edits = {} if edits is None else edits
    blocks = at(model, plan["blocks"])
    result: dict[str, Any] = {"resid": [], "attn": [], "mlp": []}
    home: list[Any] = []  # where the first stream is: all others are brought there
    more = {"logits_to_keep": keep} if keep and plan["keeps"] else {}

    def branch(module: Any, h: Tensor, none: Any) -> Tensor:
        """Return what a branch adds to the stream `h`, set to 0 in the model too where the mask `none` is True."""
        value = module.output
        added = first(value).to(h.device).reshape(h.shape) * plan["multiplier"]
        if none is not None:
            added = added.masked_fill(none.to(h.device).unsqueeze(-1), 0.0)
            module.output = instead(value, added / plan["multiplier"])
        put: Tensor = added.clone() if plan["in_place"] else added
        return put

    with model.trace(torch.as_tensor(ids), use_cache=False, **more):
        for layer in range(plan["n_layers"]):
            block = blocks[layer]
            if layer in edits.get("resid", {}):
                block.input = edits["resid"][layer].to(block.input.device, block.input.dtype)
            if layer == 0:
                home.append(block.input.device)
            if each != "last":
                h = block.input.to(home[0])
                h = h.clone() if plan["in_place"] else h
                attn, mlp = (at(block, path) for path in plan["branches"][layer])
                a = branch(attn, h, edits.get("attention", {}).get(layer))
                m = branch(mlp, h, edits.get("mlp", {}).get(layer))
                if each is None:
                    for name, value in (("resid", h), ("attn", a), ("mlp", m)):
                        result[name].append(value)
                else:
                    each(layer, h, a, m)
                past = edits.get("layer", {}).get(layer)
                if past is not None:
                    left = block.output
                    out = first(left)
                    block.output = instead(left, torch.where(past.to(out.device).unsqueeze(-1), h.to(out.device), out))
            if layer == plan["n_layers"] - 1:
                result["resid"].append(first(block.output).to(home[0]))
        result["logits"] = model.output.logits
    result["logits"] = result["logits"].to(home[0]).float()
    return result


def unembed(model: Any, plan: dict[str, Any], resid: Tensor) -> Tensor:
    """Return the float32 logits of a stream: final norm, head, and what the family does behind it (scale, soft-cap)."""
    logits: Tensor = at(model, plan["head"])(at(model, plan["norm"])(resid)).to(resid.device)
    if plan["divisor"] is not None:
        logits = logits / plan["divisor"]
    if plan["factor"] is not None:
        logits = logits * plan["factor"]
    if plan["cap"] is not None:
        logits = torch.tanh(logits / plan["cap"]) * plan["cap"]
    return logits.float()


def update(found: dict[str, Any], layer: int) -> Tensor:
    """Return what block `layer` added in a pass of `forward`: attention's and the MLP's additions, in float32."""
    added: Tensor = found["attn"][layer].float() + found["mlp"][layer].float()
    return added


# ---------------------------------------------------------------- the identities


def identities(model: Any, plan: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of the residual identities on a short text, of which `one` is the pass. No block is called by
    hand: for `replay` every block gets the stream that it had, in the model's own pass. `detour`: the sums where
    another stream enters layer 0, so that an edit without effect is seen; `mlp_moves`: the change of the MLP's addition
    without attention's."""
    resid, attn, mlp, n_layers = one["resid"], one["attn"], one["mlp"], plan["n_layers"]
    limit = plan["slope_limits"].get(str(resid[0].dtype), 0.03)
    blocks = [(resid[l], attn[l], mlp[l], resid[l + 1]) for l in range(n_layers)]
    both = [slopes(*block, limit=limit) for block in blocks]
    resampled = forward(model, plan, plan["short"], {"resid": dict(enumerate(resid[:-1]))})
    moved = resid[0].roll(1, 1)
    other = forward(model, plan, plan["short"], {"resid": {0: moved}})
    walked = [moved, *other["resid"][1:]]
    detour = [miss(walked[l], other["attn"][l], other["mlp"][l], walked[l + 1]).max() for l in range(n_layers)]
    everywhere = torch.ones(resid[0].shape[:2], dtype=torch.bool)
    bare = forward(
        model,
        plan,
        plan["short"],
        {"resid": dict(enumerate(resid[:-1])), "attention": dict.fromkeys(range(n_layers), everywhere)},
    )
    plain = max(1e-3, 8 * torch.finfo(resid[0].dtype).eps)
    moves = []
    for l in range(n_layers):
        h, a, m = (x[l].float() for x in (resid, attn, mlp))
        tells = (m - m.mean(-2, keepdim=True)).norm() > 1e-3 * m.norm()
        tells = tells & (a.norm(dim=-1) > plain * h.norm(dim=-1)).any()
        moves.append(float((bare["mlp"][l].float() - m).norm() / m.norm()) if tells else torch.nan)
    neighbours = {l: torch.cat([h, h.roll(1, 1), h.roll(2, 1)]) for l, h in enumerate(resid[:-1])}
    several = forward(model, plan, [plan["short"][0]] * 3, {"resid": neighbours})
    moved_by = [(update(several, l)[:1] - update(one, l)).norm(dim=-1) for l in range(n_layers)]
    after = forward(model, plan, plan["short"])
    last = forward(model, plan, plan["other"])["logits"]

    def off(logits: Tensor) -> Any:
        own = one["logits"][:, : logits.shape[1]]
        return (logits - own).abs().max() / own.abs().max().clamp_min(1e-30)

    return {
        "miss": torch.stack([miss(*block).max() for block in blocks]),
        "slope_attn": torch.tensor([torch.nan if a is None else a for a, _ in both]),
        "slope_mlp": torch.tensor([torch.nan if m is None else m for _, m in both]),
        "closure": off(unembed(model, plan, resid[-1])),
        "replay": off(resampled["logits"]),
        "detour": torch.stack(detour).max(),
        "batch": torch.stack([(x / h.float().norm(dim=-1)).median() for x, h in zip(moved_by, resid[1:])]).max(),
        "left_behind": off(after["logits"]),
        "causality": off(last[:, :-1]),
        "mlp_moves": torch.tensor(moves),
    }


# ---------------------------------------------------------------- the measures


def read(model: Any, plan: dict[str, Any], part: dict[str, Any], base: dict[str, Any]) -> dict[str, Tensor]:
    """Return the measures of the probe `contributions`, `[layer, pos]` (`resid_norm`: `[depth, pos]`)."""
    rows, resid = [], base["resid"]
    for l in range(plan["n_layers"]):
        h, a, m = (base[name][l][0].float() for name in ("resid", "attn", "mlp"))
        io_cos = cosine(h, resid[l + 1][0])
        row = contributions(h, a, m, update(base, l)[0], plan["parallel"])
        rows.append(row | {"io_cos": io_cos, "block_influence": 1 - io_cos})
    result = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return result | {"resid_norm": torch.cat([result["resid_norm"], norm(resid[-1][0])[None]])}


def lens(model: Any, plan: dict[str, Any], part: dict[str, Any], base: dict[str, Any]) -> dict[str, Tensor]:
    """Return the measures of the probe `logit_lens`: `[depth, pos]`, of the best tokens `[depth, pos, rank]`."""
    pieces = []
    for some in torch.arange(plan["n_tokens"]).split(plan["positions"]):
        out = unembed(model, plan, base["resid"][-1][0, some])
        against = AgainstOutput(out, part["k"])
        together = max(1, plan["positions"] // len(some))  # the head's weights are read once for many depths
        streams = [h[0, some] for h in base["resid"][:-1]]
        grouped = [torch.cat(streams[i : i + together]) for i in range(0, len(streams), together)]
        depths = (*(x for h in grouped for x in unembed(model, plan, h).split(len(some))), out)
        rows = [against.measure(logits) for logits in depths]
        pieces.append({name: torch.stack([row[name] for row in rows]) for name in rows[0]})
    result = {name: torch.cat([piece[name] for piece in pieces], 1) for name in pieces[0]}
    ids = result["ids"]
    return {name: result[name] for name in ("kl", "jsd", "entropy", "rank")} | {
        "top_ids": ids,
        "top_probs": result["best"].exp(),
        "overlap": overlap(ids, ids[-1:].expand_as(ids)),
        "top1_match": (ids[..., 0] == ids[-1:, :, 0]).float(),
        "settle_depth": settle_depth(ids[..., 0]).float(),
    }


def change(model: Any, plan: dict[str, Any], before: Tensor, after: Tensor, looks: Tensor) -> tuple[Tensor, Tensor]:
    """Return `|softmax(y) - softmax(y')|_2` and whether the best token is still unsurpassed, `[row, pos]`, from the
    last streams `before [pos, d]` and `after [row, pos, d]`; 0 where the mask `looks [row, pos]` is False."""
    moved = torch.zeros(looks.shape, device=after.device)
    same = torch.zeros(looks.shape, dtype=torch.bool, device=after.device)
    for some in looks.any(0).nonzero()[:, 0].split(plan["positions"]):
        was = unembed(model, plan, before[some])
        best, was = was.argmax(-1, keepdim=True), was.softmax(-1)
        for row in range(len(looks)):
            logits = unembed(model, plan, after[row, some])
            same[row, some] = logits.gather(-1, best)[:, 0] >= logits.amax(-1)
            moved[row, some] = (logits.softmax(-1) - was).norm(dim=-1)
    return moved.masked_fill(~looks, 0.0), same


def skips(model: Any, plan: dict[str, Any], part: dict[str, Any], base: dict[str, Any]) -> dict[str, Tensor]:
    """Return the measures of the probe `layer_skip`: one pass for each skipped layer, a row for each boundary."""
    n_layers, bounds, which = plan["n_layers"], part["bounds"], part["part"]
    pos = torch.arange(plan["n_tokens"], device=base["resid"][0].device)
    skip = torch.stack([(pos >= 1) & (pos < b) for b in bounds])
    look = torch.stack([pos >= (0 if part["current"] else b) for b in bounds])
    rows, updates = [plan["ids"][0]] * len(bounds), [update(base, l) for l in range(n_layers)]

    def changes(edits: Any, looks: Tensor, begin: int, own: Any = None) -> tuple[Tensor, dict[str, Any]]:
        """Return the relative change of what each layer from `begin` on adds, `[layer, row]`, and the pass; `own`: what
        layer `begin` adds, whatever was computed in it."""
        changed = torch.zeros(n_layers, len(bounds), device=looks.device)

        def each(layer: int, h: Tensor, a: Tensor, m: Tensor) -> None:
            if layer >= begin:
                added = own if layer == begin and own is not None else a.float() + m.float()
                changed[layer] = relative_change(updates[layer], added, looks)

        return changed, forward(model, plan, rows, edits, each, keep=1)

    still, _ = changes(None, torch.ones_like(look), 0)
    effect, direct, moved, kept = [], [], [], []
    for s in range(n_layers):
        own = updates[s].masked_fill(skip.unsqueeze(-1), 0.0) if which == "layer" else None
        changed, run = changes({which: {s: skip}}, look, s, own)
        of_output, same = change(model, plan, base["resid"][-1][0], run["resid"][-1], look)
        effect.append(changed)
        moved.append(of_output)
        kept.append((same & look).sum(-1) / look.sum(-1))
        if part["direct"]:
            added = updates[s] if which == "layer" else base["attn" if which == "attention" else "mlp"][s].float()
            removed, dtype = added.masked_fill(~skip.unsqueeze(-1), 0.0), base["resid"][0].dtype
            streams = {l: (base["resid"][l].float() - removed).to(dtype) for l in range(s + 1, n_layers)}
            direct.append(changes({"resid": streams}, look, s + 1)[0])
    by_boundary, output = torch.stack(effect).permute(2, 0, 1), torch.stack(moved)
    measures = {"effect": by_boundary.amax(0), "output": output.amax((1, 2)), "noise_floor": still.amax(1)}
    measures |= {"top1_kept": torch.stack(kept).amin(1)}
    measures |= {"effect_direct": torch.stack(direct).amax(2)} if direct else {}
    if part["current"]:
        return measures | {"output_pos": output[:, 0]}
    boundaries = {"effect_by_boundary": by_boundary, "output_by_boundary": output.amax(-1).T}
    return measures | boundaries | {"boundaries": torch.tensor(bounds)}


def erasure(model: Any, plan: dict[str, Any], part: dict[str, Any], base: dict[str, Any]) -> dict[str, Tensor]:
    """Return the measures of the probe `residual_erasure`, `[depth, pos]`; at each depth some positions are erased in
    one pass, a row for each."""
    n_layers, n_tokens = plan["n_layers"], plan["n_tokens"]
    total: list[Any] = [0] * (n_layers + 1)
    count = 0
    for ids in part["background"]:
        run = forward(model, plan, [ids], keep=1)
        total = [t + h[0].double().sum(0) for t, h in zip(total, run["resid"])]
        count += len(ids)
    device, start = base["resid"][0].device, part["start"]
    pos = torch.arange(n_tokens, device=device)
    result = torch.full((n_layers + 1, n_tokens), torch.nan, device=device)
    for depth in range(n_layers + 1):
        mean = (total[depth] / count).float()
        for some in torch.arange(n_tokens - 1, device=device).split(max(1, plan["tokens"] // n_tokens)):
            stream = base["resid"][depth].repeat(len(some), 1, 1)
            stream[torch.arange(len(some), device=device), some] = mean.to(stream.dtype)
            if depth < n_layers:
                rows = [plan["ids"][0]] * len(some)
                stream = forward(model, plan, rows, {"resid": {depth: stream}}, "last", keep=1)["resid"][-1]
            if start is None:
                look = pos[None] > some[:, None]
            else:
                look = ((pos >= start - 1) & (pos < n_tokens - 1)).expand(len(some), -1)
            moved, _ = change(model, plan, base["resid"][-1][0], stream, look)
            result[depth, some] = moved.amax(-1)
    if start is not None:
        result[:, -1] = 0.0
    return {"effect": result}
