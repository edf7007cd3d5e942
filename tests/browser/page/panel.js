// The lines of text that every panel of this project has, by the classes that `widgets/theme.py` styles.
window.qp = window.qp || {};

qp.line = selector =>
  [...document.querySelectorAll(`.qp-panel ${selector}`)].filter(qp.visible).map(el => el.textContent.trim()).join('\n');

qp.summary = () => qp.line('.qp-summary');
qp.error = () => qp.line('.qp-error');
qp.caption = () => qp.line('.qp-caption');
qp.tokens = () => [...document.querySelectorAll('.qp-panel .qp-token')].filter(qp.visible).map(el => el.textContent);

// Width of a figure as a share of its panel's: 1 when it fills it.
qp.fill = nth => {
  const gd = qp.figure(nth);
  return gd.querySelector('.main-svg').getBoundingClientRect().width / gd.closest('.qp-panel').getBoundingClientRect().width;
};
