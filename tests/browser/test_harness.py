"""The harness itself: each thing it is meant to notice is planted once and must be noticed."""

import chromium
import pytest
import selftest_notebooks
from lab import CellError


@pytest.fixture(scope="module")
def panel(lab, served):
    """The self-test panel, run and standing on the page in light theme."""
    selftest_notebooks.write(served)
    lab.open_notebook("selftest_panel.ipynb", theme="light")
    lab.run_all()
    return lab


def kept_count(lab):
    return sum(value == 2 for value in lab.trace("kept")["y"])


def test_runs_clean(panel):
    assert panel.console_errors == []
    assert panel.outgoing == []
    assert 0 < panel.first_figure_s < 60


def test_plot_data_are_lists(panel):
    kept, normal = panel.plot_data()
    assert (kept["name"], normal["name"]) == ("kept", "normal")
    assert kept["x"] == list(range(32))
    assert normal["y"] == pytest.approx([1 + i / 31 for i in range(32)])


@pytest.mark.parametrize(
    "packed, expected",
    [
        ("new BigInt64Array([1n, -2n])", [1, -2]),
        ("{dtype: 'f4', bdata: 'AACAPwAAAMA='}", [1, -2]),
        ("{dtype: 'i2', bdata: new DataView(new Int16Array([1, 2, 3, 4]).buffer), shape: '2, 2'}", [[1, 2], [3, 4]]),
        ("[{a: new Float64Array([NaN])}, 'x', null]", [{"a": [pytest.approx(float("nan"), nan_ok=True)]}, "x", None]),
    ],
)
def test_packed_arrays_are_decoded(panel, packed, expected):
    assert panel.page.evaluate(f"qp.plain({packed})") == expected


def test_slider_moves_by_keyboard_and_the_data_follow(panel):
    panel.set_text("k", 10)
    panel.wait_for("() => qp.sliderValue('k') === '10'")
    with panel.expect_change("kept"):
        panel.press("k", "ArrowRight", times=3)
    panel.wait_for("() => qp.sliderValue('k') === '13' && qp.trace('kept').y.filter(y => y === 2).length === 13")
    with panel.expect_change("kept"):
        panel.press("k", "Home")
    assert panel.kernel("print(k.value)") == "0\n"
    assert kept_count(panel) == 0


def test_exact_box_without_a_label_is_found_beside_its_slider(panel):
    with panel.expect_change("kept"):
        panel.set_text("k", 21)
    assert (panel.slider("k"), panel.value("k"), kept_count(panel)) == ("21", "21", 21)


def test_no_change_is_noticed(panel):
    with pytest.raises(AssertionError, match="'normal' did not change"), panel.expect_change("normal", timeout_s=0.5):
        panel.press("k", "ArrowLeft")
    with pytest.raises(Exception, match="not repainted.*did not change"):
        panel.key_to_painted_ms("p", "kept", timeout_s=0.5)


def test_text_button_checkbox_dropdown(panel):
    panel.set_text("text", "hello world")
    panel.wait_text("got hello world")
    assert panel.value("text") == "hello world"
    panel.click_button("Sample")
    panel.wait_text("sampled")
    panel.tick("min-p")
    panel.wait_text("overlay True")
    panel.choose("logits", "model")
    panel.wait_text("mode model")


def test_labels_are_matched_as_words(panel):
    assert panel.slider("p") == panel.kernel("print(f'{p.value:.2f}', end='')")
    with pytest.raises(Exception, match=r'no visible slider number 0 labelled "toke".*k \[tokens\] \| p'):
        panel.slider("toke")


@pytest.mark.parametrize(
    "wanted, label, score",
    [
        ("k", "k", 3),
        ("k", "k  tokens kept", 2),
        ("k", "exact k", 1),
        ("k", "kept", 0),
        ("p", "min-p", 0),
        ("T", "t", 0),
        ("T", "T (temperature)", 2),
        ("temperature", "T (Temperature)", 1),
        ("top-nσ", "top-nσ  n", 2),
        ("a.c", "abc", 0),
    ],
)
def test_how_well_a_label_fits(panel, wanted, label, score):
    assert panel.page.evaluate("([wanted, label]) => qp.wordMatch(wanted, label)", [wanted, label]) == score


