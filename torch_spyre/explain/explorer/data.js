// The data of a run, and what follows from it.

async function unpack(base64) {
  const binary = atob(base64), packed = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; ++i) packed[i] = binary.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// The runs that a page has, this one or one that was dropped on it.
async function runsOf(page) {
  const runs = [];
  for (let number = 0;; ++number) {
    const main = page.getElementById(`run-${number}`);
    if (!main) return runs;
    const raw = await unpack(main.textContent);
    runs.push(new Run(raw, (block) => unpack(page.getElementById(`run-${number}-texts-${block}`).textContent)));
  }
}

const KINDS = {
  matmul: "product",
  attention: "product",
  reduce: "reduction",
  scan: "reduction",
  argreduce: "reduction",
  topk: "reduction",
  copy: "move",
  fill: "move",
  restickify: "move",
  gather: "move",
  scatter: "move",
  iota: "move",
};
const kindOf = (op) => KINDS[op.split(" ")[0]] || "pointwise";

const SOURCE = /^File "(.*)", line (\d+)(?:, in (.*))?$/;

const NO_LINE = "(no line)";

class Run {
  constructor(raw, loadBlock) {
    if (!raw || raw.format !== "spyre-run") throw new Error("this is not the data of a run");
    if (raw.version !== 1) {
      throw new Error(`this is version ${raw.version} of the data, and the explorer reads version 1`);
    }
    this.raw = raw;
    this.title = raw.title || "run";
    this.card = raw.card;
    this.loadBlock = loadBlock;
    this.loaded = new Map();
    this.blockOf = new Map();
    (raw.text_blocks || []).forEach((positions, block) =>
      positions.forEach((position, at) => this.blockOf.set(position, [block, at]))
    );
    this.sources = new Map();
    this.kernels = raw.kernels.map((kernel, number) => new KernelData(this, kernel, number));
    this.launches = raw.launches.map((launch, number) => ({ ...launch, number }));
    this.launched = this.launches.length > 0;
    if (!this.launched) this.launches = this.asIfLaunched();
    this.launches.sort((a, b) => a.start_us - b.start_us);
    for (const { kernel } of this.launches) ++this.kernels[kernel].launches;
    this.eagerCalls = (raw.eager_calls || []).map((call) => ({ ...call, op: raw.eager[call.op] }));
    this.eagerCalls.sort((a, b) => a.start_us - b.start_us);
    const parts = [this.launches, this.eagerCalls];
    this.streams = [...new Set(parts.flatMap((part) => part.map((each) => each.stream)))].sort((a, b) => a - b);
    this.begin = Math.min(0, ...parts.flatMap((part) => part.slice(0, 1)).map((each) => each.start_us));
    const last = (part) => part.reduce((end, each) => Math.max(end, each.start_us + each.us), 0);
    this.end = Math.max(raw.totals.us || 0, ...parts.map(last)) || 1;
    this.steps = this.kernels.flatMap((kernel) => kernel.steps);
    this.stepsUs = this.steps.reduce((sum, step) => sum + step.totalUs, 0);
  }

  // Kernels one after the other, where none was launched.
  asIfLaunched() {
    let start_us = 0;
    return this.kernels.map((kernel, number) => {
      const launch = { kernel: number, number, stream: 0, start_us, us: kernel.us };
      start_us += kernel.us;
      return launch;
    });
  }

  // A short text; long ones come with `text()`.
  shortText(position) {
    return this.raw.texts[position] ?? "";
  }

  async text(position) {
    const found = this.raw.texts[position];
    if (found !== null && found !== undefined) return found;
    if (!this.blockOf.has(position)) return "";
    const [block, at] = this.blockOf.get(position);
    if (!this.loaded.has(block)) this.loaded.set(block, this.loadBlock(block));
    return (await this.loaded.get(block))[at];
  }

