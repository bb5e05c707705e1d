"""Every room once, as it stands with what ships and nothing to compute; `tests/data/screens.txt` holds them, a line for
each element and a few words of each figure. `PYTHONPATH=. python tests/screens.py` writes it anew: what a change of the
code changes on the screen is then read in the file's difference."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kept_cases
import pytest
import test_pages_claims
import test_pages_fits
from charts import idle
from drawn import digest
from google.protobuf import text_format
from streamlit.testing.v1 import AppTest
from test_pages import app

import ed_ui.downloads
import ed_ui.running
from ed_core.cases.kept import SHIPPED, Kept
from ed_core.errors import EffectiveDepthError

FILE = Path(__file__).parent / "data" / "screens.txt"
MACHINES = re.compile(r"[\d.]+ (GB|MB|kB|s|min|h)\b")  # what another machine says otherwise
EXACT = re.compile(r"\d+\.\d{6,}(e-?\d+)?")  # whose last digits differ from one processor to another
SHOWN = ("x", "y", "z", "text", "customdata", "bdata", "meta")  # a figure's numbers
LONG = 150  # letters of a line that are written out; of more a digest
SUMS, LOOPS, ENGLISH, GEMMA = (
    {"model": m, **more}
    for m, more in (("ed-demo-8", {}), ("ed-loop-4x4", {}), ("smollm2", {"example": "english-b"}), ("gemma3-270m", {}))
)
ROOMS: tuple[tuple[str, dict[str, str]], ...] = (
    ("prompt/home", SUMS),
    ("prompt/home", LOOPS),
    ("prompt/home", ENGLISH | {"sinks": "true", "first_token": "false", "shade": "kl", "token": "3"}),
    ("prompt/home", SUMS | {"control": "untrained", "depths": "true", "example": "copy-3-a"}),
    ("prompt/home", SUMS | {"of": "answer", "lens": "ed-demo-8-affine", "tokens": "3-20", "kl": "0.25"}),
    ("prompt/home", {"model": "Qwen/Qwen2.5-1.5B", "token": "x", "shade": "y", "run": "0" * 12, "example": "z"}),
    ("prompt/contributions", SUMS | {"measure": "attn_cos"}),
    ("prompt/contributions", SUMS | {"control": "shuffled", "control_seed": "3"}),
    ("prompt/logit_lens", ENGLISH | {"shade": "rank"}),
    ("prompt/lenses", SUMS),
    ("prompt/writing", SUMS),
    ("intervene/skip", SUMS | {"token": "4"}),
    ("intervene/skip", SUMS | {"mode": "future", "boundaries": "4,8"}),
    ("intervene/erase", SUMS),
    ("intervene/erase", SUMS | {"target": "future"}),
    ("intervene/gradients", SUMS),
    ("intervene/prune", SUMS),
    ("intervene/prune", SUMS | {"prompts": "bundled", "n": "2", "tasks": "copy,lookup"}),
    ("intervene/surgery", SUMS),
    ("intervene/surgery", ENGLISH | {"map": "drop", "value": "kl", "order": "0-9,8-29"}),
    ("compare/two", {"model": "gemma3-270m"}),
    ("compare/two", SUMS | {"compare": "models", "second": "ed-demo-16"}),
    ("compare/two", LOOPS | {"compare": "models", "second": "ed-plain-16", "sinks": "true", "probe": "logit_lens"}),
    ("compare/two", ENGLISH | {"compare": "prompts", "second_example": "english-a"}),
    ("compare/audit", SUMS),
    ("compare/audit", SUMS | {"precisions": "fp32", "prompts": "bundled"}),
    ("compare/maps", SUMS | {"second": "ed-demo-16", "shown": "shuffled"}),
    ("compare/maps", SUMS | {"maps": "within"}),
    ("studies/studies", {}),
    ("studies/studies", {"study": "gsm8k", "beside": "gsm8k", "score": "ifeval", "rule": "mean_overlap"}),
    ("studies/studies", {"study": "training", "branch": "attn", "axis": "linear"}),
    ("studies/studies", {"study": "training", "view": "side by side", "held": "both", "size": "3B to 10B"}),
    ("studies/difficulty", {}),
    ("studies/difficulty", {"study": "toys", "set": "look-ups", "effect": "effect"}),
    ("model/cards", SUMS),
    ("model/cards", ENGLISH | {"curve": "overlap"}),
    ("model/claims", SUMS),
    ("model/claims", SUMS | {"set": "copy", "claim": "turn"}),
    ("model/numerics", SUMS),
    ("model/loops", LOOPS),
    ("model/loops", SUMS),
    ("case_studies/gallery", {}),
    ("case_studies/case", {"id": "bcdfghjkmn"}),
    ("case_studies/case", {"id": "zzzzzzzzzz"}),
    *(("case_studies/case", {"id": file.stem}) for file in sorted(SHIPPED.glob("*.edcase"))),
    ("prompt/home", ENGLISH | {"branch": "mlp", "published": "Qwen2.5-1.5B-Instruct", "overlap": "0.6"}),
    ("prompt/home", GEMMA | {"branch": "attn", "shade": "rank", "token": "20", "sinks": "true"}),
    ("prompt/contributions", GEMMA | {"measure": "attn_cos", "token": "3", "first_token": "false"}),
    ("prompt/contributions", ENGLISH | {"measure": "mlp_ratio"}),
    ("prompt/logit_lens", GEMMA | {"shade": "jsd", "token": "5"}),
    ("prompt/logit_lens", LOOPS | {"shade": "entropy"}),
    ("prompt/lenses", ENGLISH | {"shade": "kl"}),
    ("prompt/writing", GEMMA | {"threshold": "0.5"}),
    ("intervene/skip", GEMMA | {"sinks": "true", "token": "19"}),
    ("intervene/erase", GEMMA | {"token": "4"}),
    ("intervene/gradients", GEMMA | {"token": "18"}),
    ("intervene/prune", GEMMA | {"length": "3", "value": "nll"}),
    *(("intervene/surgery", GEMMA | {"map": kind, "value": value, "length": "2"})
      for kind, value in (("swap", "top1_kept"), ("repeat", "loss"), ("drop", "top1_kept"))),
    ("compare/two", ENGLISH | {"overlaid": "true", "by_number": "true", "swapped": "true", "shade": "kl"}),
    ("compare/two", SUMS | {"compare": "parameters", "branch": "mlp", "measures": "contributions"}),
    ("compare/two", GEMMA | {"measures": "logit_lens,layer_skip", "contributions_map": "direction"}),
    ("compare/audit", ENGLISH | {"precisions": "fp32,bf16,int8"}),
    ("studies/studies", {"study": "gsm8k", "beside": "aime24", "score": "musr", "rule": "cosine", "held": "none"}),
    ("studies/studies", {"study": "gsm8k", "training": "instruct", "rule": "mean_overlap"}),
    ("studies/studies", {"study": "toys", "set": "sums", "curve": "contributions.layer_cos"}),
    ("studies/difficulty", {"study": "toys", "set": "sums", "rule": "overlap"}),
    ("model/cards", GEMMA | {"curve": "cosine"}),
    ("model/claims", GEMMA | {"claim": "adaptive"}),
    ("model/numerics", ENGLISH),
    ("model/numerics", GEMMA),
    ("model/loops", LOOPS | {"token": "2"}),
    ("case_studies/gallery", {"search": "sum", "sort": "title"}),
)  # fmt: skip


def opened(page: str, query: dict[str, str]) -> AppTest:
    return app(f"pages/{page}.py", prompt=None, **({"model": "ed-demo-8"} | query))


def lines(page: str, query: dict[str, str]) -> Iterator[str]:
    test = opened(page, query)
    assert not test.exception
    for depth, line in elements(test._tree):
        yield " " * depth + line
    yield f"address: {sorted(test.query_params.items())}"


def section(page: str, query: dict[str, str]) -> str:
    return f"# {page} {' '.join(f'{name}={value}' for name, value in query.items())}"


def kept() -> dict[str, list[str]]:
    """The file's lines by room."""
    return in_sections(FILE.read_text(encoding="utf-8"))


