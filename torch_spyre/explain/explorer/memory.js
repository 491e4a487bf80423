// LX and the pool over time: addresses down, steps across.

// Bytes in use at every step, the largest gap, and the share of free bytes outside of it.
function occupancy(kernel, buffers, sizeOf, budget) {
  const changes = Array.from({ length: kernel.steps.length + 1 }, () => [[], []]);
  for (const buffer of buffers) {
    changes[Math.max(buffer.first, 0)]?.[0].push(buffer);
    changes[Math.min(buffer.last + 1, kernel.steps.length)]?.[1].push(buffer);
  }
  const live = new Set();
  return kernel.steps.map((_, step) => {
    for (const buffer of changes[step][1]) live.delete(buffer);
    for (const buffer of changes[step][0]) live.add(buffer);
    let used = 0, end = 0, gap = 0;
    for (const buffer of [...live].sort((a, b) => a.address - b.address)) {
      const begin = Math.max(buffer.address, end), last = Math.max(buffer.address + sizeOf(buffer), end);
      gap = Math.max(gap, begin - end);
      used += last - begin;
      end = last;
    }
    const free = Math.max(budget - used, 0);
    gap = Math.max(gap, budget - end, 0);
    return { used, live: live.size, gap, fragmentation: free > 0 ? 1 - gap / free : 0 };
  });
}

const MAP_LEFT = 74, CURVE = 70;

class MemoryMap {
  constructor(kernel, place, axis, core) {
    Object.assign(this, { kernel, place, axis, core });
    const { card } = kernel.run;
    this.buffers = kernel.buffers.filter((buffer) => buffer.place === place);
    this.sizeOf = place === "lx" ? (buffer) => buffer.core_bytes : (buffer) => buffer.bytes;
    const end = Math.max(...this.buffers.map((buffer) => buffer.address + this.sizeOf(buffer)), 128);
    this.budget = place === "lx" ? card.lx_budget : end;
    // A few small buffers get the height that all of LX would have: power of two of the bytes in use.
    this.high = place === "lx" ? Math.min(card.lx_bytes, Math.max(2 ** Math.ceil(Math.log2(end)), 1024)) : end;
    this.occupancy = occupancy(kernel, this.buffers, this.sizeOf, this.budget);
    this.window = new Window(
      0,
      axis === "us" ? kernel.total || 1 : Math.max(kernel.steps.length, 1),
      axis === "us" ? 0.05 : 1,
      () => this.plot.redraw(),
    );
    this.plot = new Plot(
      `${place === "lx" ? `LX of core ${core}` : "The pool"}: addresses over time; zoom with + and -, pan with a and d`,
      (...sizes) => this.draw(...sizes),
    );
    this.plot.canvas.classList.add("map");
    steer(this.plot, this.window, MAP_LEFT, {
      click: (event, x, y) => this.click(x, y),
      hover: (event, x, y) => this.hover(event, x, y),
    });
  }

  // Steps on the axis: their number, or when they start.
  position(step) {
    return this.axis === "us" ? this.kernel.starts[Math.min(step, this.kernel.steps.length)] : step;
  }
  x(value) {
    return MAP_LEFT + this.window.x(value, this.plot.width - MAP_LEFT);
  }
  y(address) {
    return 6 + (1 - address / this.high) * (this.plot.height - CURVE - AXIS - 18);
  }
  stepAt(x) {
    const value = this.window.value(x - MAP_LEFT, this.plot.width - MAP_LEFT);
    return Math.min(this.axis === "us" ? this.kernel.stepAt(value) : Math.floor(value), this.kernel.steps.length - 1);
  }

  // Whether this core has a part of a buffer: whoever wrote it there does.
  isHere(buffer) {
    return this.place !== "lx" || !this.kernel.steps[buffer.first] || this.kernel.steps[buffer.first].uses(this.core);
  }

