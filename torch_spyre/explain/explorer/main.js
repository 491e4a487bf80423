// The page: tabs, what is selected, keys, files that are dropped.

app.views = [summaryView, timelineView, provenanceView, memoryView, layoutsView, rooflineView, opsView, compareView];

function buildTabs() {
  const tabs = byId("tabs");
  for (const view of app.views) {
    const panel = el("section", {
      class: "view",
      id: `view-${view.id}`,
      role: "tabpanel",
      "aria-labelledby": `tab-${view.id}`,
      hidden: true,
    });
    byId("views").append(panel);
    tabs.append(
      button(view.title, () => go({ view: view.id }), { role: "tab", id: `tab-${view.id}`, "aria-controls": panel.id }),
    );
  }
  tabs.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    const at = app.views.findIndex((view) => view.id === app.state.view),
      next = app.views[(at + by + app.views.length) % app.views.length];
    go({ view: next.id });
    byId(`tab-${next.id}`).focus();
    event.stopPropagation();
  });
}

function buildRunChoice() {
  fill(
    byId("run-choice"),
    app.runs.length > 1
      ? app.runs.map((run, number) =>
        button(run.title, () => go({ run: number, kernel: -1, step: -1, buffer: -1, more: { t: "", pick: "" } }), {
          title: `Look at run ${"AB"[number]}: ${run.title}`,
          "aria-pressed": String(number === app.state.run),
        })
      )
      : [],
  );
}

function render() {
  for (const view of app.views) {
    const here = view.id === app.state.view, tab = byId(`tab-${view.id}`);
    byId(`view-${view.id}`).hidden = !here;
    tab.setAttribute("aria-selected", String(here));
    tab.tabIndex = here ? 0 : -1;
  }
  tip.hide();
  byId("title").textContent = theRun().title;
  document.title = `${theRun().title} – Spyre explorer`;
  buildRunChoice();
  const view = app.views.find((each) => each.id === app.state.view), panel = byId(`view-${view.id}`);
  if (!app.shown.has(view.id)) {
    app.shown.set(view.id, true);
    view.build(panel);
  }
  if (theRun().kernels.length || view.id === "summary" || view.id === "compare") view.update();
  else fill(panel, el("p", { class: "empty", text: "This run has no kernels of compiled code." }));
  renderInspector();
}

// The selection, beside every view, with the way to the others.
function renderInspector() {
  const step = theStep(), buffer = theBuffer(), box = byId("inspector");
  if (!step && !buffer) {
    fill(
      box,
      el("p", {
        class: "soft",
        text: "Click a step, a source line or a buffer: it is highlighted in every view, and its facts are here.",
      }),
      el(
        "dl",
        { class: "keys" },
        [["/", "search"], ["1 … 8", "views"], ["← →", "previous and next step"], ["+ − 0", "zoom, all of it"], [
          "a d",
          "pan",
        ], ["Esc", "select nothing"]]
          .map(([key, what]) => [el("dt", {}, el("kbd", { text: key })), el("dd", { text: what })]).flat(),
      ),
    );
    return;
  }
  fill(box, buffer && bufferFacts(theKernel(), buffer), step && stepFacts(step));
}

const factList = (facts) =>
  el(
    "dl",
    { class: "facts" },
    facts.filter((fact) => fact).map(([name, value]) => [el("dt", { text: name }), el("dd", {}, value)]).flat(),
  );

function stepFacts(step) {
  const buffers = (positions) =>
    positions.map((position) => step.kernel.buffers[position]).filter((each) => each)
      .map((buffer) =>
        button(step.kernel.bufferText(buffer), () => pickBuffer(step.kernel, buffer, { view: "layouts" }), {
          class: "link",
          title: `in ${buffer.place}`,
        })
      );
  return el(
    "section",
    {},
    el("h2", {}, el("span", { class: "swatch", style: { background: `var(--kind-${step.kind})` } }), step.op),
    el(
      "div",
      { class: "buttons" },
      [["timeline", "Timeline"], ["provenance", "Provenance"], ["memory", "LX"], ["roofline", "Roofline"], [
        "ops",
        "Table",
      ]]
        .filter(([view]) => view !== app.state.view).map(([view, text]) =>
          button(text, () => {
            go({ view, more: { t: "" } });
            if (view === "timeline") setTimeout(() => timelineView.toSelection());
          })
        ),
    ),
    factList([...step.facts(), ["reads", buffers(step.raw.reads)], ["writes", buffers(step.raw.writes)]]),
  );
}

