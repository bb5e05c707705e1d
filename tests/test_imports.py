"""Who may import whom: the table in ARCHITECTURE.md against the code; and the app's process never imports torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "transformers", "accelerate", "bitsandbytes", "datasets", "peft", "streamlit"}
DOORS = ("ed_core/__init__.py", "ed_core/__main__.py")
OURS = {"ed_core", "ed_ui", "tools"}


class Floor:
    """A row of the table: its folders, the libraries it may use, the files that may import torch."""

    def __init__(self, cells: list[str]):
        folders, _, libraries, self.torch = cells
        self.folders = [name.strip(" `") for name in folders.split(",")]
        self.libraries = {name for name in libraries.split(", ") if name not in ("–", "any")}
        self.any = libraries == "any"


@cache
def floors() -> list[Floor]:
    """The table, from the top down."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = [line for line in text.split("## ")[1].splitlines() if line.startswith("| `")]
    return [Floor([cell.strip() for cell in row.strip("| ").split(" | ")]) for row in rows]


@cache
def floor_of(path: Path) -> int:
    """A file's row, counted from the top."""
    place = f"{path.relative_to(ROOT).as_posix()}/"
    return max((len(f), i) for i, floor in enumerate(floors()) for f in floor.folders if place.startswith(f"{f}/"))[1]


@cache
def files() -> list[Path]:
    folders = (p for top in ("ed_core", "ed_ui", "pages", "tools") for p in (ROOT / top).rglob("*.py"))
    return sorted([ROOT / "app.py", *folders])


def names(path: Path, nodes: list[ast.AST]) -> set[str]:
    """Absolute names of what these statements import."""
    package = list(path.relative_to(ROOT).with_suffix("").parts)[:-1]
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{name}.{a.name}" for a in node.names}
    return found


@cache
def imports(path: Path) -> tuple[set[str], set[str]]:
    """Everything that a file imports, and what it imports at its top level."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return names(path, list(ast.walk(tree))), names(path, tree.body)


@cache
def file_of(name: str) -> Path | None:
    """The file of ours that an imported name is in."""
    while name:
        place = ROOT / name.replace(".", "/")
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                return file
        name = name.rpartition(".")[0]
    return None


@cache
def edges(path: Path) -> set[Path]:
    return {file for name in imports(path)[0] if (file := file_of(name)) is not None and file != path}


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_folder_has_its_row():
    listed = {name for floor in floors() for name in floor.folders}
    assert {shown(p.parent) for p in (ROOT / "ed_core").rglob("*.py")} <= listed
    assert all(place == "app.py" or (ROOT / place).is_dir() for place in listed)


def test_nothing_imports_upwards_and_no_file_imports_itself_through_others():
    inside = [path for path in files() if shown(path) not in DOORS]
    assert not [
        f"{shown(path)} imports {shown(other)}"
        for path in inside
        for other in edges(path)
        if floor_of(other) < floor_of(path)
    ]
    graph = {path: {o for o in edges(path) if o in inside and o.name != "__init__.py"} for path in inside}
    while ends := [path for path, others in graph.items() if not others]:
        for end in ends:
            del graph[end]
        graph = {path: others - set(ends) for path, others in graph.items()}
    assert not graph, f"in a circle, or leading into one: {sorted(map(shown, graph))}"


def test_libraries_and_torch_are_imported_where_the_table_says():
    wrong = []
    for path in files():
        floor = floors()[floor_of(path)]
        every, top = ({n.split(".")[0] for n in some} for some in imports(path))
        libraries = every - set(sys.stdlib_module_names) - OURS - {"torch"}
        wrong += [
            f"{shown(path)} imports {name}" for name in libraries if not floor.any and name not in floor.libraries
        ]
        allowed = {"yes": True, "no": False, "in functions": "torch" not in top}
        if "torch" in every and not allowed.get(floor.torch, path.stem in floor.torch.split(", ")):
            wrong.append(f"{shown(path)} imports torch; the table says {floor.torch}")
    assert not wrong, "\n".join(wrong)


def light() -> list[list[str]]:
    """Modules that the app's process may import, by floor, from the ground up."""
    modules: list[list[str]] = [[] for _ in floors()]
    for path in files():
        torch, place = floors()[floor_of(path)].torch, path.relative_to(ROOT)
        if torch != "yes" and path.stem not in torch.split(", ") and place.parts[0] == "ed_core":
            modules[floor_of(path)].append(".".join(place.with_suffix("").parts).removesuffix(".__init__"))
    return [names for names in reversed(modules) if names]


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.process
def test_importing_the_torch_free_side_imports_no_torch():
    """Each module as the first of its floor that a process imports."""
    run(f"""
import sys
from importlib import import_module
for names in {light()!r}:
    below = set(sys.modules)
    for name in names:
        if name.endswith("__main__"):
            continue
        for loaded in [m for m in sys.modules if m.split(".")[0] == "ed_core" and m not in below]:
            del sys.modules[loaded]
        import_module(name)
        heavy = {HEAVY!r}.intersection(m.split(".")[0] for m in sys.modules)
        assert not heavy, f"{{name}} imports {{heavy}}"
""")


@pytest.mark.process
def test_the_app_imports_no_torch_after_its_pages_opened_stored_results():
    """A fresh process runs the app: the shipped example, and a case study."""
    found = run("""
import sys
from streamlit.testing.v1 import AppTest
app = AppTest.from_file("app.py", default_timeout=60).run()
assert not app.exception and len(app.get("bidi_component")) >= 5
app.switch_page("pages/case_studies/case.py")
app.query_params["id"] = "denon6ly2j"
app.run()
assert not app.exception and not app.error and len(app.get("bidi_component")) >= 5
print("heavy:", *sorted({m.split(".")[0] for m in sys.modules} & {"torch", "transformers", "accelerate"}))
""")
    assert found.strip().endswith("heavy:"), found


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


PRODUCT = [file for file in files() if file.relative_to(ROOT).parts[0] != "tools"]


@pytest.mark.parametrize("path", PRODUCT, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_assigns_to_an_attribute_of_another_library(path):
    """But torch's documented switches."""
    tree, foreign = ast.parse(path.read_text(encoding="utf-8")), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            foreign |= {(one.asname or one.name).split(".")[0] for one in node.names if file_of(one.name) is None}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            foreign |= {one.asname or one.name for one in node.names if file_of(f"{node.module}.{one.name}") is None}
    for target in attributes_assigned(tree):
        root = target.value
        while isinstance(root, ast.Attribute):
            root = root.value
        switch = ast.unparse(target).startswith("torch.backends.")
        assert switch or not (isinstance(root, ast.Name) and root.id in foreign), ast.unparse(target)
