// Launches, steps, units and cores over time.

const LABELS = 92, AXIS = 18, MINIMAP = 34;

// What is drawn of the steps of one stream: a cell for each, or for those that share a pixel, with the longest of them.
function cellsIn(run, stream, view, width) {
  const cells = [], pixel = view.span / width;
  for (const launch of run.launches) {
    if (launch.stream !== stream || launch.start_us > view.to || launch.start_us + launch.us < view.from) continue;
    const kernel = run.kernels[launch.kernel], base = launch.start_us;
    if (!kernel.steps.length) continue;
    if (kernel.total < pixel) {
      cells.push({
        from: base,
        to: base + kernel.total,
        launch,
        step: kernel.longest,
        first: 0,
        end: kernel.steps.length,
      });
      continue;
    }
    let i = kernel.stepAt(view.from - base);
    while (i < kernel.steps.length && base + kernel.starts[i] < view.to) {
      const from = base + kernel.starts[i];
      let longest = kernel.steps[i], end = i + 1;
      while (end < kernel.steps.length && base + kernel.starts[end + 1] - from < pixel) {
        if (kernel.steps[end].us > longest.us) longest = kernel.steps[end];
        ++end;
      }
      cells.push({ from, to: base + kernel.starts[end], launch, step: longest, first: i, end });
      i = end;
    }
  }
  return cells;
}

// Calls of eager ops of a stream in sight; those that share a pixel as one, with the longest of them.
function eagerIn(run, stream, view, width) {
  const cells = [], pixel = view.span / width;
  for (const call of run.eagerCalls) {
    const from = call.start_us, to = from + call.us;
    if (call.stream !== stream || from > view.to || to < view.from) continue;
    const before = cells.at(-1);
    if (before && to - before.from < pixel) {
      Object.assign(before, { to, count: before.count + 1 });
      if (call.us > before.call.us) before.call = call;
    } else cells.push({ from, to, call, count: 1 });
  }
  return cells;
}

const eagerColour = ({ op }) => op.fallback ? kindColour("fallback") : kindColour("pointwise");

// The parts of a step by unit, from its start: [begin, end].
function partsOf(step) {
  const { begin_us, compute_us, memory_us, ring_us } = step.raw, work = Math.max(step.us - ring_us, 0);
  const until = (us) => Math.min(begin_us + us, Math.max(work, begin_us));
  return {
    start: [0, begin_us],
    matrix: step.isProduct ? [begin_us, until(compute_us)] : null,
    vector: step.isProduct ? null : [begin_us, until(compute_us)],
    dram: [begin_us, until(memory_us)],
    ring: [step.us - ring_us, step.us],
  };
}

const UNITS = [["matrix", "matrix unit"], ["vector", "vector unit"], ["dram", "DRAM"], ["ring", "ring"], [
  "start",
  "start-up",
]];

class Timeline {
  constructor(run, { cores = true, onmove = () => {} } = {}) {
    this.run = run;
    this.showCores = cores;
    this.window = new Window(run.begin, run.end, 0.05, () => {
      this.plot.redraw();
      this.map?.redraw();
      onmove(this.window);
    });
    this.plot = new Plot(
      "Timeline: launches, steps, units and cores over modelled time; " +
        "zoom with + and -, pan with a and d, steps with the arrows",
      (...sizes) => this.draw(...sizes),
    );
    steer(this.plot, this.window, LABELS, {
      click: (event, x, y) => this.click(x, y),
      hover: (event, x, y) => this.hover(event, x, y),
    });
    this.plot.canvas.addEventListener("dblclick", (event) => {
      const hit = this.hit(...this.plot.at(event));
      if (hit) this.window.show(hit.from, hit.to);
    });
    this.rows = this.layOut();
    this.plot.canvas.style.height = `${this.rows.height}px`;
  }

