#include "card/tiles/interpreter.h"

#include <cstring>
#include <exception>

#include "card/tiles/body.h"
#include "card/tiles/futures.h"
#include "card/tiles/races.h"

namespace spyre::tiles {

namespace {

using Cores = std::vector<Core*>;

void move_value(Core& core, int from, int to) {
  if (from != to) core.slots[size_t(to)] = core.slots[size_t(from)];
}

// Several at a time: none may be overwritten before it is read.
void move_values(Core& core, const std::vector<int>& from, const std::vector<int>& to, size_t first = 0) {
  if (from.size() - first != to.size())
    throw InvalidProgram("a block has another number of arguments than it is given");
  if (to.size() == 1) return move_value(core, from[first], to[0]);
  std::vector<Value> values;
  for (size_t i = 0; i < to.size(); ++i) values.push_back(core.slots[size_t(from[first + i])]);
  for (size_t i = 0; i < to.size(); ++i) core.slots[size_t(to[i])] = std::move(values[i]);
}

// What a block leaves behind goes where its results are wanted.
void move_results(Core& core, const Block& block, const std::vector<int>& to) {
  if (block.results.size() != to.size())
    throw InvalidProgram("a block yields another number of values than are wanted");
  std::vector<Value> values;
  for (size_t i = 0; i < to.size(); ++i) {
    Value& from = core.slots[size_t(block.results[i])];
    if (block.moved[i])
      values.push_back(std::move(from));
    else
      values.push_back(from);
  }
  for (size_t i = 0; i < to.size(); ++i) core.slots[size_t(to[i])] = std::move(values[i]);
}

struct Trips {
  int64_t from, to, step;
};
Trips trips_of(Core& core, const Instruction& at) {
  const Trips trips{core.integer(at, at.in[0]), core.integer(at, at.in[1]), core.integer(at, at.in[2])};
  constexpr int64_t kMost = int64_t{1} << 48;
  if (trips.step <= 0) refuse(at, "the step is " + std::to_string(trips.step) + ", and must be positive");
  for (int64_t each : {trips.from, trips.to, trips.step})
    if (each > kMost || each < -kMost) refuse(at, "a bound of " + std::to_string(each));
  return trips;
}

void run_block(Core& core, const Block& block);

void run_loop(Core& core, const Instruction& at) {
  const Trips trips = trips_of(core, at);
  const Block& body = at.blocks[0];
  const std::vector<int> carried(body.arguments.begin() + 1, body.arguments.end());
  move_values(core, at.in, carried, 3);
  for (int64_t i = trips.from; i < trips.to; i += trips.step) {
    core.work(at, 1);
    core.put(body.arguments[0], i);
    run_block(core, body);
    move_results(core, body, carried);
  }
  move_values(core, carried, at.out);
}

void run_branch(Core& core, const Instruction& at) {
  const Block& taken = at.blocks[core.integer(at, at.in[0]) ? 0 : 1];
  run_block(core, taken);
  move_results(core, taken, at.out);
}

void run_tile_id(Core& core, const Instruction& at) {
  int64_t rest = core.id;
  const std::vector<int64_t>& grid = core.launch.program.grid;
  if (at.out.size() == 1 && grid.size() != 1) return core.put(at.out[0], rest);
  for (size_t d = 0; d < at.out.size(); ++d) {
    core.put(at.out[d], d < grid.size() ? rest % grid[d] : 0);
    if (d < grid.size()) rest /= grid[d];
  }
}

void run_runtime_argument(Core& core, const Instruction& at) {
  const int64_t value = core.integer(at, at.in[0]), granularity = at.numbers[0], bound = at.numbers[1];
  if (granularity > 0 && value % granularity)
    refuse(at, "the argument is " + std::to_string(value) + ", no multiple of its granularity " +
                   std::to_string(granularity));
  if (value < 0 || (bound >= 0 && value > bound))
    refuse(at, "the argument is " + std::to_string(value) + ", beyond its upper bound " + std::to_string(bound));
  const int64_t results[] = {value, granularity, bound};
  for (size_t i = 0; i < at.out.size(); ++i) core.put(at.out[i], results[size_t(at.numbers[2 + i])]);
}

void run_size(Core& core, const Instruction& at) {
  const Value& of = core.slots[size_t(at.in[0])];
  const int64_t d = core.integer(at, at.in[1]);
  const Shape& shape = of.kind == Value::Kind::view ? of.view->sizes : core.tile(at, at.in[0]).shape;
  if (d < 0 || d >= shape.rank) refuse(at, "there is no dimension " + std::to_string(d));
  core.put(at.out[0], shape[int(d)]);
}

void run_produce(Core& core, const Instruction& at) {
  Value& to = core.slots[size_t(at.out[0])];
  const Block& body = at.blocks[0];
  for (const std::vector<int64_t>& group : groups_of(core, at, int(at.numbers[0]))) {
    for (size_t g = 0; g < body.arguments.size() && g < group.size(); ++g) core.put(body.arguments[g], group[g]);
    run_block(core, body);
    Tile partial = core.tile(at, body.results.at(0));
    core.traffic.push_back({&at, nullptr, 0, 0, partial.elements() * bytes_of(partial.type),
                            partial.elements() * bytes_of(partial.type), true});
    std::lock_guard lock(to.future->mutex);
    to.future->partials[group][core.id] = std::move(partial);
  }
}

Future& future_of(Core& core, const Instruction& at) {
  const Value& value = core.slots[size_t(at.in[0])];
  if (value.kind != Value::Kind::future) refuse(at, "the operand is no future");
  return *value.future;
}

// Cores that are no consumers go on with the identity.
void run_reduce(Core& core, const Instruction& at) {
  Future& future = future_of(core, at);
  const Block& body = at.blocks[0];
  Tile result = core.tile(at, at.in[1]);
  const auto groups = groups_of(core, at, future.group_dimensions);
  if (groups.size() > 1) refuse(at, "a core consumes the results of several groups");
  for (const std::vector<int64_t>& group : groups) {
    const auto found = future.partials.find(group);
    if (found == future.partials.end())
      refuse(at, "nobody produces what core " + std::to_string(core.id) + " consumes");
    for (const auto& [producer, partial] : found->second) {
      Tile given = partial;
      if (given.elements() == result.elements()) given.shape = result.shape;
      core.put(body.arguments.at(0), std::move(result));
      core.put(body.arguments.at(1), std::move(given));
      run_block(core, body);
      result = core.tile(at, body.results.at(0));
      core.uses[size_t(at.id)].operand_sticks += core.sticks(result);
    }
  }
  if (!at.numbers.empty()) {
    Shape shape;
    for (int64_t n : at.numbers) shape.push(n);
    if (shape.elements() != result.elements())
      refuse(at, "partials of the shape " + text_of(result.shape) + " do not make " + text_of(shape));
    result.shape = shape;
  }
  core.put(at.out[0], std::move(result));
}

// Routes a partial from its one producer; cores that are no consumers get zeros.
void run_consume(Core& core, const Instruction& at) {
  Future& future = future_of(core, at);
  const auto groups = groups_of(core, at, future.group_dimensions);
  if (groups.size() > 1) refuse(at, "a core consumes the results of several groups");
  Tile result;
  Shape shape;
  for (int64_t n : at.numbers) shape.push(n);
  if (groups.empty()) {
    result = core.new_tile(at, at.type, shape);
    if (core.launch.values) std::memset(result.buffer.data(), 0, size_t(Tile::bytes(result.type, shape)));
  } else {
    const auto found = future.partials.find(groups[0]);
    if (found == future.partials.end())
      refuse(at, "nobody produces what core " + std::to_string(core.id) + " consumes");
    if (found->second.size() != 1) refuse(at, "several cores produce what one consumes: reduce it");
    result = found->second.begin()->second;
    if (shape.elements() != result.elements())
      refuse(at, "a partial of the shape " + text_of(result.shape) + " does not make " + text_of(shape));
    result.shape = shape;
  }
  core.traffic.push_back({&at, nullptr, 0, 0, result.elements() * bytes_of(result.type),
                          result.elements() * bytes_of(result.type), false});
  core.put(at.out[0], std::move(result));
}

void run_instruction(Core& core, const Instruction& at) {
  switch (at.code) {
    case Code::integer:
      return core.put(at.out[0], at.numbers[0]);
    case Code::real:
      return core.put(at.out[0], float(at.reals[0]));
    case Code::tile_id:
      return run_tile_id(core, at);
    case Code::compute:
      return run_compute(core, at);
    case Code::generic:
      return run_generic(core, at);
    case Code::contract:
      return run_contract(core, at);
    case Code::size_of:
      return run_size(core, at);
    case Code::view:
    case Code::distributed_view:
    case Code::access:
    case Code::indirect_access:
      return run_view(core, at);
    case Code::load:
      return run_load(core, at);
    case Code::store:
      return run_store(core, at);
    case Code::loop:
      return run_loop(core, at);
    case Code::branch:
      return run_branch(core, at);
    case Code::runtime_argument:
      return run_runtime_argument(core, at);
    case Code::produce:
      return run_produce(core, at);
    case Code::reduce:
      return run_reduce(core, at);
    case Code::consume:
      return run_consume(core, at);
    default:
      return run_reshape(core, at);
  }
}

void release(Core& core, const Instruction& at) {
  for (int slot : at.free) core.slots[size_t(slot)] = Value();
}

void run_one(Core& core, const Instruction& at) {
  core.work(at, 0);
  run_instruction(core, at);
  release(core, at);
}

void run_block(Core& core, const Block& block) {
  for (const Instruction& each : block.instructions) run_one(core, each);
}

// Runs blocks in which cores meet: all cores go through them together, and between two meetings in parallel.
class Together {
 public:
  explicit Together(const EachCore& each_core) : each_core_(each_core) {}

