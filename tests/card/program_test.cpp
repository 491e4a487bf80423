// Programs and plans: what is refused, and what they do.
#include "card/program/program.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <random>

#include "card/card.h"
#include "card/clock/work.h"
#include "card/kernels/copy_fill.h"
#include "card/program/core_split.h"
#include "card/program/step_work.h"
#include "card/program/validate.h"
#include "testing.h"

using namespace spyre;

namespace {

Options options(Mode mode = Mode::run, int threads = 2) {
  Options result;
  result.mode = mode;
  result.memory_gb = 1;
  result.threads = threads;
  result.hardware_file = SPYRE_HARDWARE_FILE;
  return result;
}

constexpr CardLimits kLimits{32, 1 << 20, 4096};

// 8 rows of 4 sticks, copied by 4 cores; right in every field.
Program good_program() {
  const Operand operand{0, 0, {512, 2}, DataFormat::SEN169_FP16};
  Step step{OpCode::copy, {8, 256}, {4, 1}, {operand, operand}, 0, "model.py:3"};
  step.operands[1].argument = 1;
  return {"kernel", {4096, 4096}, {step}};
}

// What validate() says of good_program() after a change.
template <typename Change>
std::string refusal(const Change& change) {
  Program program = good_program();
  change(program, program.steps[0]);
  try {
    validate(program, kLimits);
  } catch (const InvalidProgram& error) {
    return error.what();
  }
  return "accepted";
}

bool says(const std::string& text, const std::string& field, const char* why) {
  const std::string where = "program 'kernel', step 0 (";
  const bool good = text.rfind(where, 0) == 0 && text.find("model.py:3), " + field + ": ") != std::string::npos &&
                    text.find(why) != std::string::npos;
  if (!good) std::printf("  said: %s\n", text.c_str());
  return good;
}

// Blocks of a card, written and read as raw bytes.
struct Bench {
  Runtime runtime;
  Card& card = runtime.card(0);
  std::vector<Held> blocks;

  explicit Bench(Options options) : runtime(std::move(options)) {}
  Held block(int64_t bytes) {
    blocks.push_back({&card.memory(), card.allocate(bytes)});
    return blocks.back();
  }
  Held block(const std::vector<uint16_t>& values) {
    const Held held = block(static_cast<int64_t>(values.size()) * 2);
    card.bytes_to_card(held, 0, values.data(), static_cast<int64_t>(values.size()) * 2, 0);
    return held;
  }
  std::vector<uint16_t> read(Held held, size_t count) {
    std::vector<uint16_t> values(count);
    card.bytes_to_host(values.data(), held, 0, static_cast<int64_t>(count) * 2, 0);
    return values;
  }
};

std::vector<uint16_t> numbers(size_t count) {
  std::vector<uint16_t> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<uint16_t>(i * 40503 >> 3);
  return values;
}

}  // namespace

TEST("program: a well-formed program is accepted") {
  validate(good_program(), kLimits);
  validate(Program{"empty", {}, {}}, kLimits);
  CHECK(op_code("restickify") == OpCode::restickify && std::string(name(OpCode::fill)) == "fill");
  CHECK_THROWS(op_code("add"), InvalidProgram, "unknown operation 'add'; the card knows copy, fill, restickify");
}