  layOut() {
    const rows = [];
    let y = AXIS + 6;
    const add = (kind, label, height, gap, more) => {
      rows.push({ kind, label, y, height, ...more });
      y += height + gap;
    };
    for (const stream of this.run.streams) {
      const of = this.run.streams.length > 1 ? ` ${stream}` : "";
      add("launch", `launches${of}`, 18, 3, { stream });
      add("step", `steps${of}`, 30, this.run.eagerCalls.length ? 3 : 8, { stream });
      if (this.run.eagerCalls.length) add("eager", `eager ops${of}`, 18, 8, { stream });
    }
    for (const [unit, label] of UNITS) add("unit", label, 15, 2, { unit });
    y += 8;
    if (this.showCores) {
      for (let core = 0; core < this.run.card.cores; ++core) {
        add("core", core % 4 ? "" : `core ${core}`, 7, 1, { core });
      }
    }
    rows.height = y + 4;
    return rows;
  }

  x(us) {
    return LABELS + this.window.x(us, this.plot.width - LABELS);
  }

  draw(context, width) {
    const inner = width - LABELS, chosen = app.runs[app.state.run] === this.run ? theStep() : null;
    this.cells = new Map(this.run.streams.map((stream) => [stream, cellsIn(this.run, stream, this.window, inner)]));
    drawTimeAxis(context, this.window, LABELS, width, 8, time);
    context.save();
    context.beginPath();
    context.rect(LABELS, 0, inner, this.rows.height);
    context.clip();
    for (const row of this.rows) {
      context.fillStyle = colour("row");
      context.fillRect(LABELS, row.y, inner, row.height);
      if (row.kind === "launch") this.drawLaunches(context, row);
      else if (row.kind === "step") this.drawSteps(context, row, chosen);
      else if (row.kind === "eager") this.drawEager(context, row, inner);
      else for (const cells of this.cells.values()) for (const cell of cells) this.drawPart(context, row, cell);
    }
    if (chosen) this.drawChosen(context, chosen);
    context.restore();
    context.fillStyle = colour("soft");
    for (const row of this.rows) if (row.label) context.fillText(row.label, 4, row.y + row.height / 2 + 1);
  }

  drawLaunches(context, row) {
    for (const launch of this.run.launches) {
      if (
        launch.stream !== row.stream || launch.start_us > this.window.to ||
        launch.start_us + launch.us < this.window.from
      ) continue;
      const left = this.x(launch.start_us), right = Math.max(this.x(launch.start_us + launch.us), left + 1);
      context.fillStyle = colour(launch.kernel % 2 ? "launch-odd" : "launch");
      context.fillRect(left, row.y, right - left - (right - left > 3 ? 1 : 0), row.height);
      this.label(context, this.run.kernels[launch.kernel].short, left, right, row, colour("on-launch"));
    }
  }

  drawSteps(context, row, chosen) {
    for (const { from, to, step, first, end } of this.cells.get(row.stream)) {
      const left = this.x(from), right = Math.max(this.x(to), left + 1);
      context.fillStyle = kindColour(step.kind);
      context.globalAlpha = chosen && chosen.raw.source !== step.raw.source ? 0.55 : 1;
      context.fillRect(left, row.y, right - left - (right - left > 3 ? 1 : 0), row.height);
      context.globalAlpha = 1;
      if (end - first === 1) this.label(context, step.op, left, right, row, colour("on-kind"));
    }
  }

  drawEager(context, row, inner) {
    for (const { from, to, call, count } of eagerIn(this.run, row.stream, this.window, inner)) {
      const left = this.x(from), right = Math.max(this.x(to), left + 1);
      context.fillStyle = eagerColour(call);
      context.fillRect(left, row.y, right - left - (right - left > 3 ? 1 : 0), row.height);
      if (count === 1) this.label(context, call.op.aten.replace(/^aten\./, ""), left, right, row, colour("on-kind"));
    }
  }

  // When a unit or a core works; of several steps in one pixel, the stronger the longer it does.
  drawPart(context, row, { from, to, step, first, end }) {
    const part = row.kind === "unit" ? row.unit : row.core, busy = step.kernel.busy(part), us = busy[end] - busy[first];
    if (us <= 0) return;
    context.fillStyle = row.kind === "unit" ? colour(`unit-${row.unit}`) : kindColour(step.kind);
    if (end - first > 1) {
      context.globalAlpha = Math.min(1, 0.12 + 0.88 * us / (to - from));
      context.fillRect(this.x(from), row.y, Math.max(this.x(to) - this.x(from), 1), row.height);
      context.globalAlpha = 1;
      return;
    }
    const [begins, ends] = row.kind === "unit" ? partsOf(step)[part] : [0, step.us];
    context.fillRect(
      this.x(from + begins),
      row.y,
      Math.max(this.x(from + ends) - this.x(from + begins), 0.5),
      row.height,
    );
  }

