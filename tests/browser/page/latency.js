// How long a user waits, by the page's own clock.
window.qp = window.qp || {};

// Resolves after the frame that is being prepared has been handed to the screen.
qp.painted = () => new Promise(resolve => requestAnimationFrame(() => {
  const channel = new MessageChannel();
  channel.port1.onmessage = () => resolve(performance.now());
  channel.port2.postMessage(null);
}));

// From the next key press until the named trace holds other data, plotly has drawn them and a frame was painted.
qp.armKeyToPaint = (name, timeout_ms) => {
  const [gd] = qp.findTrace(name);
  gd.scrollIntoView({ block: 'nearest' }); // nothing outside the window is painted
  const before = qp.print(name);
  let key_ms = null;
  qp.keyToPaint = new Promise((resolve, reject) => {
    const onKey = event => { key_ms = event.timeStamp; };
    const onPlot = () => {
      if (key_ms === null || qp.print(name) === before) return;
      const drawn_ms = performance.now() - key_ms;
      stop();
      qp.painted().then(now => resolve({ drawn_ms, painted_ms: now - key_ms }));
    };
    const late = setTimeout(() => {
      stop();
      const why = key_ms === null ? 'no key arrived' : qp.print(name) === before ? 'its data did not change' : 'plotly did not draw';
      reject(new Error(`"${name}" was not repainted within ${timeout_ms} ms: ${why}`));
    }, timeout_ms);
    const stop = () => {
      clearTimeout(late);
      document.removeEventListener('keydown', onKey, true);
      gd.removeListener('plotly_afterplot', onPlot);
    };
    document.addEventListener('keydown', onKey, { capture: true, once: true });
    gd.on('plotly_afterplot', onPlot);
  });
  qp.keyToPaint.catch(() => {}); // whoever awaits it gets the error
};

// From now until a figure with data stands on the screen; null while there is none.
qp.armFirstFigure = () => {
  const start = performance.now();
  qp.firstFigure_ms = null;
  const look = () => {
    const there = qp.figures().some(gd => gd.data && gd.data.length && gd.querySelector('.main-svg')?.getClientRects().length);
    if (there) qp.painted().then(now => { qp.firstFigure_ms = now - start; });
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
};
