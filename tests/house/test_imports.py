"""The three rooms import: without Triton and transformers, from notebooks/, and beside a plain folder named widgets."""

import subprocess
import sys

HIDE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
"""


def run(code, cwd):
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_rooms_import_from_the_notebooks_folder_without_triton_and_transformers_loaded(root):
    code = """
import sys, qp_kernels, activations, widgets
for room in (qp_kernels, activations, widgets): print(room.__file__)
print(*(name for name in ("triton", "transformers") if name in sys.modules))
"""
    rooms = ("qp_kernels", "activations", "widgets")
    assert run(code, root / "notebooks") == [str(root / room / "__init__.py") for room in rooms]


def test_a_plain_folder_named_widgets_and_a_missing_triton_do_no_harm(root, tmp_path):
    for room in ("widgets", "activations", "qp_kernels"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "notes.txt").write_text("a user's own")
    code = """
from widgets import LogitExplorer
import torch, qp_kernels, activations, widgets, ipywidgets
from qp_kernels.qrita import top_k_top_p
kept = top_k_top_p(torch.tensor([1.0, 3.0, 2.0]), k=1).isfinite()
print(widgets.__file__, LogitExplorer.__name__, kept.sum().item(), qp_kernels.backend.resolve("cpu").name)
"""
    said = run(HIDE.format(hidden={"triton", "transformers"}) + code, tmp_path)
    assert said == [str(root / "widgets" / "__init__.py"), "LogitExplorer", "1", "torch"]
