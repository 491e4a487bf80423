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
  return { extents, units, steps, digits, size, stride, perStick, elementBytes: STICK_BYTES / perStick,
    elements: product(extents), hostElements: product(size) };
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
  return { coordinates, deviceOffset, byte: deviceOffset * place.elementBytes,
    stick: Math.floor(deviceOffset / place.perStick), element: elementAt(place, coordinates) };
}

// Points of each extent that a core takes: whole sticks where an operand has its sticks along the extent.
function pointsPerCore(extents, slices, accesses) {
  return extents.map((extent, dim) => {
    const points = Math.ceil(extent / slices[dim]);
    const unit = Math.max(1, ...accesses.filter((access) => access.stick === dim).map((access) => access.per_stick));
    return slices[dim] > 1 ? Math.ceil(points / unit) * unit : points;
  });
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
function coresOf(step) {
  const slices = step.slices.length ? step.slices : step.extents.map(() => 1);
  const points = pointsPerCore(step.extents, slices, step.accesses || []);
  const found = [];
  for (let core = 0; core < product(slices); ++core) {
    if (slicesOfCore(core, slices).every((slice, dim) => slice * points[dim] < step.extents[dim])) found.push(core);
  }
  return found;
}

// Cores of a step that touch a byte of an operand; null where the step does not touch it.
function coresAtByte(step, access, byte) {
  const points = pointsPerCore(step.extents, step.slices, step.accesses || []);
  const digits = [];
  for (let dim = 0; dim < step.extents.length; ++dim) {
    const stride = access.strides[dim];
    if (stride > 0) {
      const count = dim === access.stick ? Math.ceil(step.extents[dim] / access.per_stick) : step.extents[dim];
      digits.push({ dim, stride, count, scale: dim === access.stick ? access.per_stick : 1 });
    }
  }
  digits.sort((a, b) => b.stride - a.stride);
  let rest = byte - access.offset;
  if (rest < 0) return null;
  const point = step.extents.map(() => null);
  for (const { dim, stride, count, scale } of digits) {
    const at = Math.min(Math.floor(rest / stride), count - 1);
    point[dim] = at * scale;
    rest -= at * stride;
  }
  if (access.stick >= 0) {
    const lane = Math.floor(rest * access.per_stick / STICK_BYTES);
    point[access.stick] = (point[access.stick] ?? 0) + lane;
    if (rest >= STICK_BYTES || point[access.stick] >= step.extents[access.stick]) return null;
  } else if (rest >= STICK_BYTES / access.per_stick) return null;
  let cores = [0];
  for (let dim = 0; dim < step.extents.length; ++dim) {
    const slices = step.slices[dim], known = point[dim] !== null;
    const mine = known ? [Math.floor(point[dim] / points[dim])] : [...Array(slices).keys()];
    cores = cores.flatMap((core) => mine.map((slice) => core * slices + slice));
  }
  return cores;
}
