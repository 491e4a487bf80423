// Tables of any length: sorted by a click, drawn only where they are in sight.

const ROW_HEIGHT = 26;

class DataTable {
  // `columns`: {id, title, value(row), text?(row), number?, bar?(row) → share, wide?}
  constructor(label, columns, { onpick, isPicked = () => false, sort, height = "60vh", key = (row) => row } = {}) {
    Object.assign(this, { columns, onpick, isPicked, sort: sort || [columns[0].id, -1], rows: [], key });
    this.head = el("tr");
    this.body = el("tbody");
    this.element = el("div", {
      class: "scroll",
      tabIndex: 0,
      style: { maxHeight: height },
      role: "region",
      "aria-label": label,
      onscroll: () => this.renderRows(),
      onkeydown: (event) => this.onkey(event),
    }, el("table", { class: "data" }, el("thead", {}, this.head), this.body));
    this.renderHead();
    new ResizeObserver(() => this.renderRows()).observe(this.element);
  }

  renderHead() {
    fill(
      this.head,
      this.columns.map((column) => {
        const [id, direction] = this.sort, sorted = id === column.id;
        return el(
          "th",
          {
            class: column.number ? "number" : "",
            scope: "col",
            "aria-sort": sorted ? (direction > 0 ? "ascending" : "descending") : "none",
          },
          button(column.title + (sorted ? (direction > 0 ? " ▲" : " ▼") : ""), () => this.sortBy(column), {
            class: "plain",
          }),
        );
      }),
    );
  }

  sortBy(column) {
    const [id, direction] = this.sort;
    this.sort = [column.id, id === column.id ? -direction : column.number ? -1 : 1];
    this.renderHead();
    this.set(this.rows);
  }

  set(rows) {
    const [id, direction] = this.sort, column = this.columns.find((each) => each.id === id);
    const compare = (
      a,
      b,
    ) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
    this.rows = rows.map((row, i) => [row, column.value(row), i]).sort((a, b) =>
      direction * compare(a[1], b[1]) || a[2] - b[2]
    ).map(([row]) => row);
    this.drawn = null;
    this.renderRows();
  }

  renderRows() {
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(0, Math.floor(scrollTop / ROW_HEIGHT) - 8);
    const last = Math.min(this.rows.length, first + Math.ceil((clientHeight || 600) / ROW_HEIGHT) + 16);
    const drawn = `${first}-${last}`;
    if (this.drawn === drawn) return;
    this.drawn = drawn;
    const space = (count) =>
      count > 0 &&
      el(
        "tr",
        { "aria-hidden": "true" },
        el("td", { colSpan: this.columns.length, class: "space", style: { height: `${count * ROW_HEIGHT}px` } }),
      );
    fill(
      this.body,
      space(first),
      this.rows.slice(first, last).map((row) => this.renderRow(row)),
      space(this.rows.length - last),
    );
  }

  renderRow(row) {
    const cells = this.columns.map((column) => {
      const text = String(column.text ? column.text(row) : column.value(row));
      const cell = el("td", {
        class: (column.number ? "number " : "") + (column.wide ? "wide" : ""),
        title: text,
        text,
      });
      const share = column.bar?.(row);
      if (share > 0) {
        cell.style.backgroundImage = `linear-gradient(90deg, var(--bar) ${Math.min(share, 1) * 100}%, transparent 0)`;
      }
      return cell;
    });
    const picked = this.isPicked(row);
    return el("tr", {
      class: (picked ? "picked " : "") + (this.onpick ? "can-pick" : ""),
      "aria-selected": String(picked),
      onclick: () => this.onpick?.(row),
    }, cells);
  }

  refresh() {
    this.drawn = null;
    this.renderRows();
  }

  onkey(event) {
    if (!this.onpick || !["ArrowUp", "ArrowDown"].includes(event.key)) return;
    const at = this.rows.findIndex((row) => this.isPicked(row));
    const next = Math.min(Math.max(at + (event.key === "ArrowDown" ? 1 : -1), 0), this.rows.length - 1);
    if (!this.rows[next]) return;
    event.preventDefault();
    event.stopPropagation();
    this.onpick(this.rows[next]);
    this.reveal(next);
  }

  reveal(index) {
    const top = index * ROW_HEIGHT, { scrollTop, clientHeight } = this.element;
    if (top < scrollTop || top > scrollTop + clientHeight - 3 * ROW_HEIGHT) {
      this.element.scrollTop = top - clientHeight / 2;
    }
  }

  revealPicked() {
    const index = this.rows.findIndex((row) => this.isPicked(row));
    if (index >= 0) this.reveal(index);
  }

  csv() {
    // A cell that begins like a formula would be one in a spreadsheet.
    const cell = (value) => {
      const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    return [
      this.columns.map((column) => cell(column.title)),
      ...this.rows.map((row) => this.columns.map((column) => cell(column.value(row)))),
    ]
      .map((cells) => cells.join(",")).join("\r\n") + "\r\n";
  }
}
