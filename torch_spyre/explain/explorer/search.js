// Search over everything that has a name.

const MOST_RESULTS = 60;

function searchIndex(run) {
  if (run.index) return run.index;
  const entries = [], seen = new Set();
  const add = (kind, text, detail, pick) => {
    if (!text || seen.has(`${kind}\n${text}\n${detail}`)) return;
    seen.add(`${kind}\n${text}\n${detail}`);
    entries.push({ kind, text, detail, find: `${text} ${detail}`.toLowerCase(), pick });
  };
  for (const kernel of run.kernels) {
    add(
      "kernel",
      kernel.name,
      plural(kernel.steps.length, "step"),
      () => kernel.steps[0] && pickStep(kernel.steps[0], { view: "timeline" }),
    );
    for (const step of kernel.steps) {
      const { source } = step;
      add("source", source.short, source.code, () => pickStep(step, { view: "provenance" }));
      add("ATen", step.raw.aten, kernel.name, () => pickStep(step, { view: "provenance" }));
      for (const node of kernel.specs[step.raw.spec]?.nodes ?? []) {
        add(
          "FX node",
          node,
          `${step.op}, step ${step.index}`,
          () => pickStep(step, { view: "provenance", more: { pick: `node:${node}` } }),
        );
      }
      add(
        "step",
        step.op,
        `step ${step.index}, ${list(step.extents)}, ${source.short}, ${time(step.us)}`,
        () => pickStep(step),
      );
    }
    for (const buffer of kernel.buffers) {
      add(
        "buffer",
        buffer.name,
        `${buffer.dtype} ${list(buffer.size)} in ${buffer.place}, kernel ${kernel.number}`,
        () => pickBuffer(kernel, buffer, { view: "layouts" }),
      );
    }
  }
  run.index = entries;
  return entries;
}

// Entries with all words of a query: names that begin with it first, then in order.
function searchFor(run, query) {
  const words = query.toLowerCase().split(/\s+/).filter((word) => word);
  if (!words.length) return [];
  const found = searchIndex(run).filter((entry) => words.every((word) => entry.find.includes(word)));
  const quality = (entry) => {
    const text = entry.text.toLowerCase();
    return text === words[0] ? 0 : text.startsWith(words[0]) ? 1 : text.includes(words[0]) ? 2 : 3;
  };
  return found.map((entry, i) => [quality(entry), i, entry]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map((
    [, , entry],
  ) => entry);
}

function buildSearch() {
  const input = byId("search"), box = byId("search-results");
  let found = [], active = -1;
  const close = () => {
    box.hidden = true;
    input.setAttribute("aria-expanded", "false");
  };
  const choose = (entry) => {
    close();
    input.blur();
    entry.pick();
  };
  const mark = (at) => {
    active = Math.min(Math.max(at, 0), found.length - 1);
    [...box.querySelectorAll("[role=option]")].forEach((each, i) => {
      each.setAttribute("aria-selected", String(i === active));
      if (i === active) {
        each.scrollIntoView({ block: "nearest" });
        input.setAttribute("aria-activedescendant", each.id);
      }
    });
  };
  const look = () => {
    const all = searchFor(theRun(), input.value);
    found = all.slice(0, MOST_RESULTS);
    fill(
      box,
      found.map((entry, i) =>
        el(
          "div",
          {
            class: "result",
            role: "option",
            id: `result-${i}`,
            onpointerdown: (event) => {
              event.preventDefault();
              choose(entry);
            },
          },
          el("span", { class: "tag", text: entry.kind }),
          el("b", { text: entry.text }),
          el("span", { class: "soft", text: entry.detail }),
        )
      ),
      input.value.trim() && !all.length && el("p", { class: "soft", text: "Nothing has this name." }),
      all.length > found.length && el("p", { class: "soft", text: `and ${whole(all.length - found.length)} more` }),
    );
    box.hidden = !input.value.trim();
    input.setAttribute("aria-expanded", String(!box.hidden));
    mark(0);
  };
  input.addEventListener("input", look);
  input.addEventListener("focus", look);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") mark(active + 1);
    else if (event.key === "ArrowUp") mark(active - 1);
    else if (event.key === "Enter" && found[active]) choose(found[active]);
    else if (event.key === "Escape") {
      input.value = "";
      close();
      input.blur();
    } else return;
    event.preventDefault();
  });
}