  void block(const Cores& cores, const Block& block) {
    size_t begin = 0;
    const auto& all = block.instructions;
    for (size_t i = 0; i <= all.size(); ++i) {
      if (i < all.size() && !meets(all[i])) continue;
      if (begin < i)
        parallel(cores, [&](Core& core) {
          for (size_t k = begin; k < i; ++k) run_one(core, all[k]);
        });
      if (i < all.size()) meeting(cores, all[i]);
      begin = i + 1;
    }
  }

 private:
  static bool meets(const Instruction& at) {
    if (at.meets) return true;
    for (const Block& each : at.blocks)
      if (each.meets) return true;
    return false;
  }

  void parallel(const Cores& cores, const std::function<void(Core&)>& body) {
    for (Core* core : cores) ++core->meetings;
    std::vector<std::exception_ptr> errors(cores.size());
    each_core_(int64_t(cores.size()), [&](int64_t i) {
      try {
        body(*cores[size_t(i)]);
      } catch (const Error&) {
        errors[size_t(i)] = std::current_exception();
      }
    });
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
  }

  void meeting(const Cores& cores, const Instruction& at) {
    if (at.code == Code::loop) return loop(cores, at);
    if (at.code == Code::branch) return branch(cores, at);
    if (at.code == Code::produce) {
      const auto future = std::make_shared<Future>();
      future->group_dimensions = int(at.numbers[0]);
      for (Core* core : cores) {
        Value& to = core->slots[size_t(at.out[0])];
        to.kind = Value::Kind::future;
        to.future = future;
      }
    }
    parallel(cores, [&](Core& core) { run_one(core, at); });
  }

