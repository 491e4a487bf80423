// Operations per byte of device memory against operations per second, and what the card allows.

function ceilingsOf(card) {
  const { constants, cores } = card, found = [];
  if (constants.pt_mac_per_ns) found.push({ name: "matrix unit", rate: 2 * constants.pt_mac_per_ns * 1e9 * cores });
  if (constants.vector_stick_ns) {
    found.push({ name: "vector unit", rate: 64 / constants.vector_stick_ns * 1e9 * cores });
  }
  return found;
}

const rooflineView = {
  id: "roofline",
  title: "Roofline",
  by: "step",

  build(root) {
    this.plot = new Plot(
      "Roofline: operations per byte against operations per second",
      (...sizes) => this.draw(...sizes),
    );
    this.plot.canvas.classList.add("roofline");
    this.note = el("p", { class: "soft" });
    root.append(
      el(
        "div",
        { class: "bar" },
        choice("Points", [["step", "Steps"], ["op", "Ops"], ["source", "Source lines"]], () => this.by, (by) => {
          this.by = by;
          this.shown = null;
          this.update();
        }),
        legend(),
        el("span", { class: "soft", text: "Size: share of the time." }),
      ),
      this.plot.canvas,
      this.note,
    );
    this.plot.canvas.addEventListener("pointermove", (event) => {
      const point = this.near(...this.plot.at(event));
      if (!point) return tip.hide();
      return tip.show(event, point.name, [
        ["time", `${time(point.us)} (${percent(point.us / theRun().stepsUs)})`],
        ["intensity", point.bytes ? `${significant(point.ops / point.bytes)} op/byte` : "no bytes of device memory"],
        ["rate", rate(point.ops / point.us * 1e6, "op/s")],
        ["of its ceiling", percent(this.share(point))],
        ["operations", rate(point.ops, "op")],
        ["device memory", bytes(point.bytes)],
        ["bound by", point.first.raw.bound_by],
        ["source", point.first.source.short],
      ]);
    });
    this.plot.canvas.addEventListener("pointerleave", () => tip.hide());
    this.plot.canvas.addEventListener("click", (event) => {
      const point = this.near(...this.plot.at(event));
      if (point) pickStep(point.steps.reduce((best, step) => (step.us > best.us ? step : best)));
    });
  },

  update() {
    const run = theRun(),
      keys = {
        step: (step) => `${step.op}\n${step.extents}\n${step.slices}\n${step.raw.source}\n${step.us}`,
        op: (step) => step.op,
        source: (step) => step.raw.source,
      };
    if (this.shown !== run) {
      this.shown = run;
      const groups = grouped(run.steps, keys[this.by]);
      this.points = groups.filter((group) => group.ops > 0 && group.us > 0).map((group) => ({
        ...group,
        name: this.by === "source"
          ? `${group.first.source.short} ${group.first.source.code}`
          : `${group.first.op}${this.by === "step" ? ` ${list(group.first.extents)}` : ""} × ${whole(group.count)}`,
      }));
      const moves = groups.filter((group) => group.ops === 0),
        movedUs = moves.reduce((sum, group) => sum + group.us, 0);
      this.note.textContent =
        "Equal steps are one point. Operations: two for a multiply-add, one for an element of another op. " +
        `On the right edge: steps that move no byte of device memory.${
          moves.length ? ` Moves compute nothing and are not shown: ${time(movedUs)}.` : ""
        }`;
      this.scale();
    }
    this.plot.redraw();
  },

  scale() {
    const { card } = theRun(), ceilings = ceilingsOf(card), dram = (card.constants.dram_gb_per_s || 100) * 1e9;
    const intensities = this.points.filter((point) => point.bytes).map((point) => point.ops / point.bytes),
      rates = this.points.map((point) => point.ops / point.us * 1e6);
    const logs = (values) => values.map(Math.log10);
    Object.assign(this, { ceilings, dram });
    const top = Math.max(...ceilings.map((each) => each.rate), ...rates, 1);
    this.xs = [
      Math.floor(Math.min(...logs(intensities), -1)),
      Math.ceil(Math.max(...logs(intensities), Math.log10(top / dram)) + 0.6),
    ];
    this.ys = [
      Math.floor(Math.max(Math.min(...logs(rates), Math.log10(top) - 2), Math.log10(top) - 6)),
      Math.log10(top) + 0.3,
    ];
  },

  x(intensity) {
    return 64 + (Math.log10(intensity) - this.xs[0]) / (this.xs[1] - this.xs[0]) * (this.plot.width - 104);
  },
  y(opsPerSecond) {
    return this.plot.height - 34 -
      (Math.log10(opsPerSecond) - this.ys[0]) / (this.ys[1] - this.ys[0]) * (this.plot.height - 50);
  },
  place(point) {
    return [
      point.bytes ? this.x(point.ops / point.bytes) : this.plot.width - 18,
      Math.min(this.y(point.ops / point.us * 1e6), this.plot.height - 36),
    ];
  },
  radius(point) {
    return 3 + 16 * Math.sqrt(point.us / theRun().stepsUs);
  },

  // The rate as a share of what its unit or device memory allows.
  share(point) {
    const unit =
      this.ceilings.find((each) => each.name === (point.first.isProduct ? "matrix unit" : "vector unit"))?.rate ??
        Infinity;
    const memory = point.bytes ? point.ops / point.bytes * this.dram : Infinity;
    return point.ops / point.us * 1e6 / Math.min(unit, memory);
  },

  near(x, y) {
    let best = null, least = 14;
    for (const point of this.points) {
      const [px, py] = this.place(point), distance = Math.max(Math.hypot(px - x, py - y) - this.radius(point), 0);
      if (distance < least || (distance === 0 && best && this.radius(point) < this.radius(best))) {
        least = distance;
        best = point;
      }
    }
    return best;
  },

  draw(context, width, height) {
    this.drawGrid(context, width, height);
    context.strokeStyle = colour("ink");
    context.fillStyle = colour("ink");
    this.ceilings.forEach((ceiling, i) => {
      const knee = ceiling.rate / this.dram, y = this.y(ceiling.rate);
      context.setLineDash(i ? [6, 4] : []);
      context.beginPath();
      context.moveTo(this.x(10 ** this.xs[0]), this.y(10 ** this.xs[0] * this.dram));
      context.lineTo(this.x(knee), y);
      context.lineTo(width - 40, y);
      context.stroke();
      context.textAlign = "right";
      context.fillText(`${ceiling.name} ${rate(ceiling.rate, "op/s")}`, width - 44, y - 8);
    });
    context.setLineDash([]);
    this.drawSlope(context);
    const step = theStep();
    for (const point of this.points) {
      const [x, y] = this.place(point), chosen = step && point.steps.includes(step);
      context.beginPath();
      context.arc(x, y, this.radius(point), 0, 2 * Math.PI);
      context.fillStyle = kindColour(point.first.kind);
      context.globalAlpha = 0.75;
      context.fill();
      context.globalAlpha = 1;
      context.strokeStyle = colour(chosen ? "accent" : "page");
      context.lineWidth = chosen ? 3 : 1;
      context.stroke();
      context.lineWidth = 1;
    }
  },

  drawSlope(context) {
    const at = 10 ** (this.xs[0] + 0.15), x = this.x(at), y = this.y(at * this.dram);
    const angle = Math.atan2(this.y(at * 10 * this.dram) - y, this.x(at * 10) - x);
    context.save();
    context.translate(x, y - 8);
    context.rotate(angle);
    context.textAlign = "left";
    context.fillStyle = colour("ink");
    context.fillText(`DRAM ${rate(this.dram, "B/s")}`, 4, 0);
    context.restore();
  },

  drawGrid(context, width, height) {
    context.strokeStyle = colour("line");
    context.fillStyle = colour("soft");
    for (let power = this.xs[0]; power <= this.xs[1]; ++power) {
      const x = Math.round(this.x(10 ** power)) + 0.5;
      context.beginPath();
      context.moveTo(x, 10);
      context.lineTo(x, height - 34);
      context.stroke();
      context.textAlign = "center";
      context.fillText(power >= 0 ? whole(10 ** power) : String(10 ** power).slice(0, 6), x, height - 24);
    }
    for (let power = Math.ceil(this.ys[0]); power <= this.ys[1]; ++power) {
      const y = Math.round(this.y(10 ** power)) + 0.5;
      context.beginPath();
      context.moveTo(64, y);
      context.lineTo(width - 40, y);
      context.stroke();
      context.textAlign = "right";
      context.fillText(rate(10 ** power, "op/s"), 60, y);
    }
    context.textAlign = "center";
    context.fillText("operations per byte of device memory", width / 2, height - 8);
    context.textAlign = "left";
  },
};
