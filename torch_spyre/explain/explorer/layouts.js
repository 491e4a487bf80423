// A buffer as it lies on the card: sticks of 128 bytes, element by element.
//
// Sticks of the innermost device dimension go down, those of the outer ones stand side by side, in the order of memory.

const MOST_PIXELS = 4e6; // that a browser scrolls well

const ZOOMS = [1, 2, 4, 7, 12, 18, 30];

class StickMap {
  constructor(kernel, buffer) {
    Object.assign(this, {
      kernel,
      buffer,
      place: placementOf(buffer.layout, buffer.size, buffer.stride),
      colouring: "host",
    });
    const sizes = buffer.layout.device_size, rank = sizes.length;
    this.perStick = sizes[rank - 1];
    this.down = rank > 1 ? sizes[rank - 2] : 1;
    this.across = product(sizes.slice(0, Math.max(rank - 2, 0)));
    // As large as what fits, if there is little of it.
    this.cell = ZOOMS.filter((cell) => cell <= 12 && this.across * this.perStick * cell < 850).at(-1) ?? 4;
    this.cell = Math.max(this.cell, 4);
    this.plot = new Plot(`Sticks of ${buffer.name}`, (...sizes) => this.draw(...sizes));
    this.plot.canvas.classList.add("sticks");
    this.space = el("div");
    this.scroll = el(
      "div",
      {
        class: "stick-scroll",
        tabIndex: 0,
        role: "region",
        "aria-label": "Sticks, scrollable",
        onscroll: () => this.plot.redraw(),
      },
      this.space,
      this.plot.canvas,
    );
    this.readout = el("div", { class: "readout", role: "status" });
    this.plot.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.plot.canvas.addEventListener("pointerleave", () => {
      tip.hide();
    });
    this.plot.canvas.addEventListener("click", (event) => {
      this.kept = this.offsetAt(...this.plot.at(event));
      this.show(this.kept);
      this.plot.redraw();
    });
    this.scroll.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 1 : -1);
    }, { passive: false });
    this.scroll.addEventListener("keydown", (event) => {
      const by = { "+": 1, "=": 1, "-": -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      event.stopPropagation();
      this.zoom(by);
    });
    this.resize();
  }

  get rowHeight() {
    return Math.max(this.cell, 3) + (this.cell > 3 ? 2 : 0);
  }
  get blockWidth() {
    return this.perStick * this.cell + 10;
  }

  zoom(by) {
    const at = ZOOMS.findIndex((each) => each >= this.cell), [column, row] = this.origin();
    this.cell = ZOOMS[Math.min(Math.max(at + by, 0), ZOOMS.length - 1)];
    this.resize();
    this.moveTo(column, row);
    this.plot.redraw();
  }

  resize() {
    this.full = [this.across * this.blockWidth + 60, this.down * this.rowHeight + 30];
    this.space.style.width = `${Math.min(this.full[0], MOST_PIXELS)}px`;
    this.space.style.height = `${Math.min(this.full[1], MOST_PIXELS)}px`;
  }

  // Pixels of the whole picture before the part in sight: larger pictures than a browser scrolls are scrolled faster.
  offset() {
    const { scrollLeft, scrollTop, scrollWidth, scrollHeight, clientWidth, clientHeight } = this.scroll;
    const of = (at, all, view, full) => (full > MOST_PIXELS ? at / Math.max(all - view, 1) * (full - view) : at);
    return [
      of(scrollLeft, scrollWidth, clientWidth, this.full[0]),
      of(scrollTop, scrollHeight, clientHeight, this.full[1]),
    ];
  }

  origin() {
    const [x, y] = this.offset();
    return [x / this.blockWidth, y / this.rowHeight];
  }

  moveTo(column, row) {
    const { scrollWidth, scrollHeight, clientWidth, clientHeight } = this.scroll;
    const to = (at, all, view, full) => (full > MOST_PIXELS ? at / Math.max(full - view, 1) * (all - view) : at);
    this.scroll.scrollLeft = to(column * this.blockWidth, scrollWidth, clientWidth, this.full[0]);
    this.scroll.scrollTop = to(row * this.rowHeight, scrollHeight, clientHeight, this.full[1]);
  }

  // The steps whose cores are shown: the selected one, if it uses the buffer, or the first that does, with the other
  // iterations of its tile loop.
  steps() {
    const uses = (step) =>
      step && step.kernel === this.kernel &&
      (step.raw.writes.includes(this.buffer.index) || step.raw.reads.includes(this.buffer.index));
    if (uses(theStep())) return [theStep()];
    const first = this.kernel.steps.find(uses);
    return first ? first.iterations : [];
  }

  // Where those steps touch the buffer is in their OpSpec.
  async readCores() {
    const steps = this.steps(), touches = [];
    if (this.coreSteps?.length === steps.length && steps.every((step, i) => step === this.coreSteps[i])) return;
    Object.assign(this, { coreSteps: steps, touches });
    const spec = steps.length > 0 && specOf(steps[0]), text = spec && await this.kernel.run.text(spec.text);
    if (this.touches !== touches || !text) return;
    const { place, address } = this.buffer, name = place === "argument" ? `arg${address}` : `${place}@${address}`;
    for (const step of steps) {
      const parsed = parseOpSpec(text, step.raw.iteration);
      const found = parsed ? parsed.tensors.filter((tensor) => tensor.places.includes(name)) : [];
      // In place, the written operand is the last of two.
      const tensor = step.raw.writes.includes(this.buffer.index) ? found.at(-1) : found[0];
      if (tensor) touches.push({ step, spec: parsed, tensor });
    }
    this.plot.redraw();
  }

  // The first of those steps that touches an element, and its cores there; null where none does.
  touchOf(coordinates) {
    for (const { step, spec, tensor } of this.touches) {
      const cores = coresAt(spec, tensor, coordinates);
      if (cores) return { step, cores };
    }
    return null;
  }

  draw(context, width, height) {
    const [left, top] = this.offset(), { cell, rowHeight, blockWidth, perStick } = this, [x0, y0] = [54, 18];
    this.readCores();
    this.padding = hatch(context, colour("soft"));
    context.fillStyle = colour("soft");
    const firstColumn = Math.max(0, Math.floor(left / blockWidth)),
      lastColumn = Math.min(this.across - 1, Math.floor((left + width) / blockWidth));
    const firstRow = Math.max(0, Math.floor(top / rowHeight)),
      lastRow = Math.min(this.down - 1, Math.floor((top + height) / rowHeight));
    for (let row = firstRow; row <= lastRow; ++row) {
      if (rowHeight > 11 || row % Math.ceil(12 / rowHeight) === 0) {
        context.textAlign = "right";
        context.fillText(whole(row), x0 - 6, y0 + row * rowHeight - top + rowHeight / 2);
      }
    }
    context.textAlign = "left";
    context.save();
    context.beginPath();
    context.rect(x0, y0, width - x0, height - y0);
    context.clip();
    for (let column = firstColumn; column <= lastColumn; ++column) {
      for (let row = firstRow; row <= lastRow; ++row) {
        this.drawStick(
          context,
          column,
          row,
          x0 + column * blockWidth - left,
          y0 + row * rowHeight - top,
          cell,
          rowHeight,
        );
      }
    }
    this.drawMarks(context, x0 - left, y0 - top);
    context.restore();
    context.fillStyle = colour("soft");
    const outer = this.buffer.layout.device_size.slice(0, -2);
    for (let column = firstColumn; column <= lastColumn; ++column) {
      const coordinates = outer.length
        ? coordinatesAt(this.place, column * this.down * perStick).slice(0, outer.length)
        : [];
      context.fillText(
        coordinates.length ? `block ${list(coordinates)}` : "sticks",
        Math.max(x0, x0 + column * blockWidth - left),
        8,
      );
    }
  }

  // Runs of cells that look alike, as few rectangles as there are runs.
  drawStick(context, column, row, x, y, cell, rowHeight) {
    const base = (column * this.down + row) * this.perStick, tall = rowHeight - (cell > 3 ? 2 : rowHeight > 2 ? 1 : 0);
    let begin = 0, ink = null;
    const lanes = this.perStick,
      cores = this.colouring === "core" ? this.touchOf(coordinatesAt(this.place, base))?.cores : null;
    for (let lane = 0; lane <= lanes; ++lane) {
      const next = lane < lanes ? this.ink(base + lane, cores) : undefined;
      if (next === ink && lane > 0) continue;
      if (lane > 0) {
        context.fillStyle = ink === "padding" ? this.padding : ink;
        context.fillRect(x + begin * cell, y, (lane - begin) * cell, tall);
      }
      begin = lane;
      ink = next;
    }
    if (cell >= 7) {
      context.strokeStyle = colour("page");
      context.beginPath();
      for (let lane = 1; lane < lanes; ++lane) {
        context.moveTo(x + lane * cell + 0.5, y);
        context.lineTo(x + lane * cell + 0.5, y + tall);
      }
      context.stroke();
    }
    if (cell >= 18) this.drawIndices(context, base, x, y, cell, tall);
    context.strokeStyle = colour("line");
    if (rowHeight > 8) context.strokeRect(x + 0.5, y + 0.5, lanes * cell - 1, tall - 1);
  }

  // Colours: the cores of the step that are there, or where an element is on the host, in alternating tints.
  ink(offset, cores) {
    const found = describeElement(this.place, offset);
    if (!found.element) return "padding";
    if (this.colouring === "core") {
      return cores
        ? (cores.length > 1 && cores.length >= this.coreSteps[0].cores ? colour("shared") : coreColour(cores[0]))
        : colour("row-strong");
    }
    const { index } = found.element,
      tiles = index.map((at, dim) => (dim === index.length - 1 ? Math.floor(at / 64) : at));
    return colour(tiles.reduce((sum, at) => sum + at, 0) % 2 ? "tint-odd" : "tint-even");
  }

  drawIndices(context, base, x, y, cell, tall) {
    context.fillStyle = colour("ink");
    context.font = `${cell >= 30 ? 9 : 7}px system-ui, sans-serif`;
    context.textAlign = "center";
    for (let lane = 0; lane < this.perStick; ++lane) {
      const { element } = describeElement(this.place, base + lane);
      if (element) {
        context.fillText(
          String(cell >= 30 ? element.index.slice(-2).join(",") : element.index.at(-1) ?? ""),
          x + lane * cell + cell / 2,
          y + tall / 2 + 1,
          cell - 2,
        );
      }
    }
    context.textAlign = "left";
    context.font = "11px system-ui, sans-serif";
  }

  drawMarks(context, x0, y0) {
    for (const [offset, ink] of [[this.pointed, "ink"], [this.kept, "accent"]]) {
      if (offset === undefined || offset === null) continue;
      const stick = Math.floor(offset / this.perStick), lane = offset % this.perStick;
      const x = x0 + Math.floor(stick / this.down) * this.blockWidth, y = y0 + (stick % this.down) * this.rowHeight;
      context.strokeStyle = colour(ink);
      context.strokeRect(x - 0.5, y - 0.5, this.perStick * this.cell + 1, this.rowHeight);
      context.lineWidth = 2;
      context.strokeRect(x + lane * this.cell, y, Math.max(this.cell, 3), this.rowHeight - 1);
      context.lineWidth = 1;
    }
  }

  offsetAt(x, y) {
    const [left, top] = this.offset(),
      column = Math.floor((x - 54 + left) / this.blockWidth),
      row = Math.floor((y - 18 + top) / this.rowHeight);
    const lane = Math.floor((x - 54 + left - column * this.blockWidth) / this.cell);
    if (column < 0 || column >= this.across || row < 0 || row >= this.down || lane < 0 || lane >= this.perStick) {
      return null;
    }
    return (column * this.down + row) * this.perStick + lane;
  }

  facts(offset) {
    const found = describeElement(this.place, offset), { buffer } = this, touch = this.touchOf(found.coordinates);
    return [
      ["host index", found.element ? list(found.element.index) : "padding: holds no element"],
      found.element && ["host offset", whole(found.element.hostOffset)],
      ["device coordinates", list(found.coordinates)],
      ["device offset", whole(found.deviceOffset)],
      ["stick", `${whole(found.stick)}, lane ${found.coordinates.at(-1)}`],
      [
        "byte",
        `${whole(found.byte)} = ${hexadecimal(Math.floor(found.byte))} of ${
          buffer.place === "argument"
            ? `argument ${buffer.address}`
            : buffer.place === "lx"
            ? "the whole buffer"
            : `the buffer, pool ${hexadecimal(buffer.address + Math.floor(found.byte))}`
        }`,
      ],
      this.touches.length > 0 && [
        "cores",
        touch
          ? `${touch.cores.slice(0, 12).join(", ")}${
            touch.cores.length > 12 ? ` … (${touch.cores.length})` : ""
          } in step ${touch.step.index} ${touch.step.op}${touch.step.iterationText}`
          : `not touched by step ${this.coreSteps.map((step) => step.index).slice(0, 6).join(", ")}`,
      ],
    ];
  }

  point(event) {
    const offset = this.offsetAt(...this.plot.at(event));
    if (offset !== this.pointed) {
      this.pointed = offset;
      this.plot.redraw();
    }
    if (offset === null) return tip.hide();
    return tip.show(event, this.buffer.name, this.facts(offset));
  }

  show(offset) {
    if (offset === null || offset === undefined) return fill(this.readout);
    return fill(this.readout, factList(this.facts(offset)));
  }

  // Goes to a host index; false where the tensor has no such element.
  goTo(index) {
    const { size } = this.place;
    if (index.length !== size.length || index.some((at, dim) => !Number.isInteger(at) || at < 0 || at >= size[dim])) {
      return false;
    }
    const coordinates = coordinatesOf(this.place, hostOffsetOf(this.place, index));
    if (!coordinates) return false;
    this.kept = deviceOffsetOf(this.place, coordinates);
    const stick = Math.floor(this.kept / this.perStick);
    const inside = Math.max((this.kept % this.perStick) * this.cell - this.plot.width / 2, 0) / this.blockWidth;
    this.moveTo(Math.floor(stick / this.down) + inside, Math.max((stick % this.down) - 4, 0));
    this.show(this.kept);
    this.plot.redraw();
    return true;
  }
}