  void loop(const Cores& cores, const Instruction& at) {
    if (cores.empty()) return;
    const Block& body = at.blocks[0];
    const std::vector<int> carried(body.arguments.begin() + 1, body.arguments.end());
    const Trips trips = trips_of(*cores[0], at);
    for (Core* core : cores) {
      const Trips own = trips_of(*core, at);
      if (own.from != trips.from || own.to != trips.to || own.step != trips.step)
        refuse(at, "cores meet in this loop, and core " + std::to_string(core->id) + " has other bounds than core " +
                       std::to_string(cores[0]->id));
      move_values(*core, at.in, carried, 3);
    }
    for (int64_t i = trips.from; i < trips.to; i += trips.step) {
      for (Core* core : cores) {
        core->work(at, 1);
        core->put(body.arguments[0], i);
      }
      block(cores, body);
      for (Core* core : cores) move_results(*core, body, carried);
    }
    for (Core* core : cores) {
      move_values(*core, carried, at.out);
      release(*core, at);
    }
  }

  void branch(const Cores& cores, const Instruction& at) {
    for (int which : {0, 1}) {
      Cores taken;
      for (Core* core : cores)
        if ((core->integer(at, at.in[0]) == 0) == (which == 1)) taken.push_back(core);
      if (taken.empty()) continue;
      block(taken, at.blocks[size_t(which)]);
      for (Core* core : taken) move_results(*core, at.blocks[size_t(which)], at.out);
    }
    for (Core* core : cores) release(*core, at);
  }

  const EachCore& each_core_;
};

}  // namespace

Outcome run(Launch& launch, const std::vector<Argument>& arguments, const EachCore& each_core) {
  const TileProgram& program = launch.program;
  if (arguments.size() != program.arguments.size())
    throw InvalidProgram(program.name + " takes " + std::to_string(program.arguments.size()) + " arguments, " +
                         std::to_string(arguments.size()) + " are given");
  Outcome outcome;
  outcome.cores.reserve(size_t(program.cores));
  Cores cores;
  for (int64_t i = 0; i < program.cores; ++i) {
    Core& core = outcome.cores.emplace_back(launch, i);
    for (size_t a = 0; a < arguments.size(); ++a)
      if (arguments[a].real)
        core.put(program.arguments[a], float(arguments[a].number));
      else
        core.put(program.arguments[a], arguments[a].integer);
    cores.push_back(&core);
  }
  if (program.body.meets) {
    Together(each_core).block(cores, program.body);
  } else {
    std::vector<std::exception_ptr> errors(cores.size());
    each_core(program.cores, [&](int64_t i) {
      try {
        run_block(*cores[size_t(i)], program.body);
      } catch (const Error&) {
        errors[size_t(i)] = std::current_exception();
      }
      cores[size_t(i)]->slots.clear();
    });
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
  }
  if (launch.values) check_races(outcome.cores);
  return outcome;
}

}  // namespace spyre::tiles
