#include "card/numeric/tile_ops.h"

#include <cstring>
#include <string>
#include <utility>

#include "card/error.h"
#include "card/numeric/sen169.h"
#include "card/numeric/simd.h"
#include "card/numeric/tile_math.h"

namespace spyre {
namespace {

#pragma GCC push_options
#pragma GCC optimize("no-trapping-math,no-thread-jumps,no-math-errno")

// What the type of a definition tells about the operation: doubles are constants, everything before them is an input.
template <class T>
constexpr Domain kDomain = Domain::integer;
template <>
constexpr Domain kDomain<float> = Domain::real;

struct Operands {
  const char* in[3];
  double constants[3];
};

template <auto f>
struct Signature;
template <class R, class... P, R (*f)(P...)>
struct Signature<f> {
  using Result = R;
  static constexpr int kConstants = (0 + ... + int(__is_same(P, double))), kArity = int(sizeof...(P)) - kConstants;
  static constexpr Domain kDomains[] = {kDomain<P>...};
  static constexpr Domain kIn = kDomains[kArity - 1], kOut = kDomain<R>;

  SPYRE_INLINE static Operands operands(const void* const* in, const double* constants) {
    Operands own = {};
    for (int k = 0; k < kArity; ++k) own.in[k] = static_cast<const char*>(in[k]);
    for (int k = 0; k < kConstants; ++k) own.constants[k] = constants[k];
    return own;
  }
  // f of element i. Constants come after the inputs.
  SPYRE_INLINE static R apply(const Operands& operands, size_t i) { return apply(operands, i, Indices()); }

 private:
  using Indices = std::make_index_sequence<sizeof...(P)>;
  template <size_t... k>
  SPYRE_INLINE static R apply(const Operands& operands, size_t i, std::index_sequence<k...>) {
    return f(argument<P, k>(operands, i)...);
  }
  template <class T, size_t k>
  SPYRE_INLINE static T argument(const Operands& operands, size_t i) {
    if constexpr (__is_same(T, double))
      return operands.constants[k - kArity];
    else
      return load_at<T>(operands.in[k], i);
  }
};

struct OpList {
  const TileOp* ops;
  size_t count;
};
struct TileOpTable {
  const char* name;
  OpList ops, short_ops;
  void (*round_to_sen169)(float* values, size_t n);
  void (*add_wide)(double* sums, const float* values, size_t n);
  void (*add_moments)(double* sums, double* squares, const float* shifts, const float* values, size_t n);
};

#define SPYRE_SIMD_BODY "card/numeric/tile_ops_simd.inc"
#include "card/numeric/for_each_isa.inc"
#undef SPYRE_SIMD_BODY
#pragma GCC pop_options

constexpr const TileOpTable* kTables[] = SPYRE_EACH_ISA(kTable);

const TileOpTable& table() { return chosen_table<kTables>(); }

std::span<const TileOp> span_of(const OpList& list) { return {list.ops, list.count}; }

const TileOp* find(const OpList& list, std::string_view name, Domain in) {
  for (const TileOp& op : span_of(list))
    if (op.in == in && op.name == name) return &op;
  return nullptr;
}

}  // namespace

std::span<const TileOp> tile_ops() { return span_of(table().ops); }

const TileOp* find_tile_op(std::string_view name, Domain in) { return find(table().ops, name, in); }

const TileOp* find_short_op(std::string_view name) { return find(table().short_ops, name, Domain::real); }

void round_to_sen169(float* values, size_t n) { table().round_to_sen169(values, n); }

void add_wide(double* sums, const float* values, size_t n) { table().add_wide(sums, values, n); }
void add_moments(double* sums, double* squares, const float* shifts, const float* values, size_t n) {
  table().add_moments(sums, squares, shifts, values, n);
}
double fold_wide(double* sums, size_t n) {
  for (size_t half = n / 2; half != 0; half /= 2)
    for (size_t i = 0; i < half; ++i) sums[i] += sums[half + i];
  return sums[0];
}
float narrowed(double sum) { return math::canonical(static_cast<float>(sum)); }

float fold(const TileOp& op, const float* values, size_t n) {
  constexpr size_t kMost = 128;
  const bool foldable = op.arity == 2 && op.constants == 0 && op.in == Domain::real && op.out == Domain::real;
  if (!foldable || n == 0 || n > kMost || (n & (n - 1)) != 0)
    throw InvalidProgram("Cannot fold " + std::to_string(n) + " values with " + op.name +
                         ": a fold takes an op of two reals and a power of two of values, at most 128.");
  float folded[kMost];
  std::memcpy(folded, values, n * sizeof(float));
  for (size_t half = n / 2; half != 0; half /= 2) {
    const void* in[] = {folded, folded + half};
    op.run(folded, in, half, nullptr);
  }
  return folded[0];
}

// For tests: one instruction set, empty where the machine lacks it.
namespace detail {
std::span<const TileOp> tile_ops(const char* simd) {
  return has_isa(simd) ? span_of(table_of(kTables, simd).ops) : std::span<const TileOp>();
}
std::span<const TileOp> short_ops(const char* simd) {
  return has_isa(simd) ? span_of(table_of(kTables, simd).short_ops) : std::span<const TileOp>();
}
void round_to_sen169(const char* simd, float* values, size_t n) {
  if (has_isa(simd)) table_of(kTables, simd).round_to_sen169(values, n);
}
}  // namespace detail

}  // namespace spyre
