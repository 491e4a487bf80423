// Two runs: totals, timelines on one scale, and what differs, by op or by source line.

const COMPARED = {
  line: ["Op and line", (step) => `${step.op}  ${step.source.file}:${step.source.line}  ${step.source.code}`],
  op: ["Op", (step) => step.op],
  source: ["Source line", (step) => `${step.source.short}  ${step.source.code}`],
  bound: ["Bound by", (step) => step.raw.bound_by],
};

function differences(first, second, keyOf) {
  const rows = new Map();
  for (const [side, run] of [["a", first], ["b", second]]) {
    for (const group of grouped(run.steps, keyOf)) {
      if (!rows.has(group.key)) rows.set(group.key, { key: group.key, a: null, b: null });
      rows.get(group.key)[side] = group;
    }
  }
  const of = (group, name) => (group ? group[name] : 0);
  return [...rows.values()].map((row) => ({
    ...row,
    aUs: of(row.a, "us"),
    bUs: of(row.b, "us"),
    us: of(row.b, "us") - of(row.a, "us"),
    bytes: of(row.b, "bytes") - of(row.a, "bytes"),
    count: of(row.b, "count") - of(row.a, "count"),
  }));
}

const compareView = {
  id: "compare",
  title: "Compare",
  by: "line",

  build(root) {
    this.root = root;
  },

  update() {
    if (app.runs.length < 2) return this.invite();
    if (this.shown !== app.runs[1]) this.open();
    for (const timeline of this.timelines) timeline.plot.redraw();
    this.table.refresh();
    return undefined;
  },

  invite() {
    const file = el("input", {
      type: "file",
      accept: ".html,.json",
      "aria-label": "Another run",
      onchange: () => file.files[0] && addFile(file.files[0]),
    });
    fill(
      this.root,
      el(
        "section",
        { class: "card invite" },
        el("h2", { text: "Compare with another run" }),
        el("p", {
          text: "Drop a second explorer (.html) or the data of a run (.json) anywhere on this page, or choose one. " +
            "Nothing leaves the page.",
        }),
        file,
      ),
    );
  },

  open() {
    const [first, second] = app.runs;
    this.shown = second;
    const end = Math.max(first.end, second.end);
    const moved = (from) => ({
      onmove: (window) => {
        const other = this.timelines?.[1 - from];
        if (!other || (other.window.from === window.from && other.window.to === window.to)) return;
        other.window.set(window.from, window.to);
      },
    });
    this.timelines = [first, second].map((run, i) => {
      const timeline = new Timeline(run, { cores: false, ...moved(i) });
      timeline.window.high = end;
      return timeline;
    });
    for (const timeline of this.timelines) timeline.window.to = end;
    this.table = new DataTable("Differences", [
      { id: "key", title: "what", value: (row) => row.key, wide: true },
      { id: "a", title: "A µs", value: (row) => row.aUs, text: (row) => significant(row.aUs, 4), number: true },
      { id: "b", title: "B µs", value: (row) => row.bUs, text: (row) => significant(row.bUs, 4), number: true },
      {
        id: "us",
        title: "B − A µs",
        value: (row) => row.us,
        text: (row) => signed(row.us, (value) => significant(value, 4)),
        number: true,
      },
      {
        id: "size",
        title: "size of it",
        value: (row) => Math.abs(row.us),
        text: (row) => percent(Math.abs(row.us) / (first.stepsUs || 1)),
        number: true,
        bar: (row) => Math.abs(row.us) / this.most,
      },
      {
        id: "ratio",
        title: "B / A",
        value: (row) => (row.aUs ? row.bUs / row.aUs : Infinity),
        text: (row) => (row.aUs ? significant(row.bUs / row.aUs) : "new"),
        number: true,
      },
      {
        id: "count",
        title: "count",
        value: (row) => row.count,
        text: (row) => (row.count ? signed(row.count, whole) : "="),
        number: true,
      },
      {
        id: "bytes",
        title: "bytes",
        value: (row) => row.bytes,
        text: (row) => (row.bytes ? signed(row.bytes, bytes) : "="),
        number: true,
      },
    ], {
      sort: ["size", -1],
      height: "50vh",
      onpick: (row) => pickStep((app.state.run === 1 && row.b ? row.b : row.a || row.b).first),
      isPicked: (row) => theStep() !== null && [row.a, row.b].some((group) => group?.steps.includes(theStep())),
    });
    fill(
      this.root,
      this.totals(first, second),
      el(
        "div",
        { class: "bar" },
        zoomButtons(() => this.timelines[0].window, () => {
          const step = theStep();
          if (step) this.timelines[runNumber(step.run)].showStep(step);
        }),
        legend(),
      ),
      [first, second].map((run, i) =>
        el(
          "section",
          {},
          el("h3", { text: `${"AB"[i]}: ${run.title}, ${time(run.raw.totals.us)}` }),
          this.timelines[i].plot.canvas,
        )
      ),
      el(
        "div",
        { class: "bar" },
        choice("Compare by", Object.entries(COMPARED).map(([key, [text]]) => [key, text]), () => this.by, (by) => {
          this.by = by;
          this.fillTable();
        }),
        button("CSV", () => download("differences.csv", this.table.csv(), "text/csv")),
      ),
      this.table.element,
    );
    this.fillTable();
  },

  fillTable() {
    const rows = differences(...app.runs, COMPARED[this.by][1]);
    this.most = Math.max(...rows.map((row) => Math.abs(row.us)), 1e-9);
    this.table.set(rows);
  },

  totals(first, second) {
    const a = first.raw.totals, b = second.raw.totals;
    const rows = [
      ["modelled time", a.us, b.us, time],
      ["in compiled code", a.launched_us, b.launched_us, time],
      ["other", a.other_us, b.other_us, time],
      ["at least", a.least_us, b.least_us, time],
      ["device memory", a.moved_bytes, b.moved_bytes, bytes],
      ["launches", first.raw.launches.length, second.raw.launches.length, whole],
      ["steps", first.steps.length, second.steps.length, whole],
    ];
    return el(
      "section",
      { class: "card wide-table" },
      el(
        "table",
        { class: "data totals" },
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            ["", `A: ${first.title}`, `B: ${second.title}`, "B − A", "B / A"].map((text, i) =>
              el("th", { class: i ? "number" : "", text })
            ),
          ),
        ),
        el(
          "tbody",
          {},
          rows.map(([name, was, is, format]) =>
            el(
              "tr",
              {},
              el("th", { scope: "row", text: name }),
              [format(was), format(is), is === was ? "=" : signed(is - was, format), was ? significant(is / was) : "–"]
                .map((text, i) =>
                  el("td", {
                    class: `number${i === 2 && is !== was && format === time ? (is > was ? " worse" : " better") : ""}`,
                    text,
                  })
                ),
            )
          ),
        ),
      ),
    );
  },
};