  draw(context, width, height) {
    const bottom = this.y(0), step = theStep(), chosen = theBuffer();
    context.fillStyle = colour("row");
    context.fillRect(MAP_LEFT, this.y(this.high), width - MAP_LEFT, bottom - this.y(this.high));
    this.drawAddresses(context, width);
    context.save();
    context.beginPath();
    context.rect(MAP_LEFT, 0, width - MAP_LEFT, height);
    context.clip();
    for (const buffer of this.buffers) this.drawBuffer(context, buffer, buffer === chosen, step);
    if (this.place === "lx") this.drawBudget(context, width);
    if (step?.kernel === this.kernel) {
      context.fillStyle = colour("accent-soft");
      const left = this.x(this.position(step.index));
      context.fillRect(left, 0, Math.max(this.x(this.position(step.index + 1)) - left, 1.5), height);
    }
    this.drawCurve(context, width, height - AXIS - CURVE, CURVE - 8);
    context.restore();
    drawTimeAxis(
      context,
      this.window,
      MAP_LEFT,
      width,
      height - 14,
      this.axis === "us" ? time : (value) => (Number.isInteger(value) ? `step ${value}` : ""),
    );
  }

  drawAddresses(context, width) {
    context.strokeStyle = colour("line");
    context.fillStyle = colour("soft");
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      const y = Math.round(this.y(share * this.high)) + 0.5;
      context.beginPath();
      context.moveTo(MAP_LEFT, y);
      context.lineTo(width, y);
      context.stroke();
      context.fillText(bytes(Math.round(share * this.high)), 4, Math.max(y, 8));
    }
  }

  drawBuffer(context, buffer, chosen, step) {
    const left = this.x(this.position(buffer.first)), right = this.x(this.position(buffer.last + 1));
    if (right < MAP_LEFT || left > this.plot.width) return;
    const top = this.y(buffer.address + this.sizeOf(buffer)),
      tall = Math.max(this.y(buffer.address) - top, 1),
      wide = Math.max(right - left, 1);
    const used = step?.kernel === this.kernel && [...step.raw.reads, ...step.raw.writes].includes(buffer.index);
    context.globalAlpha = this.isHere(buffer) ? 1 : 0.25;
    context.fillStyle = kindColour(this.kernel.steps[buffer.first]?.kind || "move");
    context.fillRect(left, top, wide - (wide > 4 ? 1 : 0), tall - (tall > 4 ? 1 : 0));
    context.globalAlpha = 1;
    if (chosen || used) {
      context.strokeStyle = colour("accent");
      context.lineWidth = 2;
      context.strokeRect(left + 1, top + 1, Math.max(wide - 3, 1), Math.max(tall - 3, 1));
      context.lineWidth = 1;
    }
    if (wide > 40 && tall > 12) {
      context.save();
      context.beginPath();
      context.rect(left, top, wide - 4, tall);
      context.clip();
      context.fillStyle = colour("on-kind");
      context.fillText(buffer.name, Math.max(left, MAP_LEFT) + 4, top + Math.min(tall / 2, 12));
      context.restore();
    }
  }

  drawBudget(context, width) {
    context.fillStyle = colour("bad");
    if (this.budget > this.high) {
      const text = `budget ${bytes(this.budget)}, ${significant(this.budget / this.high)} times this height`;
      context.fillText(text, width - context.measureText(text).width - 6, 14);
      return;
    }
    const y = this.y(this.budget);
    context.strokeStyle = colour("bad");
    context.setLineDash([6, 4]);
    context.beginPath();
    context.moveTo(MAP_LEFT, y);
    context.lineTo(width, y);
    context.stroke();
    context.setLineDash([]);
    context.fillText(`budget ${bytes(this.budget)}`, width - 120, y - 8);
  }

  // Bytes in use below the map, and over them, as a line, how fragmented the rest is.
  drawCurve(context, width, top, tall) {
    context.fillStyle = colour("row");
    context.fillRect(MAP_LEFT, top, width - MAP_LEFT, tall);
    const first = Math.max(this.stepAt(MAP_LEFT), 0), last = Math.max(this.stepAt(width), 0);
    context.fillStyle = colour("unit-dram");
    let line = null;
    context.beginPath();
    for (let step = first; step <= last; ++step) {
      const left = this.x(this.position(step)),
        right = this.x(this.position(step + 1)),
        { used, fragmentation } = this.occupancy[step];
      const y = top + tall * (1 - Math.min(fragmentation, 1));
      context.fillRect(
        left,
        top + tall * (1 - Math.min(used / this.budget, 1)),
        Math.max(right - left, 1),
        tall * Math.min(used / this.budget, 1),
      );
      if (line === null) context.moveTo(left, y);
      else context.lineTo(left, y);
      context.lineTo(right, y);
      line = y;
    }
    context.strokeStyle = colour("bad");
    context.stroke();
  }

  hit(x, y) {
    const step = this.stepAt(x), address = (1 - (y - 6) / (this.y(0) - 6)) * this.high;
    if (x < MAP_LEFT || step < 0) return null;
    return this.buffers.find((buffer) =>
      buffer.first <= step && step <= buffer.last && buffer.address <= address &&
      address < buffer.address + this.sizeOf(buffer)
    ) || null;
  }

  click(x, y) {
    const buffer = this.hit(x, y), step = this.kernel.steps[this.stepAt(x)];
    if (buffer) pickBuffer(this.kernel, buffer);
    else if (step && x >= MAP_LEFT) pickStep(step);
  }

  hover(event, x, y) {
    if (x < MAP_LEFT || !this.occupancy.length) return tip.hide();
    const buffer = this.hit(x, y), step = this.kernel.steps[this.stepAt(x)], found = this.occupancy[step.index];
    const moment = [["at", `step ${step.index} ${step.op}`], [
      "in use",
      `${bytes(found.used)} of ${bytes(this.budget)} (${percent(found.used / this.budget)}), ${
        plural(found.live, "buffer")
      }`,
    ], ["largest gap", `${bytes(found.gap)}; ${percent(found.fragmentation)} of what is free is elsewhere`]];
    if (!buffer) return tip.show(event, this.place === "lx" ? `LX of core ${this.core}` : "pool", moment);
    return tip.show(event, buffer.name, [
      [
        "size",
        `${bytes(this.sizeOf(buffer))}${this.place === "lx" ? " of each core" : ""} at ${hexadecimal(buffer.address)}`,
      ],
      ["host", `${buffer.dtype} ${list(buffer.size)}`],
      ["device", `${list(buffer.layout.device_size)} by ${list(buffer.layout.stride_map)}`],
      ["lives", `steps ${buffer.first} to ${buffer.last}`],
      !this.isHere(buffer) && ["core", `core ${this.core} has no part of it`],
      ...moment,
    ]);
  }
}

