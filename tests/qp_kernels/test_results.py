"""Results files: what goes in comes out, and what is not sound is refused on both sides."""

import json
import math
import subprocess

import numpy as np
import pytest
import torch

from qp_kernels import results

RECORDS = [{"case": "a", "k": 50, "p": None, "time_ms": 0.1 + 0.2, "hit": True}, {"case": "ü", "time_ms": 5e-324}]


@pytest.fixture
def written(tmp_path):
    return results.write("trial", RECORDS, device="cpu", command="make trial", about={"rows": 3}, folder=tmp_path)


def test_round_trip_keeps_every_bit(written, tmp_path):
    read = results.read("trial", folder=tmp_path)
    assert read.records == RECORDS and read.about == {"rows": 3} and read.command == "make trial"
    assert [type(value) for value in read.records[0].values()] == [str, int, type(None), float, bool]
    assert results.names(folder=tmp_path) == ["trial"]
    assert [path.name for path in tmp_path.iterdir()] == ["trial.json"]


def test_the_file_says_where_it_comes_from(written, tmp_path):
    read = results.read("trial", folder=tmp_path)
    assert read.versions["torch"] == torch.__version__ and read.versions["numpy"] == np.__version__
    assert "cores" in read.device and read.driver == "none" and read.clocks == {}
    assert read.date.endswith("Z") and read.commit
    assert read.device in read.caption and read.date[:10] in read.caption and "torch" in read.caption


def test_numpy_scalars_become_pythons(tmp_path):
    record = {"i": np.int32(7), "f": np.float32(0.1), "b": np.bool_(True)}
    results.write("numbers", [record], device="cpu", folder=tmp_path)
    (read,) = results.read("numbers", folder=tmp_path).records
    assert read == {"i": 7, "f": float(np.float32(0.1)), "b": True} and read["b"] is True


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "at least one"),
        ([3], "record 0 must be a mapping, got int"),
        ([{1: 2}], "record 0 has the key 1"),
        ([{"x": 1}, {"x": math.nan}], "record 1, 'x', must be finite .* got nan"),
        ([{"x": math.inf}], "must be finite"),
        ([{"x": [1]}], "got list"),
        ([{"x": {"y": 1}}], "got dict"),
        ([{"x": torch.ones(())}], "got Tensor"),
    ],
)
def test_what_is_no_flat_record_is_refused_and_nothing_written(tmp_path, records, message):
    with pytest.raises(ValueError, match=message):
        results.write("trial", records, device="cpu", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a.json", ".a", "a b", 3])
def test_names(tmp_path, name):
    for call in (lambda: results.write(name, RECORDS, folder=tmp_path), lambda: results.read(name, folder=tmp_path)):
        with pytest.raises(ValueError, match="letters, digits"):
            call()


def test_unknown_results_list_those_there_are(written, tmp_path):
    with pytest.raises(ValueError, match="no results 'other'; there are: trial"):
        results.read("other", folder=tmp_path)
    with pytest.raises(ValueError, match="there are: none"):
        results.read("other", folder=tmp_path / "absent")


def test_an_older_file_of_this_schema_is_replaced(written, tmp_path):
    results.write("trial", [{"x": 1}], device="cpu", folder=tmp_path)
    assert results.read("trial", folder=tmp_path).records == [{"x": 1}]


@pytest.mark.parametrize(
    "text", ['{"schema": "qp-kernels/results/2"}', '{"mine": 1}', "[1]", "no json", '{"schema": NaN}', ""]
)
def test_a_file_of_another_schema_is_neither_read_nor_overwritten(tmp_path, text):
    path = tmp_path / "trial.json"
    path.write_text(text)
    for call in (
        lambda: results.write("trial", RECORDS, folder=tmp_path),
        lambda: results.read("trial", folder=tmp_path),
    ):
        with pytest.raises(ValueError, match="trial.json"):
            call()
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"records": []}, "at least one"),
        ({"records": [{"x": [1]}]}, "got list"),
        ({"records": None}, "list"),
        ({"device": ""}, "device must be a string"),
        ({"date": "yesterday"}, "date must be"),
        ({"versions": {"torch": "2"}}, "versions lacks numpy, python"),
        ({"clocks": {"sm": 1}}, "clocks must hold strings"),
        ({"about": [1]}, "about must be a mapping"),
        ({"name": "other"}, "renamed"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_damaged_file_is_refused(written, tmp_path, change, message):
    written.write_text(json.dumps(json.loads(written.read_text("utf-8")) | change), "utf-8")
    with pytest.raises(ValueError, match=message):
        results.read("trial", folder=tmp_path)


def test_a_missing_field_is_refused(written, tmp_path):
    content = json.loads(written.read_text("utf-8"))
    del content["commit"]
    written.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="no sound results file.*commit"):
        results.read("trial", folder=tmp_path)


def test_a_failed_write_leaves_the_old_file(written, tmp_path, monkeypatch):
    before = written.read_text("utf-8")
    monkeypatch.setattr(results.Path, "replace", lambda *args: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        results.write("trial", [{"x": 1}], device="cpu", folder=tmp_path)
    assert written.read_text("utf-8") == before and len(list(tmp_path.iterdir())) == 1


def test_outside_of_a_clone_a_folder_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "ROOT", tmp_path)
    for call in (lambda: results.write("trial", RECORDS), lambda: results.read("trial"), results.names):
        with pytest.raises(ValueError, match="folder="):
            call()


def test_in_a_clone_the_files_are_in_data_results(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "data").mkdir()
    assert results.write("trial", RECORDS, device="cpu") == tmp_path / "data" / "results" / "trial.json"
    assert results.read("trial").commit == "unknown"


def test_the_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.delenv("QP_COMMIT", raising=False)
    assert results.commit() == "unknown"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    assert results.commit() == "unknown", "no commit yet"
    (tmp_path / "file").write_text("1")
    subprocess.run([*git, "add", "file"], cwd=tmp_path, check=True)
    subprocess.run([*git, "commit", "-qm", "first"], cwd=tmp_path, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True).stdout.strip()
    assert results.commit() == head
    (tmp_path / "file").write_text("2")
    assert results.commit() == head + "+changes"
    monkeypatch.setenv("QP_COMMIT", "abc")
    assert results.commit() == "abc", "a copy says what it was made of"


def test_quantiles():
    found = results.quantiles(range(101), "time", "_ms")
    assert found["time_median_ms"] == 50.0 and found["time_q95_ms"] == 95.0
    assert (found["time_min_ms"], found["time_max_ms"]) == (0.0, 100.0)


def test_the_results_of_this_repository_are_sound():
    for name in results.names():
        assert results.read(name).commit != "unknown"
