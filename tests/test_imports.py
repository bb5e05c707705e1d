"""Who may import whom: the table in ARCHITECTURE.md, held against the code; and that the app's process really never
imports torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "transformers", "accelerate", "bitsandbytes", "datasets", "peft"}
DOORS = ("ed_core/__init__.py", "ed_core/__main__.py")


class Floor:
    """A row of the table: its folders, the libraries from outside it may use, the files that may import torch."""

    def __init__(self, cells: list[str]):
        folders, _, libraries, torch = cells
        self.folders = [name.strip(" `") for name in folders.split(",")]
        self.libraries = {name for name in libraries.split(", ") if name not in ("–", "any")}
        self.any = libraries == "any"
        self.torch = torch


@cache
def floors() -> list[Floor]:
    """The table, from the top down."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = [line for line in text.split("## ")[1].splitlines() if line.startswith("| `")]
    return [Floor([cell.strip() for cell in row.strip("| ").split(" | ")]) for row in rows]


def floor_of(path: Path) -> int:
    """A file's row, counted from the top."""
    place = path.relative_to(ROOT).as_posix()
    found = [(len(f), i) for i, floor in enumerate(floors()) for f in floor.folders if f"{place}/".startswith(f"{f}/")]
    return max(found)[1]


@cache
def files() -> list[Path]:
    found = [
        ROOT / "app.py",
        *(p for top in ("ed_core", "ed_ui", "pages", "tools") for p in (ROOT / top).rglob("*.py")),
    ]
    return sorted(found)


@cache
def imports(path: Path, top_level_only: bool = False) -> set[str]:
    """Absolute names of everything a file imports, inside functions and for type checkers too; `top_level_only` leaves
    those out."""
    package = list(path.relative_to(ROOT).with_suffix("").parts)[:-1]
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{name}.{a.name}" for a in node.names}
    return found


@cache
def file_of(name: str) -> Path | None:
    """The file of ours that an imported name is, or stands in."""
    while name:
        place = ROOT / name.replace(".", "/")
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                return file
        name = name.rpartition(".")[0]
    return None


def edges(path: Path) -> set[Path]:
    return {file for name in imports(path) if (file := file_of(name)) is not None and file != path}


def test_every_folder_has_its_row():
    listed = {name for floor in floors() for name in floor.folders}
    assert {p.parent.relative_to(ROOT).as_posix().split("/")[0] for p in files()} - {"."} <= {
        "ed_core",
        "ed_ui",
        "pages",
        "tools",
    }
    assert {p.parent.relative_to(ROOT).as_posix() for p in (ROOT / "ed_core").rglob("*.py")} <= listed


def test_nothing_imports_upwards():
    wrong = [
        f"{path.relative_to(ROOT)} imports {other.relative_to(ROOT)}"
        for path in files()
        if path.relative_to(ROOT).as_posix() not in DOORS
        for other in edges(path)
        if floor_of(other) < floor_of(path)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_file_imports_itself_through_others():
    graph = {path: edges(path) for path in files() if path.relative_to(ROOT).as_posix() not in DOORS}
    graph = {path: {o for o in others if o in graph and o.name != "__init__.py"} for path, others in graph.items()}
    while ends := [path for path, others in graph.items() if not others]:
        for end in ends:
            del graph[end]
        graph = {path: others - set(ends) for path, others in graph.items()}
    assert not graph, f"in a circle, or leading into one: {sorted(str(p.relative_to(ROOT)) for p in graph)}"


def test_libraries_from_outside_are_those_of_the_table():
    ours = {"ed_core", "ed_ui", "tools"}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files()
        for name in {n.split(".")[0] for n in imports(path)} - set(sys.stdlib_module_names) - ours - {"torch"}
        if not (floor := floors()[floor_of(path)]).any and name not in floor.libraries
    ]
    assert not wrong, "\n".join(wrong)


def test_torch_is_imported_where_the_table_says():
    wrong = []
    for path in files():
        said, name = floors()[floor_of(path)].torch, path.relative_to(ROOT)
        anywhere, at_top = (any(n.split(".")[0] == "torch" for n in imports(path, top)) for top in (False, True))
        may = {"yes": True, "no": False, "in functions": not at_top}.get(said, path.stem in said.split(", "))
        if anywhere and not may:
            wrong.append(f"{name} imports torch; the table says {said}")
    assert not wrong, "\n".join(wrong)


