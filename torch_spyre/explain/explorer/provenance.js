// From the source line to the step of the card program, and back.

// Every stage of the way: which of its items a step comes from, as keys.
const STAGES = [
  {
    id: "source",
    title: "Source",
    keys: (step) => [step.raw.source],
    name: (run, key) => run.source(key).short,
    note: (run, key) => run.source(key).code,
  },
  { id: "aten", title: "ATen", keys: (step) => [step.raw.aten || "(none)"], name: (run, key) => key },
  { id: "node", title: "FX nodes", keys: (step) => specOf(step)?.nodes ?? [], name: (run, key) => key },
  {
    id: "loop",
    title: "Loop ops",
    keys: (step) => (specOf(step)?.loop_op >= 0 ? [specOf(step).loop_op] : []),
    name: (run, key) => `op ${key}`,
    note: (run, key, kernel) => firstLine(run.shortText(kernel.raw.loop_ops[key])),
  },
  {
    id: "spec",
    title: "OpSpec",
    keys: (step) => (specOf(step) ? [step.raw.spec] : []),
    name: (run, key) => `spec ${key}`,
    note: (run, key, kernel) => firstLine(run.shortText(kernel.specs[key].text)),
  },
  {
    id: "superdsc",
    title: "SuperDSC",
    keys: (step) => (specOf(step) ? [step.raw.spec] : []),
    name: (run, key) => `sdsc_${key}`,
  },
  {
    id: "step",
    title: "Card program",
    keys: (step) => [step.index],
    name: (run, key, kernel) => `${key} ${kernel.steps[key].op}`,
    note: (run, key, kernel) => time(kernel.steps[key].us),
  },
];

const specOf = (step) => step.kernel.specs[step.raw.spec];
const firstLine = (text) => text.split("\n", 1)[0];

// The items of every stage of a kernel in the order of its steps, each with its steps.
function itemsOf(kernel) {
  return kernel.items ??= STAGES.map((stage) => {
    const items = new Map();
    for (const step of kernel.steps) {
      for (const key of stage.keys(step)) {
        if (!items.has(key)) items.set(key, []);
        items.get(key).push(step);
      }
    }
    const found = [...items].map(([key, steps]) => ({ key, steps, us: steps.reduce((sum, step) => sum + step.us, 0) }));
    return stage.id === "source"
      ? found.sort((a, b) =>
        kernel.run.source(a.key).path.localeCompare(kernel.run.source(b.key).path) ||
        kernel.run.source(a.key).line - kernel.run.source(b.key).line
      )
      : found;
  });
}

// A list that is drawn where it is in sight.
class Panel {
  constructor(stage, onpick, onscroll) {
    this.stage = stage;
    this.onpick = onpick;
    this.items = [];
    this.count = el("span", { class: "soft" });
    this.inner = el("div", { class: "panel-inner" });
    this.scroll = el("div", {
      class: "panel-scroll",
      tabIndex: 0,
      role: "listbox",
      "aria-label": stage.title,
      onscroll: () => {
        this.renderRows();
        onscroll();
      },
    }, this.inner);
    this.element = el("section", { class: "panel" }, el("h3", { text: stage.title }), this.count, this.scroll);
    this.scroll.addEventListener("keydown", (event) => {
      const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (!by) return;
      const at = this.items.findIndex((item) => this.related.has(item.key)),
        next = this.items[Math.min(Math.max(at + by, 0), this.items.length - 1)];
      event.preventDefault();
      event.stopPropagation();
      if (next) this.onpick(this.stage, next);
    });
  }

  set(kernel, items, related, only, picked) {
    const most = Math.max(...items.map((item) => item.us), 1e-9);
    Object.assign(this, {
      kernel,
      related,
      picked,
      most,
      items: only ? items.filter((item) => related.has(item.key)) : items,
    });
    this.count.textContent = related.size
      ? `${whole(related.size)} of ${whole(items.length)}`
      : only
      ? "none: a pass added it"
      : whole(items.length);
    this.inner.style.height = `${this.items.length * PANEL_ROW}px`;
    const first = this.items.findIndex((item) => related.has(item.key)), top = first * PANEL_ROW;
    if (
      first >= 0 &&
      (top < this.scroll.scrollTop || top > this.scroll.scrollTop + this.scroll.clientHeight - 2 * PANEL_ROW)
    ) this.scroll.scrollTop = Math.max(0, top - this.scroll.clientHeight / 3);
    this.renderRows();
  }

