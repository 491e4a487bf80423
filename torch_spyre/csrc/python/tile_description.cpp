#include "python/tile_description.h"

#include <torch/csrc/utils/pybind.h>

#include "card/error.h"

namespace py = pybind11;

namespace torch_spyre {

namespace {

using namespace spyre::tiles;

constexpr const char* kCodes[] = {
    "integer",       "real",    "constant", "tile_id",          "compute",          "generic",
    "contract",      "splat",   "reshape",  "extract",          "extract_slice",    "insert_slice",
    "from_elements", "size_of", "view",     "distributed_view", "access",           "indirect_access",
    "load",          "store",   "loop",     "branch",           "runtime_argument", "produce",
    "reduce",        "consume"};
constexpr const char* kKinds[] = {"tile_op", "cast", "bitcast", "extract", "unsigned_op"};

[[noreturn]] void refuse_description(const std::string& why) { throw spyre::InvalidProgram("a tile program: " + why); }

template <class Enum, size_t count>
Enum named(const char* const (&names)[count], const std::string& name) {
  for (size_t i = 0; i < count; ++i)
    if (name == names[i]) return Enum(i);
  refuse_description("there is no " + name);
}

template <class Value>
Value get(const py::dict& from, const char* key, Value otherwise = {}) {
  return from.contains(key) ? from[key].cast<Value>() : otherwise;
}

Expression expression(const py::handle& given) { return expression_of(given.cast<std::vector<int64_t>>()); }

IntegerSet integer_set(const py::dict& given) {
  IntegerSet set;
  set.dimensions = get<int>(given, "dimensions");
  set.symbols = get<int>(given, "symbols");
  for (const py::handle& row : given["rows"]) set.rows.push_back(expression(row));
  set.equal = get<std::vector<bool>>(given, "equal");
  if (set.dimensions < 0 || set.dimensions > 16 || set.symbols < 0 || set.equal.size() != set.rows.size())
    refuse_description("a malformed set");
  return set;
}

struct Reader {
  TileProgram& program;

  int slot(int64_t i) const {
    if (i < 0 || i >= program.slots) refuse_description("a slot that there is not");
    return int(i);
  }
  std::vector<int> slots(const py::dict& from, const char* key) const {
    std::vector<int> result;
    for (int64_t i : get<std::vector<int64_t>>(from, key)) result.push_back(slot(i));
    return result;
  }

  Body body(const py::dict& given) const {
    Body body;
    body.registers = get<int>(given, "registers");
    body.inputs = get<int>(given, "inputs");
    for (const auto& type : get<std::vector<std::string>>(given, "types")) body.types.push_back(element_type(type));
    if (body.registers < 0 || body.registers > 4096 || int(body.types.size()) != body.registers)
      refuse_description("a body has more registers than 4096, or other ones than types");
    const auto known = [&](int i) {
      if (i < 0 || i >= body.registers) refuse_description("a register that there is not");
      return i;
    };
    for (const auto& [at, real, integer] : get<std::vector<std::tuple<int, double, int64_t>>>(given, "constants"))
      body.constants.push_back({known(at), real, integer});
    for (const auto& [at, loop] : get<std::vector<std::pair<int, int>>>(given, "positions"))
      body.positions.push_back({known(at), loop});
    for (int at : get<std::vector<int>>(given, "results")) body.results.push_back(known(at));
    body.tables = slots(given, "tables");
    body.special = get<double>(given, "special");
    body.plain = get<double>(given, "plain");
    body.reads_outputs = get<bool>(given, "reads_outputs", true);
    if (!given.contains("ops")) return body;
    for (const py::handle& each : given["ops"]) {
      const auto from = each.cast<py::dict>();
      MicroOp op;
      op.kind = named<MicroOp::Kind>(kKinds, get<std::string>(from, "kind"));
      for (int in : get<std::vector<int>>(from, "in")) op.in.push_back(known(in));
      op.out = known(get<int>(from, "out"));
      op.type = element_type(get<std::string>(from, "type"));
      op.from = element_type(get<std::string>(from, "from", "f32"));
      op.exact = get<bool>(from, "exact");
      op.unsigned_op = get<int>(from, "unsigned_op");
      op.constants = get<std::vector<double>>(from, "constants");
      op.table = get<int>(from, "table", -1);
      if (op.kind == MicroOp::Kind::extract && (op.table < 0 || op.table >= int(body.tables.size())))
        refuse_description("a table that there is not");
      if (op.kind == MicroOp::Kind::tile_op) {
        const auto name = get<std::string>(from, "name");
        const bool real = is_real(body.types[size_t(op.in.empty() ? op.out : op.in.back())]);
        if (op.type == ElementType::sen169) op.op = spyre::find_short_op(name);
        if (!op.op) op.op = spyre::find_tile_op(name, real ? spyre::Domain::real : spyre::Domain::integer);
        if (!op.op || op.op->arity != int(op.in.size()) || op.op->constants != int(op.constants.size()))
          refuse_description("there is no operation " + name + " of these operands");
      } else if (op.kind != MicroOp::Kind::extract && op.in.size() != (op.kind == MicroOp::Kind::unsigned_op ? 2 : 1)) {
        refuse_description("an operation has another number of operands");
      }
      body.ops.push_back(std::move(op));
    }
    return body;
  }