def test_only_the_loader_knows_transformers():
    knows = {p for p in files() if any(n.split(".")[0] == "transformers" for n in imports(p))}
    assert {p.relative_to(ROOT).as_posix() for p in knows if p.relative_to(ROOT).parts[0] != "tools"} == {
        "ed_core/models/loading.py",
        "ed_core/models/conversion.py",
        "ed_core/models/families.py",
        "ed_core/models/looped.py",
    }


def light() -> list[list[str]]:
    """Modules that the app's process may import, by floor, from the ground up: all whose row has no torch, or only
    inside functions, or not there."""
    named = [[] for _ in floors()]
    for path in files():
        at = floor_of(path)
        said, place = floors()[at].torch, path.relative_to(ROOT)
        may = said != "yes" and path.stem not in said.split(", ")
        if may and place.parts[0] == "ed_core" and path.stem != "__main__":
            named[at].append(".".join(place.with_suffix("").parts).removesuffix(".__init__"))
    return [names for names in reversed(named) if names]


def test_importing_the_torch_free_side_imports_no_torch():
    """Each module as the first of its floor that a process imports, on those below, which import nothing from it (see
    above); all in one process, which ends with the first that brings something heavy along."""
    code = f"""
import sys
from importlib import import_module
for names in {light()!r}:
    below = set(sys.modules)
    for name in names:
        for loaded in [m for m in sys.modules if m.split(".")[0] == "ed_core" and m not in below]:
            del sys.modules[loaded]
        import_module(name)
        heavy = {HEAVY | {"streamlit"}!r}.intersection(m.split(".")[0] for m in sys.modules)
        assert not heavy, f"{{name}} imports {{heavy}}"
    for name in names:
        import_module(name)
"""
    assert sum(map(len, light())) > 60
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr[-2000:]


def test_the_app_imports_no_torch_after_its_pages_have_run_and_opened_stored_results():
    """A fresh process runs the whole app as a browser would: the shipped example, a case study and the gallery."""
    code = """
import sys
from streamlit.testing.v1 import AppTest
app = AppTest.from_file("app.py", default_timeout=60).run()
assert not app.exception, app.exception
charts = app.get("bidi_component")
assert len(charts) >= 5, f"{len(charts)} figures: the stored example is not on the screen"
app.switch_page("pages/case_studies/case.py")
app.query_params["id"] = "denon6ly2j"
app.run()
assert not app.exception and not app.error and len(app.get("bidi_component")) >= 5
app.switch_page("pages/case_studies/gallery.py").run()
from ed_core.cases.kept import SHIPPED
assert not app.exception and len(app.main.get("page_link")) >= len(list(SHIPPED.glob("*.edcase")))
print(",".join(sorted({m.split(".")[0] for m in sys.modules} & {"torch", "transformers", "accelerate"})))
"""
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr[-2000:]
    assert out.stdout.strip().splitlines()[-1:] in ([], [""]), out.stdout


@pytest.mark.parametrize("name", DOORS)
def test_a_door_holds_nothing_but_the_way_in(name):
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) < 50


def attributes_assigned(tree: ast.AST) -> list[ast.Attribute]:
    """What a file assigns to, or deletes, or sets by name, as `library.thing`."""
    found: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.Delete)):
            found += node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            found.append(node.target)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            found.append(ast.Attribute(node.args[0], "any"))
    found += [one for target in found if isinstance(target, ast.Tuple) for one in target.elts]
    return [one for one in found if isinstance(one, ast.Attribute)]


APP = [file for file in files() if file.relative_to(ROOT).parts[0] in ("app.py", "ed_ui", "pages")]


@pytest.mark.parametrize("path", APP, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_app_assigns_to_no_attribute_of_another_library(path):
    tree, names = ast.parse(path.read_text(encoding="utf-8")), {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = "" if isinstance(node, ast.Import) else f"{node.module}."
            names |= {(one.asname or one.name).split(".")[0]: file_of(module + one.name) for one in node.names}
    for target in attributes_assigned(tree):
        root = target.value
        while isinstance(root, ast.Attribute):
            root = root.value
        assert not (isinstance(root, ast.Name) and names.get(root.id, ROOT) is None), ast.unparse(target)
