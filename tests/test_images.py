"""PNG and SVG of a figure in the shell: right size, not blank, nothing in them that runs or asks."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from kept_cases import case, results
from PIL import Image

from ed_core import figures
from ed_core.cases.kept import Kept
from ed_core.cli import main
from ed_core.errors import ImageFailed
from ed_core.figures import View, images

HOSTILE = "<script>alert(1)</script><a href='http://example.org'>x</a><img src=x onerror=alert(1)> &amp; $x$ \u202e]]>"


@pytest.fixture(scope="module")
def lens():
    return results()["logit_lens"]


@pytest.mark.browser
def test_a_png_has_the_size_of_the_screen_twice_and_is_not_blank(lens):
    fig = figures.lens_map(lens, View(width_px=500, height=300, window=(0, 20)), "prob")
    picture = Image.open(io.BytesIO(images.render(fig, "png", "Logit lens", images.origin([lens])))).convert("RGB")
    assert picture.width == 2 * 500 and picture.height >= 2 * 300
    seen = np.asarray(picture)
    assert (seen == 255).all(-1).mean() > 0.2, "on white"
    assert len(np.unique(seen.reshape(-1, 3), axis=0)) > 50, "many colours: a map is drawn"


@pytest.mark.browser
def test_an_svg_is_xml_with_its_text_and_nothing_that_runs_or_asks(lens):
    strange = replace(lens, tokens=(HOSTILE,) * len(lens.tokens), token_text=dict.fromkeys(lens.token_text, HOSTILE))
    figure = figures.lens_map(strange, View(window=(0, 3)), "prob")
    root = ElementTree.fromstring(images.render(figure, "svg", HOSTILE, images.origin([lens])))
    text = " ".join(root.itertext())
    assert root.tag.endswith("svg") and harmless(root)
    assert "<script>alert(1)</script>" in text and lens.request.key in text and "depth" in text


def harmless(root: ElementTree.Element) -> bool:
    for element in root.iter():
        assert element.tag.rpartition("}")[2].lower() not in {"script", "foreignobject", "a", "iframe", "use"}
        for name, value in element.attrib.items():
            name = name.rpartition("}")[2].lower()
            assert not name.startswith("on")
            assert name != "href" or value.startswith("data:image/png;base64,")
            assert not re.search(r"url\((?!['\"]?#)", value), value
    return True


@pytest.mark.browser
def test_without_a_browser_one_sentence_says_what_to_install(lens, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("BROWSER_PATH", "/nowhere/chromium")
    with pytest.raises(ImageFailed, match="apt install chromium.*BROWSER_PATH"):
        images.render(figures.lens_map(lens, View(), "prob"), "png")


@pytest.mark.browser
def test_the_command_line_writes_a_figure_by_its_name(own_cache, tmp_path, capsys):
    kept = case()
    Kept().add(kept)
    assert main(["case", "export", kept.id, str(tmp_path / "x.svg"), "--figure", "Logit lens"]) == 0
    assert harmless(ElementTree.fromstring((tmp_path / "x.svg").read_bytes()))
    assert main(["case", "export", kept.id, str(tmp_path / "y.svg"), "--figure", "nothing"]) == 2
    assert "logit lens" in capsys.readouterr().err and not (tmp_path / "y.svg").exists()
