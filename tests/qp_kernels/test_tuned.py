"""Kept launch tables: written, read and checked, and what is wrong with a file is a warning, not an error."""

import json
import warnings

import pytest

from qp_kernels import results, tuned
from qp_kernels.qrita import configs
from qp_kernels.tune import read
from qp_kernels.tuned import Tuned

CARD = "NVIDIA Test 1 (8 GB)"
MINE = configs.Config(4, 512, 256, 64, 3, 80)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("QP_TUNED", str(tmp_path / "tuned"))
    monkeypatch.setattr(tuned, "triton_version", lambda: "3.7.1")
    configs.kept_for.cache_clear()
    tuned._warn.cache_clear()
    yield tmp_path / "tuned"
    configs.kept_for.cache_clear()


def table(**changes):
    return {**configs.TABLE, "k": configs.Line(MINE._replace(**changes), MINE)}


def changed(folder, change):
    """The file of a sound table after a change of its content."""
    path = tuned.write(CARD, Tuned(table(), 2))
    content = json.loads(path.read_text())
    content = change(content) or content
    path.write_text(json.dumps(content))


def test_what_is_written_is_read(folder):
    assert tuned.read(CARD) is None
    path = tuned.write(CARD, Tuned(table(registers=None), 3))
    assert path == folder / "nvidia-test-1-8-gb.json" and list(folder.iterdir()) == [path]
    assert read(CARD) == table(registers=None) and tuned.kept(CARD).few_rows == 3
    assert list(read(CARD)) == list(configs.TABLE)
    content = json.loads(path.read_text())
    assert content["schema"] == "qp-kernels/tuned/1" and content["device"] == CARD
    assert content["commit"] == results.commit() and content["lines"]["k"]["few"] == MINE._asdict()
    assert {"driver", "triton", "torch", "date"} <= set(content)
    assert tuned.remove(CARD) and not tuned.remove(CARD) and tuned.read(CARD) is None


def test_where_files_are(monkeypatch, tmp_path):
    monkeypatch.setenv("QP_TUNED", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tuned.folder() == tmp_path / "qp_kernels" / "tuned"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert tuned.folder() == tmp_path / "home" / ".cache" / "qp_kernels" / "tuned"


def test_off(monkeypatch):
    tuned.write(CARD, Tuned(table(), 2))
    monkeypatch.setenv("QP_TUNED", "off")
    assert tuned.read(CARD) is None and configs.table_for(CARD) is configs.TABLE and not tuned.remove(CARD)
    with pytest.raises(ValueError, match="no place for it"):
        tuned.write(CARD, Tuned(table(), 2))


def test_the_table_of_a_card_is_what_is_kept_of_it(monkeypatch):
    assert configs.table_for(None) is configs.TABLE and configs.table_for(CARD) is configs.TABLE
    tuned.write(CARD, Tuned(table(), 2))
    configs.kept_for.cache_clear()
    assert configs.table_for(CARD) == table() and configs.table_for("another") is configs.TABLE
    monkeypatch.setattr(configs, "TABLE", {})
    assert configs.table_for(None) == {} and configs.table_for("another") == {}


def drop_a_line(content):
    del content["lines"]["k"]


def drop_a_number(content):
    del content["lines"]["k"]["few"]["depth"]


def set_in(side, **changes):
    return lambda content: content["lines"]["k"][side].update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: [1], "has the schema None"),
        (lambda content: content.update(schema="qp-kernels/tuned/2"), "has the schema 'qp-kernels/tuned/2'"),
        (lambda content: content.update(device="another"), "was measured on 'another'"),
        (lambda content: content.update(triton="3.6.1"), "was measured with Triton 3.6.1, and this is 3.7.1"),
        (lambda content: content.update(few_rows=True), "few_rows must be an int"),
        (drop_a_line, "its lines must be 'k', 'k, then mass', 'mass', 'many candidates'"),
        (lambda content: content["lines"].update(k=3), "line 'k' must have many and few"),
        (drop_a_number, "line 'k', few, must have warps"),
        (set_in("many", stages=3), "line 'k', many, must have warps"),
        (set_in("many", warps=3), "line 'k', many: warps must be a power of two up to 16, got 3"),
        (set_in("many", warps=True), "warps must be an int >= 1, got True"),
        (set_in("many", block="512"), "block must be an int >= 1, got '512'"),
        (set_in("many", block=64), "block must be a multiple of its 128 lanes, got 64"),
        (set_in("many", block=2**14), "block must be a power of two up to 8192"),
        (set_in("many", depth=256), "must hold fewer than 32768 candidates, got 32768"),
        (set_in("many", registers=8), "registers must be 24 to 255, got 8"),
        (set_in("few", warps=16, depth=32), "32 slices of 512 lanes"),
        (set_in("few", per_core=0), "per_core must be an int >= 1, got 0"),
    ],
)
def test_an_unsound_file_is_ignored_with_one_warning(folder, change, message):
    changed(folder, change)
    with pytest.warns(UserWarning, match="is ignored") as warned:
        assert tuned.read(CARD) is None
    assert message in str(warned[0].message) and str(folder) not in str(warned[0].message)
    with warnings.catch_warnings(record=True) as again:
        warnings.simplefilter("always")
        assert tuned.read(CARD) is None and configs.table_for(CARD) is configs.TABLE
    assert again == []


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xff", b"[" * 100_000])
def test_a_damaged_file_is_ignored(folder, content):
    path = tuned.write(CARD, Tuned(table(), 2))
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="nvidia-test-1-8-gb.json in the folder of tuned launch tables is ignored"):
        assert tuned.read(CARD) is None


def test_another_patch_of_triton_is_the_same(folder, monkeypatch):
    tuned.write(CARD, Tuned(table(), 2))
    monkeypatch.setattr(tuned, "triton_version", lambda: "3.7.0")
    assert tuned.read(CARD) == table()


def test_nothing_unsound_is_written(folder):
    with pytest.raises(ValueError, match="block must be"):
        tuned.write(CARD, Tuned(table(block=64), 2))
    assert not folder.exists()


def test_the_table_of_the_package_is_sound():
    for line in configs.TABLE.values():
        assert tuned.problem_of(line.many, "many") is None and tuned.problem_of(line.few, "few") is None