  // Where a source text points: the file, the line, and what is written there.
  source(position) {
    if (!this.sources.has(position)) {
      const text = this.shortText(position), match = SOURCE.exec(text);
      const path = match ? match[1] : "", line = match ? Number(match[2]) : 0;
      const file = path.split("/").pop();
      const code = (this.raw.files[path]?.[line] ?? "").trim();
      const short = match ? `${file}:${line}` : text || NO_LINE;
      this.sources.set(position, { position, text, path, line, file, code, short, scope: match?.[3] ?? "" });
    }
    return this.sources.get(position);
  }
}

class KernelData {
  constructor(run, raw, number) {
    Object.assign(this, {
      run,
      raw,
      number,
      name: raw.name,
      short: raw.name.replace(/^spyre_kernel_v1_/, "").replace(/_[A-Z2-7]{16}$/, ""),
      us: raw.us,
      launches: 0,
      buffers: raw.buffers,
      specs: raw.specs,
    });
    this.steps = raw.steps.map((step, index) => new StepData(this, step, index));
    this.starts = new Float64Array(this.steps.length + 1);
    this.steps.forEach((step, i) => {
      this.starts[i + 1] = this.starts[i] + step.us;
    });
    this.steps.forEach((step, i) => {
      step.start = this.starts[i];
    });
    this.total = this.starts[this.steps.length];
    this.longest = this.steps.reduce((best, step) => (best && best.us >= step.us ? best : step), null);
    this.buffers.forEach((buffer, index) => Object.defineProperty(buffer, "index", { value: index }));
    this.layers = this.findLayers();
  }

  // The layers of a model: their ops come from the same lines with the same sizes. Their number is the largest that
  // divides how often nearly all repeated time is repeated; the costliest op among these tells one from the next.
  findLayers() {
    const keys = this.steps.map((step) => `${step.op}\n${step.raw.source}\n${step.extents}`), alike = new Map();
    keys.forEach((key, i) => {
      if (alike.has(key)) alike.get(key).push(i);
      else alike.set(key, [i]);
    });
    const us = (positions) => positions.reduce((sum, i) => sum + this.steps[i].us, 0);
    const groups = [...alike.values()].filter((positions) => positions.length > 1).map((positions) => ({
      positions,
      us: us(positions),
    }));
    const weights = [...new Set(groups.map((group) => group.positions.length))].map((
      count,
    ) => [count, groups.reduce((sum, group) => sum + (group.positions.length % count ? 0 : group.us), 0)]);
    const most = Math.max(...weights.map(([, weight]) => weight), 0),
      count = Math.max(...weights.filter(([, weight]) => weight >= 0.95 * most).map(([each]) => each), 0);
    const costliest = groups.filter((group) => group.positions.length % count === 0).sort((a, b) => b.us - a.us)[0];
    if (!count || !costliest) return 0;
    const { positions } = costliest,
      anchors = positions.filter((_, i) => i % (positions.length / count) === 0),
      period = anchors[1] - anchors[0];
    let before = 0;
    while (
      before + 1 < period && anchors[0] > before && keys[anchors[0] - before - 1] === keys[anchors[1] - before - 1]
    ) ++before;
    // The last layer ends where it no longer goes on like the first.
    const last = anchors[count - 1] - before, first = anchors[0] - before;
    let like = 0;
    while (like < period && keys[last + like] === keys[first + like]) ++like;
    anchors.forEach((anchor, layer) => {
      const begin = anchor - before, end = layer + 1 < count ? anchors[layer + 1] - before : last + like;
      for (let i = Math.max(begin, 0); i < Math.min(end, this.steps.length); ++i) this.steps[i].layer = layer;
    });
    return count;
  }

  // The step at a time from the start of a launch.
  stepAt(us) {
    let low = 0, high = this.steps.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= us) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  // Microseconds from the start of the kernel in which a part of the card is busy, up to every step.
  busy(part) {
    this.busyUntil ??= new Map();
    if (!this.busyUntil.has(part)) {
      const sums = new Float64Array(this.steps.length + 1);
      this.steps.forEach((step, i) => {
        const range = typeof part === "number" ? (step.uses(part) ? [0, step.us] : null) : partsOf(step)[part];
        sums[i + 1] = sums[i] + (range ? range[1] - range[0] : 0);
      });
      this.busyUntil.set(part, sums);
    }
    return this.busyUntil.get(part);
  }