  Block block(const py::dict& given) {
    Block block;
    block.arguments = slots(given, "arguments");
    block.results = slots(given, "results");
    block.moved = get<std::vector<bool>>(given, "moved");
    block.moved.resize(block.results.size());
    for (const py::handle& each : given["instructions"]) {
      block.instructions.push_back(instruction(each.cast<py::dict>()));
      const Instruction& last = block.instructions.back();
      block.meets |= last.meets;
      for (const Block& inner : last.blocks) block.meets |= inner.meets;
    }
    return block;
  }

  Instruction instruction(const py::dict& given) {
    Instruction at;
    at.code = named<Code>(kCodes, get<std::string>(given, "code"));
    at.where = get<std::string>(given, "where");
    at.in = slots(given, "in");
    at.out = slots(given, "out");
    at.free = slots(given, "free");
    at.numbers = get<std::vector<int64_t>>(given, "numbers");
    at.reals = get<std::vector<double>>(given, "reals");
    at.values = get<std::vector<int64_t>>(given, "values");
    at.type = element_type(get<std::string>(given, "type", "f32"));
    at.combine = get<std::string>(given, "combine");
    at.reduced = get<std::vector<bool>>(given, "reduced");
    at.index_views = get<std::vector<int>>(given, "index_views");
    at.meets = get<bool>(given, "meets");
    if (given.contains("body")) at.body = body(given["body"].cast<py::dict>());
    if (given.contains("maps"))
      for (const py::handle& map : given["maps"]) {
        at.maps.emplace_back();
        for (const py::handle& each : map) at.maps.back().push_back(expression(each));
      }
    if (given.contains("sets"))
      for (const py::handle& set : given["sets"]) at.sets.push_back(integer_set(set.cast<py::dict>()));
    if (given.contains("blocks"))
      for (const py::handle& each : given["blocks"]) at.blocks.push_back(block(each.cast<py::dict>()));
    at.id = int(program.instructions++);
    return at;
  }
};

}  // namespace

std::shared_ptr<const TileProgram> tile_program(const py::dict& description) {
  auto program = std::make_shared<TileProgram>();
  try {
    program->name = get<std::string>(description, "name");
    program->grid = get<std::vector<int64_t>>(description, "grid");
    for (int64_t n : program->grid)
      if (n < 1 || n > 4096 || (program->cores *= n) > 4096) refuse_description("a grid of more than 4096 cores");
    program->slots = get<int64_t>(description, "slots");
    if (program->slots < 0 || program->slots > 1 << 24) refuse_description("too many slots");
    program->lx_bytes = get<int64_t>(description, "lx_bytes");
    program->stick_bytes = get<int64_t>(description, "stick_bytes");
    if (program->lx_bytes < 1 || program->lx_bytes > int64_t{1} << 32 || program->stick_bytes < 1)
      refuse_description("a malformed card");
    program->uses_scratchpads = get<bool>(description, "uses_scratchpads");
    Reader reader{*program};
    program->arguments = reader.slots(description, "arguments");
    program->body = reader.block(description["body"].cast<py::dict>());
  } catch (const py::cast_error& error) {
    refuse_description(std::string("a field has the wrong type: ") + error.what());
  }
  return program;
}

}  // namespace torch_spyre