def in_sections(text: str) -> dict[str, list[str]]:
    """What `written` wrote: lines by section, those that had stood there before as their digest, "= …"."""
    found: dict[str, list[str]] = {}
    for line in text.split("\n")[:-1]:
        if line.startswith("# "):
            room = found[line] = []
        else:
            room += [f"= {one}" for one in line[2:].split()] if line.startswith("= ") else [line]
    return found


def written(sections: Iterable[tuple[str, Iterable[str]]]) -> str:
    """Sections as a file holds them: a line that stands in it already is told by its digest."""
    told, before = [], set()
    for name, found in sections:
        told.append(name)
        for line in found:
            if line not in before:
                told.append(line)
            elif told[-1].startswith("= "):
                told[-1] += f" {digest(line)}"
            else:
                told.append(f"= {digest(line)}")
            before.add(line)
    return "\n".join(told) + "\n"


def as_before(kept: Iterable[str], now: Iterable[str]) -> bool:
    """Whether the lines are those of a file; which are not is printed."""
    pairs = [(one, other) for one, other in zip_longest(kept, now) if one not in (other, f"= {digest(other)}")]
    for pair in pairs:
        print(*pair, sep="\n")
    return not pairs


def elements(block: Any, depth: int = 0) -> Iterator[tuple[int, str]]:
    for child in block.children.values():
        if (proto := getattr(child, "proto", None)) is not None:
            yield depth, short(f"{getattr(child, 'type', '')} {said(child, proto)}")
        if hasattr(child, "children"):
            yield from elements(child, depth + 1)