const layoutsView = {
  id: "layouts",
  title: "Layouts",

  build(root) {
    this.chooser = el("div", { class: "bar" });
    this.picture = el("div", { class: "picture" });
    this.table = null;
    root.append(this.chooser, this.picture);
    this.listing = el("section", { class: "card" });
    root.append(this.listing);
  },

  // The selected buffer, or what the selected step writes, or the first.
  buffer(kernel) {
    const step = theStep(), written = step?.kernel === kernel ? kernel.buffers[step.raw.writes[0]] : null;
    return theBuffer() || written || kernel.buffers[0] || null;
  },

  update() {
    const kernel = theKernel(), buffer = this.buffer(kernel);
    if (!buffer) return fill(this.picture, el("p", { class: "empty", text: "This kernel has no buffers." }));
    if (this.map?.buffer !== buffer) this.open(kernel, buffer);
    if (this.listed !== kernel) this.listBuffers(kernel);
    this.table.refresh();
    this.table.revealPicked();
    this.map.plot.redraw();
    return undefined;
  },

  open(kernel, buffer) {
    const colouring = this.map?.colouring || "host";
    this.map = new StickMap(kernel, buffer);
    const { map } = this;
    map.colouring = colouring;
    const field = el("input", {
      type: "text",
      size: 14,
      placeholder: buffer.size.map(() => "0").join(", "),
      "aria-label": "Host index",
      onkeydown: (event) => {
        if (event.key === "Enter") find();
      },
    });
    const find = () => {
      if (!map.goTo(field.value.split(/[\s,[\]]+/).filter((word) => word).map(Number))) {
        say(`${buffer.name} has no element [${field.value}]; its size is ${list(buffer.size)}.`);
      }
    };
    fill(
      this.chooser,
      el("b", { text: kernel.bufferText(buffer) }),
      el("span", {
        class: "soft",
        text: `device ${list(buffer.layout.device_size)}, strides ${
          list(buffer.layout.stride_map)
        }, ${buffer.layout.format}; ${placeText(buffer)}`,
      }),
      el(
        "div",
        { class: "buttons" },
        button("−", () => map.zoom(-1), { "aria-label": "Smaller" }),
        button("+", () => map.zoom(1), { "aria-label": "Larger" }),
      ),
      choice("Colour by", [["host", "Host index"], ["core", "Core"]], () => map.colouring, (value) => {
        map.colouring = value;
        map.plot.redraw();
      }),
      el("span", {}, "host index ", field, button("Go", find)),
      el(
        "ul",
        { class: "legend" },
        el(
          "li",
          {},
          el("span", { class: "swatch hatched" }),
          `padding ${percent(buffer.padding / (buffer.bytes || 1))}`,
        ),
      ),
    );
    fill(this.picture, map.scroll, map.readout);
    requestAnimationFrame(() => map.plot.resize());
  },

  listBuffers(kernel) {
    this.listed = kernel;
    this.table = new DataTable("Buffers", [
      { id: "name", title: "buffer", value: (row) => row.name },
      { id: "kind", title: "kind", value: (row) => row.kind },
      { id: "place", title: "place", value: placeText },
      { id: "host", title: "host", value: (row) => `${row.dtype} ${list(row.size)}`, wide: true },
      { id: "device", title: "device", value: (row) => list(row.layout.device_size), wide: true },
      { id: "bytes", title: "bytes", value: (row) => row.bytes, text: (row) => bytes(row.bytes), number: true },
      {
        id: "padding",
        title: "padding",
        value: (row) => row.padding / (row.bytes || 1),
        text: (row) => percent(row.padding / (row.bytes || 1)),
        number: true,
      },
    ], {
      sort: ["bytes", -1],
      height: "30vh",
      onpick: (row) => pickBuffer(kernel, row),
      isPicked: (row) => row === this.map?.buffer,
    });
    this.table.set(kernel.buffers);
    fill(
      this.listing,
      el("h2", { text: `Buffers of kernel ${kernel.number} (${kernel.buffers.length})` }),
      this.table.element,
    );
  },
};
