"""Who may import whom, kept by reading the code; and that the app's process really never imports torch."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "transformers", "accelerate", "bitsandbytes", "datasets", "peft"}
TORCH_SIDE = {
    "ed_core." + name
    for name in (
        "models.language_model",
        "models.trace",
        "sweeps.metrics",
        "models.loading",
        "models.adoption",
        "models.twins",
        "models.identities",
        "sweeps.staircase",
        "sweeps.erasure",
        "sweeps.gradients",
        "sweeps.dropping",
        "models.suffix",
        "service.compute",
        "bench",
        "models.quantized",
        "models.placement",
        "service.calibrate",
        "models.sanity",
        "library.model",
    )
}


def imports(path: Path, top_level_only: bool = False) -> set[str]:
    """Absolute names of everything a file imports; `top_level_only` leaves out functions and TYPE_CHECKING blocks."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = list(path.relative_to(ROOT).with_suffix("").parts)[:-1]
    nodes = tree.body if top_level_only else ast.walk(tree)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            found |= {name} | {f"{name}.{a.name}" for a in node.names}
    return found


def heads(names: set[str]) -> set[str]:
    return {n.split(".")[0] for n in names}


ENGINE = sorted((ROOT / "ed_core").rglob("*.py"))
PAGES = [ROOT / "app.py", *sorted((ROOT / "pages").rglob("*.py"))]
GLUE = sorted((ROOT / "ed_ui").rglob("*.py"))


@pytest.mark.parametrize("path", ENGINE, ids=str)
def test_the_engine_never_imports_streamlit_or_the_pages(path):
    assert not heads(imports(path)) & {"streamlit", "ed_ui", "pages"}


@pytest.mark.parametrize("path", PAGES + GLUE, ids=str)
def test_pages_and_glue_stay_on_the_torch_free_side(path):
    found = imports(path)
    assert not heads(found) & HEAVY
    assert not found & TORCH_SIDE


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_pages_do_no_maths_and_draw_nothing_themselves(path):
    assert not heads(imports(path)) & {"numpy", "plotly", "pandas", "diskcache"}


@pytest.mark.parametrize("path", ENGINE, ids=str)
def test_only_the_loader_knows_transformers(path):
    name = path.relative_to(ROOT / "ed_core").as_posix()
    if not name.startswith(("demo/", "bench")) and name != "models/loading.py":
        assert "transformers" not in heads(imports(path))


@pytest.mark.parametrize(
    "name",
    [
        "types",
        "depth.criteria",
        "depth.verdict",
        "depth.exactness",
        "results.aggregate",
        "depth.among_others",
        "depth.side_by_side",
        "figures",
        "results.lookup",
        "service.jobs",
        "results.store",
        "prompts",
        "probes",
        "sources.specs",
        "sources.tokens",
        "cases.export",
        "service.worker",
        "depth.pruning",
        "sweeps.budget",
        "sources.precision",
        "sources.controls",
        "sources.sizes",
        "service.estimate",
        "sources.catalogue",
        "sources.weights",
        "sources.adapters",
        "depth.audit",
        "sources.hub",
        "cases.case_study",
        "cases.bundle",
        "cases.kept",
        "cases.drawings",
        "settings",
        "sources.permits",
        "cases.owners",
        "service.health",
    ],
)
def test_importing_the_torch_free_side_imports_no_torch(name):
    code = (
        f"import sys, json, ed_core.{name}; print(json.dumps(sorted({HEAVY!r}.intersection(m.split('.')[0] for m in "
        "sys.modules))))"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(out.stdout) == []


def test_the_app_imports_no_torch_after_home_has_run_and_opened_a_stored_result():
    """A fresh process runs the whole app as a browser would, on the shipped example."""
    code = """
import sys
from streamlit.testing.v1 import AppTest
app = AppTest.from_file("app.py", default_timeout=60).run()
assert not app.exception, app.exception
charts = app.get("plotly_chart")
assert len(charts) >= 5, f"{len(charts)} figures: the stored example is not on the screen"
print(",".join(sorted({m.split(".")[0] for m in sys.modules} & {"torch", "transformers"})))
"""
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr[-2000:]
    assert out.stdout.strip().splitlines()[-1:] in ([], [""]), out.stdout