def said(child: Any, proto: Any) -> str:
    if child.type == "bidi_component":
        if proto.bytes:
            sent = json.loads(proto.bytes)
            traces, layout = sent["figure"]["data"], sent["figure"]["layout"]
            drawn = [f"{one.get('type')} {one.get('name')}" for one in traces]
            form = f"{layout.get('height')} {digest(json.dumps(form_of([traces, layout]), sort_keys=True))}"
            return f"{proto.id.rpartition('-')[2]} {form} {sent.get('alt')} {drawn}"
        return f"{proto.component_name} {proto.json}"
    if child.type == "html":
        return proto.body[:40]  # the server's own scripts, which hold where it is
    if child.type in ("dataframe", "table"):
        return f"{child.value.to_csv()} {getattr(proto, 'columns', '')}"
    text = text_format.MessageToString(proto, as_one_line=True, as_utf8=True)
    text = re.sub(
        r'(deferred_file_id|form_id|id|url): "(\$\$ID-[0-9a-f]+-)?([^"]*)" ?',
        lambda m: f"{m[3]} " if m[2] else "",
        text,
    )
    text = EXACT.sub(lambda m: f"{float(m[0]):.4g}", text)
    return MACHINES.sub("# \\1", text)


def form_of(part: Any) -> Any:
    """What a part of a figure looks like, without the numbers that it shows."""
    if isinstance(part, dict):
        return {name: form_of(one) for name, one in part.items() if name not in SHOWN}
    if isinstance(part, list):
        return [form_of(one) for one in part]
    return EXACT.sub("", part) if isinstance(part, str) else float(f"{part:.3g}") if isinstance(part, float) else part


def short(line: str) -> str:
    line = line.replace("\n", "⏎")
    return line if len(line) <= LONG else f"{line[:LONG]}… {digest(line)}"


def begin(patch: pytest.MonkeyPatch, cache: Path) -> None:
    """A laboratory that computes nothing and asks no hub; it holds findings of claims, maps between two models and a
    case study of its own."""
    answer: Future = Future()
    answer.set_exception(EffectiveDepthError("no hub here"))
    idle(patch, cache)
    patch.setattr(ed_ui.downloads, "_asking", lambda: SimpleNamespace(submit=lambda *_: answer))
    patch.setattr(ed_ui.running, "free", lambda device: 64 << 30)
    test_pages_fits.stored(test_pages_fits.wanted("ed-demo-8", "ed-demo-16"))
    test_pages_claims.stored(test_pages_claims.wanted())
    own = kept_cases.small("Our <b>own</b>", tags=("x",), notes="*n*")
    Kept(cache).add(replace(own, id="bcdfghjkmn", created=1.7e9, changed=1.7e9 + 90))


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as cache:
        begin(patch, Path(cache))
        FILE.write_text(written((section(*room), lines(*room)) for room in ROOMS), encoding="utf-8")
