// What a run took, where the time went, and what could be better.

function bars(title, groups, totalUs, nameOf, pick, most = 12) {
  const largest = groups[0]?.us || 1, rest = groups.slice(most);
  const rows = groups.slice(0, most).map((group) =>
    el(
      "li",
      {},
      el(
        "button",
        { type: "button", class: "bar-row plain", title: nameOf(group), onclick: () => pick(group) },
        el("span", { class: "bar-name", text: nameOf(group) }),
        el(
          "span",
          { class: "bar-track" },
          el("span", {
            class: "bar-fill",
            style: { width: `${group.us / largest * 100}%`, background: group.colour || "" },
          }),
        ),
        el("span", { class: "bar-value", text: `${time(group.us)}  ${percent(group.us / totalUs)}` }),
      ),
    )
  );
  const left = rest.reduce((sum, group) => sum + group.us, 0);
  if (rest.length) rows.push(el("li", { class: "soft", text: `and ${rest.length} more: ${time(left)}` }));
  return el("section", { class: "card" }, el("h2", { text: title }), el("ol", { class: "bars" }, rows));
}

const MOST_FINDINGS = 200;

const lineOf = ({ short, code }) => short === NO_LINE ? "" : `${short}  ${code}`;

const summaryView = {
  id: "summary",
  title: "Summary",

  build(root) {
    this.root = root;
  },

  update() {
    const run = theRun();
    if (this.shown === run) return;
    this.shown = run;
    fill(
      this.root,
      this.failure(run),
      this.totals(run),
      el(
        "div",
        { class: "grid" },
        bars(
          "Time by op",
          grouped(run.steps, (step) => step.op).map((group) => ({ ...group, colour: kindColour(group.first.kind) })),
          run.stepsUs,
          (group) => `${group.key} × ${whole(group.count)}`,
          (group) => go({ view: "ops", more: { group: "op", filter: group.key } }),
        ),
        bars(
          "Time by what bounds it",
          grouped(run.steps, (step) => step.raw.bound_by),
          run.stepsUs,
          (group) => group.key,
          (group) => go({ view: "ops", more: { group: "op", filter: group.key } }),
        ),
        bars(
          "Time by source line",
          grouped(run.steps, (step) => step.raw.source),
          run.stepsUs,
          (group) => `${group.first.source.short}  ${group.first.source.code}`,
          (group) => pickStep(this.longest(group), { view: "provenance" }),
        ),
        this.layers(run),
      ),
      this.findings(run),
      this.eager(run),
    );
  },

  longest: (group) => group.steps.reduce((best, step) => (step.us > best.us ? step : best)),

  failure(run) {
    return run.raw.failure &&
      el(
        "section",
        { class: "card failure", role: "alert" },
        el("h2", { text: "The run stopped" }),
        el("pre", { text: run.raw.failure }),
        run.raw.failure_source > 0 && el("p", { class: "soft", text: lineOf(run.source(run.raw.failure_source)) }),
      );
  },

  totals(run) {
    const { totals, kernels, card } = run.raw, bytesPerSecond = totals.moved_bytes / (totals.launched_us || 1) * 1e6;
    const dram = (card.constants.dram_gb_per_s || 0) * 1e9;
    const figures = [
      [
        "modelled time",
        time(totals.us),
        run.launched
          ? `${plural(run.launches.length, "launch").replace("launchs", "launches")} of ${
            plural(kernels.length, "kernel")
          }`
          : "nothing was launched",
      ],
      ["in compiled code", time(totals.launched_us), `${percent(totals.launched_us / totals.us)} of it`],
      ["other", time(totals.other_us), "eager ops, transfers, waits"],
      [
        "at least",
        time(totals.least_us),
        totals.least_us ? `the run takes ${significant(totals.us / totals.least_us)} × that` : "",
      ],
      [
        "device memory",
        bytes(totals.moved_bytes),
        `${rate(bytesPerSecond, "B/s")}${dram ? `, ${percent(bytesPerSecond / dram)} of the rate` : ""}`,
      ],
      [
        "has to move",
        bytes(totals.compulsory_bytes),
        totals.compulsory_bytes ? `${significant(totals.moved_bytes / totals.compulsory_bytes)} × is moved` : "",
      ],
    ];
    return el(
      "section",
      { class: "figures" },
      figures.map(([name, value, note]) =>
        el(
          "div",
          { class: "figure" },
          el("span", { class: "soft", text: name }),
          el("strong", { text: value }),
          el("span", { class: "soft", text: note }),
        )
      ),
    );
  },

  layers(run) {
    const groups = grouped(run.steps, (step) => `${step.kernel.number}\n${step.layer}`)
      .sort((a, b) => a.first.kernel.number - b.first.kernel.number || a.first.layer - b.first.layer);
    if (!run.kernels.some((kernel) => kernel.layers > 1)) return null;
    const plot = new Plot("Time by layer", (context, width, height) => {
      const largest = Math.max(...groups.filter((group) => group.first.layer >= 0).map((group) => group.us)),
        each = width / groups.length;
      groups.forEach((group, i) => {
        const tall = Math.min(group.us / largest, 1) * (height - 14);
        context.fillStyle = group.first.layer < 0
          ? colour("soft")
          : group.first.kernel.number % 2
          ? kindColour("reduction")
          : kindColour("product");
        context.fillRect(i * each + 0.5, height - 14 - tall, Math.max(each - 1, 1), tall);
        if (each > 22 || group.first.layer % Math.ceil(22 / each) === 0) {
          context.fillStyle = colour("soft");
          const text = String(group.first.layer), fits = i * each + 1 + context.measureText(text).width <= width;
          if (group.first.layer >= 0 && fits) context.fillText(text, i * each + 1, height - 6);
        }
      });
    });
    const groupAt = (event) => groups[Math.floor(plot.at(event)[0] / plot.width * groups.length)];
    plot.canvas.addEventListener("pointermove", (event) => {
      const group = groupAt(event);
      if (group) {
        tip.show(event, group.first.layer < 0 ? "outside of the layers" : `layer ${group.first.layer}`, [
          ["kernel", group.first.kernel.short],
          ["time", time(group.us)],
          ["steps", whole(group.steps.length)],
        ]);
      }
    });
    plot.canvas.addEventListener("pointerleave", () => tip.hide());
    plot.canvas.addEventListener("click", (event) => {
      const group = groupAt(event);
      if (group) pickStep(group.first, { view: "timeline" });
    });
    return el(
      "section",
      { class: "card" },
      el("h2", { text: "Time by layer" }),
      el("p", {
        class: "soft",
        text: "Layers are runs of steps that repeat the same lines with the same sizes; " +
          "kernels one after the other, grey is what lies outside. Taller bars are cut off.",
      }),
      plot.canvas,
    );
  },

  // Those that save most first, then those that cost most.
  findings(run) {
    const found = [...run.raw.findings].sort((a, b) => (b.saving_us || 0) - (a.saving_us || 0) || b.us - a.us);
    return el(
      "section",
      { class: "card" },
      el("h2", { text: `Findings (${found.length})` }),
      found.length
        ? el(
          "ol",
          { class: "findings", tabIndex: 0, "aria-label": "Findings" },
          found.slice(0, MOST_FINDINGS).map((each) => this.finding(run, each)),
        )
        : el("p", { class: "soft", text: "None." }),
      found.length > MOST_FINDINGS && el("p", { class: "soft", text: `and ${found.length - MOST_FINDINGS} more` }),
    );
  },

  finding(run, { kind, text, advice, us, saving_us, saving_compiles, source }) {
    const step = run.steps.find((each) => each.raw.source === source), where = lineOf(run.source(source));
    return el(
      "li",
      {},
      el("span", { class: "tag", text: kind }),
      el(
        "span",
        { class: "cost" },
        us > 0 && el("b", { text: time(us) }),
        saving_compiles !== undefined &&
          el("span", { class: "better", text: ` saves ${plural(saving_compiles, "compile")}` }),
        saving_us !== undefined && el("span", { class: "better", text: ` saves ${time(saving_us)}` }),
      ),
      el(
        "div",
        {},
        el("div", { text }),
        advice && el("div", { class: "soft", text: advice }),
        where &&
          (step
            ? button(where, () => pickStep(step, { view: "provenance" }), { class: "link soft" })
            : el("div", { class: "soft", text: where })),
      ),
    );
  },

  eager(run) {
    if (!run.raw.eager.length) return null;
    const table = new DataTable("Eager ops", [
      { id: "aten", title: "op", value: (row) => row.aten },
      { id: "count", title: "calls", value: (row) => row.count, number: true },
      { id: "us", title: "time", value: (row) => row.us, text: (row) => time(row.us), number: true },
      { id: "fallback", title: "why the CPU did it", value: (row) => row.fallback, wide: true },
      { id: "source", title: "source", value: (row) => run.source(row.source).short },
    ], { sort: ["us", -1], height: "30vh" });
    table.set(run.raw.eager);
    return el("section", { class: "card" }, el("h2", { text: "Ops outside of compiled code" }), table.element);
  },
};
