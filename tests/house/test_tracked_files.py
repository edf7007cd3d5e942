"""What is committed: no places or names of one machine, not too large, notebooks without outputs."""

import json
import re

import strip_notebooks

BINARY = {".safetensors", ".png", ".jpg", ".gif", ".npz", ".npy"}
MAX_BYTES = 40 << 20
OWN_PLACES = re.compile(r"/(?:root|work|home/\w+|Users/\w+|opt/(?:wheels|pypi))/|[A-Z]:\\Users\\\w")
REGISTRIES = re.compile(
    r"(?i)https?://[^\s\"')>]*(?:pypi|pythonhosted|npmjs|deb\.debian|artifact|nexus|mirror|registry)"
)


def test_no_places_of_one_machine(tracked, root):
    found = []
    for path in tracked:
        if path.suffix in BINARY or path.name == "LICENSE" or path.name == "test_tracked_files.py":
            continue
        text = path.read_text("utf-8")
        found += [
            f"{path.relative_to(root)}: {hit[0]}" for rule in (OWN_PLACES, REGISTRIES) for hit in rule.finditer(text)
        ]
    assert found == []


def test_binary_files_name_no_place_of_one_machine(tracked, root):
    found = [
        str(path.relative_to(root))
        for path in tracked
        if path.suffix == ".safetensors" and OWN_PLACES.search(header(path))
    ]
    assert found == []


def header(path):
    with path.open("rb") as file:
        return file.read(int.from_bytes(file.read(8), "little")).decode("utf-8")


def test_the_clone_stays_small(tracked):
    assert sum(path.stat().st_size for path in tracked) < MAX_BYTES


def test_the_rules_know_a_place_when_they_see_one():
    assert OWN_PLACES.search('open("/home/ann/data")') and OWN_PLACES.search(r"C:\Users\ann")
    assert not OWN_PLACES.search("~/.cache/qp-explorer and /usr/bin/chromium")
    assert REGISTRIES.search("--index-url https://some.mirror.example/simple")
    assert not REGISTRIES.search("https://arxiv.org/abs/2602.01518")


def test_notebooks_are_stripped():
    assert strip_notebooks.unstripped() == [], "python tools/dev.py strip"


def test_strip_removes_what_a_run_leaves_and_nothing_else(tmp_path):
    code = {
        "cell_type": "code",
        "id": "a1",
        "source": "1 + 1\n# σ",
        "metadata": {"tags": ["keep"], "collapsed": True},
        "execution_count": 3,
        "outputs": [
            {"output_type": "execute_result", "data": {"text/plain": "2"}, "execution_count": 3, "metadata": {}}
        ],
    }
    text = {"cell_type": "markdown", "source": ["# Title"], "metadata": {"editable": True}}
    book = {"cells": [code, text], "metadata": {"widgets": {"state": {}}}, "nbformat": 4, "nbformat_minor": 5}
    path = tmp_path / "lesson.ipynb"
    path.write_text(json.dumps(book), "utf-8")
    assert strip_notebooks.unstripped([path]) == [path]
    assert strip_notebooks.strip([path]) == [path]
    clean = json.loads(path.read_text("utf-8"))
    assert clean["cells"][0] == {
        "cell_type": "code",
        "id": "a1",
        "source": ["1 + 1\n", "# σ"],
        "metadata": {"tags": ["keep"]},
        "execution_count": None,
        "outputs": [],
    }
    assert clean["cells"][1]["source"] == ["# Title"] and clean["cells"][1]["metadata"] == {}
    assert set(clean["metadata"]) == {"kernelspec", "language_info"}
    assert strip_notebooks.strip([path]) == [] and strip_notebooks.unstripped([path]) == []
