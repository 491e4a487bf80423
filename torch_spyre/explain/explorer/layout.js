// Layout arithmetic: host index, host offset, device coordinates, byte address. The card does the same in its
// memory/layout.cpp, and tests compare the two.

const STICK_BYTES = 128;

const product = (list) => list.reduce((a, b) => a * b, 1);

// Elements, in steps of the next device element, of one step along each device dimension.
function rowMajor(sizes) {
  const strides = new Array(sizes.length).fill(1);
  for (let i = sizes.length - 2; i >= 0; --i) strides[i] = strides[i + 1] * sizes[i + 1];
  return strides;
}

// A layout for one host tensor, as a mixed-radix number: digits with decreasing units.
function placementOf(layout, size, stride) {
  const extents = layout.device_size, units = [...layout.stride_map], rank = extents.length, lane = units[rank - 1];
  // A stick whose stride another dimension has, too, holds one value.
  const single = lane > 0 && extents.some((extent, i) => i + 1 < rank && extent > 1 && units[i] === lane);
  if (single) units[rank - 1] = -1;
  const steps = rowMajor(extents);
  const digits = extents.map((extent, dim) => ({ dim, extent, unit: units[dim] }))
    .filter((digit) => digit.extent > 1 && digit.unit > 0).sort((a, b) => b.unit - a.unit);
  const perStick = extents[rank - 1];
  return {
    extents,
    units,
    steps,
    digits,
    size,
    stride,
    perStick,
    elementBytes: STICK_BYTES / perStick,
    elements: product(extents),
    hostElements: product(size),
  };
}

// Device coordinates of a host offset; null where it has no place.
function coordinatesOf(place, hostOffset) {
  const coordinates = new Array(place.extents.length).fill(0);
  let rest = hostOffset;
  for (const { dim, extent, unit } of place.digits) {
    coordinates[dim] = Math.floor(rest / unit);
    if (coordinates[dim] >= extent) return null;
    rest %= unit;
  }
  return rest === 0 ? coordinates : null;
}

// The host index of a host offset; null where no element of the tensor is.
function indexOf(place, hostOffset) {
  const index = new Array(place.size.length).fill(0);
  const order = place.size.map((_, dim) => dim).filter((dim) => place.size[dim] > 1 && place.stride[dim] > 0)
    .sort((a, b) => place.stride[b] - place.stride[a]);
  let rest = hostOffset;
  for (const dim of order) {
    index[dim] = Math.min(Math.floor(rest / place.stride[dim]), place.size[dim] - 1);
    rest -= index[dim] * place.stride[dim];
  }
  return rest === 0 && place.hostElements > 0 ? index : null;
}

const hostOffsetOf = (place, index) => index.reduce((sum, at, dim) => sum + at * place.stride[dim], 0);
const deviceOffsetOf = (place, coordinates) => coordinates.reduce((sum, at, dim) => sum + at * place.steps[dim], 0);

function coordinatesAt(place, deviceOffset) {
  let rest = deviceOffset;
  return place.steps.map((step) => {
    const at = Math.floor(rest / step);
    rest %= step;
    return at;
  });
}

// What a device element holds: its host offset and index, or null for padding.
function elementAt(place, coordinates) {
  let hostOffset = 0;
  for (let dim = 0; dim < coordinates.length; ++dim) {
    const unit = place.units[dim];
    if (unit < 0 && coordinates[dim] > 0) return null;
    if (unit > 0) hostOffset += unit * coordinates[dim];
  }
  // The tail of a padded row must not pass for the head of the next: its own place is another one.
  const own = coordinatesOf(place, hostOffset);
  if (!own || own.some((at, dim) => place.units[dim] > 0 && at !== coordinates[dim])) return null;
  const index = indexOf(place, hostOffset);
  return index && { hostOffset, index };
}

// Everything about the element at a device offset.
function describeElement(place, deviceOffset) {
  const coordinates = coordinatesAt(place, deviceOffset);
  return {
    coordinates,
    deviceOffset,
    byte: deviceOffset * place.elementBytes,
    stick: Math.floor(deviceOffset / place.perStick),
    element: elementAt(place, coordinates),
  };
}

// The slice of each extent that a core has, the last extent running fastest.
function slicesOfCore(core, slices) {
  const found = new Array(slices.length);
  for (let dim = slices.length - 1; dim >= 0; --dim) {
    found[dim] = core % slices[dim];
    core = Math.floor(core / slices[dim]);
  }
  return core === 0 ? found : null;
}

// Cores that have points of a step.
function coresOf({ extents, slices }) {
  const points = extents.map((extent, dim) => Math.ceil(extent / slices[dim])), found = [];
  for (let core = 0; core < product(slices); ++core) {
    if (slicesOfCore(core, slices).every((slice, dim) => slice * points[dim] < extents[dim])) found.push(core);
  }
  return found;
}

