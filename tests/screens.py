"""Every room once, as it stands with what ships and nothing to compute; `tests/data/screens.txt` holds them, a line for
each element and a few words of each figure. `PYTHONPATH=. python tests/screens.py` writes it anew: what a change of the
code changes on the screen is then read in the file's difference."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from drawn import digest
from google.protobuf import text_format

from ed_core.errors import EffectiveDepthError

FILE = Path(__file__).parent / "data" / "screens.txt"
MACHINES = re.compile(r"[\d.]+ (GB|MB|kB|s|min|h)\b")  # what another machine says otherwise
LONG = 150  # letters of a line that are written out; of more a digest
SUMS, LOOPS, ENGLISH = (
    {"model": m, **more} for m, more in (("ed-demo-8", {}), ("ed-loop-4x4", {}), ("smollm2", {"example": "english-b"}))
)
ROOMS: tuple[tuple[str, dict[str, str]], ...] = (
    ("prompt/home", SUMS),
    ("prompt/home", LOOPS),
    ("prompt/home", ENGLISH | {"sinks": "true", "first_token": "false", "shade": "kl", "token": "3"}),
    ("prompt/home", SUMS | {"control": "untrained", "depths": "true", "example": "copy-3-a"}),
    ("prompt/contributions", SUMS | {"measure": "attn_cos"}),
    ("prompt/logit_lens", ENGLISH | {"shade": "rank"}),
    ("prompt/lenses", SUMS),
    ("prompt/writing", SUMS),
    ("intervene/skip", SUMS | {"token": "4"}),
    ("intervene/skip", SUMS | {"mode": "future", "boundaries": "4,8"}),
    ("intervene/erase", SUMS),
    ("intervene/gradients", SUMS),
    ("intervene/prune", SUMS),
    ("intervene/prune", SUMS | {"prompts": "bundled", "n": "2", "tasks": "copy,lookup"}),
    ("intervene/surgery", SUMS),
    ("intervene/surgery", ENGLISH | {"map": "drop", "value": "kl", "order": "0-9,8-29"}),
    ("compare/two", SUMS | {"compare": "models", "model_b": "ed-demo-16"}),
    ("compare/two", ENGLISH | {"compare": "prompts"}),
    ("compare/audit", SUMS),
    ("compare/maps", SUMS | {"second_model": "ed-demo-16"}),
    ("studies/studies", {}),
    ("studies/difficulty", {}),
    ("model/cards", SUMS),
    ("model/claims", SUMS),
    ("model/numerics", SUMS),
    ("model/loops", LOOPS),
    ("case_studies/gallery", {}),
)  # fmt: skip


def opened(page: str, query: dict[str, str]) -> Any:
    from test_pages import app

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
    """The file's lines by room. A line that stands in it already is told by its digest."""
    found: dict[str, list[str]] = {}
    for line in FILE.read_text(encoding="utf-8").split("\n")[:-1]:
        if line.startswith("# "):
            found[line] = []
        else:
            list(found.values())[-1].append(line)
    return found


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
            drawn = [f"{one.get('type')} {one.get('name')}" for one in sent["figure"]["data"]]
            return f"{proto.id.rpartition('-')[2]} {sent.get('alt')} {drawn}"
        return f"{proto.component_name} {proto.json}"
    if child.type == "html":
        return proto.body[:40]  # the server's own scripts, which hold where it is
    if child.type in ("arrow_data_frame", "table"):
        return child.value.to_csv()
    text = text_format.MessageToString(proto, as_one_line=True, as_utf8=True)
    text = re.sub(
        r'(deferred_file_id|form_id|id|url): "(\$\$ID-[0-9a-f]+-)?([^"]*)" ?',
        lambda m: f"{m[3]} " if m[2] else "",
        text,
    )
    return MACHINES.sub("# \\1", text)


def short(line: str) -> str:
    line = line.replace("\n", "⏎")
    return line if len(line) <= LONG else f"{line[:LONG]}… {digest(line)}"


def begin(patch: Any) -> None:
    """A laboratory that has computed nothing and computes nothing."""
    import ed_ui.downloads
    import ed_ui.running
    from ed_core.results import lookup
    from ed_core.service.jobs import Jobs
    from ed_core.sources import catalogue

    answer: Future = Future()
    answer.set_exception(EffectiveDepthError("no hub here"))
    patch.setattr(ed_ui.downloads, "_asking", lambda: SimpleNamespace(submit=lambda *_: answer))
    patch.setattr(ed_ui.running, "Jobs", lambda **_: Jobs(warm=False))
    for known in (lookup.store.cache_clear, ed_ui.running.jobs.clear, catalogue.entries.cache_clear):
        known()


if __name__ == "__main__":
    import pytest

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as cache:
        os.environ["ED_CACHE"] = cache
        begin(patch)
        told, written = [], set()
        for room in ROOMS:
            told.append(section(*room))
            for line in lines(*room):
                again = f"= {digest(line)}"
                told.append(again if line in written and len(line) > len(again) else line)
                written.add(line)
        FILE.write_text("\n".join(told) + "\n", encoding="utf-8")