  renderRows() {
    const { run } = this.kernel,
      first = Math.max(0, Math.floor(this.scroll.scrollTop / PANEL_ROW) - 4),
      count = Math.ceil((this.scroll.clientHeight || 400) / PANEL_ROW) + 8;
    fill(
      this.inner,
      this.items.slice(first, first + count).map((item, i) => {
        const name = this.stage.name(run, item.key, this.kernel),
          note = this.stage.note?.(run, item.key, this.kernel) ?? "",
          on = this.related.has(item.key);
        const row = el(
          "div",
          {
            class: `item${on ? " on" : ""}${this.picked === item.key ? " picked" : ""}`,
            role: "option",
            "aria-selected": String(on),
            title: `${name} ${note}\n${time(item.us)}, ${plural(item.steps.length, "step")}`,
            style: { top: `${(first + i) * PANEL_ROW}px` },
            onclick: () => this.onpick(this.stage, item),
          },
          el("span", { text: name }),
          note && el("code", { text: note }),
        );
        row.style.backgroundImage = on
          ? ""
          : `linear-gradient(90deg, var(--bar) ${item.us / this.most * 100}%, transparent 0)`;
        return row;
      }),
    );
  }

  // Where an item is on the page, if it is in sight.
  middleOf(key) {
    const at = this.items.findIndex((item) => item.key === key),
      y = at * PANEL_ROW + PANEL_ROW / 2 - this.scroll.scrollTop;
    if (at < 0 || y < 0 || y > this.scroll.clientHeight) return null;
    const box = this.scroll.getBoundingClientRect();
    return { left: box.left, right: box.left + this.scroll.clientWidth, y: box.top + y };
  }
}

const PANEL_ROW = 24, MOST_LINKS = 400;