// An OpSpec as it is printed: its symbols with their ranges and cores, and where its tensors are touched. In a tile loop
// that depends on the iteration: the values of the loops' symbols.
function parseOpSpec(text, iteration = {}) {
  const lines = text.split("\n").map((line) => line.trim()),
    head = lines.find((line) => / over \w+: \d+\/\d+/.test(line));
  if (!head) return null;
  const space = [...head.matchAll(/(\w+): (\d+)\/(\d+)/g)].map(([, name, range, cores]) => ({
    name,
    range: Number(range),
    cores: Number(cores),
  }));
  const tensors = [];
  for (const line of lines) {
    const match = /^(?:in|out)\s+(\S+) \w+\[[\d, ]*\] at \[(.*)\](?: of core .*)?$/.exec(line);
    if (match) tensors.push({ places: match[1].split("+"), coordinates: splitAtCommas(match[2]).map(parseCoordinate) });
  }
  for (const coordinate of tensors.flatMap((tensor) => tensor.coordinates)) {
    if (!coordinate) continue;
    const around = coordinate.terms.filter(({ name }) => name in iteration);
    coordinate.constant += around.reduce((sum, { name, factor }) => sum + factor * iteration[name], 0);
    coordinate.terms = coordinate.terms.filter(({ name }) => !(name in iteration));
  }
  for (const tensor of tensors) {
    for (const coordinate of tensor.coordinates) {
      for (const term of coordinate?.terms ?? []) {
        const symbol = space.find((each) => each.name === term.name);
        if (symbol && term.kind !== "whole") {
          symbol.stick = Math.max(symbol.stick || 1, term.per);
        }
      }
    }
  }
  // A core takes whole sticks where an operand has its sticks along the symbol.
  for (const symbol of space) {
    const points = Math.ceil(symbol.range / symbol.cores), unit = symbol.cores > 1 ? symbol.stick || 1 : 1;
    symbol.points = Math.ceil(points / unit) * unit;
  }
  return { space, tensors };
}

function splitAtCommas(text) {
  const parts = [""];
  let depth = 0;
  for (const character of text) {
    depth += character === "(" ? 1 : character === ")" ? -1 : 0;
    if (character === "," && depth === 0) parts.push("");
    else parts[parts.length - 1] += character;
  }
  return parts.map((part) => part.trim());
}

// A device coordinate over symbols: a sum of multiples of c, floor(c/E) and Mod(c, E); null for anything else.
function parseCoordinate(text) {
  const found = { constant: 0, terms: [] };
  for (const part of text.split(" + ")) {
    const match = /^(?:(\d+)\*)?(?:(\w*[a-z]\w*)|floor\((\w+)\/(\d+)\)|Mod\((\w+), (\d+)\))$/.exec(part);
    if (/^\d+$/.test(part)) found.constant += Number(part);
    else if (!match) return null;
    else {
      const [, factor, whole, floored, floorPer, modded, modPer] = match;
      found.terms.push({
        factor: Number(factor || 1),
        name: whole || floored || modded,
        kind: whole ? "whole" : floored ? "floor" : "mod",
        per: Number(floorPer || modPer || 1),
      });
    }
  }
  found.terms.sort((a, b) => b.factor - a.factor);
  return found;
}

// The values of symbols behind device coordinates; null where the op does not touch them. A symbol that they do not
// depend on has no value.
function pointBehind(spec, tensor, coordinates) {
  const point = new Map();
  for (let dim = 0; dim < coordinates.length; ++dim) {
    const coordinate = tensor.coordinates[dim];
    if (!coordinate) continue;
    let rest = coordinates[dim] - coordinate.constant;
    if (rest < 0) return null;
    for (const { factor, name, kind, per } of coordinate.terms) {
      const range = spec.space.find((symbol) => symbol.name === name)?.range ?? Infinity;
      const most = kind === "floor" ? Math.ceil(range / per) - 1 : kind === "mod" ? per - 1 : range - 1;
      const at = Math.min(Math.floor(rest / factor), most);
      rest -= at * factor;
      point.set(name, (point.get(name) || 0) + (kind === "floor" ? at * per : at));
    }
    if (rest > 0) return null;
  }
  return spec.space.every(({ name, range }) => (point.get(name) ?? 0) < range) ? point : null;
}

// Cores of an op that touch an element of a tensor; null where none does.
function coresAt(spec, tensor, coordinates) {
  const point = pointBehind(spec, tensor, coordinates);
  if (!point) return null;
  let cores = [0];
  for (const { name, range, cores: slices, points } of spec.space) {
    const mine = point.has(name)
      ? [Math.floor(point.get(name) / points)]
      : [...Array(Math.ceil(range / points)).keys()];
    cores = cores.flatMap((core) => mine.map((slice) => core * slices + slice));
  }
  return cores;
}
