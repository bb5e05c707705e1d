"""PNG and SVG of a figure: right size, not blank, nothing in them that runs or asks; and what is said where there is no
browser."""

from __future__ import annotations

import os
import re
import stat
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from hosted_app import until
from kept_cases import HOME, case

from ed_core import figures
from ed_core.cases.drawings import by_name
from ed_core.cases.kept import Kept
from ed_core.commands import main
from ed_core.errors import ImageFailed
from ed_core.figures import View, images
from ed_core.results import lookup

ROOT = Path(__file__).parent.parent
needs_browser = pytest.mark.browser
HOSTILE = (
    "<script>alert(1)</script><a href='http://example.org'>x</a><img src=http://example.org/x.png "
    "onerror=alert(1)> &amp; $\\alpha$ \u202e]]>"
)


def pixels(png: bytes) -> np.ndarray:
    """An 8-bit RGB(A) PNG without interlacing, as [row, column, channel]; with numpy and zlib alone."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data, head = 8, b"", (0, 0, 0, 0)
    while at < len(png):
        (length,), kind = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        body, at = png[at + 8 : at + 8 + length], at + 12 + length
        head = struct.unpack(">IIBB", body[:10]) if kind == b"IHDR" else head
        data += body if kind == b"IDAT" else b""
    width, height, depth, colour = head
    assert depth == 8 and colour in (2, 6)
    channels = {2: 3, 6: 4}[colour]
    lines = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + width * channels)
    out = np.zeros((height, width * channels), np.int64)
    for y, line in enumerate(lines):
        above, raw = out[y - 1] if y else np.zeros(width * channels, np.int64), line[1:].astype(np.int64)
        out[y] = _unfiltered(int(line[0]), raw, above, channels)
    return out.reshape(height, width, channels)


def _unfiltered(kind: int, raw: np.ndarray, above: np.ndarray, n: int) -> np.ndarray:
    if kind == 0:
        return raw
    if kind == 2:
        return (raw + above) & 255
    row, left = raw.tolist(), above.tolist()
    for i, value in enumerate(row):
        a, b, c = (row[i - n] if i >= n else 0), left[i], (left[i - n] if i >= n else 0)
        if kind == 1:
            guess = a
        elif kind == 3:
            guess = (a + b) // 2
        else:
            guess = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
        row[i] = (value + guess) & 255
    return np.array(row, np.int64)


@pytest.fixture(scope="module")
def lens():
    found = (lookup.by_key(file.stem) for file in lookup.EXAMPLES.glob("*.npz"))
    return next(r for r in found if r is not None and r.request.probe == "logit_lens")


@needs_browser
def test_a_png_has_the_size_of_the_screen_twice_and_is_not_blank(lens):
    fig = figures.lens_map(lens, View(width_px=500, height=300, window=(0, 20)), "prob")
    wanted = images.printed(fig, "Logit lens", images.origin([lens]))["layout"]
    seen = pixels(images.render(fig, "png", "Logit lens", images.origin([lens])))
    assert seen.shape[:2] == (2 * wanted["height"], 2 * wanted["width"]) and wanted["width"] == 500
    assert wanted["height"] > 300
    assert (seen[..., :3] == 255).all(-1).mean() > 0.2, "on white"
    assert len(np.unique(seen[..., :3].reshape(-1, 3), axis=0)) > 50, "many colours: a map is drawn"
    top, bottom = seen[: 2 * images.LINE + 8, :, :3], seen[-2 * images.LINE - 8 :, :, :3]
    assert (top < 128).any() and (bottom < 160).any(), "caption above, origin below"
    again = pixels(images.render(fig, "png"))
    assert again.shape[0] == 2 * fig.layout.height, "no room for words that are not there"


@needs_browser
def test_an_svg_is_xml_with_its_text_and_nothing_that_runs_or_asks(lens):
    origin = images.origin([lens])
    svg = images.render(figures.lens_map(lens, View(window=(0, 30)), "prob"), "svg", "Logit lens · best token", origin)
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg") and (root.get("width"), root.get("viewBox").split()[2]) == ("600", "600")
    text = " ".join(root.itertext())
    assert "Logit lens · best token" in text and lens.request.key in text and "depth" in text
    assert harmless(root)


def harmless(root: ElementTree.Element) -> bool:
    for element in root.iter():
        assert element.tag.rpartition("}")[2].lower() not in {"script", "foreignobject", "a", "iframe", "use"}
        for name, value in element.attrib.items():
            name = name.rpartition("}")[2].lower()
            assert not name.startswith("on")
            assert name != "href" or value.startswith("data:image/png;base64,")
            assert not re.search(r"url\((?!['\"]?#)", value), value
    return True


@needs_browser
def test_hostile_words_are_text(lens):
    strange = replace(lens, tokens=(HOSTILE,) * len(lens.tokens), token_text=dict.fromkeys(lens.token_text, HOSTILE))
    svg = images.render(figures.lens_map(strange, View(window=(0, 3)), "prob"), "svg", HOSTILE, HOSTILE)
    root = ElementTree.fromstring(svg)
    assert harmless(root) and "<script>alert(1)</script>" in " ".join(root.itertext())


def test_what_only_the_mouse_sees_is_left_out_and_the_figure_itself_stays_as_it_was(lens):
    fig = figures.lens_map(lens, View(), "prob")
    before = fig.to_json()
    spec = images.printed(fig, "x " * 300)
    assert fig.data[0].text and "text" not in spec["data"][0]
    assert fig.to_json() == before and spec["layout"]["paper_bgcolor"] == "#ffffff"


@pytest.mark.parametrize("caption, origin", [("", ""), ("A line", ""), ("", "by a model"), ("Words " * 60, "by " * 90)])
def test_words_above_and_below_a_figure_have_their_room(lens, caption, origin):
    fig = figures.lens_map(lens, View(), "prob")
    bare, layout = fig.to_plotly_json()["layout"], images.printed(fig, caption, origin)["layout"]
    added = layout["annotations"][len(bare.get("annotations", ())) :]
    assert [one["text"].replace("<br>", " ").split() for one in added] == [w.split() for w in (caption, origin) if w]
    assert [one["y"] for one in added] == [y for y, words in ((1, caption), (0, origin)) if words]
    lines = {one["y"]: one["text"].count("<br>") + 1 for one in added}
    top, bottom = (images.LINE * lines[y] + images.EDGE if y in lines else 0 for y in (1, 0))
    margin = bare["margin"]
    assert layout["margin"]["t"] == margin["t"] + top and layout["margin"]["b"] == margin["b"] + bottom
    assert layout["height"] == bare["height"] + top + bottom
    assert [one["yshift"] for one in added] == [
        shift for shift, words in ((margin["t"], caption), (-margin["b"], origin)) if words
    ]
    pixels = {1: 7.0, 0: 5.3}  # of a letter, at most
    assert all(pixels[one["y"]] * len(line) <= layout["width"] for one in added for line in one["text"].split("<br>"))


def test_an_origin_names_model_run_and_time_and_counts_many(lens):
    one = images.origin([lens])
    assert lens.request.key in one and f"{lens.n_tokens} tokens" in one and "(fp32)" in one
    assert "3 runs" in images.origin([lens] * 3) and images.origin([]) == ""
    other = replace(lens.request.models[0], control="untrained", adapter="/far/mine")
    twin = replace(lens, request=replace(lens.request, models=(other,)))
    assert "(fp32, with mine, untrained twin, seed 0)" in images.origin([twin]), "no model's own"


def test_without_a_browser_one_sentence_says_what_to_install(lens, monkeypatch):
    fig = figures.lens_map(lens, View(), "prob")
    for path, wanted in ((os.devnull, "/nowhere/chromium"), ("/nowhere", "")):
        monkeypatch.setenv("PATH", path)
        monkeypatch.setenv("BROWSER_PATH", wanted)
        with pytest.raises(ImageFailed, match="apt install chromium.*BROWSER_PATH"):
            images.render(fig, "png")


def fake(folder: Path, script: str) -> str:
    file = folder / "chromium"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def test_a_browser_that_hangs_costs_one_picture_and_leaves_nothing_running(lens, monkeypatch, tmp_path):
    """Each browser writes its process id down; where none had started in time, there is more time in the next round."""
    started = tmp_path / "started"
    monkeypatch.setenv("BROWSER_PATH", fake(tmp_path, f"echo $$ >> '{started}'; exec sleep 471"))
    for seconds in (4, 20, 100):
        with pytest.raises(ImageFailed, match=f"not drawn within {seconds} s"):
            images.render(figures.lens_map(lens, View(), "prob"), "png", seconds=seconds)
        if started.exists():
            break
    pids = [int(pid) for pid in started.read_text().split()]
    assert pids
    until(lambda: not any(sleeps(pid) for pid in pids))


def sleeps(pid: int) -> bool:
    try:
        return psutil.Process(pid).cmdline()[-1:] == ["471"]
    except psutil.Error:
        return False


def test_a_browser_that_fails_is_told_in_one_sentence(lens, monkeypatch, tmp_path):
    monkeypatch.setenv("BROWSER_PATH", fake(tmp_path, "exit 3"))
    with pytest.raises(ImageFailed, match="did not draw the figure|not drawn within"):
        images.render(figures.lens_map(lens, View(), "prob"), "png", seconds=20)


@needs_browser
def test_only_one_figure_is_drawn_at_a_time(lens):
    with images._one_at_a_time, pytest.raises(ImageFailed, match="Other figures"):
        images.render(figures.lens_map(lens, View(), "prob"), "png", seconds=0.2)


@needs_browser
def test_the_command_line_writes_a_figure_by_its_name(own_cache, tmp_path, capsys):
    kept = case(notes="**x**", probes=HOME)
    Kept().add(kept)
    assert main(["case", "export", kept.id, str(tmp_path / "x.svg"), "--figure", "Logit lens"]) == 0
    assert harmless(ElementTree.fromstring((tmp_path / "x.svg").read_bytes()))
    assert main(["case", "export", kept.id, str(tmp_path / "y.svg"), "--figure", "nothing"]) == 2
    assert "logit lens" in capsys.readouterr().err and not (tmp_path / "y.svg").exists()
    assert len(by_name(kept)) == len(set(by_name(kept)))


def test_images_needs_neither_torch_nor_kaleido_until_it_draws():
    code = (
        "import sys, ed_core.figures.images; assert not {'torch', 'kaleido', 'choreographer', 'psutil'} & "
        "set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
