"""What a user does in JupyterLab, as methods: open a notebook, run it, move sliders, read what is drawn.

Knows JupyterLab's page, ipywidgets' DOM and the classes all panels share (through `page/*.js`, the only place for
selectors); knows nothing of any one lesson or panel. Controls are found by the words beside them, traces by name.
"""

import re
import time
from contextlib import contextmanager
from pathlib import Path

import nbformat
from lab_server import THEMES
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import TimeoutError as PlaywrightTimeout

SCRIPTS = sorted((Path(__file__).resolve().parent / "page").glob("*.js"))
OUTSIDE = re.compile(r"^(https?|wss?)://(?!(127\.0\.0\.1|localhost|\[::1\])([:/?#]|$))", re.IGNORECASE)
ANSI = re.compile(r"\x1b\[[0-9;]*m")

# Errors of JupyterLab's own that no notebook can cause. Each pattern names one message; widen none.
KNOWN_CONSOLE_ERRORS: tuple[re.Pattern, ...] = ()


def write_notebook(path, *codes):
    """Write a notebook of these code cells, for the Python that serves it."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [new_code_cell(code.strip()) for code in codes]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)


class CellError(AssertionError):
    """A cell raised, a widget could not be shown, or the kernel died; the message is what a user would read."""


class Lab:
    """One browser context on one JupyterLab. `open_notebook` starts a fresh page and a fresh kernel each time."""

    def __init__(self, server, browser, width=1400, height=1000):
        self.server = server
        # Service workers answer requests out of sight of the recorder below.
        self.context = browser.new_context(viewport={"width": width, "height": height}, service_workers="block")
        for script in SCRIPTS:
            self.context.add_init_script(path=str(script))
        self.context.route(OUTSIDE, lambda route: route.abort())
        self.page = None
        self._console, self._requests, self._kernel_lines = [], [], 0

    def close(self):
        self.context.close()

    # Opening and running

    def open_notebook(self, name, theme="light", timeout_s=60):
        """Show `name` (a path in the served folder) alone, in the given theme, with a kernel that just started."""
        self._leave_page()
        self.server.shut_down_kernels()
        self.server.use_theme(theme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self._console.append(f"uncaught: {error}"))
        self.page.on("request", lambda request: self._on_request(request.url))
        self.page.on("websocket", lambda socket: self._on_request(socket.url))
        self.page.goto(f"{self.server.url}lab/tree/{name}?reset&token={self.server.token}", timeout=1000 * timeout_s)
        self.wait_for("path => window.qp && qp.ready(path)", timeout_s, name)
        self._wait_theme(theme)

    def open_panel(self, path, code, theme="light"):
        """Write a notebook of one cell that shows a panel named `explorer`, open it, run it, and wait for the panel.

        Args:
            path: Where in the served folder.
        """
        write_notebook(path, code)
        self.open_notebook(path.name, theme=theme)
        self.run_all(timeout_s=90)
        self.wait_drawn()
        self.kernel("explorer.wait(60)", 90)

    def switch_theme(self, theme):
        """Change the theme of the open page, as Settings > Theme does."""
        choose = "name => void jupyterapp.commands.execute('apputils:change-theme', {theme: name})"
        self.page.evaluate(choose, THEMES[theme])
        self._wait_theme(theme)

    def _wait_theme(self, theme):
        light = {"light": "true", "dark": "false"}[theme]
        self.wait_for("light => document.body.dataset.jpThemeLight === light", 15, light)
        self.page.wait_for_timeout(300)  # the style sheets' transitions

    def _leave_page(self):
        if self.page:
            self.page.close()
        self._console, self._requests = [], []
        self._kernel_lines = len(self.server.outgoing())

    def run_all(self, timeout_s=60, settle_s=1.0):
        """Run > Run All Cells, then wait until every cell ran, the kernel is idle and `settle_s` more have passed.

        Raises:
            CellError: as soon as a cell raises, the kernel dies or a widget cannot be shown.
            TimeoutError: with the cells that are still waiting.
        """
        self.page.evaluate("qp.armFirstFigure(); void jupyterapp.commands.execute('notebook:run-all-cells')")
        deadline = time.monotonic() + timeout_s
        while True:
            state = self.page.evaluate("qp.runState()")
            self._raise_errors(state)
            if not state["waiting"] and state["kernel"] == "idle":
                break
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"after {timeout_s} s cells {state['waiting']} wait, the kernel is {state['kernel']}"
                )
            self.page.wait_for_timeout(100)
        self.page.wait_for_timeout(1000 * settle_s)
        self._raise_errors(self.page.evaluate("qp.runState()"))
        if broken := self.broken_widgets():
            raise CellError(f"widgets that cannot be shown: {broken}")

    def wait_drawn(self, timeout_s=60):
        """Wait until a panel says what is seen; an error of a panel fails."""
        self.wait_for("() => qp.summary() !== '' || qp.error() !== ''", timeout_s)
        assert self.error == ""

    def broken_widgets(self, patience_s=5):
        """Return the texts that stand where a widget should be, once they have stood there for `patience_s`."""
        deadline = time.monotonic() + patience_s
        while (broken := self.page.evaluate("qp.brokenWidgets()")) and time.monotonic() < deadline:
            self.page.wait_for_timeout(100)
        return broken

    @staticmethod
    def _raise_errors(state):
        __tracebackhide__ = True
        if state["errors"]:
            text = [
                f"cell {e['cell']}: {e['name']}: {e['value']}\n" + ANSI.sub("", "\n".join(e["traceback"]))
                for e in state["errors"]
            ]
            raise CellError("\n".join(text))
        if state["kernel"] in ("dead", "autorestarting", "terminating", "none"):
            raise CellError(f"the kernel is {state['kernel']}")

    def kernel(self, code, timeout_s=30):
        """Run `code` in the notebook's kernel without a cell and return what it printed.

        Raises:
            CellError: it raised.
        """
        self.page.evaluate("code => { qp.answer = null; void qp.execute(code).then(a => { qp.answer = a; }); }", code)
        self.wait_for("() => qp.answer !== null", timeout_s)
        answer = self.page.evaluate("qp.answer")
        if answer["error"]:
            raise CellError(answer["error"])
        return answer["stdout"]

    @property
    def first_figure_s(self):
        """Seconds from `run_all` to the first figure on the screen; None when there is none yet."""
        found_ms = self.page.evaluate("qp.firstFigure_ms")
        return None if found_ms is None else found_ms / 1000

    # Reading

    def plot_data(self, nth=0):
        """Return the traces of figure `nth` as dicts; typed and packed arrays come as lists."""
        return self.page.evaluate("nth => qp.plotData(nth)", nth)

    def trace(self, name):
        """Return the first trace called `name`, in whichever figure."""
        return self.page.evaluate("name => qp.trace(name)", name)

    @contextmanager
    def expect_change(self, *names, timeout_s=10):
        """Assert that the data of every named trace change while the block runs or within `timeout_s` after it."""
        before = {name: self.page.evaluate("name => qp.print(name)", name) for name in names}
        yield
        for name, then in before.items():
            try:
                self.wait_for("([name, then]) => qp.print(name) !== then", timeout_s, [name, then])
            except TimeoutError:
                raise AssertionError(f"the data of {name!r} did not change within {timeout_s} s") from None

    def text(self):
        """Return the text that all outputs show (panels too; what stands in input boxes is `value`)."""
        return self.page.evaluate("[...document.querySelectorAll('.jp-OutputArea-output')].map(qp.text).join('\\n')")

    @property
    def summary(self):
        """What the panels' summary lines say."""
        return self.page.evaluate("qp.summary()")

    @property
    def error(self):
        """What the panels' status lines say is wrong; "" when nothing is."""
        return self.page.evaluate("qp.error()")

    @property
    def tokens(self):
        """The words on the chips of the panels' token strips."""
        return self.page.evaluate("qp.tokens()")

    def wait_text(self, pattern, timeout_s=10):
        """Wait until the outputs show a match of the regular expression and return the match."""
        deadline = time.monotonic() + timeout_s
        while not (match := re.search(pattern, text := self.text())):
            if time.monotonic() > deadline:
                raise AssertionError(f"no {pattern!r} within {timeout_s} s in:\n{text}")
            self.page.wait_for_timeout(50)
        return match

    def wait_for(self, predicate, timeout_s=10, argument=None):
        """Wait until the JavaScript function gives a true value and return that value."""
        try:
            return self.page.wait_for_function(predicate, arg=argument, timeout=1000 * timeout_s).json_value()
        except PlaywrightTimeout as late:
            raise TimeoutError(f"not within {timeout_s} s: {predicate} with {argument!r}") from late

    def fills_its_panel(self, nth=0):
        """Wait until a figure is as wide as its panel: one that is drawn early is fitted a moment later."""
        self.wait_for("nth => Math.abs(qp.fill(nth) - 1) <= 0.03", argument=nth)

    def screenshot(self, path, panel=None):
        """Write a PNG of the window; with `panel`, of the output that holds the figure of that number alone, whole."""
        if panel is None:
            self.page.screenshot(path=str(path))
            return
        output = "nth => qp.figure(nth).closest('.jp-OutputArea-output')"
        element = self.page.evaluate_handle(output, panel).as_element()
        window = self.page.viewport_size
        # JupyterLab scrolls inside the window: what does not fit below its bars would be missing from the picture.
        self.page.set_viewport_size(
            {**window, "height": max(window["height"], int(element.bounding_box()["height"]) + 200)}
        )
        self.page.wait_for_timeout(500)
        element.scroll_into_view_if_needed()
        self.page.wait_for_timeout(1500)  # the notebook moves its cells once more when a tall output comes into view
        element.screenshot(path=str(path))
        self.page.set_viewport_size(window)

    # Acting

    def _control(self, label, kind, nth=0):
        handle = self.page.evaluate_handle(
            "([label, kind, nth]) => qp.control(label, kind, nth).target", [label, kind, nth]
        )
        element = handle.as_element()
        element.scroll_into_view_if_needed()
        return element

    def slider(self, label, nth=0):
        """Return what the slider's read-out says."""
        return self.page.evaluate("([label, nth]) => qp.sliderValue(label, nth)", [label, nth])

    def press(self, label, key="ArrowRight", times=1, nth=0):
        """Move a slider as a keyboard user does: ArrowLeft / ArrowRight, PageUp / PageDown, Home / End."""
        self._control(label, "slider", nth).focus()
        for _ in range(times):
            self.page.keyboard.press(key)

    def value(self, label, nth=0):
        """Return what stands in the text or number box."""
        return self._control(label, "text", nth).input_value()

    def set_text(self, label, value, nth=0):
        """Type into the text or number box beside `label` and press Enter."""
        box = self._control(label, "text", nth)
        box.fill(str(value))
        box.press("Enter")

    def click_button(self, label, nth=0):
        self._control(label, "button", nth).click()

    def click_plot(self, right, up, subplot="xy", nth=0):
        """Click into a subplot of figure `nth`, at a share of its width and height."""
        place = self.page.evaluate("a => qp.pointInPlot(...a)", [nth, subplot, right, up])
        self.page.mouse.move(place["x"] - 3, place["y"])  # plotly asks what is under the pointer as it moves
        self.page.mouse.move(place["x"], place["y"])
        self.page.wait_for_timeout(200)
        self.page.mouse.click(place["x"], place["y"])

    def tick(self, label, on=True, nth=0):
        self._control(label, "checkbox", nth).set_checked(on)

    def choose(self, label, option, nth=0):
        """Choose from a drop-down list by the option's text."""
        self._control(label, "dropdown", nth).select_option(label=option)

    def key_to_painted_ms(self, label, trace, key="ArrowRight", timeout_s=10):
        """Press `key` on a slider; return {"drawn_ms", "painted_ms"} until `trace` was redrawn with other data.

        The page's clock runs from the key event to the end of the frame that shows the change. The figure is scrolled
        into view first, as nothing outside the window is painted.
        """
        handle = self._control(label, "slider")
        return self._time(handle, key, trace, timeout_s)

    def entry_to_painted_ms(self, label, trace, value, timeout_s=10):
        """Type into the box beside `label`; as `key_to_painted_ms`, from its Enter key."""
        box = self._control(label, "text")
        box.fill(str(value))
        return self._time(box, "Enter", trace, timeout_s)

    def _time(self, element, key, trace, timeout_s):
        element.focus()
        self.page.evaluate("([name, timeout_ms]) => qp.armKeyToPaint(name, timeout_ms)", [trace, 1000 * timeout_s])
        self.page.wait_for_timeout(50)
        self.page.keyboard.press(key)
        return self.page.evaluate("qp.keyToPaint")

    # Judging

    def contrast_offenders(self):
        """Return texts in figures and outputs with less contrast than WCAG AA asks (4.5, large text 3)."""
        return self.page.evaluate("qp.contrastOffenders()")

    def clipped_texts(self):
        """Return labels of figures that are cut off at the figure's edge."""
        return self.page.evaluate("qp.clippedTexts()")

    def looks_right(self):
        """Assert that every text can be read, no label is cut, and no panel says that something is wrong."""
        assert self.contrast_offenders() == []
        assert self.clipped_texts() == []
        assert self.error == ""

    def scrolls_when_narrow(self):
        """Assert that in a window of 900 pixels the figure keeps 840, and that it looks right there."""
        size = self.page.viewport_size
        self.page.set_viewport_size({**size, "width": 900})
        self.wait_for("() => qp.figure(0).offsetWidth === 840 && document.querySelector('.qp-panel').offsetWidth < 700")
        self.page.wait_for_timeout(1000)
        self.looks_right()
        self.page.set_viewport_size(size)
        self.wait_for("() => qp.figure(0).offsetWidth > 840")

    def was_quiet(self):
        """Assert that the browser met no error and nothing reached outside since `open_notebook`."""
        assert self.console_errors == [] and self.outgoing == []

    @property
    def console_errors(self):
        """Errors in the browser's console since `open_notebook`, without `KNOWN_CONSOLE_ERRORS`."""
        return [text for text in self._console if not any(known.search(text) for known in KNOWN_CONSOLE_ERRORS)]

    @property
    def outgoing(self):
        """What page and kernel tried to reach outside this machine since `open_notebook`; the page's were blocked."""
        return self._requests + self.server.outgoing()[self._kernel_lines :]

    def _on_console(self, message):
        if message.type == "error":
            where = message.location.get("url", "")
            self._console.append(f"{message.text} ({where})" if where else message.text)

    def _on_request(self, url):
        if OUTSIDE.match(url):
            self._requests.append(url)
