// Find what a user sees by the words beside it. Runs in the JupyterLab page; knows the DOM of ipywidgets 8.
window.qp = window.qp || {};

qp.KINDS = {
  slider: { box: '.widget-slider, .widget-hslider, .widget-vslider', part: '.noUi-handle' },
  text: { box: '.widget-text, .widget-combobox, .widget-textarea', part: 'input, textarea' },
  number: { box: '.widget-text', part: 'input[type="number"]' },
  checkbox: { box: '.widget-checkbox', part: 'input[type="checkbox"]' },
  dropdown: { box: '.widget-dropdown, .widget-select', part: 'select' },
  toggles: { box: '.widget-toggle-buttons, .widget-radio', part: '.widget-toggle-button, input' },
  button: { box: '.widget-button', part: null },
};

// JupyterLab leaves cells outside the window unrendered (content-visibility); they count as visible: a user scrolls.
// For the same reason `innerText` is no use here: it is empty there.
qp.visible = el => el.checkVisibility({ visibilityProperty: true });

qp.text = el => {
  const lines = [];
  const walk = document.createTreeWalker(el, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const text = node.data.trim();
    if (text && !node.parentElement.closest('style, script') && qp.visible(node.parentElement)) lines.push(text);
  }
  return lines.join('\n');
};

qp.ownLabel = box => {
  if (box.matches('.widget-button')) return (box.textContent.trim() || box.title || '').trim();
  if (box.matches('.widget-checkbox')) return box.textContent.trim();
  const label = box.querySelector('.widget-label');
  const text = label ? label.textContent.trim() : '';
  const part = box.querySelector('input, textarea, select');
  return text || (part && (part.getAttribute('aria-label') || part.placeholder || part.title)) || box.title || '';
};

// A control without words of its own (the exact box beside a slider) goes by the words in its row.
qp.rowLabels = box =>
  [...(box.parentElement ? box.parentElement.children : [])]
    .filter(el => el !== box)
    .map(el => (el.matches('.widget-label, .widget-html, .widget-htmlmath') ? el.textContent.trim() : qp.ownLabel(el)))
    .filter(Boolean);

// 3: the very words; 2: the label starts with them; 1: they stand in it whole; 0: no. "k" is in "exact k" and "k [tokens]",
// not in "kept" nor in "k-th".
qp.wordMatch = (wanted, text) => {
  if (wanted === text) return 3;
  const escaped = wanted.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
  const flags = wanted.length === 1 ? 'u' : 'iu';
  const found = new RegExp(`(?<![\\p{L}\\p{N}_-])${escaped}(?![\\p{L}\\p{N}_-])`, flags).exec(text);
  return found ? (found.index === 0 ? 2 : 1) : 0;
};

qp.control = (label, kind, nth = 0) => {
  const { box, part } = qp.KINDS[kind];
  const seen = [];
  const found = [];
  for (const el of document.querySelectorAll(box)) {
    const target = part ? el.querySelector(part) : el;
    if (!target || !qp.visible(el)) continue;
    const own = qp.ownLabel(el);
    const row = own ? [] : qp.rowLabels(el);
    seen.push(own || `(${row.join(' / ')})`);
    const score = own ? 10 * qp.wordMatch(label, own) : Math.max(0, ...row.map(text => qp.wordMatch(label, text)));
    if (score > 0) found.push({ el, target, score });
  }
  const best = Math.max(0, ...found.map(hit => hit.score));
  const hits = found.filter(hit => hit.score === best);
  if (!hits[nth]) throw new Error(`no visible ${kind} number ${nth} labelled "${label}"; there are: ${seen.join(' | ')}`);
  return hits[nth];
};

// What the slider says of itself: the read-out when it has one, else the value of its handle.
qp.sliderValue = (label, nth = 0) => {
  const { el, target } = qp.control(label, 'slider', nth);
  const readout = el.querySelector('.widget-readout');
  return (readout && qp.visible(readout) && readout.textContent.trim()) || target.getAttribute('aria-valuetext') || target.getAttribute('aria-valuenow');
};
