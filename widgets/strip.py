"""The text as clickable tokens, and the hook that makes a figure fit when its panel changes width."""

from __future__ import annotations

import anywidget
import traitlets


class TokenStrip(anywidget.AnyWidget):
    """Tokens in a row; a click, or Enter on a focused one, picks it.

    Attributes:
        tokens: Token strings, drawn as text (never as HTML).
        here: Index of the token whose next-token row is shown.
        readable: Indices that can be picked.
        kept, new, gained: Indices that are marked, as selected keys are: by another selection as well, by this query
            alone, and by the other alone.
        picked: [index, counter] of the latest click; the counter makes the same click twice two events.
    """

    tokens = traitlets.List(traitlets.Unicode()).tag(sync=True)
    here = traitlets.Int(-1).tag(sync=True)
    readable = traitlets.List(traitlets.Int()).tag(sync=True)
    kept = traitlets.List(traitlets.Int()).tag(sync=True)
    new = traitlets.List(traitlets.Int()).tag(sync=True)
    gained = traitlets.List(traitlets.Int()).tag(sync=True)
    picked = traitlets.List(traitlets.Int(), [-1, 0]).tag(sync=True)

    _esm = """
    const visible = text => text.replace(/\\n/g, "↵").replace(/\\t/g, "⇥").replace(/^ /, "␣");
    function render({ model, el }) {
      const box = document.createElement("div");
      box.className = "qp-tokens";
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", "tokens of the text");
      el.appendChild(box);
      const pick = index => {
        model.set("picked", [index, model.get("picked")[1] + 1]);
        model.save_changes();
      };
      const mark = () => {
        const here = model.get("here");
        [...box.children].forEach((chip, i) => chip.setAttribute("aria-current", String(i === here)));
        const chip = box.children[here];
        if (chip) box.scrollTop = Math.max(0, chip.offsetTop - box.offsetTop - 40);
      };
      const markKeys = () => {
        const kept = new Set(model.get("kept")), fresh = new Set(model.get("new"));
        const gained = new Set(model.get("gained"));
        [...box.children].forEach((chip, i) => {
          chip.classList.toggle("qp-kept", kept.has(i));
          chip.classList.toggle("qp-new", fresh.has(i));
          chip.classList.toggle("qp-gained", gained.has(i));
        });
      };
      const draw = () => {
        const focused = [...box.children].indexOf(document.activeElement);
        const readable = new Set(model.get("readable"));
        box.replaceChildren(...model.get("tokens").map((token, i) => {
          const chip = document.createElement("button");
          chip.type = "button";
          chip.className = readable.has(i) ? "qp-token" : "qp-token qp-unread";
          chip.textContent = visible(token);
          if (readable.has(i)) chip.onclick = () => pick(i);
          else chip.disabled = true;
          return chip;
        }));
        mark();
        markKeys();
        if (focused >= 0 && box.children[focused]) box.children[focused].focus();
      };
      model.on("change:tokens change:readable", draw);
      model.on("change:here", mark);
      model.on("change:kept change:new change:gained", markKeys);
      draw();
      let width = 0;  // a hidden tab has width 0: the figure is fitted when it is shown
      const fit = () => window.dispatchEvent(new Event("resize"));
      const watch = new ResizeObserver(() => {
        if (el.offsetWidth !== width) { width = el.offsetWidth; if (width) requestAnimationFrame(fit); }
      });
      watch.observe(el);
      document.addEventListener("plotlywidget-after-render", fit);
      // A figure may be drawn before this listens, and after the panel got its width: then nothing above tells.
      const widthOf = plot => plot._fullLayout ? plot._fullLayout.width : plot.offsetWidth;
      const misfits = plot => plot.offsetWidth > 0 && Math.abs(widthOf(plot) - plot.offsetWidth) > 2;
      let looks = 0;
      const look = setInterval(() => {
        if ([...document.querySelectorAll(".js-plotly-plot")].some(misfits)) fit();
        if (++looks === 20) clearInterval(look);
      }, 150);
      return () => {
        clearInterval(look);
        watch.disconnect();
        document.removeEventListener("plotlywidget-after-render", fit);
      };
    }
    export default { render };
    """
