#include "card/fusion/threaded_ops.h"

#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "card/numeric/formats.h"
#include "card/numeric/tile_math.h"

namespace spyre {
namespace {

using Handler = decltype(Link::run);

// Which part of a tile is in registers.
struct Part {
  int64_t row[2], stick[2];  // of the two halves, where it has 128 elements: two rows, or two sticks; or twice the same
  int64_t lane;              // the first
  int64_t lanes;             // of each row that there are
};

struct Level {
  const char* name;
  Handler (*find)(LinkKind kind, Source source, Source addend);
  Handler end;
  void (*run)(const Link* links, const Area& area);
};

#pragma GCC push_options
#pragma GCC optimize("no-trapping-math")

namespace portable {
constexpr const char* kName = "portable";
constexpr int kLanes = 4;
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Words __attribute__((vector_size(4 * kLanes)));
SPYRE_INLINE Floats fma(Floats x, Floats y, Floats sum) {
  for (int i = 0; i < kLanes; ++i) sum[i] = __builtin_fmaf(x[i], y[i], sum[i]);
  return sum;
}
template <class Vector, class Number>
SPYRE_INLINE bool any_above(Vector x, Number limit) {
  bool found = false;
  for (size_t i = 0; i < sizeof(Vector) / sizeof(Number); ++i) found |= x[i] > limit;
  return found;
}
#include "card/fusion/threaded_ops_simd.inc"
}  // namespace portable

#if defined(__x86_64__)
namespace avx2 {
#pragma GCC push_options
#pragma GCC target("avx2,fma")
constexpr const char* kName = "avx2";
constexpr int kLanes = 8;
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Words __attribute__((vector_size(4 * kLanes)));
SPYRE_INLINE Floats fma(Floats x, Floats y, Floats sum) { return _mm256_fmadd_ps(x, y, sum); }
template <class Vector, class Number>
SPYRE_INLINE bool any_above(Vector x, Number limit) {
  const auto above = __m256i(x > limit);
  return !_mm256_testz_si256(above, above);
}
#include "card/fusion/threaded_ops_simd.inc"
#pragma GCC pop_options
}  // namespace avx2

namespace avx512 {
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
constexpr const char* kName = "avx512";
constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Words __attribute__((vector_size(4 * kLanes)));
SPYRE_INLINE Floats fma(Floats x, Floats y, Floats sum) { return _mm512_fmadd_ps(x, y, sum); }
template <class Vector>
SPYRE_INLINE bool any_above(Vector x, uint32_t limit) {
  return _mm512_cmpgt_epu32_mask(__m512i(x), _mm512_set1_epi32(int(limit))) != 0;
}
template <class Vector>
SPYRE_INLINE bool any_above(Vector x, uint16_t limit) {
  return _mm512_cmpgt_epu16_mask(__m512i(x), _mm512_set1_epi16(short(limit))) != 0;
}
#include "card/fusion/threaded_ops_simd.inc"
#pragma GCC pop_options
}  // namespace avx512
#endif
#pragma GCC pop_options

#if defined(__x86_64__)
const Level* const kLevels[] = {&avx512::kLevel, &avx2::kLevel, &portable::kLevel};
#else
const Level* const kLevels[] = {&portable::kLevel};
#endif

const Level& level_named(const char* name) {
  for (const Level* level : kLevels)
    if (!std::strcmp(level->name, name)) return *level;
  return portable::kLevel;
}
const Level& level() {
  static const Level& chosen = level_named(simd_level());
  return chosen;
}

}  // namespace

namespace {

// The row of a table, each of which begins with the name of a tile operation.
template <class Row, size_t count>
const Row* named(const Row (&rows)[count], std::string_view op) {
  for (const Row& row : rows)
    if (row.name == op) return &row;
  return nullptr;
}

}  // namespace

std::optional<LinkKind> unary_link(std::string_view op, bool is_short) {
  struct Row {
    std::string_view name;
    LinkKind kind, short_kind;
  };
  constexpr Row kUnary[] = {{"square", LinkKind::square, LinkKind::square},
                            {"neg", LinkKind::neg, LinkKind::neg},
                            {"abs", LinkKind::magnitude, LinkKind::magnitude},
                            {"exp", LinkKind::exp, LinkKind::short_exp},
                            {"silu", LinkKind::silu, LinkKind::short_silu}};
  const Row* row = named(kUnary, op);
  return row ? std::optional(is_short ? row->short_kind : row->kind) : std::nullopt;
}

std::optional<BinaryLink> binary_link(std::string_view op) {
  struct Row {
    std::string_view name;
    BinaryLink kinds;
  };
  constexpr Row kBinary[] = {
      {"add", {LinkKind::add, LinkKind::add}},           {"sub", {LinkKind::sub, LinkKind::from}},
      {"mul", {LinkKind::mul, LinkKind::mul}},           {"div", {LinkKind::div, LinkKind::into}},
      {"maximum", {LinkKind::maximum, LinkKind::under}}, {"minimum", {LinkKind::minimum, LinkKind::over}}};
  const Row* row = named(kBinary, op);
  return row ? std::optional(row->kinds) : std::nullopt;
}

std::optional<LinkKind> fold_link(std::string_view op, Source source) {
  struct Row {
    std::string_view name;
    LinkKind sticks, halves;
  };
  constexpr Row kFolds[] = {{"add", LinkKind::fold_add, LinkKind::fold_add_halves},
                            {"maximum", LinkKind::fold_maximum, LinkKind::fold_maximum_halves},
                            {"minimum", LinkKind::fold_minimum, LinkKind::fold_minimum_halves},
                            {"mul", LinkKind::fold_mul, LinkKind::fold_mul_halves}};
  const Row* row = named(kFolds, op);
  return row ? std::optional(source == Source::floats ? row->halves : row->sticks) : std::nullopt;
}

Handler find_link(LinkKind kind, Source source, Source addend) { return level().find(kind, source, addend); }
Handler end_link() { return level().end; }
void run_chain(const Link* links, const Area& area) { level().run(links, area); }

// For tests: the chains of one instruction set, which the machine must have.
namespace detail {
Handler find_link(const char* simd, LinkKind kind, Source source, Source addend) {
  return level_named(simd).find(kind, source, addend);
}
Handler end_link(const char* simd) { return level_named(simd).end; }
void run_chain(const char* simd, const Link* links, const Area& area) { level_named(simd).run(links, area); }
}  // namespace detail

}  // namespace spyre