def test_key_to_painted_is_measured(panel):
    panel.set_text("k", 5)
    took = panel.key_to_painted_ms("k", "kept")
    assert 1 < took["drawn_ms"] < took["painted_ms"] < 5_000
    assert kept_count(panel) == 6
    took = panel.entry_to_painted_ms("k", "kept", 9)
    assert 1 < took["drawn_ms"] < took["painted_ms"] < 5_000
    assert kept_count(panel) == 9


def test_slow_kernel_shows_in_key_to_painted(panel):
    panel.kernel(
        "import time; slow = lambda change: time.sleep(0.7); k.unobserve(draw, 'value'); k.observe(slow, 'value')"
    )
    panel.kernel("k.observe(draw, 'value')")
    took = panel.key_to_painted_ms("k", "kept")
    panel.kernel("k.unobserve(slow, 'value')")
    assert took["painted_ms"] > 700


def test_kernel_error_is_raised(panel):
    with pytest.raises(CellError, match="NameError.*nowhere"):
        panel.kernel("nowhere")


def plant_text(lab, fill, size):
    """Draw one label of our own into the figure's title layer."""
    lab.page.evaluate(
        """([fill, size]) => {
            const text = document.createElementNS('http://www.w3.org/2000/svg', 'text');
            for (const [name, value] of Object.entries({x: 300, y: 40, id: 'planted'})) text.setAttribute(name, value);
            text.textContent = 'planted label';
            text.style.cssText = `fill: ${fill} !important; font-size: ${size}px`;
            qp.figure(0).querySelector('.infolayer').append(text);
        }""",
        [fill, size],
    )
    found = lab.contrast_offenders()
    lab.page.evaluate("document.getElementById('planted').remove()")
    return [item for item in found if item["text"] == "planted label"]


def test_readable_in_light_and_dark(panel, tmp_path):
    assert panel.contrast_offenders() == []
    seen = {item["text"] for item in panel.page.evaluate("[...qp.figureContrast(), ...qp.htmlContrast()]")}
    assert {"rank", "logit [nat]", "k [tokens]", "Sample", "hello world"} <= seen
    light = panel.page.evaluate("qp.figureContrast()[0]")
    panel.switch_theme("dark")
    try:
        assert panel.contrast_offenders() == []
        dark = panel.page.evaluate("qp.figureContrast()[0]")
        assert max(dark["background"]) < 40 < 200 < min(light["background"])
        # Grey on JupyterLab's dark page: 4.2, enough for large text only.
        assert [(item["ratio"], item["needed"]) for item in plant_text(panel, "#777777", 12)] == [(4.22, 4.5)]
        assert plant_text(panel, "#777777", 30) == []
    finally:
        panel.switch_theme("light")


@pytest.mark.parametrize(
    "fill, bad", [("#dddddd", True), ("rgba(0, 0, 0, 0.3)", True), ("#777777", True), ("#767676", False)]
)
def test_planted_unreadable_label_is_found(panel, fill, bad):
    assert bool(plant_text(panel, fill, 12)) == bad


def test_label_over_a_bar_is_judged_against_the_bar(panel):
    """Black on white is fine; the same label on a black box is not."""
    panel.page.evaluate(
        """() => {
            const box = document.createElementNS('http://www.w3.org/2000/svg', 'rect');
            for (const [name, value] of Object.entries({x: 250, y: 0, width: 300, height: 80, fill: '#101010'}))
                box.setAttribute(name, value);
            box.id = 'planted-box';
            qp.figure(0).querySelector('.infolayer').append(box);
        }"""
    )
    assert plant_text(panel, "#000000", 12)[0]["ratio"] < 1.2
    assert plant_text(panel, "#ffffff", 12) == []
    panel.page.evaluate("document.getElementById('planted-box').remove()")


def test_unreadable_panel_text_is_found(panel):
    panel.kernel("status.value = 'faint words'; status.style.text_color = '#cccccc'")
    panel.wait_text("faint words")
    panel.wait_for("() => qp.contrastOffenders().length > 0")
    assert [(item["where"], item["text"]) for item in panel.contrast_offenders()] == [("panel", "faint words")]
    panel.kernel("status.style.text_color = None")


