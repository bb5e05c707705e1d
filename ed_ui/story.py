"""The depth story: the prompt as a sentence whose next word forms while a slider lifts it through the depths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ed_core.depth import verdict
from ed_core.depth.verdict import ANSWER, Verdict
from ed_core.types import ProbeResult
from ed_ui import streamlit_edges

LAST = 60  # characters of the prompt before the guess
HEIGHT, TWIN, GHOST = 160, 20, 60  # pixels, those of the line on a twin, and of the ranks beside those of twins

_mount = streamlit_edges.component("story", (Path(__file__).parent / "story.js").read_text("utf-8"))


def told(lens: ProbeResult, twins: Sequence[ProbeResult], reached: Verdict | None) -> dict[str, Any]:
    """What the lens reads at the token before the answer, depth by depth: guess, its share, whether it only repeats the
    token just read, and the rank of the model's own word; below it the guess of an untrained twin, where its guesses
    are stored, and the range of the ranks that the twins' own words have in their lenses; and the depths that the
    verdict names. Of a looped model also how many passes lift it."""
    at = min(verdict.positions(lens, ANSWER))
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
        kl, here = reached.means.get("kl"), next((one for one in reached.seen if one.pos == at), None)
        if kl is not None and kl.depth is not None:
            marks[f"mean depth {kl.depth:.1f}"] = kl.depth
        if here is not None and here.best is not None:
            marks[f"best guess for good from {here.best}"] = float(here.best)
    before = before if len(before) <= LAST else f"…{before[-LAST:]}"
    passes = int(lens.provenance.get("passes", 1))
    found = {"before": before, "final": lens.token_text[final], "at": at, "steps": steps, "marks": marks}
    if ranks := [twin["rank"][:, at].tolist() for twin in twins]:
        depths = list(zip(*ranks, strict=True))
        found["ghost"] = {"best": [*map(min, depths)], "worst": [*map(max, depths)], "twins": len(ranks)}
    return found | ({"passes": passes} if passes > 1 else {})


def draw(lens: ProbeResult, twins: Sequence[ProbeResult], reached: Verdict | None) -> None:
    """The story of this prompt, from what is measured."""
    found = told(lens, twins, reached)
    height = HEIGHT + TWIN * ("twin" in found["steps"][0]) + GHOST * ("ghost" in found)
    _mount(key="story", data=json.dumps(found).encode(), height=height)
