// Canvases: sharp on every screen, drawn at most once a frame, in the page's colours.

const colours = new Map();
function colour(name) {
  if (!colours.has(name)) {
    colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  }
  return colours.get(name);
}
const kindColour = (kind) => colour(`kind-${kind}`);
const CORE_HUES = 32;
const coreColour = (core, alpha = 1) =>
  `hsl(${(core * 360 / CORE_HUES * 5) % 360} 42% ${colour("dark") === "1" ? 42 : 70}% / ${alpha})`;

class Plot {
  constructor(label, draw, more = {}) {
    this.drawing = draw;
    this.canvas = el("canvas", { class: "plot", tabIndex: 0, role: "img", "aria-label": label, ...more });
    this.context = this.canvas.getContext("2d");
    this.width = this.height = 0;
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    Plot.all.add(this);
  }

  resize() {
    const ratio = window.devicePixelRatio || 1, { clientWidth, clientHeight } = this.canvas;
    if (!clientWidth || !clientHeight) return;
    this.width = clientWidth;
    this.height = clientHeight;
    this.canvas.width = Math.round(clientWidth * ratio);
    this.canvas.height = Math.round(clientHeight * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.render();
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      if (this.canvas.isConnected) this.render();
    });
  }

  render() {
    if (!this.width) return;
    const { context } = this;
    context.clearRect(0, 0, this.width, this.height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    this.drawing(context, this.width, this.height);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }
}
Plot.all = new Set();

// A part of a line in sight, which can be moved and zoomed.
class Window {
  constructor(low, high, least, changed) {
    Object.assign(this, { low, high, least, changed, from: low, to: high });
  }

  get span() {
    return this.to - this.from;
  }

  set(from, to) {
    const span = Math.min(Math.max(to - from, this.least), this.high - this.low);
    this.from = Math.min(Math.max(from, this.low), this.high - span);
    this.to = this.from + span;
    this.changed();
  }

  // `at`: what stays where it is, as a share of the span.
  zoom(factor, at = 0.5) {
    const fixed = this.from + at * this.span, span = this.span * factor;
    this.set(fixed - at * span, fixed + (1 - at) * span);
  }

  pan(share) {
    this.set(this.from + share * this.span, this.to + share * this.span);
  }
  fit() {
    this.set(this.low, this.high);
  }
  show(from, to) {
    const margin = (to - from) * 2;
    this.set(from - margin, to + margin);
  }
  x(value, width) {
    return (value - this.from) / this.span * width;
  }
  value(x, width) {
    return this.from + x / width * this.span;
  }
}

const KEY_ZOOM = 0.7, WHEEL_ZOOM = 0.0015, KEY_PAN = 0.2;

// Wheel and drag on a canvas, keys, and buttons for the same. `left`: pixels before the window begins.
function steer(plot, view, left, { click, hover }) {
  const { canvas } = plot;
  const share = (event) => (plot.at(event)[0] - left) / (plot.width - left);
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
      view.pan((event.deltaX || event.deltaY) / (plot.width - left));
    } else {view.zoom(
        Math.exp(event.deltaY * WHEEL_ZOOM * (event.deltaMode ? 20 : 1)),
        Math.min(Math.max(share(event), 0), 1),
      );}
  }, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    drag = { x: event.clientX, from: view.from, moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return hover(event, ...plot.at(event));
    const by = event.clientX - drag.x;
    if (Math.abs(by) > 3) drag.moved = true;
    if (!drag.moved) return undefined;
    tip.hide();
    const from = drag.from - by / (plot.width - left) * view.span;
    return view.set(from, from + view.span);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) click(event, ...plot.at(event));
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => {
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => tip.hide());
  canvas.addEventListener("keydown", (event) => {
    const actions = {
      "+": () => view.zoom(KEY_ZOOM),
      "=": () => view.zoom(KEY_ZOOM),
      w: () => view.zoom(KEY_ZOOM),
      "-": () => view.zoom(1 / KEY_ZOOM),
      s: () => view.zoom(1 / KEY_ZOOM),
      a: () => view.pan(-KEY_PAN),
      d: () => view.pan(KEY_PAN),
      0: () => view.fit(),
    };
    if (event.shiftKey && event.key === "ArrowLeft") actions[event.key] = actions.a;
    if (event.shiftKey && event.key === "ArrowRight") actions[event.key] = actions.d;
    if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    actions[event.key]();
    event.preventDefault();
    event.stopPropagation();
  });
}

function zoomButtons(getView, toSelection) {
  return el(
    "div",
    { class: "buttons", role: "group", "aria-label": "Zoom" },
    button("−", () => getView().zoom(1 / KEY_ZOOM), { title: "Zoom out (-)", "aria-label": "Zoom out" }),
    button("+", () => getView().zoom(KEY_ZOOM), { title: "Zoom in (+)", "aria-label": "Zoom in" }),
    button("◀", () => getView().pan(-KEY_PAN), { title: "Left (a)", "aria-label": "Pan left" }),
    button("▶", () => getView().pan(KEY_PAN), { title: "Right (d)", "aria-label": "Pan right" }),
    button("Fit", () => getView().fit(), { title: "All of it (0)" }),
    button("Selection", toSelection, { title: "Zoom to the selected step (f)" }),
  );
}

// Round values between two others, about so many.
function ticks(from, to, count) {
  const rough = (to - from) / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough) || rough;
  const found = [];
  for (let value = Math.ceil(from / step) * step; value <= to; value += step) found.push(value);
  return found;
}

function drawTimeAxis(context, view, left, width, y, format) {
  context.fillStyle = colour("soft");
  context.strokeStyle = colour("line");
  context.textAlign = "center";
  for (const value of ticks(view.from, view.to, (width - left) / 110)) {
    const x = Math.round(left + view.x(value, width - left)) + 0.5;
    context.beginPath();
    context.moveTo(x, y + 8);
    context.lineTo(x, y + 13);
    context.stroke();
    if (x > left + 16 && x < width - 24) context.fillText(format(value), x, y);
  }
  context.textAlign = "left";
}

// A pattern of slanted lines, for what holds nothing.
function hatch(context, strong) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const brush = tile.getContext("2d");
  brush.strokeStyle = strong;
  brush.lineWidth = 1;
  for (const shift of [-6, 0, 6]) {
    brush.beginPath();
    brush.moveTo(shift, 6);
    brush.lineTo(shift + 6, 0);
    brush.stroke();
  }
  return context.createPattern(tile, "repeat");
}