  drawChosen(context, chosen) {
    context.strokeStyle = colour("accent");
    context.lineWidth = 2;
    for (const launch of this.run.launches) {
      if (launch.kernel !== chosen.kernel.number) continue;
      const left = this.x(launch.start_us + chosen.start), right = this.x(launch.start_us + chosen.start + chosen.us);
      if (right < LABELS || left > this.plot.width) continue;
      context.strokeRect(left - 1, AXIS + 4, Math.max(right - left, 2) + 1, this.rows.height - AXIS - 8);
    }
    context.lineWidth = 1;
  }

  label(context, text, left, right, row, ink) {
    const begin = Math.max(left, LABELS);
    if (right - begin < 34) return;
    context.save();
    context.beginPath();
    context.rect(begin, row.y, right - begin - 3, row.height);
    context.clip();
    context.fillStyle = ink;
    context.fillText(text, begin + 4, row.y + row.height / 2 + 1);
    context.restore();
  }

  // What is at a point: a launch, or a step of one.
  hit(x, y) {
    const row = this.rows.find((each) => y >= each.y && y < each.y + each.height + 1);
    if (!row || x < LABELS) return null;
    const us = this.window.value(x - LABELS, this.plot.width - LABELS);
    if (row.kind === "eager") {
      const near = this.window.span / (this.plot.width - LABELS);
      const call = this.run.eagerCalls.find((each) =>
        each.stream === row.stream && us >= each.start_us && us < each.start_us + Math.max(each.us, near)
      );
      return call ? { row, call, from: call.start_us, to: call.start_us + call.us } : null;
    }
    for (const launch of this.run.launches) {
      if (
        us < launch.start_us || us >= launch.start_us + launch.us || (row.stream ?? launch.stream) !== launch.stream
      ) continue;
      const kernel = this.run.kernels[launch.kernel];
      if (row.kind === "launch") return { row, launch, kernel, from: launch.start_us, to: launch.start_us + launch.us };
      const step = kernel.steps[kernel.stepAt(us - launch.start_us)];
      if (step && us - launch.start_us < kernel.total) {
        return {
          row,
          launch,
          kernel,
          step,
          from: launch.start_us + step.start,
          to: launch.start_us + step.start + step.us,
        };
      }
    }
    return null;
  }

  click(x, y) {
    const hit = this.hit(x, y);
    if (hit?.step) pickStep(hit.step);
    else if (hit) this.window.set(hit.from, hit.to);
  }

  hover(event, x, y) {
    const hit = this.hit(x, y);
    if (!hit) return tip.hide();
    if (hit.call) {
      const { op, start_us, us, stream } = hit.call, { short, code } = this.run.source(op.source);
      return tip.show(event, op.aten, [
        ["ran on", op.fallback ? "the CPU" : "the card"],
        op.fallback && ["why", op.fallback],
        ["stream", String(stream)],
        ["start", time(start_us)],
        ["time", time(us)],
        ["source", `${short} ${code}`.trim()],
      ]);
    }
    if (hit.step) {
      const core = hit.row.kind === "core" && [`core ${hit.row.core}`, hit.step.uses(hit.row.core) ? "works" : "idle"];
      return tip.show(event, hit.step.op, [core, ["at", time(hit.from)], ...hit.step.facts()]);
    }
    return tip.show(event, hit.kernel.name, [
      ["launch", String(hit.launch.number)],
      ["stream", String(hit.launch.stream)],
      ["start", time(hit.launch.start_us)],
      ["time", time(hit.launch.us)],
      ["at least", time(hit.kernel.raw.bound_us)],
      ["steps", whole(hit.kernel.steps.length)],
    ]);
  }

