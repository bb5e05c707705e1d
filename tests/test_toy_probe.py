"""A new probe is its file, a line in the registry, a test and its page; everything else reads what it declares. A toy is
added to a copy and walked through all of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROBE = '''"""Twice the layer's number times the token's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..types import MeasureSpec
from .base import Curve, Picture, Probe, Score, depth_score, parameter


@dataclass(frozen=True)
class Toy(Probe):
    """A probe that measures nothing."""

    factor: int = parameter(2, "what it is multiplied by", low=1, high=9, label="Factor")

    name: ClassVar[str] = "toy"
    title: ClassVar[str] = "Toy"
    curves: ClassVar[tuple[Curve, ...]] = (Curve("product", "Mean product", "toys"),)
    score: ClassVar[Score] = Score("its centre", "centre")
    pictures: ClassVar[tuple[Picture, ...]] = (
        Picture("Toy map", ("product",), "a product", "Read it as it is."),
    )
    thumbnail: ClassVar[tuple[int, str]] = (9, "product")
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        MeasureSpec("product", ("layer", "pos"), "toys", "layer times token", "token_mean"),
    )

    def work(self, n_layers, n_tokens):
        return 7 * n_layers, 1

    @classmethod
    def derive(cls, curves):
        return {"centre": np.asarray(depth_score(curves["product"]), np.float32)}

    def compute(self, model, encoding, record):
        record.allocate("product")
        for layer in range(model.n_layers):
            record.write("product", layer, self.factor * layer * np.arange(len(encoding), dtype=np.float32))
            record.step((layer + 1) / model.n_layers)
'''
PAGE = '''"""Toys?"""

from ed_core.probes import Toy
from ed_ui import probe_page

probe_page.Page(Toy, {"": "Not computed yet."}).show()
'''
EDITS = {  # of the registry
    "import ResidualErasure": "import ResidualErasure\nfrom .toy import Toy",
    "\n)\n\n\ndef find": "\n    Toy,\n)\n\n\ndef find",
}
WALK = """
import json
from base64 import b64decode
import numpy as np
from streamlit.testing.v1 import AppTest
from ed_core.cases import bundle, case_study, drawings, export, report
from ed_core.cases.kept import Kept
from ed_core.cli import main
from ed_core.depth import among_others, say
from ed_core.probes import Toy
from ed_core.results import lookup
from ed_core.models.ref import ModelRef
from ed_core.types import Prompt

TEXT = "3 + 6 = 9\\n5 + 7 = "
def holds(z, expected):
    if isinstance(z, dict):
        z = np.frombuffer(b64decode(z["bdata"]), z["dtype"]).reshape([int(n) for n in z["shape"].split(",")])
    return z is not None and np.array_equal(z, expected)
with open("p.jsonl", "w") as file:
    file.write(json.dumps({"text": TEXT}))

# run, store, export, from the command line
run = ["run", "toy", "--model", "ed-demo-8", "--prompts", "p.jsonl", "--out", "a.npz", "--set"]
assert main([*run, "toy.factor=10"]) == 2 and main([*run, "toy.factor=3"]) == 0
arrays = np.load("a.npz", allow_pickle=False)
expected = 3 * np.outer(np.arange(8), np.arange(len(arrays["tokens.0"])))
assert np.array_equal(arrays["toy.product.0"], expected) and np.allclose(arrays["toy.product"], expected.mean(1))

# its page, opened by a link that carries its parameter
asked = Toy(factor=3).request(ModelRef.parse("ed-demo-8"), Prompt(TEXT))
result = lookup.find(asked)
page = AppTest.from_file("app.py", default_timeout=120).switch_page("pages/prompt/toy.py")
page.query_params["model"], page.query_params["run"] = "ed-demo-8", asked.key[:12]
page.run()
assert not page.exception and not page.error, (page.exception, page.error)
assert [box.value for box in page.number_input if box.label == "Factor"] == [3]
charts = [json.loads(one.proto.bytes)["figure"] for one in page.get("bidi_component") if one.proto.bytes]
assert any(holds(chart["data"][0].get("z"), expected) for chart in charts), "the map is not on its page"
assert page.main.subheader[0].value == "Toys?", page.main.subheader

# Save
next(b for b in page.button if b.key == "keep.toy.save").click().run()
assert not page.exception and not page.error
(card,) = [c for c in Kept().cards() if not Kept().is_shipped(c.id)]
case, _ = Kept().open(card.id)
assert [i.result.request.probe for i in case.items] == ["toy"] and case.items[0].shown.page == "toy"
assert card.thumbnail and max(map(max, card.thumbnail)) == 255

# figures, report, export, the file and back
(drawn,) = [d for d in drawings.drawings(case) if d.title == "Toy map"]
assert drawn.measures == ("product",) and "a product" in drawn.caption and "Factor: 3" in drawn.caption
assert "Toy map" in report.report(case) and bundle.decode(bundle.encode(case)) == case
assert np.array_equal(export.case_arrays(case)["toy.product.0"], expected) and "product" in export.csv(result, "product").split("\\n")[0]

# spreads: one prompt among others
spread = say.among_others(among_others.compared(Toy, result.summary, [result.summary] * 3))
assert "its centre" in spread and among_others.spreads(Toy, result.summary, [result.summary] * 3)[0].n == 3
"""


@pytest.mark.process
def test_a_new_probe_needs_four_places(tmp_path):
    folder = tmp_path / "copy"
    for name in ("ed_core", "ed_ui", "effective_depth_lab", "pages", ".streamlit"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.safetensors"))
    shutil.copy(ROOT / "app.py", folder)
    for weights in (ROOT / "ed_core" / "demo" / "models").glob("*/*.safetensors"):
        (folder / weights.relative_to(ROOT)).symlink_to(weights)
    (folder / "ed_core" / "probes" / "toy.py").write_text(PROBE)
    (folder / "pages" / "prompt" / "toy.py").write_text(PAGE)
    registry = folder / "ed_core" / "probes" / "__init__.py"
    text = registry.read_text()
    for old, new in EDITS.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    registry.write_text(text)
    more = {"HOME": str(tmp_path), "ED_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    environment = {"PATH": "/usr/bin:/bin", **more}
    done = subprocess.run([sys.executable, "-c", WALK], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
