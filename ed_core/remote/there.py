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
    """The identities, then each part of the plan under its name; nothing of either where a value is not finite."""
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
        arrays = {name: (x.float() if x.is_floating_point() else x.int()).cpu() for name, x in result.items()}
        return arrays | {"dtype": str(base["resid"][0].dtype).removeprefix("torch."), "torch": str(torch.__version__)}


# ---------------------------------------------------------------- forward passes


def at(root: Any, path: str) -> Any:
    for part in path.split("."):
        root = root[int(part)] if part.isdigit() else getattr(root, part)
    return root


def first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value


def instead(value: Any, new: Tensor) -> Any:
    """A module's output with another first tensor."""
    new = new.reshape(first(value).shape).to(first(value).device, first(value).dtype)
    return (new, *value[1:]) if isinstance(value, tuple) else new


def forward(
    model: Any, plan: dict[str, Any], ids: Any, edits: Any = None, each: Any = None, keep: int = 0
) -> dict[str, Any]:
    """One pass: `resid` [depth], `attn` and `mlp` [layer], each `[row, pos, d]`, and the `logits`, of the last `keep`
    positions where the family can give just those.

    `edits`, each by layer: `resid`, the stream that enters it instead; `attention` and `mlp`, `[row, pos]`, where
    nothing is added; `layer`, where the stream passes it by. With `each(layer, stream, attn, mlp)`, which is called
    when they are there, none of them is held, and `resid` is the last stream alone; `each` may be "last", which asks
    for nothing but that."""
    edits = {} if edits is None else edits
    blocks = at(model, plan["blocks"])
    result: dict[str, Any] = {"resid": [], "attn": [], "mlp": []}
    home: list[Any] = []  # where the first stream is: all others are brought there
    more = {"logits_to_keep": keep} if keep and plan["keeps"] else {}

    def branch(module: Any, h: Tensor, none: Any) -> Tensor:
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
    """Final norm, head, and what the family does behind it; float32."""
    logits: Tensor = at(model, plan["head"])(at(model, plan["norm"])(resid)).to(resid.device)
    if plan["divisor"] is not None:
        logits = logits / plan["divisor"]
    if plan["factor"] is not None:
        logits = logits * plan["factor"]
    if plan["cap"] is not None:
        logits = torch.tanh(logits / plan["cap"]) * plan["cap"]
    return logits.float()


def update(found: dict[str, Any], layer: int) -> Tensor:
    added: Tensor = found["attn"][layer].float() + found["mlp"][layer].float()
    return added


# ---------------------------------------------------------------- the identities


def identities(model: Any, plan: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    """The identities on a short text, of which `one` is the pass. No block is called by hand: for `replay` every block
    gets the stream that it had, in the model's own pass. `detour`: the sums where another stream enters layer 0, so
    that an edit without effect is seen; `moves`: the change of the MLP's addition without attention's."""
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
        "moves": torch.tensor(moves),
    }


# ---------------------------------------------------------------- the measures


def read(model: Any, plan: dict[str, Any], part: dict[str, Any], base: dict[str, Any]) -> dict[str, Tensor]:
    """`contributions`, `[layer, pos]`."""
    rows, resid = [], base["resid"]
    for l in range(plan["n_layers"]):
        h, a, m = (base[name][l][0].float() for name in ("resid", "attn", "mlp"))
        io_cos = cosine(h, resid[l + 1][0])
        row = contributions(h, a, m, update(base, l)[0], plan["parallel"])
        rows.append(row | {"io_cos": io_cos, "block_influence": 1 - io_cos})
    result = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return result | {"resid_norm": torch.cat([result["resid_norm"], norm(resid[-1][0])[None]])}


