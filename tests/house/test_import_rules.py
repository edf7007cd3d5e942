"""No arrow goes back: which room may import what, by reading the sources."""

import ast
import json
import sys
import tomllib

import pytest

STANDARD = set(sys.stdlib_module_names)
EVERYWHERE = {"numpy", "torch"}
KERNELS = {"qp_kernels", "triton"}
ACTIVATIONS = {"activations", "qp_kernels", "transformers", "huggingface_hub"}
ACTIVATIONS |= {"safetensors", "gguf", "sentencepiece", "accelerate"}
WIDGETS = {
    "widgets",
    "qp_kernels",
    "activations",
    "plotly",
    "pandas",
    "ipywidgets",
    "anywidget",
    "traitlets",
    "IPython",
}
NOTEBOOKS = {"qp_kernels", "activations", "widgets", "IPython", "ipywidgets", "pandas", "plotly"}
ROOMS = {"qp_kernels": KERNELS, "activations": ACTIVATIONS, "widgets": WIDGETS}
# Modules that come with a declared package of another name.
COMES_WITH = {"IPython": "ipykernel"}


def imported(tree):
    """Top-level names imported anywhere in a syntax tree, by statement or by import_module("...")."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                names |= {node.args[0].value.split(".")[0]} - {""}
    return names


def imported_at_load(tree):
    """The same without what functions import when they are called."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = []
    return imported(tree)


def parsed(path):
    return ast.parse(path.read_text("utf-8"))


def sources(root, room):
    found = sorted((root / room).rglob("*.py"))
    assert found, f"{room}/ holds no source"
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(root, room):
    allowed = STANDARD | EVERYWHERE | ROOMS[room]
    wrong = {str(path.relative_to(root)): imported(parsed(path)) - allowed for path in sources(root, room)}
    assert {path: names for path, names in wrong.items() if names} == {}


def test_what_the_rooms_import_is_declared(root):
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    declared = {requirement_name(line) for line in project["dependencies"]}
    used = set().union(*(imported(parsed(path)) for room in ROOMS for path in sources(root, room)))
    third_party = used - STANDARD - set(ROOMS)
    assert {name for name in third_party if COMES_WITH.get(name, name).lower() not in declared} == set()


def requirement_name(line):
    name = line.split(";")[0]
    for sign in "<>=!~[ ":
        name = name.split(sign)[0]
    return name.lower().replace("-", "_")


def siblings_at_load(path):
    """Files beside this one that it imports by a relative import when it is loaded."""
    tree, found = parsed(path), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
            found |= {path.parent / f"{name}.py" for name in names}
    return found


def kernel_files(root):
    """Files that import triton when they are loaded, and those that load them."""
    files = sources(root, "qp_kernels")
    kernels = {path for path in files if "triton" in imported_at_load(parsed(path))}
    while more := {path for path in files if path not in kernels and siblings_at_load(path) & kernels}:
        kernels |= more
    return kernels


def test_triton_and_transformers_are_imported_late(root):
    kernels = kernel_files(root)
    names = {path.name for path in kernels}
    assert "kernels.py" in names and "launch.py" in names
    assert not names & {"__init__.py", "api.py", "reference.py"}, "what everybody imports must load without triton"
    early = [
        str(path.relative_to(root))
        for room in ROOMS
        for path in sources(root, room)
        if ({"triton", "transformers"} if path not in kernels else {"transformers"}) & imported_at_load(parsed(path))
    ]
    assert early == [], "import triton and transformers inside the function that needs them"


def test_notebooks_import_only_the_rooms(root):
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        lines = [line for cell in code for line in cell.splitlines() if line.startswith(("import ", "from "))]
        extra = imported(ast.parse("\n".join(lines))) - STANDARD - EVERYWHERE - NOTEBOOKS
        assert extra == set(), f"{path.name} imports {extra}"
        assert "import widgets" not in lines, (
            f"{path.name}: `from widgets import ...` keeps ipywidgets' usual name free"
        )


def test_data_holds_no_code(root):
    assert [path for path in (root / "data").rglob("*") if path.suffix in {".py", ".ipynb", ".sh", ".pkl", ".pt"}] == []


def test_widgets_and_notebooks_reach_data_through_its_readers(root):
    texts = [*sources(root, "widgets"), *(root / "notebooks").glob("*.ipynb")]
    assert [path.name for path in texts if "data/captures" in path.read_text("utf-8")] == []


def test_the_rules_see_every_kind_of_import():
    source = (
        "import triton.language as tl\n"
        "from os import path\n"
        "from . import near\n"
        "def late():\n"
        "    import transformers\n"
        "    return import_module('plotly.io')\n"
    )
    assert imported(ast.parse(source)) == {"triton", "os", "transformers", "plotly"}
    assert imported_at_load(ast.parse(source)) == {"triton", "os"}
    nested = "class A:\n    def f(self):\n        import gguf\n    import json\n"
    assert imported_at_load(ast.parse(nested)) == {"json"}
