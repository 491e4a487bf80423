#include "card/fusion/threaded_ops.h"

#include <utility>

#include "card/numeric/sen169.h"
#include "card/numeric/simd.h"
#include "card/numeric/tile_math.h"

namespace spyre {
namespace {

using Handler = decltype(ThreadedOp::run);

// The elements that are in registers: two halves where they are 128, of two rows or of two sticks, or the same one
// twice.
struct RegisterTile {
  int64_t row[2], stick[2];
  int64_t lane;   // the first
  int64_t lanes;  // of each row that there are
};

struct ThreadedOpTable {
  const char* name;
  Handler (*find)(OpKind kind, Source source, Source addend);
  Handler end;
  void (*run)(const ThreadedOp* ops, const Area& area);
};

#pragma GCC push_options
#pragma GCC optimize("no-trapping-math")
#define SPYRE_SIMD_BODY "card/fusion/threaded_ops_simd.inc"
#include "card/numeric/for_each_isa.inc"
#undef SPYRE_SIMD_BODY
#pragma GCC pop_options

const ThreadedOpTable* const kTables[] = SPYRE_EACH_ISA(kTable);

const ThreadedOpTable& table() { return chosen_table<kTables>(); }

// The row of a table, each of which begins with the name of a tile operation.
template <class Row, size_t count>
const Row* named(const Row (&rows)[count], std::string_view op) {
  for (const Row& row : rows)
    if (row.name == op) return &row;
  return nullptr;
}

}  // namespace

std::optional<OpKind> unary_op_kind(std::string_view op, bool is_short) {
  struct Row {
    std::string_view name;
    OpKind kind, short_kind;
  };
  constexpr Row kUnary[] = {{"square", OpKind::square, OpKind::square},
                            {"neg", OpKind::neg, OpKind::neg},
                            {"abs", OpKind::magnitude, OpKind::magnitude},
                            {"exp", OpKind::exp, OpKind::short_exp},
                            {"silu", OpKind::silu, OpKind::short_silu}};
  const Row* row = named(kUnary, op);
  return row ? std::optional(is_short ? row->short_kind : row->kind) : std::nullopt;
}

std::optional<BinaryOpKinds> binary_op_kinds(std::string_view op) {
  struct Row {
    std::string_view name;
    BinaryOpKinds kinds;
  };
  constexpr Row kBinary[] = {
      {"add", {OpKind::add, OpKind::add}},           {"sub", {OpKind::sub, OpKind::from}},
      {"mul", {OpKind::mul, OpKind::mul}},           {"div", {OpKind::div, OpKind::into}},
      {"maximum", {OpKind::maximum, OpKind::under}}, {"minimum", {OpKind::minimum, OpKind::over}}};
  const Row* row = named(kBinary, op);
  return row ? std::optional(row->kinds) : std::nullopt;
}

std::optional<OpKind> fold_op_kind(std::string_view op, Source source) {
  struct Row {
    std::string_view name;
    OpKind sticks, halves;
  };
  constexpr Row kFolds[] = {{"add", OpKind::fold_add, OpKind::fold_add_halves},
                            {"maximum", OpKind::fold_maximum, OpKind::fold_maximum_halves},
                            {"minimum", OpKind::fold_minimum, OpKind::fold_minimum_halves},
                            {"mul", OpKind::fold_mul, OpKind::fold_mul_halves}};
  const Row* row = named(kFolds, op);
  return row ? std::optional(source == Source::floats ? row->halves : row->sticks) : std::nullopt;
}

Handler find_threaded_op(OpKind kind, Source source, Source addend) { return table().find(kind, source, addend); }
Handler end_of_ops() { return table().end; }
void run_threaded_ops(const ThreadedOp* ops, const Area& area) { table().run(ops, area); }

// For tests: the ops of one instruction set, which the machine must have.
namespace detail {
Handler find_threaded_op(const char* simd, OpKind kind, Source source, Source addend) {
  return table_of(kTables, simd).find(kind, source, addend);
}
Handler end_of_ops(const char* simd) { return table_of(kTables, simd).end; }
void run_threaded_ops(const char* simd, const ThreadedOp* ops, const Area& area) {
  table_of(kTables, simd).run(ops, area);
}
}  // namespace detail

}  // namespace spyre
