// The open notebook as JupyterLab's own model has it. Needs --LabApp.expose_app_in_browser=True.
window.qp = window.qp || {};

qp.panel = () => {
  const panel = window.jupyterapp && jupyterapp.shell.currentWidget;
  return panel && panel.content && panel.content.widgets && panel.sessionContext ? panel : null;
};

qp.kernelStatus = () => {
  const session = qp.panel() && qp.panel().sessionContext.session;
  return (session && session.kernel && session.kernel.status) || 'none';
};

qp.ready = path => {
  const panel = qp.panel();
  return !!panel && panel.context.path === path && panel.context.isReady && qp.kernelStatus() === 'idle';
};

// Code cells that hold code, with what they gave.
qp.cells = () =>
  qp.panel().content.widgets
    .map((cell, index) => ({ cell, index }))
    .filter(({ cell }) => cell.model.type === 'code' && cell.model.sharedModel.getSource().trim())
    .map(({ cell, index }) => ({
      index,
      source: cell.model.sharedModel.getSource(),
      count: cell.model.executionCount,
      outputs: cell.model.outputs.toJSON(),
    }));

qp.runState = () => {
  const cells = qp.cells();
  return {
    kernel: qp.kernelStatus(),
    waiting: cells.filter(cell => cell.count === null).map(cell => cell.index),
    errors: cells.flatMap(cell =>
      cell.outputs
        .filter(output => output.output_type === 'error')
        .map(output => ({ cell: cell.index, name: output.ename, value: output.evalue, traceback: output.traceback }))
    ),
  };
};

// Widgets that stand there as an error, or never came.
qp.brokenWidgets = () =>
  [...document.querySelectorAll('.jp-OutputArea-output')]
    .map(qp.text)
    .filter(text => text === 'Loading widget...' || /Open Browser Console for more|Error (displaying|creating) widget/.test(text));

// Code that the notebook does not hold, run in its kernel.
qp.execute = async code => {
  const future = qp.panel().sessionContext.session.kernel.requestExecute({ code, store_history: false });
  const answer = { stdout: '', error: null };
  future.onIOPub = ({ header, content }) => {
    if (header.msg_type === 'stream' && content.name === 'stdout') answer.stdout += content.text;
    if (header.msg_type === 'error') answer.error = `${content.ename}: ${content.evalue}`;
  };
  await future.done;
  return answer;
};