const memoryView = {
  id: "memory",
  title: "LX",
  place: "lx",
  axis: "step",
  core: 0,

  build(root) {
    this.root = root;
  },

  update() {
    const kernel = theKernel(), key = [runNumber(kernel.run), kernel.number, this.place, this.axis, this.core].join();
    if (this.key !== key || this.kernel !== kernel) this.open(kernel, key);
    const step = theStep();
    if (step?.kernel === kernel && this.seen !== step) {
      this.seen = step;
      const at = this.map.position(step.index), { window } = this.map;
      if (at < window.from || at > window.to) window.set(at - window.span / 2, at + window.span / 2);
    }
    this.map.plot.redraw();
    this.others.refresh();
    this.buffers.refresh();
  },

  open(kernel, key) {
    Object.assign(this, { kernel, key, map: new MemoryMap(kernel, this.place, this.axis, this.core) });
    const again = (name) => (value) => {
      this[name] = value;
      this.update();
    };
    const { run } = kernel,
      toSelection = () => {
        const step = theStep();
        if (step?.kernel === kernel) {
          this.map.window.show(
            this.map.position(step.index),
            this.map.position(step.index + 1),
          );
        } else say("No step of this kernel is selected.");
      };
    const peak = Math.max(...this.map.occupancy.map((each) => each.used), 0),
      mean = this.map.occupancy.reduce((sum, each, i) => sum + each.used * kernel.steps[i].us, 0) / (kernel.total || 1);
    fill(
      this.root,
      el(
        "div",
        { class: "bar" },
        select(
          "Kernel",
          run.kernels.map((
            each,
          ) => [each.number, `${each.number}: ${each.short} (${plural(each.steps.length, "step")})`]),
          kernel.number,
          (number) => go({ kernel: Number(number), step: -1, buffer: -1 }),
        ),
        choice("Memory", [["lx", "LX"], ["pool", "Pool"]], () => this.place, again("place")),
        choice("Axis", [["step", "Steps"], ["us", "Time"]], () => this.axis, again("axis")),
        this.place === "lx" &&
          select(
            "Core",
            [...Array(run.card.cores).keys()].map((core) => [core, `core ${core}`]),
            this.core,
            (core) => again("core")(Number(core)),
          ),
        zoomButtons(() => this.map.window, toSelection),
        el("span", {
          class: "soft",
          text: `peak ${bytes(peak)} of ${bytes(this.map.budget)} (${
            percent(peak / this.map.budget)
          }), mean over time ${bytes(Math.round(mean))}`,
        }),
      ),
      this.map.plot.canvas,
      el("p", {
        class: "soft",
        text: "Below: bytes in use, and as a line the share of free bytes that are not in the largest gap. " +
          "Colours: the op that writes a buffer; pale: not on this core.",
      }),
      el("div", { class: "grid" }, this.notInLx(kernel), this.all(kernel)),
    );
  },

  notInLx(kernel) {
    const rows = kernel.buffers.filter((buffer) => buffer.why_not);
    this.others = new DataTable("Buffers that are not in LX", [
      { id: "name", title: "buffer", value: (row) => row.name },
      { id: "bytes", title: "bytes", value: (row) => row.bytes, text: (row) => bytes(row.bytes), number: true },
      {
        id: "saving",
        title: "would save",
        value: (row) => row.saving_us ?? 0,
        text: (row) => (row.saving_us === undefined ? "–" : time(row.saving_us)),
        number: true,
      },
      { id: "why", title: "why not", value: (row) => row.why_not, wide: true },
    ], {
      sort: ["saving", -1],
      height: "34vh",
      onpick: (row) => pickBuffer(kernel, row),
      isPicked: (row) => row === theBuffer(),
    });
    this.others.set(rows);
    return el(
      "section",
      { class: "card" },
      el("h2", { text: `Not in LX (${rows.length})` }),
      rows.length ? this.others.element : el("p", { class: "soft", text: "Every internal buffer is." }),
    );
  },

  all(kernel) {
    const { sizeOf } = this.map, steps = this.map.buffers;
    this.buffers = new DataTable("Buffers of this memory", [
      { id: "name", title: "buffer", value: (row) => row.name },
      {
        id: "address",
        title: "address",
        value: (row) => row.address,
        text: (row) => hexadecimal(row.address),
        number: true,
      },
      { id: "bytes", title: "bytes", value: sizeOf, text: (row) => bytes(sizeOf(row)), number: true },
      { id: "first", title: "first", value: (row) => row.first, number: true },
      { id: "last", title: "last", value: (row) => row.last, number: true },
      {
        id: "padding",
        title: "padding",
        value: (row) => row.padding / (row.bytes || 1),
        text: (row) => percent(row.padding / (row.bytes || 1)),
        number: true,
      },
    ], {
      sort: ["first", 1],
      height: "34vh",
      onpick: (row) => pickBuffer(kernel, row),
      isPicked: (row) => row === theBuffer(),
    });
    this.buffers.set(steps);
    return el(
      "section",
      { class: "card" },
      el("h2", { text: `${this.place === "lx" ? "In LX" : "In the pool"} (${steps.length})` }),
      this.buffers.element,
    );
  },
};
