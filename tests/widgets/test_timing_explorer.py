"""TimingExplorer driven as code drives it: recorded cases as their records say, and small measurements on this CPU."""

import functools
import threading

import made_timings
import plotly.graph_objects as go
import pytest

from qp_kernels import results
from widgets import TimingExplorer
from widgets.timing_figure import timing_figure
from widgets.timing_records import open_timings
from widgets.timing_view import bandwidth, duration, size, times


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made_timings.write(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def found(folder):
    return results.read("bench_qrita", folder=folder)


@pytest.fixture
def make(open_panel):
    return functools.partial(open_panel, TimingExplorer)


def records_of(found, clock="gpu", **fields):
    return {
        r["provider"]: r
        for r in found.records
        if all(r[name] == value for name, value in fields.items()) and (r["mode"] == "wall") == (clock == "wall")
    }


def one(panel, trace_of, name):
    trace = trace_of(panel, name)
    assert len(trace.x) == 1
    return trace.x[0]


FIRST = {"rows": "gauss", "batch": 1024, "vocab": 128_256, "k": 50, "p": 0.9, "dtype": "float32", "operation": "mask"}


def test_a_recorded_case_is_drawn_as_its_records_say(make, found, trace_of):
    panel = make(found)
    wanted = records_of(found, **FIRST)
    shown = [name for name in panel.providers.every if name in made_timings.MADE]
    for row, name in enumerate(shown):
        record, trace = wanted[name], trace_of(panel, name)
        assert one(panel, trace_of, name) == record["median_us"] and trace.y[0] == row
        assert duration(record["median_us"]) in trace.customdata[0]
        assert one(panel, trace_of, f"{name}_memory") == record["peak_bytes"]
        text = trace_of(panel, "label").text[row]
        assert times(record["times_floor"]) in text and bandwidth(record["gbps"]) in text
        assert f"{duration(record['median_us'])}, {times(record['times_floor'])} that" in panel.summary
    assert list(trace_of(panel, "spread").x[:2]) == [wanted[shown[0]]["p20_us"], wanted[shown[0]]["p80_us"]]
    floor = wanted["floor_read_write"]["median_us"]
    assert list(trace_of(panel, "floor_read_write").x) == [floor] * 2
    assert max(trace_of(panel, "beyond").x) == floor
    assert set(trace_of(panel, "floor_spread").x) == {wanted["floor_read_write"][name] for name in ("p20_us", "p80_us")}
    assert list(trace_of(panel, "logits_bytes").x) == [4 * 1024 * 128_256] * 2
    assert one(panel, trace_of, "target") == wanted["qp_kernels"]["target_times_floor"] * floor
    assert panel.source.value == "recorded" and panel.caption.startswith(f"recorded on {found.caption}")


def test_the_other_floor_comes_from_a_spot_of_the_same_size(make, found, trace_of):
    panel = make(found)
    read = records_of(found, **{**FIRST, "operation": "select"})["floor_read"]["median_us"]
    assert list(trace_of(panel, "floor_read").x) == [read] * 2
    panel.batch.value = 132
    panel.wait(30)
    assert not trace_of(panel, "floor_read").x
    panel.batch.value, panel.operation.value = 1024, "select"
    panel.wait(30)
    assert max(trace_of(panel, "beyond").x) == read, "a selection is bound by reading"


def test_controls_go_from_one_recorded_case_to_the_nearest(make, found):
    panel = make(found)
    assert panel.batch.grid == [1, 16, 64, 132, 256, 1024] and panel.k.grid == [0, 10, 50, 200, 1000]
    panel.rows.value = "live"
    panel.wait(30)
    assert panel.status == "" and panel.batch.value == 1024
    panel.batch.value = 16
    panel.wait(30)
    assert panel.rows.value == "gauss" and panel.batch.value == 16
    assert "recorded cases only" in panel.status and "rows = gauss" in panel.status
    panel.batch.value = 20  # an exact entry that was not recorded
    panel.wait(30)
    assert panel.batch.value == 16
    panel.clock.value = "wall"
    panel.wait(30)
    assert set(panel.to_frame()["mode"]) == {"wall"}
    panel.batch.value = 1024
    panel.wait(30)
    assert panel.clock.value == "gpu" and "clock = gpu" in panel.status
    panel.p.value = 1.0
    panel.wait(30)
    assert panel.p.value == 1 and panel.k.value == 50 and panel.to_frame()["p"].isna().all()


def test_wrong_rows_are_said_and_drawn_hollow(make, found, trace_of):
    panel = make(found, rows="live")
    assert trace_of(panel, "vllm").marker.symbol == "square-open"
    assert trace_of(panel, "qp_kernels").marker.symbol == "circle"
    assert "3 rows wrong" in panel.summary and "3 rows wrong" in trace_of(panel, "label").text[1]
    panel.rows.value = "gauss"
    panel.wait(30)
    assert trace_of(panel, "vllm").marker.symbol == "square" and "wrong" not in panel.summary


def test_small_batches_are_told_to_be_bound_by_launches(make, found):
    panel = make(found)
    assert "launches" not in panel.summary
    panel.batch.value = 1
    panel.wait(30)
    assert "bound by launches, not by bytes" in panel.summary


@pytest.mark.parametrize("over", ["batch", "vocab", "k"])
def test_a_line_holds_every_recorded_case_along_it(make, found, trace_of, over):
    start = {"batch": {}, "vocab": {}, "k": {"p": None}}[over]
    panel = make(found, sweep=over, **start)
    fixed = {name: value for name, value in {**FIRST, **start}.items() if name != over}
    by_value = {}
    for record in found.records:
        if record["mode"] != "wall" and all(record[name] == value for name, value in fixed.items()):
            by_value.setdefault(record["provider"], {})[record[over]] = record
    for name in ("qp_kernels", "torch_sort"):
        line = dict(sorted(by_value[name].items()))
        trace = trace_of(panel, name)
        assert list(trace.x) == list(line) and list(trace.y) == [r["median_us"] for r in line.values()]
        assert list(trace_of(panel, f"{name}_memory").x) == list(line)
    floors = [r["median_us"] for _, r in sorted(by_value["floor_read_write"].items())]
    assert list(trace_of(panel, "floor_read_write").y) == floors
    assert panel.figure.layout.xaxis.type == "log" and len(panel.to_frame()) == sum(map(len, by_value.values()))
    panel.sweep.value = "off"
    panel.wait(30)
    assert len(trace_of(panel, "qp_kernels").x) == 1 and panel.figure.layout.yaxis.type == "linear"


def test_ways_are_hidden_and_shown_again(make, found, trace_of):
    panel = make(found)
    panel.providers.value = ("torch_sort", "qp_kernels")
    panel.wait(30)
    assert panel.providers.value == ("qp_kernels", "torch_sort"), "in their own order"
    assert not trace_of(panel, "vllm").x and "vLLM" not in panel.summary
    assert list(panel.figure.layout.yaxis.ticktext) == ["qp_kernels", "torch.sort"]
    boxes = dict(zip(panel.providers.every, panel.providers.children, strict=True))
    boxes["vllm"].value = True
    panel.wait(30)
    assert panel.providers.value == ("qp_kernels", "vllm", "torch_sort") and trace_of(panel, "vllm").x
    with pytest.raises(ValueError, match="providers must be of"):
        panel.providers.value = ("cub",)


def test_nothing_shown_is_no_error(make, found):
    panel = make(found, providers=())
    assert panel.status == "" and "takes" in panel.summary
    panel.sweep.value = "batch"
    panel.wait(30)
    assert panel.status == ""


def test_recorded_numbers_open_by_name_path_folder_and_results(make, folder, found, monkeypatch):
    frame = make(found).to_frame()
    for source in (folder, folder / "bench_qrita.json", str(folder / "bench_qrita.json")):
        assert make(source).to_frame().equals(frame)
    monkeypatch.setattr(results, "_folder", lambda _: folder)
    assert make("bench_qrita").to_frame().equals(frame)
    assert make(None, device="cpu").source.value == "recorded", "without a GPU the recorded numbers come first"


@pytest.mark.parametrize(
    ("source", "error"),
    [("nothing", ValueError), ("nothing.json", FileNotFoundError), (3, TypeError), ("fuzz", ValueError)],
)
def test_a_source_that_cannot_be_used_is_refused(source, error):
    before = threading.active_count()
    with pytest.raises(error):
        TimingExplorer(source)
    assert threading.active_count() == before


def test_code_gives_what_is_seen(make, folder):
    for panel in (make(folder), make(folder, sweep="batch"), make(folder, batch=16, clock="wall")):
        scope = {}
        exec(panel.code(), scope)
        key = ["batch", "provider", "median_us"]
        seen = panel.to_frame()[key].itertuples(index=False, name=None)
        assert sorted(tuple(r[name] for name in key) for r in scope["records"]) == sorted(seen)


def test_trace_names_are_stable(make, found):
    panel = make(found)
    names = [trace.name for trace in panel.figure.data]
    assert len(set(names)) == len(names) and names == [t.name for t in timing_figure(panel.providers.every).data]
    panel.sweep.value = "batch"
    panel.wait(30)
    assert [trace.name for trace in panel.figure.data] == names


def test_snapshot_and_export(make, found, trace_of, tmp_path):
    panel = make(found)
    still = panel.snapshot()
    assert isinstance(still, go.Figure) and not isinstance(still, go.FigureWidget)
    before = list(trace_of(still, "qp_kernels").x)
    panel.batch.value = 256
    panel.wait(30)
    assert list(trace_of(still, "qp_kernels").x) == before != list(trace_of(panel, "qp_kernels").x)
    text = panel.export_html(tmp_path / "view.html", slider="batch").read_text(encoding="utf-8")
    assert "B = 256" in text and 'src="http' not in text
    names, views, active = panel._slider_views("batch", 50)
    assert names == [f"B = {b:,}" for b in panel.batch.grid] and names[active] == "B = 256"
    assert panel.summary in views[active][1].values()
    with pytest.raises(ValueError, match="at least two"):
        panel.export_html(tmp_path / "x.html", slider="k")
    with pytest.raises(ValueError, match="slider must be"):
        panel.export_html(tmp_path / "x.html", slider="T")


def test_close_leaves_nothing_behind(found, widgets_alive):
    before = widgets_alive()
    panel = TimingExplorer(found)
    panel.wait(30)
    panel.close()
    assert widgets_alive() == before
    assert not panel._worker.alive and panel._view is None


def test_nearest_keeps_what_was_moved(found):
    timings = open_timings(found)
    for spot in timings.by_spot:
        assert timings.nearest(spot, "k") == spot
    wanted = next(iter(timings.by_spot))._replace(batch=100, rows="live")
    assert timings.nearest(wanted, "batch").batch == 132 and timings.nearest(wanted, "rows").rows == "live"
    assert timings.along(wanted._replace(batch=64, rows="gauss"), "batch")[0].batch == 1


def test_numbers_are_written_in_three_digits():
    assert [duration(x) for x in (9.104, 999.4, 999.6, 13_512.0, 2.5e6)] == [
        "9.1 µs",
        "999 µs",
        "1 ms",
        "13.5 ms",
        "2.5 s",
    ]
    assert [bandwidth(x) for x in (85.12, 3934.0)] == ["85.1 GB/s", "3.93 TB/s"]
    assert [size(x) for x in (0, 512, 5.25e6, 1.05e9)] == ["0 B", "512 B", "5.25 MB", "1.05 GB"]
    assert [times(x) for x in (1.234, 12.34, 1234.4)] == ["1.23 ×", "12.3 ×", "1,234 ×"]