  bufferText(buffer) {
    return `${buffer.name} ${buffer.dtype.replace("torch.", "")} ${list(buffer.size)}`;
  }
}

class StepData {
  constructor(kernel, raw, index) {
    Object.assign(this, { kernel, raw, index, op: raw.op, us: raw.us, extents: raw.extents, kind: kindOf(raw.op) });
    this.slices = raw.slices.length ? raw.slices : raw.extents.map(() => 1);
    this.bytes = raw.bytes_read + raw.bytes_written;
    this.layer = -1;
  }

  get run() {
    return this.kernel.run;
  }
  get id() {
    return `${this.kernel.number}.${this.index}`;
  }
  get count() {
    return this.run.launched ? this.kernel.launches : 1;
  }
  get totalUs() {
    return this.us * this.count;
  }
  get source() {
    return this.run.source(this.raw.source);
  }
  // The steps of the same OpSpec, one for each iteration of the tile loops around it.
  get iterations() {
    return this.raw.iteration ? this.kernel.steps.filter((step) => step.raw.spec === this.raw.spec) : [this];
  }
  get iterationText() {
    const { iterations } = this;
    return this.raw.iteration ? `, iteration ${iterations.indexOf(this) + 1} of ${iterations.length}` : "";
  }
  get cores() {
    return this.coreCount ??= coresOf(this).length;
  }
  get isProduct() {
    return this.kind === "product";
  }

  // Arithmetic operations: multiply-adds count as two, moves as none.
  get ops() {
    const points = product(this.extents);
    if (this.kind === "move") return 0;
    if (this.op === "matmul") return 2 * points;
    if (this.op.startsWith("attention")) {
      const [width, keys, depth] = this.extents.slice(-3);
      return 2 * points * (1 / width + 1 / depth);
    }
    return points;
  }

  uses(core) {
    return (this.coreSet ??= new Set(coresOf(this))).has(core);
  }

  facts() {
    const { raw } = this;
    return [
      ["time", this.count > 1 ? `${time(this.us)} × ${this.count} launches` : time(this.us)],
      [
        "least",
        `${time(raw.least_us)} (${raw.least_us > 0 ? `${significant(this.us / raw.least_us)} × bound` : "no bound"})`,
      ],
      ["bound by", raw.bound_by],
      ["start-up", time(raw.begin_us)],
      [this.isProduct ? "matrix unit" : "vector unit", time(raw.compute_us)],
      ["DRAM", `${time(raw.memory_us)}, ${bytes(raw.bytes_read)} read, ${bytes(raw.bytes_written)} written`],
      ["ring", `${time(raw.ring_us)}, ${bytes(raw.bytes_ring)}`],
      ["extents", list(this.extents)],
      ["slices", `${list(this.slices)} on ${plural(this.cores, "core")}`],
      ["ATen", raw.aten || "–"],
      ["source", `${this.source.short} ${this.source.code}`.trim()],
      this.layer >= 0 && ["layer", String(this.layer)],
      ["kernel", `${this.kernel.name}, step ${this.index}${this.iterationText}`],
    ];
  }
}

// Steps of a run with one key between them, those that take longest first.
function grouped(steps, keyOf) {
  const groups = new Map();
  for (const step of steps) {
    const key = keyOf(step);
    let group = groups.get(key);
    if (!group) {
      group = {
        key,
        steps: [],
        count: 0,
        us: 0,
        begin_us: 0,
        compute_us: 0,
        memory_us: 0,
        ring_us: 0,
        least_us: 0,
        bytes: 0,
        ops: 0,
        first: step,
      };
      groups.set(key, group);
    }
    const times = step.count;
    group.steps.push(step);
    group.count += times;
    group.us += step.us * times;
    for (const name of ["begin_us", "compute_us", "memory_us", "ring_us", "least_us"]) {
      group[name] += step.raw[name] * times;
    }
    group.bytes += step.bytes * times;
    group.ops += step.ops * times;
  }
  return [...groups.values()].sort((a, b) => b.us - a.us);
}
