// What plotly drew: its data as plain lists, and whether they changed.
window.qp = window.qp || {};

qp.figures = () => [...document.querySelectorAll('.js-plotly-plot')];

qp.TYPED = {
  i1: Int8Array, u1: Uint8Array, u1c: Uint8ClampedArray, i2: Int16Array, u2: Uint16Array, i4: Int32Array, u4: Uint32Array,
  f4: Float32Array, f8: Float64Array,
};

// plotly keeps arrays as lists, typed arrays, or {dtype, bdata, shape} where bdata is base64 or raw bytes.
qp.decode = ({ dtype, bdata, shape }) => {
  const bytes = typeof bdata === 'string'
    ? Uint8Array.from(atob(bdata), c => c.charCodeAt(0))
    : new Uint8Array(bdata.buffer ? bdata.buffer.slice(bdata.byteOffset, bdata.byteOffset + bdata.byteLength) : bdata);
  const flat = Array.from(new qp.TYPED[dtype](bytes.buffer, 0, bytes.byteLength / qp.TYPED[dtype].BYTES_PER_ELEMENT));
  const [rows, columns] = String(shape ?? '').split(',').map(Number);
  return columns ? Array.from({ length: rows }, (_, r) => flat.slice(r * columns, (r + 1) * columns)) : flat;
};

qp.plain = value => {
  if (value === null || typeof value !== 'object') return typeof value === 'bigint' ? Number(value) : value;
  if (ArrayBuffer.isView(value) && !(value instanceof DataView)) return Array.from(value, Number);
  if (Array.isArray(value)) return value.map(qp.plain);
  if ('bdata' in value && 'dtype' in value) return qp.decode(value);
  return Object.fromEntries(
    Object.entries(value).filter(([name, item]) => !name.startsWith('_') && typeof item !== 'function')
      .map(([name, item]) => [name, qp.plain(item)])
  );
};

qp.figure = nth => {
  const all = qp.figures();
  if (!all[nth]) throw new Error(`no figure number ${nth}: the page shows ${all.length}`);
  return all[nth];
};

qp.plotData = nth => qp.figure(nth).data.map(qp.plain);

// [figure, trace] of the first trace of that name, in any figure.
qp.findTrace = name => {
  for (const gd of qp.figures()) {
    const trace = (gd.data || []).find(item => item.name === name);
    if (trace) return [gd, trace];
  }
  const names = qp.figures().map(gd => (gd.data || []).map(item => item.name).join(', '));
  throw new Error(`no trace named "${name}"; the figures have: ${names.join(' | ')}`);
};

qp.trace = name => qp.plain(qp.findTrace(name)[1]);

// Equal exactly when what a user sees of the data is equal, near enough for a test.
qp.print = name => {
  const { x, y, text, visible } = qp.findTrace(name)[1];
  return JSON.stringify([x, y, text, visible].map(item => qp.plain(item ?? null)));
};

// Where on the screen a share of a subplot's width and height lies ("xy" is the first, "x2y2" the second).
qp.pointInPlot = (nth, subplot, right, up) => {
  const gd = qp.figure(nth);
  gd.scrollIntoView({ block: 'center' });
  const box = gd.querySelector(`.nsewdrag[data-subplot="${subplot}"]`).getBoundingClientRect();
  return { x: box.left + right * box.width, y: box.bottom - up * box.height };
};
