"""Panels about one prompt: the story of its next word, one token through the layers, and what the model writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import streamlit as st

from ed_core import figures
from ed_core.depth import say, writing
from ed_core.depth.answer import first_choice
from ed_core.depth.sample import ANSWER, positions
from ed_core.depth.verdict import Verdict
from ed_core.figures import View
from ed_core.figures.pictures import pictures
from ed_core.probes import Generation
from ed_core.types import ProbeResult
from ed_ui import inputs, running, show
from ed_ui.session import Batch

# -------------------------------------------------------------------- the story

LAST = 60  # characters of the prompt before the guess
STORY_HEIGHT, TWIN, GHOST = 160, 20, 60  # pixels: all, the line on a twin, the ranks beside those of twins


def story_of(lens: ProbeResult, twins: Sequence[ProbeResult], reached: Verdict | None) -> dict[str, Any]:
    """What the lens reads at the token before the answer, depth by depth: guess, its share, whether it only repeats the
    token just read, and the rank of the model's own word; below it the guess of an untrained twin, where its guesses
    are stored, and the range of the ranks that the twins' own words have in their lenses; and the depths that the
    verdict names. Of a looped model also how many passes lift it."""
    at = min(positions(lens, ANSWER))
    final = int(lens["top_ids"][-1, at, 0])
    prompt = lens.request.prompts[0]  # its tokens may each be a part of a letter
    before = prompt.text if prompt.template == "raw" else "".join(lens.tokens[: at + 1])
    steps = []
    for depth in range(lens.n_layers + 1):
        guess, share = int(lens["top_ids"][depth, at, 0]), float(lens["top_probs"][depth, at, 0])
        word = lens.token_text[guess]
        step = {"word": word, "share": share, "rank": int(lens["rank"][depth, at]), "echo": word == lens.tokens[at]}
        if twins and "top_ids" in twins[0].measures:  # most shipped twins have curves alone
            step["twin"] = twins[0].token_text[int(twins[0]["top_ids"][depth, at, 0])]
        steps.append(step)
    marks: dict[str, float] = {}
    if reached is not None:
        kl, best = reached.means.get("kl"), first_choice([one for one in reached.answers[0] if one.pos == at])
        if kl is not None and kl.depth is not None:
            marks[f"average depth {kl.depth:.1f}"] = kl.depth
        if best is not None:
            marks[f"first choice from {best}"] = float(best)
    before = before if len(before) <= LAST else f"…{before[-LAST:]}"
    passes = int(lens.provenance.get("passes", 1))
    found = {"before": before, "final": lens.token_text[final], "at": at, "steps": steps, "marks": marks}
    if ranks := [twin["rank"][:, at].tolist() for twin in twins]:
        depths = list(zip(*ranks, strict=True))
        found["ghost"] = {"best": [*map(min, depths)], "worst": [*map(max, depths)], "twins": len(ranks)}
    return found | ({"passes": passes} if passes > 1 else {})


def story(lens: ProbeResult, twins: Sequence[ProbeResult], reached: Verdict | None) -> None:
    """The story of this prompt, from what is measured."""
    found = story_of(lens, twins, reached)
    height = STORY_HEIGHT + TWIN * ("twin" in found["steps"][0]) + GHOST * ("ghost" in found)
    show.mount("story", json.dumps({"story": found}).encode(), height)


# -------------------------------------------------------------------- one token

DRAWER_HEIGHT = 260
COSINES = {"attention": "attn_cos", "MLP": "mlp_cos", "both": "layer_cos"}


def drawer(batch, token: int, lines: Mapping[str, int | None]) -> None:
    """The drawer of a selected token, with what is complete of lens and layer skip."""
    found = {name: batch.complete(name) for name in ("logit_lens", "layer_skip")}
    some = next((result for result in found.values() if result is not None), None)
    if some is None:
        return
    with st.container(border=True, key="drawer"):
        row = st.container(horizontal=True, vertical_alignment="center")
        row.markdown(f"**Token {token}** {show.code(some.tokens[token], 40)}: what happens where it stands")
        row.button(
            "Close",
            key="drawer-close",
            icon=":material/close:",
            type="tertiary",
            on_click=inputs.forget,
            args=("token",),
        )
        best, skips = st.columns([3, 2])
        if (result := found["logit_lens"]) is not None:
            best.caption("The five best next tokens at each depth, the output on top", help=NEXT)
            show.table("drawer-best", best_tokens(result, token), DRAWER_HEIGHT, place=best)
        if (result := found["layer_skip"]) is not None and "output_pos" in result.measures:
            values = {"change of its prediction": result["output_pos"][:, token]}
            fig = figures.layer_curves(values, "", "L2", x="skipped layer", depth_lines=lines, height=DRAWER_HEIGHT)
            caption = "What each skip changes in its prediction"
            show.figure("drawer-skip", fig, caption, result, "output_pos", place=skips)


def best_tokens(lens: ProbeResult, token: int) -> list[dict[str, str | int]]:
    """A row per depth, the output first: the best tokens with their probabilities."""
    ids, probs, text = lens["top_ids"][:, token, :5], lens["top_probs"][:, token, :5], lens.token_text
    return [
        {"depth": depth}
        | {
            f"{n}": f"{figures.shown(text.get(int(i), f'id {i}'), 16)} {say.share(float(p), signs=True)}"
            for n, (i, p) in enumerate(zip(ids[depth], probs[depth], strict=True), 1)
        }
        for depth in reversed(range(lens.n_layers + 1))
    ]


NEXT = "What the logit lens would say comes after this token, if the model ended at that depth."


# -------------------------------------------------------------------- what the model writes

WINDOW = 40  # tokens on the map
TEXT_HEIGHT = 145  # pixels of the text, five lines: what is below it stays where it is while it is written


def generation() -> Generation:
    """What its boxes hold, on whatever page they stand."""
    return Generation.make({f.name: inputs.value(f"generation.{f.name}", f.default) for f in fields(Generation)})


def written(key: str, result: ProbeResult, view: View, again: Callable[[], Batch], small: bool = False) -> None:
    """The text so far and the map. `again` gives the page's batch for what the boxes hold. `small`: a low map, and of
    the text what stands along it."""
    _text(result, again, small)
    n, begin = len(result["ids"]), figures.first_position(result)
    chosen = inputs.value("token")
    step = chosen - begin if chosen is not None and 0 <= chosen - begin < n else None
    window = inputs.window("writing.window", n, WINDOW)
    if not result.complete and window is not None:  # the token that is being written stays in sight
        last = max(writing.written(result["ids"]), WINDOW)
        window = (last - WINDOW, last - 1)
    seen = replace(view, window=window, selected=step, sinks=())
    (one,) = pictures(result)
    fig, caption = show.once(figures.writing_map, result, seen, small), one.caption[:1].upper() + one.caption[1:]
    show.figure(key, fig, caption, result, "jsd", one.reading, select=True)
    if window is not None and result.complete:
        limits = dict(min_value=0, max_value=n - 1, width=420)
        inputs.widget(st.slider, "Tokens shown", "writing.window", window, **limits)


def _text(result: ProbeResult, again: Callable[[], Batch], small: bool) -> None:
    """What is written, and what it comes down to; while it is written, a way to stop there."""
    n, said = writing.written(result["ids"]), say.exits(writing.exits(result))
    left, right = st.columns([6, 1], vertical_alignment="center")
    if small:
        left.caption(said)
    else:
        left.markdown(said)
        left.code(writing.text(result) or " ", language=None, wrap_lines=True, height=TEXT_HEIGHT)
    if result.complete or not n:
        return
    if right.button("Stop here", icon=":material/stop_circle:", on_click=_stop, args=(n, again), help=STOP):
        st.rerun()


def _stop(n: int, again: Callable[[], Batch]) -> None:
    """Ask for the tokens written so far: a result like any other, and there in a moment."""
    inputs.put_over({"generation.n_tokens": n})
    if (batch := again()).missing:
        running.submit(batch)


STOP = """Ends the text here and keeps it: the same tokens, as a result of its own."""
