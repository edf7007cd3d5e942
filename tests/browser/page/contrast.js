// Can it be read? Contrast ratios as WCAG 2.2 defines them, of text as the browser computed it.
window.qp = window.qp || {};

qp.rgba = css => {
  const numbers = (css.match(/[\d.]+(?:e-?\d+)?/g) || []).map(Number);
  if (/^color\(srgb/.test(css)) return [...numbers.slice(0, 3).map(c => 255 * c), numbers[3] ?? 1];
  return css.startsWith('rgb') ? [...numbers.slice(0, 3), numbers[3] ?? 1] : null; // none, url(#gradient)
};

qp.over = (top, below) => below.map((c, i) => top[3] * top[i] + (1 - top[3]) * c);

qp.luminance = rgb => {
  const [r, g, b] = rgb.map(c => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};

qp.ratio = (a, b) => {
  const [low, high] = [qp.luminance(a), qp.luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};

qp.opacity = el => {
  let product = 1;
  for (let at = el; at; at = at.parentElement) product *= Number(getComputedStyle(at).opacity);
  return product;
};

// The colour behind an HTML element: backgrounds of it and its ancestors, the window's white below all.
qp.backgroundOf = el => {
  const layers = [];
  for (let at = el; at; at = at.parentElement) {
    const layer = qp.rgba(getComputedStyle(at).backgroundColor);
    if (layer && layer[3] > 0) layers.push(layer);
    if (layer && layer[3] === 1) break;
  }
  return layers.reverse().reduce((below, layer) => qp.over(layer, below), [255, 255, 255]);
};

qp.filled = shape => {
  const style = getComputedStyle(shape);
  const fill = qp.rgba(style.fill);
  return fill && [...fill.slice(0, 3), fill[3] * Number(style.fillOpacity) * qp.opacity(shape)];
};

// Bars reach far below a logarithmic axis and are clipped there: is the point inside every clip of the shape?
qp.unclipped = (shape, x, y) => {
  for (let at = shape; at && at.tagName !== 'svg'; at = at.parentElement) {
    const id = /#([^"')]+)/.exec(getComputedStyle(at).clipPath);
    const clip = id && document.getElementById(id[1])?.querySelector('rect');
    if (!clip) continue;
    const point = new DOMPoint(x, y).matrixTransform(at.getScreenCTM().inverse());
    const { x: left, y: top, width, height } = clip.getBBox();
    if (point.x < left || point.x > left + width || point.y < top || point.y > top + height) return false;
  }
  return true;
};

// Bars, plot backgrounds and boxes that lie under a point of the figure and are painted before `text`.
qp.backgroundInFigure = (gd, text, x, y) => {
  let colour = qp.backgroundOf(gd.querySelector('.main-svg')); // plotly's paper colour is the svg's CSS background
  for (const shape of gd.querySelectorAll('rect, path, circle, polygon')) {
    if (shape.closest('defs, .modebar') || !(shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING)) continue;
    const box = shape.getBoundingClientRect();
    if (x < box.left || x > box.right || y < box.top || y > box.bottom) continue;
    const fill = qp.filled(shape);
    if (!fill || fill[3] === 0) continue;
    const point = new DOMPoint(x, y).matrixTransform(shape.getScreenCTM().inverse());
    if (shape.isPointInFill(point) && qp.unclipped(shape, x, y)) colour = qp.over(fill, colour);
  }
  return colour;
};

qp.needed = style => {
  const size = parseFloat(style.fontSize);
  return size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
};

qp.verdict = (where, text, style, foreground, background) => ({
  where, text, ratio: qp.ratio(qp.over(foreground, background), background), needed: qp.needed(style),
  colour: foreground, background,
});

qp.figureTexts = gd =>
  [...gd.querySelectorAll('svg text')].filter(
    el => !el.closest('.modebar, .hoverlayer, defs') && el.textContent.trim() && qp.visible(el) && el.getBoundingClientRect().width > 0
  );

qp.figureContrast = () =>
  qp.figures().filter(qp.visible).flatMap((gd, nth) =>
    qp.figureTexts(gd).map(el => {
      const style = getComputedStyle(el);
      const box = el.getBoundingClientRect();
      // A label may end on another colour than it starts on: the worst of three places counts.
      return [0.1, 0.5, 0.9]
        .map(part => qp.backgroundInFigure(gd, el, box.left + part * box.width, box.top + box.height / 2))
        .map(background => qp.verdict(`figure ${nth}`, el.textContent, style, qp.filled(el), background))
        .reduce((worst, item) => (item.ratio < worst.ratio ? item : worst));
    })
  );

// Text of widgets and printed output. What is disabled is exempt, as in WCAG.
qp.htmlContrast = () =>
  [...document.querySelectorAll('.jp-OutputArea-output *')].flatMap(el => {
    if (el.closest('svg, .js-plotly-plot, style, script, option, :disabled') || !qp.visible(el)) return [];
    const typed = el.matches('input:not([type="checkbox"]):not([type="radio"]), textarea') ? el.value : '';
    const text = [...el.childNodes].filter(node => node.nodeType === Node.TEXT_NODE).map(node => node.data).join('').trim();
    if (!text && !typed) return [];
    const style = getComputedStyle(el);
    const colour = qp.rgba(style.color);
    colour[3] *= qp.opacity(el);
    return [qp.verdict('panel', text || typed, style, colour, qp.backgroundOf(el))];
  });

// Ratios are rounded to two places before they are judged, as usual checkers do.
qp.contrastOffenders = () =>
  [...qp.figureContrast(), ...qp.htmlContrast()]
    .map(item => ({ ...item, ratio: Math.round(100 * item.ratio) / 100 }))
    .filter(item => item.ratio < item.needed);

// Labels that reach beyond their figure and are cut off.
qp.clippedTexts = () =>
  qp.figures().filter(qp.visible).flatMap(gd => {
    const frame = gd.getBoundingClientRect();
    return qp.figureTexts(gd).filter(el => {
      const box = el.getBoundingClientRect();
      return box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
    }).map(el => el.textContent);
  });