namespace {

// Two steps: argument 1 to LX, from there to argument 0; 8 rows of 4 sticks over 4 cores.
Program through_lx() {
  Program program = good_program();
  Step second = program.steps[0];
  program.steps[0].operands[0] = {kLx, 256, {512, 128}, DataFormat::SEN169_FP16, 1};
  second.operands[1] = program.steps[0].operands[0];
  program.steps[0].operands[1].stick = second.operands[0].stick = 1;
  program.steps[0].operands[1].strides = second.operands[0].strides = {512, 128};
  program.steps.push_back(second);
  return program;
}

std::string lx_refusal(const std::function<void(Program&)>& change) {
  Program program = through_lx();
  change(program);
  try {
    validate(program, kLimits);
  } catch (const InvalidProgram& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST("program: operands in LX are refused where nothing was left for them") {
  validate(through_lx(), kLimits);
  CHECK(lx_refusal([](Program& p) { p.steps.erase(p.steps.begin()); }).find("where nothing was written") !=
        std::string::npos);
  CHECK(lx_refusal([](Program& p) { p.steps[1].operands[1].offset = 384; }).find("where nothing was written") !=
        std::string::npos);
  CHECK(lx_refusal([](Program& p) { p.steps[0].operands[0].offset = kLimits.lx_bytes; }).find("of LX, which has") !=
        std::string::npos);
  CHECK(lx_refusal([](Program& p) {
          p.steps[1].tile = {1, 64};
          p.steps[1].staging = 128;
        }).find("overlap operand 1") != std::string::npos);
  // The tiles of a step in between.
  CHECK(lx_refusal([](Program& p) {
          Step other = good_program().steps[0];
          other.tile = {1, 64};
          other.staging = 1024;
          p.steps.insert(p.steps.begin() + 1, other);
        }).find("where nothing was written") != std::string::npos);
}

TEST("program: LX is known core by core") {
  // One core puts a stick behind what all have there, or over the end of it, where the others keep what they have.
  const auto with_a_stick_at = [](int64_t address) {
    return lx_refusal([=](Program& p) {
      Step other = p.steps[0];
      other.extents = {1, 64};
      other.slices = {1, 1};
      other.operands[0].offset = address;
      p.steps.insert(p.steps.begin() + 1, other);
    });
  };
  CHECK(with_a_stick_at(1280).empty());
  CHECK(with_a_stick_at(1152).empty());
  CHECK(lx_refusal([](Program& p) { p.steps[0].slices = {2, 1}; }).find("where nothing was written on core 3") !=
        std::string::npos);
}

TEST("program: every core finds in its LX what it put there") {
  for (const Mode mode : {Mode::run, Mode::strict}) {
    Bench bench(Options{.mode = mode, .hardware_file = SPYRE_HARDWARE_FILE});
    const std::vector<uint16_t> values = numbers(2048);
    const Held from = bench.block(values), to = bench.block(4096);
    bench.card.launch(bench.card.prepare(through_lx()), {to, from}, 0);
    bench.card.synchronize(0);
    CHECK(bench.read(to, 2048) == values);
  }
}

namespace {

// 8 rows of 4 sticks: put into LX by 2 x 2 cores, 4 rows of 2 sticks each, fetched from there by 8 cores, a row each,
// and written to argument 0.
Program over_the_ring() {
  constexpr DataFormat kFormat = DataFormat::SEN169_FP16;
  const auto copy = [](Dims extents, Dims slices, Operand to, Operand from) {
    return Step{OpCode::copy, std::move(extents), std::move(slices), {std::move(to), std::move(from)}};
  };
  Operand fetched{kLx, 256, {0, 128, 0, 512}, kFormat, 3};
  fetched.core_strides = {2, 0, 1, 0};
  const Operand row{kLx, 2048, {0, 128}, kFormat, 1};
  return {"kernel",
          {4096, 4096},
          {copy({8, 256}, {2, 2}, {kLx, 256, {128, 512}, kFormat, 1}, {1, 0, {512, 128}, kFormat, 1}),
           copy({2, 4, 2, 128}, {2, 4, 1, 1}, {kLx, 2048, {0, 0, 256, 128}, kFormat, 3}, fetched),
           copy({8, 256}, {8, 1}, {0, 0, {512, 128}, kFormat, 1}, row)}};
}

std::string ring_refusal(const std::function<void(Program&, Operand& fetched)>& change) {
  Program program = over_the_ring();
  change(program, program.steps[1].operands[1]);
  try {
    validate(program, kLimits);
  } catch (const InvalidProgram& error) {
    return error.what();
  }
  return "accepted";
}

bool has(const std::string& text, const char* wanted) {
  const bool found = text.find(wanted) != std::string::npos;
  if (!found) std::printf("  said: %s\n", text.c_str());
  return found;
}

}  // namespace

TEST("program: a copy fetches from the LX of other cores") {
  for (const Mode mode : {Mode::run, Mode::strict})
    for (const int threads : {1, 4}) {
      Bench bench(options(mode, threads));
      const std::vector<uint16_t> values = numbers(2048);
      const Held from = bench.block(values), to = bench.block(4096);
      bench.card.launch(bench.card.prepare(over_the_ring()), {to, from}, 0);
      bench.card.synchronize(0);
      CHECK(bench.read(to, 2048) == values);
    }
}

TEST("program: a copy from other cores goes to device memory, too") {
  Program program = over_the_ring();
  program.steps.pop_back();
  program.steps[1].operands[0] = {0, 0, {2048, 512, 256, 128}, DataFormat::SEN169_FP16, 3};
  Bench bench(options(Mode::strict));
  const std::vector<uint16_t> values = numbers(2048);
  const Held from = bench.block(values), to = bench.block(4096);
  bench.card.launch(bench.card.prepare(program), {to, from}, 0);
  bench.card.synchronize(0);
  CHECK(bench.read(to, 2048) == values);
}

TEST("program: what is not in the LX of other cores is refused") {
  using P = Program&;
  using O = Operand&;
  CHECK(ring_refusal([](P, O) {}) == "accepted");
  CHECK(has(ring_refusal([](P, O o) { o.core_strides = {2, 0, 1}; }), "one core stride per extent, has 3 for 4"));
  CHECK(has(ring_refusal([](P, O o) { o.core_strides = {31, 0, 1, 0}; }), "outside the 32 cores"));
  CHECK(has(ring_refusal([](P, O o) { o.core_strides = {-2, 0, 1, 0}; }), "outside the 32 cores"));
  CHECK(has(ring_refusal([](P, O o) { o.core_strides = {int64_t{1} << 62, 0, 0, 0}; }), "outside the 32 cores"));
  CHECK(has(ring_refusal([](P, O o) { o.core_strides = {2, 0, 0, 1}; }),
            "runs along sticks and cannot have a core stride"));
  CHECK(has(ring_refusal([](P, O o) { o.core_strides = {3, 0, 1, 0}; }), "nothing was written on core 4"));
  CHECK(has(ring_refusal([](P, O o) { o.offset = 384; }), "nothing was written"));
  CHECK(has(ring_refusal([](P, O o) { o.argument = 1; }), "lead to LX"));
  CHECK(has(ring_refusal([](P p, O o) { p.steps[1].operands[0].core_strides = o.core_strides; }),
            "only the operand that a copy"));
  CHECK(has(ring_refusal([](P p, O) {
              p.steps[1].op = OpCode::elementwise;
              p.steps[1].function = "neg";
            }),
            "only the operand that a copy reads"));
  CHECK(has(ring_refusal([](P p, O) { p.steps[1].operands[0].offset = 1024; }), "overlaps operand 0 in LX"));
  // Fetched in place: another core may have overwritten it.
  CHECK(has(ring_refusal([](P p, O o) { p.steps[1].operands[0] = {kLx, 256, o.strides, o.format, 3}; }),
            "overlaps operand 0 in LX"));
}

TEST("program: strict mode looks into the LX of the core that is asked") {
  // Cores 2 and 3 have written rows 4 to 7 but for the last: what lies behind it in their LX is nobody's.
  Program program = over_the_ring();
  program.steps[0].extents = {7, 256};
  Bench bench(options(Mode::strict));
  const Held from = bench.block(numbers(2048)), to = bench.block(4096);
  bench.card.launch(bench.card.prepare(program), {to, from}, 0);
  CHECK_THROWS(bench.card.synchronize(0), UndefinedBehavior, "step 1 (copy): core 7 reads byte 8832 of LX");
}

TEST("program: the time of a copy from other cores") {
  const Clock clock(Hardware::from_file(SPYRE_HARDWARE_FILE));
  const std::vector<StepTime> times = step_times(over_the_ring(), clock);
  CHECK(times[0].ring_ns == 0 && times[0].bytes_ring == 0 && times[2].ring_ns == 0);
  CHECK(times[1].begin_ns == 0 && times[1].memory_ns == 0 && times[1].bytes_ring == 4096);
  // A core fetches 512 bytes from two cores; sticks lie apart where they come from.
  const double each = 3.92 * (1 - std::log2(1.223));
  CHECK(std::abs(times[1].ring_ns - (7300 + 4 * each + 512 / 547.0)) < 1e-6);
  CHECK(times[1].total_ns == times[1].ring_ns);
}

TEST("program: malformed programs are refused by step and field") {
  using P = Program&;
  using S = Step&;
  CHECK(says(refusal([](P, S s) { s.extents[1] = 0; }), "extents", "at least 1, one is 0"));
  CHECK(says(refusal([](P, S s) { s.extents = {int64_t{1} << 40, int64_t{1} << 40}; }), "extents",
             "more than 2^62 points"));
  CHECK(says(refusal([](P, S s) { s.slices = {4}; }), "slices", "has 1 for 2"));
  CHECK(says(refusal([](P, S s) { s.slices = {0, 1}; }), "slices", "0 slices for an extent of 8"));
  CHECK(says(refusal([](P, S s) { s.slices = {9, 1}; }), "slices", "9 slices for an extent of 8"));
  CHECK(says(refusal([](P, S s) { s.slices = {8, 5}; }), "slices", "more than the 32 cores"));
  CHECK(says(refusal([](P, S s) { s.slices = {1, 8}; }), "slices",
             "the division of dimension 1 makes two cores write into one stick"));
  CHECK(says(refusal([](P, S s) { s.operands[0].strides[0] = 0; }), "slices",
             "the division of dimension 0 makes two cores"));
  CHECK(says(refusal([](P, S s) { s.operands.pop_back(); }), "operands", "copy takes 2, has 1"));
  CHECK(says(refusal([](P, S s) { s.op = OpCode::fill; }), "operands", "fill takes 1, has 2"));
  CHECK(says(refusal([](P, S s) { s.operands[1].format = DataFormat::SENINT16; }), "operands",
             "does not convert, the formats are SEN169_FP16 and SENINT16"));
  CHECK(says(refusal([](P, S s) { s.operands[1].format = DataFormat::BOOL; }), "operand 1",
             "does not store format BOOL"));
  CHECK(says(refusal([](P, S s) { s.operands[1].argument = 2; }), "operand 1", "argument 2, there are 2"));
  CHECK(says(refusal([](P, S s) { s.operands[0].argument = -3; }), "operand 0", "argument -3, there are 2"));
  CHECK(says(refusal([](P, S s) { s.operands[0].argument = -1; }), "operand 0", "a constant cannot be written"));
  CHECK(says(refusal([](P, S s) { s.operands[1].argument = -1; }), "operand 1", "copy reads memory, not a constant"));
  CHECK(says(refusal([](P, S s) { s.indirect = {{2, 4, 128, false}}; }), "indirect", "copy takes no indices"));
  CHECK(says(refusal([](P, S s) { s.operands[0].strides.push_back(2); }), "operand 0", "has 3 for 2"));
  CHECK(says(refusal([](P, S s) { s.operands[0].offset = 1; }), "operand 0",
             "offset is not a multiple of the element's 2"));
  CHECK(says(refusal([](P, S s) { s.operands[0].offset = -2; }), "operand 0", "offset -2 is no address"));
  CHECK(says(refusal([](P, S s) { s.operands[0].offset = INT64_MAX - 1; }), "operand 0", "is no address"));
  CHECK(says(refusal([](P, S s) { s.operands[1].strides[1] = 3; }), "operand 1", "stride is not a multiple"));
  CHECK(says(refusal([](P, S s) { s.operands[1].strides[0] = INT64_MIN; }), "operand 1",
             "beyond the card's address space"));
  CHECK(says(refusal([](P, S s) { s.operands[1].strides[0] = INT64_MAX - 1; }), "operand 1", "beyond the card's"));
  CHECK(says(refusal([](P, S s) { s.operands[0].offset = 2; }), "operand 0",
             "reaches bytes [2, 4098) of argument 0, which has 4096"));
  CHECK(says(refusal([](P, S s) { s.operands[1].strides[0] = -512; }), "operand 1", "reaches bytes [-3584,"));
  CHECK(says(refusal([](P p, S) { p.argument_bytes[1] = 4094; }), "operand 1",
             "reaches bytes [0, 4096) of argument 1, which has 4094"));
  CHECK(says(refusal([](P p, S s) {
               p.argument_bytes = {8 << 20, 8 << 20};
               s.operands[1].strides[0] = 1 << 20;
             }),
             "operand 1", "one core spans 1049088 bytes, the limit is 1048576; divide the work"));
  // The second of two steps is named as such.
  Program two = good_program();
  two.steps.push_back(two.steps[0]);
  two.steps[1].extents[0] = -1;
  CHECK_THROWS(validate(two, kLimits), InvalidProgram, "step 1 (copy, model.py:3), extents");
}

namespace {

// good_program() with both operands in sticks along dimension 1: [4, 8, 64] on the card.
template <typename Change>
std::string stick_refusal(const Change& change) {
  return refusal([&](Program& program, Step& step) {
    for (Operand& operand : step.operands) operand.strides = {128, 1024}, operand.stick = 1;
    change(program, step);
  });
}

}  // namespace

TEST("program: what lies in sticks begins at one and moves by whole ones") {
  using P = Program&;
  using S = Step&;
  CHECK(stick_refusal([](P, S) {}) == "accepted");
  CHECK(stick_refusal([](P, S s) { s.slices = {8, 4}; }) == "accepted");
  CHECK(says(stick_refusal([](P, S s) { s.operands[1].stick = 2; }), "operand 1", "stick dimension 2, there are 2"));
  CHECK(says(stick_refusal([](P, S s) { s.operands[1].stick = -2; }), "operand 1", "stick dimension -2, there are 2"));
  CHECK(says(stick_refusal([](P, S s) { s.operands[0].offset = 64; }), "operand 0",
             "offset 64 is not a multiple of their 128 bytes"));
  CHECK(says(stick_refusal([](P, S s) { s.operands[0].strides[0] = 64; }), "operand 0",
             "stride 64 is not a multiple of their 128 bytes"));
  CHECK(says(stick_refusal([](P, S s) { s.operands[0].strides[1] = 1026; }), "operand 0", "stride 1026 is not"));
  // A stick that begins is there as a whole.
  CHECK(says(stick_refusal([](P, S s) { s.extents[1] = 257; }), "operand 0", "reaches bytes [0, 5120) of argument 0"));
  CHECK(stick_refusal([](P, S s) { s.extents[1] = 193; }) == "accepted");
  CHECK(says(stick_refusal([](P, S s) { s.operands[0] = {0, 0, {512, 0}}, s.slices = {1, 4}; }), "slices",
             "the division of dimension 1 makes two cores write into one stick"));
}

TEST("program: tiles are whole sticks and fit the scratchpad twice") {
  using P = Program&;
  using S = Step&;
  CHECK(stick_refusal([](P, S s) { s.tile = {8, 64}; }) == "accepted");  // 4 x 1024 bytes: exactly
  CHECK(says(stick_refusal([](P, S s) { s.tile = {8, 128}; }), "tile",
             "two tiles of every operand take 8192 bytes, the scratchpad of a core has 4096; make the tile smaller"));
  CHECK(says(stick_refusal([](P, S s) { s.tile = {8}; }), "tile", "has 1 for 2"));
  CHECK(says(stick_refusal([](P, S s) { s.tile = {0, 64}; }), "tile", "0 points of an extent of 8"));
  CHECK(says(stick_refusal([](P, S s) { s.tile = {9, 64}; }), "tile", "9 points of an extent of 8"));
  CHECK(says(stick_refusal([](P, S s) { s.tile = {1, 65}; }), "tile",
             "65 points of dimension 1 are not whole sticks of operand 0"));
  CHECK(stick_refusal([](P, S s) { s.extents[1] = 65, s.tile = {1, 65}; }) == "accepted");
}

TEST("program: the nests of an operand in sticks have each of its elements once") {
  // Two formats along one dimension, a third operand plain; the nests of all cores together touch each element once.
  for (int64_t columns : {1, 31, 32, 33, 64, 65, 95, 96, 97, 129, 1000})
    for (int64_t slices : {1, 2, 3}) {
      if (slices > columns) continue;
      Step step{OpCode::elementwise,
                {3, columns},
                {1, slices},
                {{0, 0, {128, 3 * 128}, DataFormat::SEN169_FP16, 1},
                 {1, 0, {128, 3 * 128}, DataFormat::IEEE_FP32, 1},
                 {2, 0, {4 * columns, 4}, DataFormat::IEEE_FP32}}};
      std::vector<std::array<int64_t, 3>> seen;
      const auto place = [&](int64_t row, int64_t at, int64_t stick) {
        return at / stick * 3 * stick + row * stick + at % stick;
      };
      for (int core = 0; core < step.cores(); ++core)
        for (const Nest& nest : affine_nests(step, core)) {
          std::array<std::vector<int64_t>, 3> sides;
          for (int side = 0; side < 3; ++side)
            for_each_element(nest, side, 1, [&](int64_t at) { sides[side].push_back(at); });
          for (size_t i = 0; i < sides[0].size(); ++i) seen.push_back({sides[2][i], sides[0][i], sides[1][i]});
        }
      std::sort(seen.begin(), seen.end());
      CHECK(static_cast<int64_t>(seen.size()) == 3 * columns);
      for (int64_t i = 0; i < static_cast<int64_t>(seen.size()); ++i)
        CHECK((seen[i] == std::array{i, place(i / columns, i % columns, 64), place(i / columns, i % columns, 32)}));
    }
}

TEST("program: of the cores that share a folded dimension the first takes all of it") {
  const Step step{OpCode::matmul,
                  {4, 64, 1000},
                  {2, 1, 5},
                  {{0, 0, {128, 0, 0}, DataFormat::SEN169_FP16, 1},
                   {1, 0, {128, 0, 512}, DataFormat::SEN169_FP16, 2},
                   {2, 0, {0, 0, 128}, DataFormat::SEN169_FP16, 1}}};
  const CardLimits limits{32, 1 << 20, 1 << 20};
  validate(Program{"kernel", {512, 16 * 512, 128000}, {step}}, limits);
  CHECK(points_per_core(step) == Dims({2, 64, 256}));
  for (int core = 0; core < 10; ++core) {
    const Nest nest = core_nest(step, core);
    CHECK(nest.loops[0].count == 2 && nest.loops[2].count == (core % 5 ? 0 : 1000));
    bool touches = false;
    for_each_touched(step, core, 0, {}, [&](const Nest&) { touches = true; });
    CHECK(touches == (core % 5 == 0));
  }
}

TEST("program: cores cover the iteration space once, whatever the slices") {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    Step step{OpCode::fill, {}, {}, {{0, 0, {}, DataFormat::SENINT8}}, 0, ""};
    int64_t stride = 1;
    for (int rank = static_cast<int>(random() % 4); rank > 0; --rank) {
      step.extents.push_back(1 + random() % 9);
      step.slices.push_back(1 + random() % step.extents.back());
      step.operands[0].strides.push_back(stride);
      stride *= step.extents.back();
    }
    std::vector<int> visits(stride, 0);
    for (int core = 0; core < step.cores(); ++core)
      for_each_element(core_nest(step, core), 0, 1, [&](int64_t at) { ++visits[at]; });
    CHECK(std::all_of(visits.begin(), visits.end(), [](int count) { return count == 1; }));
  }
}

TEST("program: copy, fill and restickify on 1 to 32 cores") {
  // 70 rows of 3 sticks; 70 divides by few of the core counts.
  constexpr int64_t kRows = 70, kColumns = 192;
  Bench bench(options());
  const std::vector<uint16_t> values = numbers(kRows * kColumns);
  const Held source = bench.block(values), target = bench.block(kRows * kColumns * 2 * 2);
  const auto launch = [&](Step step) {
    Program program{"kernel", {kRows * kColumns * 4, kRows * kColumns * 2}, {std::move(step)}};
    bench.card.launch(bench.card.prepare(std::move(program)), {target, source}, 3);
    bench.card.synchronize(3);
    return bench.read(target, kRows * kColumns * 2);
  };
  for (int64_t cores = 1; cores <= 32; ++cores) {
    std::vector<uint16_t> expected(kRows * kColumns * 2);
    const Operand everything{0, 0, {2}, DataFormat::SENINT16};
    launch({OpCode::fill, {kRows * kColumns * 2}, {1}, {everything}, 0, ""});

    // Rows copied to every second row.
    for (int64_t i = 0; i < kRows * kColumns; ++i) expected[i / kColumns * 2 * kColumns + i % kColumns] = values[i];
    CHECK(launch({OpCode::copy,
                  {kRows, kColumns},
                  {cores, 1},
                  {{0, 0, {4 * kColumns, 2}}, {1, 0, {2 * kColumns, 2}}},
                  0,
                  ""}) == expected);

    // The other rows filled.
    for (int64_t i = 0; i < kRows * kColumns; ++i) expected[(i / kColumns * 2 + 1) * kColumns + i % kColumns] = 0xbeef;
    CHECK(launch({OpCode::fill, {kRows, kColumns}, {cores, 1}, {{0, 2 * kColumns, {4 * kColumns, 2}}}, 0xbeef, ""}) ==
          expected);

    // Sticks along columns [3][70][64] to sticks along rows [2][192][64], the last 58 of each second one padding.
    launch({OpCode::fill, {kRows * kColumns * 2}, {1}, {everything}, 0, ""});
    std::fill(expected.begin(), expected.end(), 0);
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t column = 0; column < kColumns; ++column)
        expected[row / 64 * kColumns * 64 + column * 64 + row % 64] =
            values[column / 64 * kRows * 64 + row * 64 + column % 64];
    for (int64_t tile = 0; tile < 2; ++tile) {
      const int64_t rows = tile ? kRows - 64 : 64;
      const Operand to{0, tile * kColumns * 128, {64 * 128, 128, 2}};
      const Operand from{1, tile * 64 * 128, {kRows * 128, 2, 128}};
      const std::vector<uint16_t> result =
          launch({OpCode::restickify, {3, 64, rows}, {1, cores, 1}, {to, from}, 0, ""});
      if (tile) CHECK(result == expected);
    }
  }
}

TEST("program: an argument begins inside of its memory") {
  constexpr int64_t kRows = 6, kColumns = 128;
  Bench bench(options());
  const std::vector<uint16_t> values = numbers(kRows * kColumns);
  Held source = bench.block(values), target = bench.block(kRows * kColumns * 2);
  const Operand row{0, 0, {2}, DataFormat::SENINT16}, other{1, 0, {2}, DataFormat::SENINT16};
  const auto program = bench.card.prepare(
      {"kernel", {kRows * kColumns * 2, kRows * kColumns * 2}, {{OpCode::copy, {kColumns}, {1}, {row, other}, 0, ""}}});
  CHECK(program->reach == std::vector<int64_t>({kColumns * 2, kColumns * 2}));
  for (const auto& [to, from] : {std::pair<int64_t, int64_t>{0, 5}, {3, 0}, {5, 1}}) {
    target.shift = to * kColumns * 2, source.shift = from * kColumns * 2;
    bench.card.launch(program, {target, source}, 0);
    bench.card.synchronize(0);
    target.shift = 0;
    const std::vector<uint16_t> found = bench.read(target, kRows * kColumns);
    CHECK(std::equal(values.begin() + from * kColumns, values.begin() + (from + 1) * kColumns,
                     found.begin() + to * kColumns));
  }
  const auto launch = [&](int64_t shift, const Held& with) {
    source.shift = shift;
    bench.card.launch(program, {with, source}, 0);
  };
  CHECK_THROWS(launch(5 * kColumns * 2 + 128, target), InvalidProgram, "needs 256 bytes from byte 1408");
  CHECK_THROWS(launch(64, target), InvalidProgram, "begins at byte 64");
  CHECK_THROWS(launch(-128, target), InvalidProgram, "begins at byte -128");
  Held same = source;
  same.shift = 0;
  CHECK_THROWS(launch(128, same), InvalidProgram, "share memory");
}

TEST("program: what is malformed, or given the wrong arguments, is not launched") {
  Options two = options();
  two.visible = {0, 1};
  Bench bench(two);
  const Held a = bench.block(4096), b = bench.block(4096), small = bench.block(128);
  const Held elsewhere{&bench.runtime.card(1).memory(), bench.runtime.card(1).allocate(4096)};
  // What was not prepared is checked all the same.
  Program broken = good_program();
  broken.steps[0].extents[0] = 9;
  CHECK_THROWS(bench.card.launch(std::make_shared<const Program>(broken), {a, b}, 0), InvalidProgram,
               "operand 0: reaches");
  JobPlan broken_plan;
  broken_plan.steps = {JobStep{}};
  CHECK_THROWS(bench.card.launch(std::make_shared<const JobPlan>(broken_plan), {}, 0), InvalidProgram,
               "argument: 0, there are 0");
  bench.card.launch(std::make_shared<const Program>(good_program()), {a, b}, 0);
  CHECK(bench.card.engine().time(bench.card.stream(0)) == duration(good_program(), bench.card.clock()));
  const auto program = bench.card.prepare(good_program());
  CHECK_THROWS(bench.card.launch(program, {a}, 0), InvalidProgram, "takes 2 arguments, 1 were given");
  CHECK_THROWS(bench.card.launch(program, {a, small}, 0), InvalidProgram,
               "argument 1 needs 4096 bytes, the tensor has 128");
  CHECK_THROWS(bench.card.launch(program, {a, Held{}}, 0), InvalidProgram, "argument 1 has no memory");
  CHECK_THROWS(bench.card.launch(program, {a, elsewhere}, 0), InvalidProgram, "argument 1 is in card 1");
  CHECK_THROWS(bench.card.launch(program, {a, b}, 65), Error, "stream 65 does not exist");
  CHECK_THROWS(bench.card.prepare(Program{"kernel", {}, {Step{}}}), InvalidProgram, "operands: copy takes 2");
}

namespace {

JobStep compute(std::shared_ptr<const Program> program) {
  JobStep step{};
  step.type = JobStep::Type::Compute;
  step.program = std::move(program);
  return step;
}
JobStep host(std::function<void(std::vector<std::string>&)> body) {
  JobStep step{};
  step.type = JobStep::Type::HostCompute;
  step.host = std::move(body);
  return step;
}
JobStep transfer(JobStep::Type type, int argument, int64_t offset, int buffer) {
  JobStep step{};
  step.type = type;
  step.argument = argument;
  step.offset = offset;
  step.buffer = buffer;
  return step;
}
using Type = JobStep::Type;

// Copies `bytes` of argument `from` to argument `to`.
Program copying(int to, int from, int64_t bytes, std::vector<int64_t> argument_bytes) {
  return {
      "move",
      std::move(argument_bytes),
      {{OpCode::copy, {bytes}, {1}, {{to, 0, {1}, DataFormat::SENINT8}, {from, 0, {1}, DataFormat::SENINT8}}, 0, ""}}};
}

}  // namespace

TEST("plan: steps are carried out in order, with memory and buffers of their own") {
  Bench bench(options());
  const Held out = bench.block(std::vector<uint16_t>(64, 0));
  // buffer 0 -> scratch -> buffer 1, turned round on the host -> scratch -> out
  JobPlan plan;
  plan.name = "turn";
  plan.argument_bytes = {128};
  plan.allocations = {256};
  plan.buffers = {"first", std::string(5, '?')};
  std::vector<std::string> seen;
  const auto look = [&](std::vector<std::string>& buffers) { seen.push_back(buffers[0] + "|" + buffers[1]); };
  const auto move = bench.card.prepare(copying(0, 1, 128, {128, 256}));
  plan.steps = {host(look),
                transfer(Type::H2D, 1, 7, 0),
                host([](auto& buffers) { buffers[0] = "other"; }),
                transfer(Type::D2H, 1, 7, 1),
                host(look),
                host([](auto& buffers) { std::reverse(buffers[1].begin(), buffers[1].end()); }),
                transfer(Type::H2D, 1, 0, 1),
                compute(move)};
  const auto prepared = bench.card.prepare(plan);
  for (int launch = 0; launch < 3; ++launch) {
    seen.clear();
    bench.card.launch(prepared, {out}, 1);
    bench.card.synchronize(1);
    CHECK(seen == std::vector<std::string>({"first|?????", "other|first"}));  // fresh buffers each time
    CHECK(std::memcmp(bench.read(out, 64).data(), "tsrif", 5) == 0);
  }
  // The scratch memory is free again.
  CHECK(bench.card.memory().stats().allocation.current == 1);
}

TEST("program: a launch keeps its arguments' memory until it is done") {
  Bench bench(options());
  JobPlan plan;
  plan.name = "plan";
  plan.argument_bytes = {4096, 4096};
  const auto program = bench.card.prepare(good_program());
  plan.steps = {compute(program)};
  const auto prepared = bench.card.prepare(plan);
  for (bool as_plan : {false, true}) {
    std::atomic<bool> open{false};
    Memory& memory = bench.card.memory();
    const Held to{&memory, bench.card.allocate(4096)}, from{&memory, bench.card.allocate(4096)};
    bench.card.callback(1, [&] { open.wait(false); });
    if (as_plan)
      bench.card.launch(prepared, {to, from}, 1);
    else
      bench.card.launch(program, {to, from}, 1);
    memory.release(to.block);
    memory.release(from.block);
    CHECK(memory.stats().pending_bytes == 8192);
    open = true, open.notify_all();
    bench.card.synchronize(1);
    CHECK(memory.stats().pending_bytes == 0);
  }
}

TEST("plan: malformed plans are refused by step and field") {
  Bench bench(options());
  const auto refusal = [&](JobStep step) {
    JobPlan plan;
    plan.name = "plan";
    plan.argument_bytes = {128};
    plan.allocations = {256};
    plan.buffers = {"0123456789"};
    plan.steps = {host([](auto&) {}), std::move(step)};
    try {
      bench.card.prepare(std::move(plan));
    } catch (const InvalidProgram& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(refusal(transfer(Type::H2D, 1, 246, 0)) == "accepted");
  CHECK(refusal(transfer(Type::H2D, 0, 118, 0)) == "accepted");
  CHECK(refusal(transfer(Type::H2D, 2, 0, 0)) == "plan 'plan', step 1 (H2D), argument: 2, there are 2");
  CHECK(refusal(transfer(Type::D2H, -1, 0, 0)) == "plan 'plan', step 1 (D2H), argument: -1, there are 2");
  CHECK(refusal(transfer(Type::D2H, 0, 0, 1)) == "plan 'plan', step 1 (D2H), buffer: 1, there are 1");
  CHECK(refusal(transfer(Type::D2H, 0, 0, -1)) == "plan 'plan', step 1 (D2H), buffer: -1, there are 1");
  CHECK(refusal(transfer(Type::H2D, 0, 119, 0)) ==
        "plan 'plan', step 1 (H2D), offset: buffer 0 of 10 bytes at 119 does not fit into argument 0, which has 128");
  CHECK(refusal(transfer(Type::H2D, 0, -1, 0)).find("offset: buffer 0 of 10 bytes at -1") != std::string::npos);
  CHECK(refusal(transfer(Type::H2D, 0, INT64_MAX, 0)).find("offset: ") != std::string::npos);
  CHECK(refusal(host(nullptr)) == "plan 'plan', step 1 (HostCompute), host: there is no function to call");
  CHECK(refusal(compute(nullptr)) == "plan 'plan', step 1 (Compute), program: is missing");
  const auto program = [&](std::vector<int64_t> bytes) {
    return std::make_shared<Program>(copying(0, 1, 8, std::move(bytes)));
  };
  CHECK(refusal(compute(program({128, 256}))) == "accepted");
  CHECK(refusal(compute(program({128, 256, 8}))).find("takes 3 arguments, the plan has 2") != std::string::npos);
  CHECK(refusal(compute(program({129, 256}))).find("needs 129 bytes of argument 0, which has 128") !=
        std::string::npos);
  CHECK(refusal(compute(program({128, 4}))).find("program 'move', step 0 (copy), operand 1: reaches") !=
        std::string::npos);
  JobPlan negative;
  negative.name = "negative";
  negative.allocations = {-1};
  CHECK_THROWS(bench.card.prepare(negative), InvalidProgram, "argument 0 has -1 bytes");
}

TEST("plan: errors of host steps name the plan and leave memory free") {
  Bench bench(options());
  JobPlan plan;
  plan.name = "broken";
  plan.allocations = {1024};
  plan.buffers = {"abc"};
  const auto launch = [&](std::function<void(std::vector<std::string>&)> body) {
    plan.steps = {transfer(Type::H2D, 0, 0, 0), host(std::move(body)), transfer(Type::H2D, 0, 0, 0)};
    bench.card.launch(bench.card.prepare(plan), {}, 0);
    bench.card.synchronize(0);
  };
  CHECK_THROWS(launch([](auto&) { throw std::runtime_error("oh"); }), Error, "plan 'broken', step 1 (HostCompute): oh");
  CHECK_THROWS(launch([](auto& buffers) { buffers[0] += "d"; }), InvalidProgram, "changed the number or the sizes");
  CHECK_THROWS(launch([](auto& buffers) { buffers.clear(); }), InvalidProgram, "changed the number or the sizes");
  launch([](auto&) {});
  CHECK_THROWS(bench.card.launch(bench.card.prepare(plan), {}, 99), Error, "stream 99 does not exist");
  plan.allocations = {1024, 2ll << 30};
  CHECK_THROWS(bench.card.launch(bench.card.prepare(plan), {}, 0), OutOfMemory, "out of memory");
  CHECK(bench.card.memory().stats().allocation.current == 0);
}

TEST("program: strict mode finds uninitialised reads") {
  Bench bench(options(Mode::strict));
  const std::vector<uint16_t> values = numbers(512);
  const Held a = bench.block(values), fresh = bench.block(1024);
  const auto run = [&](Step step, std::vector<Held> arguments) {
    Program program{"kernel", {1024, 1024}, {std::move(step)}};
    bench.card.launch(bench.card.prepare(std::move(program)), std::move(arguments), 0);
    bench.card.synchronize(0);
  };
  const Operand rows{0, 0, {128, 2}}, from{1, 0, {128, 2}};
  // Fresh memory is read by core 2 only.
  bench.card.bytes_to_card(fresh, 0, values.data(), 512, 0);
  CHECK_THROWS(run({OpCode::copy, {8, 64}, {4, 1}, {rows, from}, 0, "here"}, {a, fresh}), UndefinedBehavior,
               "program 'kernel', step 0 (copy, here): core 2 reads byte 512 of argument 1, which was never written");
  run({OpCode::copy, {8, 64}, {4, 1}, {rows, from}, 0, ""}, {fresh, a});
  CHECK(bench.read(fresh, 512) == values);
  run({OpCode::copy, {4, 64}, {1, 1}, {{0, 512, {128, 2}}, {1, 0, {128, 2}}}, 0, ""}, {a, a});
}

TEST("program: shared folds cost their hops") {
  const Clock clock(Hardware::from_file(SPYRE_HARDWARE_FILE));
  Program program{"kernel",
                  {8 * 128, 32 * 8 * 128},
                  {{OpCode::reduce, {8, 2048}, {1, 1}, {{0, 0, {128, 0}}, {1, 0, {128, 1024}}}, 0, "", "add", {0}, 1}}};
  program.steps[0].operands[1].stick = 1;
  const auto time = [&](Dims slices, Dims tile) {
    program.steps[0].slices = std::move(slices);
    program.steps[0].tile = std::move(tile);
    validate(program, {32, 1 << 20, 1 << 20});
    return duration(program, clock);
  };
  // 8 results of the one group, passed on 31 times: 0.14 ns each; the rest is faster the more cores there are.
  Work one = work_of(program.steps[0], nullptr);
  CHECK(one.partial == 1 && one.folds_lanes && !one.folds_rows && one.sticks == 8 * 32);
  const Picoseconds alone = time({1, 1}, {}), together = time({1, 32}, {});
  const Work all = work_of(program.steps[0], nullptr);
  CHECK(all.partial == 32 && all.area == 8 && all.sticks == 8);
  CHECK(together < alone);
  Work unshared = all;
  unshared.partial = 1;
  CHECK(clock.kernel(all) - clock.kernel(unshared) == 8 * 31 * 140);
}

TEST("program: strict mode follows sticks, shared folds and indices") {
  Bench bench(options(Mode::strict));
  const auto run = [&](Step step, std::vector<Held> arguments) {
    Program program{"kernel", {1024, 1024}, {std::move(step)}};
    bench.card.launch(bench.card.prepare(std::move(program)), std::move(arguments), 0);
    bench.card.synchronize(0);
  };
  // 4 rows of 100 columns, [2, 4, 64] on the card: the padding of the source is never written, and never read.
  const Operand to{0, 0, {128, 512}, DataFormat::SEN169_FP16, 1}, from{1, 0, {128, 512}, DataFormat::SEN169_FP16, 1};
  const Held source = bench.block(1024), copied = bench.block(1024), sums = bench.block(1024);
  run({OpCode::fill, {4, 100}, {2, 2}, {to}, 0x3e00, ""}, {source, source});  // 1.0
  run({OpCode::copy, {4, 100}, {4, 1}, {to, from}, 0, ""}, {copied, source});
  CHECK_THROWS(run({OpCode::copy, {4, 101}, {4, 1}, {to, from}, 0, ""}, {copied, source}), UndefinedBehavior,
               "of argument 1, which was never written");
  // Two cores share each fold.
  run({OpCode::reduce, {4, 100}, {4, 2}, {{0, 0, {128, 0}}, from}, 0, "", "add", {0}, 1}, {sums, source});
  CHECK(bench.read(sums, 1)[0] == sen169_from_float(100));

  // Two points, indices 2 and -1, in a table of 200 elements in sticks 256 bytes apart.
  const int32_t indices[] = {2, -1};
  const std::vector<std::byte*> bases{nullptr, nullptr, reinterpret_cast<std::byte*>(const_cast<int32_t*>(indices))};
  const Step gather{OpCode::gather,
                    {2},
                    {1},
                    {{0, 0, {2}}, {1, 128, {0}}, {2, 0, {4}, DataFormat::IEEE_INT32}},
                    0,
                    "",
                    "",
                    {},
                    0,
                    false,
                    {{2, 200, 256, true}}};
  const auto [low, high] = reach(gather, 1, gather.extents);
  CHECK(low == 128 && high == 128 + 3 * 256 + 128);
  std::vector<Nest> places;
  for_each_touched(gather, 0, 1, bases, [&](const Nest& nest) { places.push_back(nest); });
  CHECK(places.size() == 2 && places[0].offset[0] == 64 + 2 && places[1].offset[0] == 64 + 3 * 128 + 199 % 64);
}

TEST("program: modelled time is the same for every launch and in timing mode") {
  const auto time = [](Mode mode, int threads) {
    Bench bench(options(mode, threads));
    const auto program = bench.card.prepare(good_program());
    const Held a = bench.block(4096), b = bench.block(4096);
    bench.card.fill({b, nullptr, HostType::F16, {0}, {1}, 0}, 0, 2);  // nothing to do
    bench.card.bytes_to_card(b, 0, numbers(2048).data(), 4096, 2);
    for (int i = 0; i < 3; ++i) bench.card.launch(program, {a, b}, 2);
    JobPlan plan;
    plan.name = "plan";
    plan.argument_bytes = {4096, 4096};
    plan.buffers = {std::string(4096, 'x')};
    plan.steps = {transfer(Type::H2D, 0, 0, 0), compute(program), host([](auto&) {}), transfer(Type::D2H, 0, 0, 0)};
    bench.card.launch(bench.card.prepare(plan), {a, b}, 2);
    bench.card.synchronize();
    return bench.card.engine().time(bench.card.stream(2));
  };
  const Picoseconds expected = time(Mode::timing, 1);
  CHECK(expected > 0);
  CHECK(time(Mode::run, 1) == expected && time(Mode::run, 4) == expected && time(Mode::strict, 2) == expected);
}
