// Every step, or groups of them, as a table.

const GROUPINGS = {
  step: ["Steps", (step) => step.id],
  alike: ["Alike", (step) => `${step.op}\n${step.extents}\n${step.slices}\n${step.raw.source}`],
  op: ["Op", (step) => step.op],
  source: ["Source line", (step) => step.raw.source],
  kernel: ["Kernel", (step) => step.kernel.number],
  bound: ["Bound by", (step) => step.raw.bound_by],
};

const SEVERAL = "several";

const oneOf = (group, of) => {
  const first = of(group.first);
  return group.steps.every((step) => of(step) === first) ? first : SEVERAL;
};

const OP_COLUMNS = [
  { id: "op", title: "op", value: (row) => oneOf(row, (step) => step.op) },
  {
    id: "source",
    title: "source",
    value: (row) => {
      const found = oneOf(row, (step) => step.raw.source);
      return found === SEVERAL ? found : `${row.first.source.short} ${row.first.source.code}`;
    },
  },
  {
    id: "us",
    title: "time µs",
    value: (row) => row.us,
    text: (row) => significant(row.us, 4),
    number: true,
    bar: (row) => row.us / opsView.most,
  },
  {
    id: "share",
    title: "share",
    value: (row) => row.us / theRun().stepsUs,
    text: (row) => percent(row.us / theRun().stepsUs),
    number: true,
  },
  { id: "count", title: "count", value: (row) => row.count, text: (row) => whole(row.count), number: true },
  {
    id: "bound",
    title: "of bound",
    value: (row) => (row.least_us > 0 ? row.us / row.least_us : 0),
    text: (row) => (row.least_us > 0 ? `${significant(row.us / row.least_us)} ×` : "–"),
    number: true,
  },
  { id: "bytes", title: "bytes", value: (row) => row.bytes, text: (row) => bytes(row.bytes), number: true },
  {
    id: "cores",
    title: "cores",
    value: (row) => Math.min(...row.steps.map((step) => step.cores)),
    text: (row) => {
      const found = row.steps.map((step) => step.cores), low = Math.min(...found), high = Math.max(...found);
      return low === high ? String(low) : `${low}–${high}`;
    },
    number: true,
  },
  { id: "by", title: "bound by", value: (row) => oneOf(row, (step) => step.raw.bound_by) },
  {
    id: "over",
    title: "over bound µs",
    value: (row) => row.us - row.least_us,
    text: (row) => significant(row.us - row.least_us, 4),
    number: true,
  },
  { id: "extents", title: "extents", value: (row) => oneOf(row, (step) => list(step.extents)) },
  { id: "kernel", title: "kernel", value: (row) => oneOf(row, (step) => step.kernel.short) },
];

const opsView = {
  id: "ops",
  title: "Op table",

  build(root) {
    this.table = new DataTable("Ops", OP_COLUMNS, {
      sort: ["us", -1],
      height: "calc(100vh - 190px)",
      isPicked: (row) => theStep() !== null && row.steps.includes(theStep()),
      onpick: (row) => pickStep(row.steps.reduce((best, step) => (step.us > best.us ? step : best))),
    });
    this.filter = el("input", {
      type: "search",
      placeholder: "Filter",
      "aria-label": "Filter the table",
      oninput: () => go({ more: { filter: this.filter.value } }, { replace: true }) || this.update(),
    });
    this.groups = choice(
      "Group by",
      Object.entries(GROUPINGS).map(([key, [text]]) => [key, text]),
      () => app.state.more.group || "alike",
      (group) => go({ more: { group: group === "alike" ? "" : group } }),
    );
    this.note = el("span", { class: "soft" });
    root.append(
      el(
        "div",
        { class: "bar" },
        this.groups,
        this.filter,
        button("CSV", () => download("ops.csv", this.table.csv(), "text/csv"), {
          title: "Download the table as it is shown",
        }),
        this.note,
      ),
      this.table.element,
    );
  },

  update() {
    const run = theRun(),
      { group = "alike", filter = "" } = app.state.more,
      key = `${runNumber(run)} ${group} ${filter}`;
    if (this.filter.value !== filter) this.filter.value = filter;
    this.groups.refresh();
    if (this.key === key && this.run === run) {
      this.table.refresh();
      this.table.revealPicked();
      return;
    }
    Object.assign(this, { key, run });
    const words = filter.toLowerCase().split(/\s+/).filter((word) => word);
    const text = (step) =>
      step.words ??=
        `${step.op} ${step.raw.aten} ${step.source.text} ${step.source.code} ${step.raw.bound_by} ${step.kernel.name} ${
          list(step.extents)
        }`.toLowerCase();
    const steps = words.length
      ? run.steps.filter((step) => words.every((word) => text(step).includes(word)))
      : run.steps;
    const rows = grouped(steps, (GROUPINGS[group] || GROUPINGS.alike)[1]);
    this.most = Math.max(...rows.map((row) => row.us), 1e-9);
    const us = rows.reduce((sum, row) => sum + row.us, 0);
    this.note.textContent = `${plural(rows.length, "row")}, ${time(us)}, ${
      percent(us / run.stepsUs)
    } of the time of compiled code`;
    this.table.set(rows);
    this.table.revealPicked();
  },
};
