// Elements, words and numbers. Data becomes text nodes only, never markup.

const byId = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else if (name === "style") Object.assign(element.style, value);
    else if (name in element && name !== "list" && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const fill = (element, ...children) => element.replaceChildren(...children.flat().filter((child) => child));

function significant(value, digits = 3) {
  if (!isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value))) + 1;
  return value.toLocaleString("en", {
    maximumFractionDigits: Math.max(0, digits - size),
    minimumFractionDigits: size < digits && size > 0 ? digits - size : 0,
  });
}

function scaled(value, step, units) {
  let unit = 0, size = Math.abs(value);
  while (size >= step && unit < units.length - 1) {
    size /= step;
    value /= step;
    ++unit;
  }
  return [value, units[unit]];
}

function time(us) {
  if (Math.abs(us) > 0 && Math.abs(us) < 1) return `${significant(us * 1000)} ns`;
  const [value, unit] = scaled(us, 1000, ["µs", "ms", "s"]);
  return `${significant(value)} ${unit}`;
}

const signed = (value, format) => (value > 0 ? "+" : value < 0 ? "−" : "±") + format(Math.abs(value));

function bytes(count) {
  const [value, unit] = scaled(count, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
  return `${unit === "B" ? value : significant(value)} ${unit}`;
}

const rate = (perSecond, unit) => {
  const [v, p] = scaled(perSecond, 1000, ["", "k", "M", "G", "T", "P"]);
  return `${significant(v)} ${p}${unit}`;
};
const percent = (
  share,
) => (isFinite(share)
  ? `${(share * 100).toFixed(Math.abs(share) < 0.0995 && share ? 2 : 1).replace(/\.0$/, "")} %`
  : "–");
const whole = (count) => count.toLocaleString("en");
const list = (numbers) => `[${numbers.join(", ")}]`;
const plural = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;

const tip = {
  show(event, title, facts) {
    const box = byId("tip");
    fill(
      box,
      el("b", { text: title }),
      el(
        "dl",
        {},
        facts.filter((fact) => fact).map(([name, value]) => [el("dt", { text: name }), el("dd", { text: value })])
          .flat(),
      ),
    );
    box.hidden = false;
    const margin = 14, { innerWidth, innerHeight } = window;
    const left = event.clientX + margin + box.offsetWidth > innerWidth
      ? event.clientX - margin - box.offsetWidth
      : event.clientX + margin;
    const top = event.clientY + margin + box.offsetHeight > innerHeight
      ? innerHeight - box.offsetHeight - 4
      : event.clientY + margin;
    box.style.left = `${Math.max(4, left)}px`;
    box.style.top = `${Math.max(4, top)}px`;
  },
  hide() {
    byId("tip").hidden = true;
  },
};

function say(text, lasting = false) {
  const box = byId("message");
  box.textContent = text;
  box.hidden = false;
  clearTimeout(say.timer);
  if (!lasting) {
    say.timer = setTimeout(() => {
      box.hidden = true;
    }, 5000);
  }
}

function button(text, onclick, more = {}) {
  return el("button", { type: "button", text, onclick, ...more });
}

// Buttons of which one is on. `options`: [value, text].
function choice(label, options, get, set) {
  const group = el("div", { class: "choice", role: "group", "aria-label": label });
  group.refresh = () => {
    for (const each of group.children) each.setAttribute("aria-pressed", String(each.value === String(get())));
  };
  group.append(...options.map(([value, text]) =>
    button(text, () => {
      set(value);
      group.refresh();
    }, { value: String(value) })
  ));
  group.refresh();
  return group;
}

function select(label, options, value, onchange) {
  const box = el(
    "select",
    { "aria-label": label, onchange: () => onchange(box.value) },
    options.map(([key, text]) => el("option", { value: key, text })),
  );
  box.value = value;
  return box;
}

function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