def test_what_is_outside_the_window_is_judged_too(panel):
    judged = "[qp.figureContrast().length, qp.htmlContrast().length]"
    inside = (panel.text(), panel.page.evaluate(judged))
    assert "harness figure" in inside[0]
    push = "pixels => { document.querySelectorAll('.jp-CodeCell')[1].style.marginTop = pixels; }"
    panel.page.evaluate(push, "5000px")
    panel.page.evaluate("document.querySelector('.jp-MarkdownCell').scrollIntoView()")
    panel.page.wait_for_timeout(300)
    outside = (panel.text(), panel.page.evaluate(judged))
    panel.page.evaluate(push, "")
    assert outside == inside


def test_clipped_label_is_found(panel):
    assert panel.clipped_texts() == []
    where = "x=1, y=.5, xref='paper', yref='paper', xanchor='left', showarrow=False"
    panel.kernel(f"fig.add_annotation(text='a label that runs out of the figure', {where})")
    panel.wait_for("() => qp.clippedTexts().length > 0")
    assert panel.clipped_texts() == ["a label that runs out of the figure"]
    panel.kernel("fig.layout.annotations = []")


def test_screenshots_show_the_theme(panel, tmp_path):
    panel.screenshot(tmp_path / "window.png")
    panel.screenshot(tmp_path / "panel.png", panel=0)
    sizes = [(tmp_path / name).read_bytes()[16:24] for name in ("window.png", "panel.png")]
    (window_w, window_h), (panel_w, panel_h) = [(int.from_bytes(s[:4]), int.from_bytes(s[4:])) for s in sizes]
    assert (window_w, window_h) == (1400, 1000)
    assert 500 < panel_w < window_w and 320 < panel_h < window_h


# What leaves traces on the page comes last.


def test_console_error_and_uncaught_exception_are_found(panel):
    panel.page.evaluate(
        "console.error('planted console error'); void setTimeout(() => { throw new Error('planted throw'); })"
    )
    panel.page.wait_for_timeout(100)
    assert [text.split(" (")[0] for text in panel.console_errors] == [
        "planted console error",
        "uncaught: planted throw",
    ]


def test_outgoing_requests_are_found_and_blocked(panel):
    urls = ["https://example.com/script.js", "http://127.0.0.1.example.com/", "wss://example.com/socket"]
    script = """async ([page, other, socket]) => {
        const failed = [];
        for (const url of [page, other]) await fetch(url, {mode: 'no-cors'}).catch(() => failed.push(url));
        await new Promise(done => {
            new WebSocket(socket).onerror = () => done(failed.push(socket));
        });
        return failed;
    }"""
    assert panel.page.evaluate(script, urls) == urls
    panel.kernel("import socket\ntry: socket.create_connection(('qp.invalid', 80), timeout=1)\nexcept OSError: pass")
    assert panel.outgoing == [*urls, "socket.getaddrinfo qp.invalid"]


def test_failing_cell_and_lost_widget_are_found(lab, served):
    selftest_notebooks.write(served)
    lab.open_notebook("selftest_error.ipynb", theme="dark")
    with pytest.raises(CellError, match="cell 2: ValueError: planted failure"):
        lab.run_all()
    assert lab.broken_widgets(patience_s=1) == ["Loading widget..."]
    assert "never reached" not in lab.text()
    assert (
        lab.page.evaluate("getComputedStyle(document.querySelector('.jp-Notebook')).backgroundColor")
        == "rgb(17, 17, 17)"
    )
    assert lab.console_errors == [] and lab.outgoing == []


def test_missing_browser_says_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.setattr(chromium.browsers, "installed", lambda: None)
    own = tmp_path / "own"
    with pytest.raises(chromium.BrowserMissing, match="playwright install --with-deps chromium"):
        chromium.executable(str(own))
    own.touch()
    assert chromium.executable(str(own)) == str(own)
    monkeypatch.setattr(chromium.browsers, "installed", lambda: ("/a/system/one", "system"))
    assert chromium.executable(str(own)) == "/a/system/one"
