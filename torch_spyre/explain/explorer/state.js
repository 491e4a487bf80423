// What is looked at. It lives in the address after the #, so links keep it and the browser's back button works.

const app = { runs: [], state: {}, views: [], current: null, shown: new Map() };

const DEFAULTS = { view: "summary", run: 0, kernel: -1, step: -1, buffer: -1 };

function readState() {
  const given = new URLSearchParams(location.hash.slice(1)), state = { ...DEFAULTS, more: {} };
  for (const [name, value] of given) {
    if (typeof DEFAULTS[name] === "number") state[name] = /^\d+$/.test(value) ? Number(value) : DEFAULTS[name];
    else if (name === "view") state.view = value;
    else state.more[name] = value;
  }
  if (!app.views.some((view) => view.id === state.view)) state.view = DEFAULTS.view;
  if (!app.runs[state.run]) state.run = 0;
  const kernel = app.runs[state.run].kernels[state.kernel];
  if (!kernel) state.kernel = -1;
  if (!kernel?.steps[state.step]) state.step = -1;
  if (!kernel?.buffers[state.buffer]) state.buffer = -1;
  return state;
}

function hashOf(state) {
  const out = new URLSearchParams();
  for (const name of Object.keys(DEFAULTS)) {
    if (state[name] !== DEFAULTS[name] || name === "view") out.set(name, state[name]);
  }
  for (const [name, value] of Object.entries(state.more)) if (value !== undefined && value !== "") out.set(name, value);
  return `#${out}`;
}

// Goes to another state: a new entry of the history, unless it only moves what is in sight.
function go(patch, { replace = false } = {}) {
  const more = { ...app.state.more, ...patch.more };
  const next = hashOf({ ...app.state, ...patch, more });
  if (next === location.hash) return;
  if (replace) {
    history.replaceState(null, "", next);
    app.state = readState();
  } else location.hash = next;
}

const theRun = () => app.runs[app.state.run];
const theKernel = () => theRun().kernels[app.state.kernel] || theRun().kernels[0];
const theStep = () => theRun().kernels[app.state.kernel]?.steps[app.state.step] || null;
const theBuffer = () => theRun().kernels[app.state.kernel]?.buffers[app.state.buffer] || null;

const runNumber = (run) => app.runs.indexOf(run);
const pickStep = (step, patch = {}) =>
  go({ run: runNumber(step.run), kernel: step.kernel.number, step: step.index, buffer: -1, ...patch });
const pickBuffer = (kernel, buffer, patch = {}) =>
  go({ run: runNumber(kernel.run), kernel: kernel.number, buffer: buffer.index, ...patch });

// The next or previous step of the kernel.
function moveStep(by) {
  const kernel = theKernel(), step = theStep();
  if (!kernel || !kernel.steps.length) return;
  const index = step ? Math.min(Math.max(step.index + by, 0), kernel.steps.length - 1) : 0;
  go({ kernel: kernel.number, step: index, buffer: -1 }, { replace: true });
  render();
}
