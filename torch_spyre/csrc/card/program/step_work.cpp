#include "card/program/step_work.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "card/program/attention_step.h"
#include "card/program/core_split.h"
#include "card/program/paged_step.h"

namespace spyre {

namespace {

int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

// A dimension as an operand sees it: how many blocks, and how far apart.
struct Dimension {
  int64_t count, stride;
  size_t dimension;
};

// By growing distance; along sticks a block is a stick.
std::vector<Dimension> dimensions_of(const Operand& operand, const Dims& points) {
  std::vector<Dimension> all;
  for (size_t i = 0; i < points.size(); ++i) {
    const bool along = operand.stick == static_cast<int>(i);
    const int64_t count = along ? ceil_div(points[i], elements_per_stick(operand.format)) : points[i];
    if (count > 1 && operand.strides[i]) all.push_back({count, std::abs(operand.strides[i]), i});
  }
  std::stable_sort(all.begin(), all.end(), [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  return all;
}

// Bytes of the sticks that so many points touch, each stick once.
int64_t stick_bytes(const Step& step, size_t index, const Dims& points) {
  const Operand& operand = step.operands[index];
  const bool indexed = static_cast<int>(index) == indexed_operand(step);
  int64_t sticks = 1;
  for (size_t i = 0; i < points.size(); ++i) {
    const int64_t stride = std::abs(operand.strides[i]);
    if (operand.stick == static_cast<int>(i))
      sticks *= ceil_div(points[i], elements_per_stick(operand.format));
    else if (indexed || stride >= kStickBytes)
      sticks *= points[i];
    else if (stride)
      sticks *= (points[i] - 1) * stride / kStickBytes + 1;
  }
  // Overlapping windows share sticks.
  const auto [low, high] = reach(step, index, points);
  const int64_t all = ceil_div(high - low, kStickBytes);
  return std::min(sticks, all) * kStickBytes;
}

int64_t contiguous(const std::vector<Dimension>& dimensions, int64_t element) {
  // Elements next to each other make up sticks; those a stick or more apart come as whole sticks.
  int64_t bytes = !dimensions.empty() && dimensions[0].stride < kStickBytes ? element : kStickBytes;
  for (const Dimension& each : dimensions) {
    if (each.stride > bytes) break;
    bytes = std::max(bytes, each.stride * (each.count - 1) + bytes);
  }
  return std::max(bytes, int64_t{kStickBytes});
}

bool moves(const Operand& operand, size_t dimension) {
  return !operand.is_constant() && (operand.stick == static_cast<int>(dimension) || operand.strides[dimension] != 0 ||
                                    (operand.across_cores() && operand.core_strides[dimension] != 0));
}

bool permutes(const std::vector<Dimension>& written, const std::vector<Dimension>& read) {
  std::vector<size_t> a, b;
  for (const Dimension& each : written) a.push_back(each.dimension);
  for (const Dimension& each : read) b.push_back(each.dimension);
  std::vector<size_t> common;
  for (size_t dimension : a)
    if (std::find(b.begin(), b.end(), dimension) != b.end()) common.push_back(dimension);
  std::erase_if(b,
                [&](size_t dimension) { return std::find(common.begin(), common.end(), dimension) == common.end(); });
  return common != b;
}

bool is_fresh(const Step& step, size_t index, const Step* before) {
  if (!before || before->operands[0].in_lx() || step.operands[index].argument != before->operands[0].argument)
    return false;
  const auto [low, high] = reach(step, index, step.extents);
  const auto [from, to] = reach(*before, 0, before->extents);
  return low < to && from < high;
}

Traffic traffic_of(const Step& step, size_t index, const Dims& points) {
  const Operand &operand = step.operands[index], &written = step.operands[0];
  Traffic stream;
  stream.written = index == 0;
  stream.in_lx = operand.in_lx();
  const size_t kept = step.extents.size() - folded_dimensions(step);
  for (size_t i = 0; i < kept && index; ++i) {
    if (step.extents[i] == 1 || !moves(written, i) || moves(operand, i)) continue;
    stream.broadcast = true;
    if (written.stick == static_cast<int>(i)) stream.splat = true;
  }
  if (operand.is_constant()) {
    stream.broadcast = stream.splat = true;
    return stream;
  }
  // In LX strides are those of one core's stage.
  stream.bytes =
      stream.in_lx ? step.cores() * stick_bytes(step, index, points) : stick_bytes(step, index, step.extents);
  const std::vector<Dimension> own = dimensions_of(operand, points);
  stream.run = contiguous(own, element_bytes(operand.format));
  if (operand.stick >= static_cast<int>(kept) && index &&
      step.extents[operand.stick] > elements_per_stick(operand.format))
    stream.lane_stride = std::abs(operand.strides[operand.stick]);
  for (size_t i = 0; i < step.slices.size(); ++i)
    if (!moves(operand, i)) stream.share *= static_cast<int>(step.slices[i]);
  return stream;
}

// How the data mover finds its destination: in one block, with gaps, or in another order than the source.
void find_destination(const Step& step, const Dims& points, bool restickifies, Traffic& written) {
  const std::vector<Dimension> all = dimensions_of(step.operands[0], step.extents);
  const int64_t block = contiguous(all, element_bytes(step.operands[0].format));
  written.gaps = block < written.bytes;
  if (written.gaps) written.blocks = ceil_div(written.bytes, block);
  if (restickifies || step.operands.size() < 2 || step.operands[1].is_constant()) return;
  written.permuted = permutes(all, dimensions_of(step.operands[1], step.extents));
  if (!written.permuted) return;
  const std::vector<Dimension> own = dimensions_of(step.operands[0], points);
  written.run = own.empty() ? kStickBytes : own[0].count * kStickBytes;
  const Operand& to = step.operands[0];
  if (!written.gaps && to.stick >= 0) written.blocks = ceil_div(step.extents[to.stick], elements_per_stick(to.format));
}

void fill_matrix(const Step& step, const Dims& points, Work& work) {
  const size_t rank = points.size(), m = rank - 3, n = rank - 2, k = rank - 1;
  work.multiplications = 1;
  for (int64_t count : points) work.multiplications *= static_cast<double>(count);
  const int64_t stick = elements_per_stick(step.operands[0].format);  // columns come by the stick, used or not
  work.multiplications *= static_cast<double>(ceil_div(points[n], stick) * stick) / static_cast<double>(points[n]);
  work.rows = static_cast<double>(points[m]);
  work.all_rows = static_cast<double>(step.extents[m]);
  work.area = static_cast<double>(points[m]) * static_cast<double>(points[n]);
  work.depth = static_cast<double>(points[k]);
  work.partial = static_cast<int>(step.slices[k]);
  work.restickifies_b = step.operands[2].stick == static_cast<int>(k) && step.extents[n] > 1;
  for (size_t i = 0; i < m; ++i) {
    if (step.extents[i] == 1 || !moves(step.operands[2], i)) continue;
    if (work.batch == Work::Batch::none) work.batch = Work::Batch::outside;
    for (const Operand& operand : step.operands)
      if (std::abs(operand.strides[i]) == kStickBytes) work.batch = Work::Batch::next_to_sticks;
  }
}

Traffic in_lx(bool written, int64_t bytes = 0) {
  Traffic stream;
  stream.written = written;
  stream.in_lx = true;
  stream.bytes = bytes;
  return stream;
}

// The same for all lanes.
Traffic splat_in_lx() {
  Traffic stream = in_lx(false);
  stream.broadcast = stream.splat = true;
  return stream;
}

// The share of all pairs of rows and keys that the busiest core has.
double share_of_keys(const Step& step, size_t q, const Dims& points) {
  const auto length = static_cast<double>(step.extents[step.extents.size() - attention::kLength]);
  // Of the rows before this one; from row to row it is the same within a block of keys, and grows by one from block to
  // block until all keys are met.
  const auto met_before = [&](int64_t row) {
    const int64_t blocks = row / kKeys, growing = std::min(blocks, keys_met(step, row) / kKeys);
    const auto first = static_cast<double>(keys_met(step, 0)), grown = static_cast<double>(growing);
    const double in_growing = first == length ? length * grown : kKeys * grown * (grown + 1) / 2;
    return kKeys * (in_growing + length * static_cast<double>(blocks - growing)) +
           static_cast<double>(row % kKeys) * static_cast<double>(keys_met(step, row));
  };
  double most = 0;
  for (int64_t slice = 0; slice < step.slices[q]; ++slice) {
    const int64_t begin = std::min(slice * points[q], step.extents[q]),
                  end = std::min(begin + points[q], step.extents[q]);
    most = std::max(most, met_before(end) - met_before(begin));
  }
  return most / (static_cast<double>(points[q]) * length);
}

// Queries and keys of one core that attention brings together.
struct AttentionPart {
  double rows, all_rows;  // heads that share keys are rows of one product; of one core, and of all
  double batch;           // heads of keys
  double keys, width, depth;
  double met;              // the share of all pairs of rows and keys
  double tiles;            // of keys, after which results are scaled down
  int64_t restickified;    // bytes of keys in sticks along the depth
  Work::Batch kind;        // how heads lie
  double passes, special;  // over scores: additions, and special functions besides exp
  double stick;            // elements
};

// Two products, and what the vector unit does with their scores in fp32: the mask is added and the largest found in one
// pass, weights are taken in another and summed; results are scaled down between two tiles of keys, and divided in the
// end.
void add_attention(const AttentionPart& part, Work& work) {
  const double lanes = static_cast<double>(elements_per_stick(DataFormat::IEEE_FP32));
  const double scores = part.batch * part.rows * part.keys / lanes * part.met;
  const auto product_of = [&](double columns, double depth, int64_t restickified_bytes) {
    Work stage;
    stage.unit = Work::Unit::matrix;
    stage.traffic = {in_lx(true), in_lx(false), in_lx(false, restickified_bytes)};
    stage.restickifies_b = restickified_bytes > 0;
    stage.batch = part.kind;
    stage.rows = part.rows;
    stage.all_rows = part.all_rows;
    stage.multiplications = part.batch * part.rows * columns * depth * part.met;
    stage.area = part.rows * columns;
    stage.depth = depth;
    return stage;
  };
  const auto vector_of = [&](double sticks, std::vector<Traffic> read, bool special = false) {
    Work stage;
    stage.sticks = sticks;
    stage.traffic = {in_lx(true)};
    stage.traffic.insert(stage.traffic.end(), read.begin(), read.end());
    stage.special = special;
    return stage;
  };
  const auto fold_of = [&](double sticks) {
    Work stage = vector_of(sticks, {in_lx(false)});
    stage.folds_lanes = true;
    return stage;
  };
  const auto by_the_stick = [](double count, double stick) { return std::ceil(count / stick) * stick; };
  work.stages.push_back(product_of(by_the_stick(part.keys, lanes), part.depth, part.restickified));
  for (int i = 0; i < static_cast<int>(part.special); ++i)
    work.stages.push_back(vector_of(scores, {in_lx(false)}, true));
  for (int i = 0; i < static_cast<int>(part.passes); ++i)
    work.stages.push_back(vector_of(scores, {in_lx(false), in_lx(false)}));
  work.stages.push_back(fold_of(scores));
  work.stages.push_back(vector_of(scores, {in_lx(false), splat_in_lx()}, true));
  work.stages.push_back(fold_of(scores));
  work.stages.push_back(product_of(by_the_stick(part.width, part.stick), part.keys, 0));
  const double results = part.tiles * part.batch * part.rows * part.width / lanes;
  work.stages.push_back(vector_of(results, {in_lx(false), splat_in_lx()}));
}

void fill_attention(const Step& step, const Dims& points, Work& work) {
  using namespace attention;
  const size_t rank = points.size(), q = rank - kRows;
  const auto length = static_cast<double>(points[rank - kLength]);
  double rows = static_cast<double>(points[q]), all_rows = static_cast<double>(step.extents[q]), batch = 1;
  for (size_t i = 0; i < q; ++i) {
    if (!moves(step.operands[kKey], i) && !moves(step.operands[kValue], i)) {
      rows *= static_cast<double>(points[i]);
      all_rows *= static_cast<double>(step.extents[i]);
      continue;
    }
    batch *= static_cast<double>(points[i]);
    if (step.extents[i] == 1) continue;
    if (work.batch == Work::Batch::none) work.batch = Work::Batch::outside;
    for (const Operand& operand : step.operands)
      if (!operand.is_constant() && std::abs(operand.strides[i]) == kStickBytes)
        work.batch = Work::Batch::next_to_sticks;
  }
  work.all_rows = all_rows;
  add_attention({.rows = rows,
                 .all_rows = all_rows,
                 .batch = batch,
                 .keys = length,
                 .width = static_cast<double>(points[rank - kWidth]),
                 .depth = static_cast<double>(points[rank - kDepth]),
                 .met = share_of_keys(step, q, points),
                 .tiles = step.tile.empty() ? 1 : std::ceil(length / static_cast<double>(step.tile[rank - kLength])),
                 .restickified = points[rank - kLength] > 1 ? work.cores * stick_bytes(step, kKey, points) : 0,
                 .kind = work.batch,
                 .passes = step.operands[kMask].is_constant() ? 0.0 : 1.0,
                 .special = 0,
                 .stick = static_cast<double>(elements_per_stick(step.operands[kOut].format))},
                work);
}

// Requests one after the other, each on all cores: heads are divided over some, the keys of each page over the others,
// which pass their results on. Keys and values are loaded as they come, once for as many rows as a core has room for.
void fill_paged(const Step& step, const Dims& points, Work& work) {
  using namespace paged;
  const auto bytes_of = [&](size_t operand, size_t axis, double count) {
    const DataFormat format = step.operands[operand].format;
    const int64_t stick = elements_per_stick(format);
    return static_cast<int64_t>(count) * ((step.extents[axis] + stick - 1) / stick * kStickBytes);
  };
  const auto read = [&](size_t operand, int64_t bytes) {
    Traffic stream = work.traffic[operand];
    stream.bytes = stream.in_lx ? 0 : bytes;
    return stream;
  };
  const auto heads = static_cast<double>(step.extents[kHead]), own = static_cast<double>(points[kHead]),
             group = static_cast<double>(step.extents[kGroup]);
  const int64_t page = step.extents[kSlot], sharing = step.slices[kSlot];
  int64_t room = step.extents[kToken];  // tokens whose rows a core holds at a time
  if (!step.tile.empty())
    room = std::max<int64_t>(
        1, step.tile[kHead] * step.tile[kGroup] * step.tile[kToken] / (points[kHead] * step.extents[kGroup]));
  for (const Request& request : requests_of(step)) {
    Work part;
    part.cores = work.cores;
    part.unit = Work::Unit::matrix;
    const double rows = static_cast<double>(request.rows()) * group;
    double met = 0, loaded = 0;  // pairs of a query and a key; keys, each as often as it is loaded
    int64_t begin = request.length, end = 0;
    for (int64_t first = request.begin; first < request.end; first += room) {
      int64_t from = request.length, to = 0;
      for (int64_t token = first; token < std::min(first + room, request.end); ++token) {
        const auto [low, high] = keys_of(step, request, token);
        met += static_cast<double>(high - low);
        from = std::min(from, low);
        to = std::max(to, high);
      }
      loaded += static_cast<double>(to - from);
      begin = std::min(begin, from);
      end = std::max(end, to);
    }
    const int64_t pages = (end + page - 1) / page - begin / page;
    const auto keys = static_cast<double>(std::min(end - begin, pages * points[kSlot]));
    const double tokens = static_cast<double>(request.rows());
    part.traffic = {
        read(kOut, bytes_of(kOut, kWidth, heads * rows)), read(kQuery, bytes_of(kQuery, kDepth, heads * rows)),
        read(kKey, bytes_of(kKey, kDepth, heads * loaded)), read(kValue, bytes_of(kValue, kWidth, heads * loaded))};
    part.traffic[0].written = true;
    part.traffic[kQuery].share = static_cast<int>(sharing);
    part.all_rows = rows;
    const bool apart = step.extents[kHead] > 1;
    add_attention({.rows = rows,
                   .all_rows = rows,
                   .batch = own,
                   .keys = keys,
                   .width = static_cast<double>(step.extents[kWidth]),
                   .depth = static_cast<double>(step.extents[kDepth]),
                   .met = met / (tokens * static_cast<double>(end - begin)),
                   .tiles = std::ceil(keys / static_cast<double>(page)),
                   .restickified = bytes_of(kKey, kDepth, heads * loaded),
                   .kind = apart ? Work::Batch::outside : Work::Batch::none,
                   .passes = step.operands[kSlopes].is_constant() ? 0.0 : 1.0,
                   .special = step.constants[kCap] != 0 ? 1.0 : 0.0,
                   .stick = static_cast<double>(elements_per_stick(step.operands[kOut].format))},
                  part);
    part.partial = static_cast<int>(std::min(end - begin, sharing));
    part.area = own * rows * static_cast<double>(step.extents[kWidth] + 2);  // and the largest score, and the sum
    work.parts.push_back(std::move(part));
  }
  if (!work.parts.empty()) return;
  work.parts.emplace_back();
  work.parts.back().all_rows = 1;
}

// Bytes that are contiguous both where they come from and where they go, for one core.
int64_t fetched_run(const Step& step, const Dims& points) {
  const Operand &to = step.operands[0], &from = step.operands[1];
  const bool sticks = to.stick >= 0 && to.stick == from.stick;
  int64_t bytes = sticks ? kStickBytes : element_bytes(to.format);
  for (const Dimension& each : dimensions_of(to, points)) {
    const size_t i = each.dimension;
    if (to.strides[i] != bytes || from.strides[i] != bytes || from.core_strides[i]) break;
    bytes *= each.count;
  }
  return bytes;
}

// What a core fetches over the ring, from all cores that a copy reads from.
void fill_fetched(const Step& step, const Dims& points, Work& work) {
  if (step.operands.size() < 2 || !step.operands[1].across_cores()) return;
  work.fetched_bytes = static_cast<double>(bytes_behind(step, 0, points));
  work.fetched_runs = work.fetched_bytes / static_cast<double>(fetched_run(step, points));
  work.fetched_from = 1;
  for (size_t i = 0; i < points.size(); ++i)
    if (step.operands[1].core_strides[i]) work.fetched_from *= static_cast<double>(points[i]);
}

}  // namespace

Work work_of(const Step& step, const Step* before) {
  Work work;
  work.cores = step.cores();
  work.special = step.special;
  const Dims points = points_per_core(step);
  const Operand& written = step.operands[0];
  for (size_t i = 0; i < step.operands.size(); ++i) {
    work.traffic.push_back(traffic_of(step, i, points));
    if (i) work.traffic.back().fresh = is_fresh(step, i, before);
  }
  double count = 1;
  for (int64_t each : points) count *= static_cast<double>(each);
  switch (step.op) {
    case OpCode::matmul:
      work.unit = Work::Unit::matrix;
      fill_matrix(step, points, work);
      return work;
    case OpCode::attention:
      work.unit = Work::Unit::matrix;
      fill_attention(step, points, work);
      return work;
    case OpCode::paged_attention:
      work.unit = Work::Unit::matrix;
      fill_paged(step, points, work);
      return work;
    case OpCode::copy:
    case OpCode::fill:
    case OpCode::restickify:
    case OpCode::gather:
    case OpCode::scatter: {
      work.unit = Work::Unit::move;
      const int to = written.stick, from = step.operands.size() > 1 ? step.operands[1].stick : -1;
      work.restickifies = step.op == OpCode::restickify || (to >= 0 && from >= 0 && to != from);
      find_destination(step, points, work.restickifies, work.traffic[0]);
      fill_fetched(step, points, work);
      return work;
    }
    default:
      break;
  }
  const Operand& widest = step.operands.size() > 1 && !step.operands[1].is_constant() ? step.operands[1] : written;
  work.sticks = count / static_cast<double>(elements_per_stick(widest.format));
  const size_t folded = folded_dimensions(step);
  if (!folded || step.operands.size() < 2) return work;
  const int stick = step.operands[1].stick, kept = static_cast<int>(step.extents.size() - folded);
  work.folds_lanes = stick >= kept;
  work.folds_rows = !work.folds_lanes;
  work.area = 1;
  for (int i = 0; i < static_cast<int>(points.size()); ++i)
    if (i < kept)
      work.area *= static_cast<double>(points[i]);
    else
      work.partial *= static_cast<int>(step.slices[i]);
  return work;
}

}  // namespace spyre