  showStep(step) {
    const launch =
      this.run.launches.find((each) =>
        each.kernel === step.kernel.number && each.start_us + each.us > this.window.from
      ) ||
      this.run.launches.find((each) => each.kernel === step.kernel.number);
    if (launch) this.window.show(launch.start_us + step.start, launch.start_us + step.start + step.us);
  }

  // The whole run above, with the part in sight framed.
  minimap() {
    const all = new Window(this.run.begin, this.run.end, 0.05, () => {});
    this.map = new Plot("Overview of the run", (context, width, height) => {
      for (const stream of this.run.streams) {
        for (const { from, to, step } of cellsIn(this.run, stream, all, width)) {
          context.fillStyle = kindColour(step.kind);
          context.fillRect(all.x(from, width), 4, Math.max(all.x(to, width) - all.x(from, width), 1), height - 8);
        }
        for (const { from, to, call } of eagerIn(this.run, stream, all, width)) {
          context.fillStyle = eagerColour(call);
          context.fillRect(all.x(from, width), 4, Math.max(all.x(to, width) - all.x(from, width), 1), height - 8);
        }
      }
      const left = all.x(this.window.from, width), right = all.x(this.window.to, width);
      context.fillStyle = colour("veil");
      context.fillRect(0, 0, left, height);
      context.fillRect(right, 0, width - right, height);
      context.strokeStyle = colour("accent");
      context.strokeRect(left + 0.5, 0.5, Math.max(right - left - 1, 1), height - 1);
    });
    this.map.canvas.style.height = `${MINIMAP}px`;
    const centre = (event) => {
      if (!(event.buttons & 1)) return;
      const at = all.value(this.map.at(event)[0], this.map.width), half = this.window.span / 2;
      this.window.set(at - half, at + half);
    };
    this.map.canvas.addEventListener("pointerdown", (event) => {
      this.map.canvas.setPointerCapture(event.pointerId);
      centre(event);
    });
    this.map.canvas.addEventListener("pointermove", centre);
    return this.map.canvas;
  }
}

function legend(...more) {
  return el(
    "ul",
    { class: "legend" },
    [["product", "matrix products, attention"], ["pointwise", "pointwise"], ["reduction", "reductions"], [
      "move",
      "moves",
    ], ...more].map(([kind, text]) =>
      el("li", {}, el("span", { class: "swatch", style: { background: `var(--kind-${kind})` } }), text)
    ),
  );
}

const timelineView = {
  id: "timeline",
  title: "Timeline",

  build(root) {
    this.root = root;
  },

  update() {
    if (this.shown !== theRun()) this.open(theRun());
    const [from, to] = (app.state.more.t || "").split("-").map(Number), { window } = this.timeline;
    if (
      isFinite(from) && to > from &&
      (Math.abs(from - window.from) > window.span * 1e-3 || Math.abs(to - window.to) > window.span * 1e-3)
    ) window.set(from, to);
    this.timeline.plot.redraw();
  },

  open(run) {
    this.shown = run;
    this.timeline = new Timeline(run, { onmove: (window) => this.remember(window) });
    fill(
      this.root,
      el(
        "div",
        { class: "bar" },
        zoomButtons(() => this.timeline.window, () => this.toSelection()),
        legend(...(run.eagerCalls.some((call) => call.op.fallback) ? [["fallback", "the CPU"]] : [])),
        !run.launched && run.kernels.length > 0 &&
          el("span", { class: "soft", text: "Nothing was launched: kernels are shown one after the other." }),
      ),
      this.timeline.minimap(),
      this.timeline.plot.canvas,
    );
    this.timeline.plot.canvas.addEventListener("keydown", (event) => {
      if (event.key === "f") this.toSelection();
    });
  },

  toSelection() {
    const step = theStep();
    if (step) this.timeline.showStep(step);
    else say("Nothing is selected: click a step.");
  },

  remember(window) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      if (app.state.view !== "timeline") return;
      const all = window.span >= window.high - window.low;
      go({ more: { t: all ? "" : `${window.from.toFixed(3)}-${window.to.toFixed(3)}` } }, { replace: true });
    }, 300);
  },
};
