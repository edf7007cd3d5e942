"""The shape every lesson has, as rules: each takes a notebook and returns what breaks it, in words."""

import ast

from IPython.core.inputtransformer2 import TransformerManager

SECTIONS = ("Question", "Predict", "Run", "What happened", "Why", "Try")
MAX_STATEMENTS = 12
MAX_DEF_LINES = 3
MAX_LIVE_FIGURES = 3


def code_cells(notebook):
    """Return (cell number, syntax tree) of every code cell that holds code."""
    to_python = TransformerManager().transform_cell
    cells = [(number, cell) for number, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    return [(number, ast.parse(to_python(cell.source))) for number, cell in cells if cell.source.strip()]


def headings(notebook):
    """Return the texts of all markdown headings, in order."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        fenced = False
        for line in cell.source.splitlines():
            fenced ^= line.lstrip().startswith("```")
            if not fenced and line.startswith("#"):
                found.append(line.lstrip("#").strip())
    return found


def sections_in_order(notebook):
    """Headings start with Question, Predict, Run, What happened, Why, Try, in this order; others may stand between."""
    wanted = list(SECTIONS)
    for heading in headings(notebook):
        if wanted and heading.lower().startswith(wanted[0].lower()):
            wanted.pop(0)
    return [f"no heading {wanted[0]!r} after those before it; headings: {headings(notebook)}"] if wanted else []


def first_code_cell_reports(notebook):
    """The first code cell calls `report()`, which names versions, device and back-end."""
    cells = code_cells(notebook)
    calls = [node.func for node in ast.walk(cells[0][1]) if isinstance(node, ast.Call)] if cells else []
    names = [getattr(call, "id", getattr(call, "attr", None)) for call in calls]
    return [] if "report" in names else ["the first code cell does not call report()"]


def cells_only_call(notebook):
    """At most a dozen statements a cell, nested ones counted; no class; no def beyond three lines."""
    problems = []
    for number, tree in code_cells(notebook):
        nodes = list(ast.walk(tree))
        count = sum(isinstance(node, ast.stmt) for node in nodes)
        if count > MAX_STATEMENTS:
            problems.append(f"cell {number} has {count} statements, more than {MAX_STATEMENTS}")
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                problems.append(f"cell {number} defines the class {node.name}")
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = node.end_lineno - node.lineno + 1
                if lines > MAX_DEF_LINES:
                    problems.append(f"cell {number}: def {node.name} has {lines} lines, more than {MAX_DEF_LINES}")
    return problems


def widgets_imported_by_name(notebook):
    """`import widgets` would hide the usual `ipywidgets as widgets`."""
    return [
        f"cell {number}: write `from widgets import ...`, not `import widgets`"
        for number, tree in code_cells(notebook)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import) and any(name.name.split(".")[0] == "widgets" for name in node.names)
    ]


RULES = (sections_in_order, first_code_cell_reports, cells_only_call, widgets_imported_by_name)