def lens(model: Any, plan: dict[str, Any], part: dict[str, Any], base: dict[str, Any]) -> dict[str, Tensor]:
    """`logit_lens`: `[depth, pos]`, of the best tokens `[depth, pos, rank]`."""
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
    """`|softmax(y) - softmax(y')|_2` and whether the best token is still unsurpassed, `[row, pos]`, from the last
    streams `before [pos, d]` and `after [row, pos, d]`; 0 where `looks [row, pos]` does not look."""
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
    """`layer_skip`: one pass for each skipped layer, a row for each boundary."""
    n_layers, n_tokens, bounds = plan["n_layers"], plan["n_tokens"], part["bounds"]
    device = base["resid"][0].device
    pos = torch.arange(n_tokens, device=device)
    skip = torch.stack([(pos >= 1) & (pos < b) for b in bounds])
    look = torch.stack([pos >= (0 if part["current"] else b) for b in bounds])
    rows = [plan["ids"][0]] * len(bounds)
    updates = [update(base, l) for l in range(n_layers)]
    empty = torch.full((len(bounds), n_layers, n_layers), torch.nan, device=device)
    result = {"effect": empty, "noise_floor": empty[0, 0].clone(), "output": empty[:, 0].clone()}
    result |= {"kept": result["output"].clone()} | ({"direct": empty.clone()} if part["direct"] else {})
    result |= {"output_pos": torch.zeros(n_layers, n_tokens, device=device)} if part["current"] else {}
    all_tokens = torch.ones_like(look)

    def still(layer: int, h: Tensor, a: Tensor, m: Tensor) -> None:
        result["noise_floor"][layer] = relative_change(updates[layer], a.float() + m.float(), all_tokens).max()

    forward(model, plan, rows, None, still, keep=1)
    for s in range(n_layers):

        def after(layer: int, h: Tensor, a: Tensor, m: Tensor, s: int = s) -> None:
            passed_by = layer == s and part["part"] == "layer"  # whatever was computed in it
            added = updates[s].masked_fill(skip.unsqueeze(-1), 0.0) if passed_by else a.float() + m.float()
            result["effect"][:, s, layer] = relative_change(updates[layer], added, look) if layer >= s else 0.0

        run = forward(model, plan, rows, {part["part"]: {s: skip}}, after, keep=1)
        moved, same = change(model, plan, base["resid"][-1][0], run["resid"][-1], look)
        result["output"][:, s], result["kept"][:, s] = moved.amax(-1), (same & look).sum(-1) / look.sum(-1)
        if part["current"]:
            result["output_pos"][s] = moved[0]
        if part["direct"]:
            added = {"layer": updates[s], "attention": base["attn"][s].float(), "mlp": base["mlp"][s].float()}
            removed = added[part["part"]].masked_fill(~skip.unsqueeze(-1), 0.0)
            dtype = base["resid"][0].dtype
            streams = {l: (base["resid"][l].float() - removed).to(dtype) for l in range(s + 1, n_layers)}

            def record_direct(layer: int, h: Tensor, a: Tensor, m: Tensor, s: int = s) -> None:
                change_of = relative_change(updates[layer], a.float() + m.float(), look)
                result["direct"][:, s, layer] = change_of if layer > s else 0.0

            forward(model, plan, rows, {"resid": streams}, record_direct, keep=1)
    measures = {"effect": result["effect"].amax(0), "output": result["output"].amax(0)}
    measures |= {"top1_kept": result["kept"].amin(0), "noise_floor": result["noise_floor"]}
    measures |= {"effect_direct": result["direct"].amax(0)} if part["direct"] else {}
    if part["current"]:
        return measures | {"output_pos": result["output_pos"]}
    by_boundary = {"effect_by_boundary": result["effect"], "output_by_boundary": result["output"]}
    return measures | by_boundary | {"boundaries": torch.tensor(bounds)}


def erasure(model: Any, plan: dict[str, Any], part: dict[str, Any], base: dict[str, Any]) -> dict[str, Tensor]:
    """`residual_erasure`: `[depth, pos]`; at each depth some positions in one pass, a row for each."""
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