const provenanceView = {
  id: "provenance",
  title: "Provenance",

  build(root) {
    this.only = true;
    this.panels = STAGES.map((stage) =>
      new Panel(stage, (...picked) => this.pick(...picked), () => this.links?.redraw())
    );
    this.links = new Plot("Links between the panels", (context) => this.drawLinks(context), {
      class: "links",
      tabIndex: -1,
      "aria-hidden": "true",
    });
    this.kernelChoice = el("span");
    this.texts = el("div", { class: "texts" });
    root.append(
      el(
        "div",
        { class: "bar" },
        this.kernelChoice,
        el(
          "label",
          {},
          el("input", {
            type: "checkbox",
            checked: true,
            onchange: (event) => {
              this.only = event.target.checked;
              this.update();
            },
          }),
          " only what belongs to the selection",
        ),
        el("span", { class: "soft", text: "Bars: time. Click an item to follow it in both directions." }),
      ),
      this.row = el("div", { class: "panels" }, this.panels.map((panel) => panel.element), this.links.canvas),
      this.texts,
    );
  },

  // The stage and key that are followed: one that was picked here, or the selected step.
  followed(kernel) {
    const [, id, text] = /^(\w+):(.*)$/s.exec(app.state.more.pick || "") || [],
      stage = STAGES.findIndex((each) => each.id === id);
    if (stage >= 0) {
      const item = itemsOf(kernel)[stage].find((each) => String(each.key) === text);
      if (item && (!theStep() || item.steps.includes(theStep()))) return { stage, item };
    }
    const step = theStep();
    return step ? { stage: STAGES.length - 1, item: { key: step.index, steps: [step] } } : null;
  },

  pick(stage, item) {
    const longest = item.steps.reduce((best, step) => (step.us > best.us ? step : best));
    pickStep(longest, { more: { pick: stage.id === "step" ? "" : `${stage.id}:${item.key}` } });
  },

  update() {
    const kernel = theKernel(), run = kernel.run, followed = this.followed(kernel), items = itemsOf(kernel);
    fill(
      this.kernelChoice,
      select(
        "Kernel",
        run.kernels.map((
          each,
        ) => [each.number, `${each.number}: ${each.short} (${plural(each.steps.length, "step")})`]),
        kernel.number,
        (number) => go({ kernel: Number(number), step: -1, buffer: -1, more: { pick: "" } }),
      ),
    );
    this.kernel = kernel;
    this.steps = followed?.item.steps ?? [];
    const keep = this.only && followed !== null;
    const related = STAGES.map((stage) => new Set(this.steps.flatMap((step) => stage.keys(step))));
    // Panels are as high as what they show; they have to be, before rows are drawn where they are in sight.
    const longest = Math.max(4, ...related.map((keys, i) => (keep ? keys.size : items[i].length)));
    this.row.style.height = `min(42vh, ${longest * PANEL_ROW + 54}px)`;
    STAGES.forEach((_, i) => {
      const picked = followed?.stage === i ? followed.item.key : undefined;
      this.panels[i].set(kernel, items[i], related[i], keep, picked);
    });
    this.links.redraw();
    this.showTexts(theStep());
  },

  drawLinks(context) {
    if (!this.steps?.length || !this.links.canvas.clientWidth) return;
    const origin = this.links.canvas.getBoundingClientRect(), drawn = new Set();
    context.strokeStyle = colour("accent");
    context.globalAlpha = 0.6;
    for (const step of this.steps.slice(0, MOST_LINKS)) {
      for (let i = 0; i + 1 < STAGES.length; ++i) {
        for (const from of STAGES[i].keys(step)) {
          for (const to of STAGES[i + 1].keys(step)) {
            if (drawn.has(`${i} ${from} ${to}`)) continue;
            drawn.add(`${i} ${from} ${to}`);
            const start = this.panels[i].middleOf(from), end = this.panels[i + 1].middleOf(to);
            if (!start || !end || end.left < start.right - 4) continue;
            const [x0, y0, x1, y1] = [
              start.right - origin.left,
              start.y - origin.top,
              end.left - origin.left,
              end.y - origin.top,
            ];
            context.beginPath();
            context.moveTo(x0, y0);
            context.bezierCurveTo((x0 + x1) / 2, y0, (x0 + x1) / 2, y1, x1, y1);
            context.stroke();
          }
        }
      }
    }
    context.globalAlpha = 1;
  },

  async showTexts(step) {
    if (!step) return fill(this.texts);
    const { run, kernel } = step, spec = specOf(step);
    const [loop, text, superdsc] = spec
      ? await Promise.all([
        spec.loop_op >= 0 ? run.text(kernel.raw.loop_ops[spec.loop_op]) : "A pass added it.",
        run.text(spec.text),
        run.text(spec.superdsc),
      ])
      : ["", "", ""];
    if (theStep() !== step) return undefined;
    const shown = [["Source", this.sourceText(step)], ["Loop op and OpSpec", [`${loop}\n\n`, text]], [
      "SuperDSC",
      pretty(superdsc),
    ], ["Step of the card program", pretty(JSON.stringify(step.raw))]];
    return fill(
      this.texts,
      shown.map(([title, content]) =>
        el(
          "section",
          { class: "panel" },
          el("h3", { text: title }),
          el("pre", { tabIndex: 0, "aria-label": title }, content || el("span", { class: "soft", text: "none" })),
        )
      ),
    );
  },

  // The lines around the one that a step comes from, as far as the run has them.
  sourceText(step) {
    const { source } = step, file = step.run.raw.files[source.path] || {};
    const numbers = Object.keys(file).map(Number).sort((a, b) => a - b).filter((number) =>
      Math.abs(number - source.line) <= 12
    );
    if (!numbers.length) return source.text;
    return [
      el("span", { class: "soft", text: `${source.path}${source.scope ? `, in ${source.scope}` : ""}\n` }),
      ...numbers.map((number) =>
        el(number === source.line ? "mark" : "span", { text: `${String(number).padStart(5)}  ${file[number]}\n` })
      ),
    ];
  },
};

// JSON with lists of numbers on one line.
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 1).replace(
      /\[[\s\d.,eE+-]*\]/g,
      (numbers) => numbers.replace(/\s+/g, " "),
    );
  } catch {
    return text;
  }
}