function bufferFacts(kernel, buffer) {
  const steps = [buffer.first, buffer.last].map((at) => kernel.steps[at]).filter((step) => step);
  return el(
    "section",
    {},
    el("h2", { text: buffer.name }),
    el(
      "div",
      { class: "buttons" },
      [["layouts", "Layout"], ["memory", "LX"]].filter(([view]) => view !== app.state.view).map(([view, text]) =>
        button(text, () => go({ view }))
      ),
    ),
    factList([
      ["kind", buffer.kind],
      ["host", `${buffer.dtype} ${list(buffer.size)}, strides ${list(buffer.stride)}`],
      ["device", `${list(buffer.layout.device_size)} ${buffer.layout.format}`],
      ["strides", list(buffer.layout.stride_map)],
      ["place", placeText(buffer)],
      [
        "bytes",
        `${bytes(buffer.bytes)}, padding ${bytes(buffer.padding)} (${percent(buffer.padding / (buffer.bytes || 1))})`,
      ],
      ["lives", steps.map((step) => button(`step ${step.index} ${step.op}`, () => pickStep(step), { class: "link" }))],
      buffer.why_not && ["not in LX", buffer.why_not],
      buffer.saving_us !== undefined && ["would save", time(buffer.saving_us)],
    ]),
  );
}

const hexadecimal = (value) => `0x${value.toString(16)}`;
function placeText(buffer) {
  if (buffer.place === "argument") return `argument ${buffer.address}`;
  return `${buffer.place === "lx" ? "LX" : "pool"} at ${hexadecimal(buffer.address)}${
    buffer.place === "lx" ? `, ${bytes(buffer.core_bytes)} of each core` : ""
  }`;
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const writing = event.target.closest?.("input, select, textarea");
  if (event.key === "/" && !writing) {
    byId("search").focus();
    byId("search").select();
    event.preventDefault();
    return;
  }
  if (writing) return;
  if (/^[1-8]$/.test(event.key)) go({ view: app.views[Number(event.key) - 1].id });
  else if (event.key === "ArrowLeft" && !event.shiftKey) moveStep(-1);
  else if (event.key === "ArrowRight" && !event.shiftKey) moveStep(1);
  else if (event.key === "Escape") go({ step: -1, buffer: -1, more: { pick: "" } });
  else return;
  event.preventDefault();
}

async function onDrop(event) {
  event.preventDefault();
  const [file] = event.dataTransfer?.files || [];
  if (file) await addFile(file);
}

// A second run to compare with: the data as JSON, or another explorer.
async function addFile(file) {
  try {
    const text = await file.text();
    const found = text.trimStart().startsWith("{")
      ? [new Run(JSON.parse(text), () => [])]
      : await runsOf(new DOMParser().parseFromString(text, "text/html"));
    if (!found.length) throw new Error("there is no run in it");
    app.runs[1] = found[0];
    compareView.shown = null;
    go({ view: "compare" });
    render();
  } catch (error) {
    say(`${file.name} cannot be read: ${error.message}.`, true);
  }
}

async function start() {
  try {
    app.runs = await runsOf(document);
    if (!app.runs.length) throw new Error("there is no run in this page");
  } catch (error) {
    say(`The data of this page cannot be read: ${error.message}.`, true);
    return;
  }
  buildTabs();
  buildSearch();
  app.state = readState();
  render();
  window.addEventListener("hashchange", () => {
    app.state = readState();
    render();
  });
  window.addEventListener("keydown", onKey);
  window.addEventListener("dragover", (event) => event.preventDefault());
  window.addEventListener("drop", onDrop);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    colours.clear();
    for (const plot of Plot.all) plot.redraw();
  });
  document.documentElement.dataset.ready = "yes";
}

// For the console, and for tests.
window.explorer = {
  app,
  go,
  searchFor,
  addFile,
  placementOf,
  coordinatesOf,
  describeElement,
  hostOffsetOf,
  deviceOffsetOf,
  coordinatesAt,
  parseOpSpec,
  coresAt,
  coresOf,
};
start();
