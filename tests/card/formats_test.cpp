// Number formats against an oracle in double precision that shares nothing with the card's code, for every instruction
// set this machine has.
#include "card/numeric/formats.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>

#include "card/error.h"
#include "card/numeric/simd.h"
#include "testing.h"

namespace spyre::detail {  // of formats.cpp
Convert host_to_device(const char* simd, HostType);
Convert device_to_host(const char* simd, HostType);
Convert device_cast(const char* simd, HostType from, HostType to);
}  // namespace spyre::detail

using namespace spyre;
using enum HostType;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

std::vector<const char*> levels() {
  std::vector<const char*> usable;
  for (const char* level : {"portable", "avx2", "avx512"}) {
    try {
      detail::host_to_device(level, F16);
      usable.push_back(level);
    } catch (const ConfigurationError&) {
    }
  }
  return usable;
}

// A float format: what each magnitude code is worth, in order; codes from `top` on are not finite.
struct Format {
  int sign_bit;
  uint32_t top, inf, nan;  // inf is what overflow gives: below top where the format has no infinity
  bool ties_away;
  std::vector<double> values;  // of codes 0..top, where the last is the value `top` would have

  Format(int exponent, int fraction, bool subnormals, uint32_t top, uint32_t inf, uint32_t nan, bool ties_away)
      : sign_bit(exponent + fraction), top(top), inf(inf), nan(nan), ties_away(ties_away) {
    const int bias = (1 << (exponent - 1)) - 1;
    for (uint32_t code = 0; code <= top; ++code) {
      const int e = int(code >> fraction);
      const double f = std::ldexp(double(code & ((1u << fraction) - 1)), -fraction);
      const bool subnormal = e == 0 && subnormals;
      values.push_back(code == 0 ? 0 : std::ldexp(subnormal ? f : 1 + f, std::max(e, subnormal ? 1 : 0) - bias));
    }
  }
  uint32_t sign(double value) const { return std::signbit(value) ? 1u << sign_bit : 0; }

  double decode(uint32_t code) const {
    const uint32_t magnitude = code & ((1u << sign_bit) - 1);
    const bool special = magnitude >= top;
    const double value = !special ? values[magnitude] : magnitude == inf ? kInfinity : kNotANumber;
    return std::copysign(value, code >> sign_bit ? -1.0 : 1.0);
  }
  uint32_t encode(double value) const {
    if (std::isnan(value)) return nan | sign(value);
    const double magnitude = std::fabs(value);
    if (magnitude >= values.back()) return inf | sign(value);
    const auto above = std::upper_bound(values.begin(), values.end(), magnitude);
    uint32_t code = uint32_t(above - values.begin());
    const double to_next = *above - magnitude, to_last = magnitude - above[-1];
    if (to_last < to_next || (to_last == to_next && !ties_away && code % 2)) --code;
    return (code == top ? inf : code) | sign(value);
  }
};
const Format& sen169() {
  static const Format format(6, 9, false, 0x7ffe, 0x7fff, 0x7ffe, true);
  return format;
}
const Format& half() {
  static const Format format(5, 10, true, 0x7c00, 0x7c00, 0x7e00, false);
  return format;
}
const Format& bfloat() {
  static const Format format(8, 7, true, 0x7f80, 0x7f80, 0x7fc0, false);
  return format;
}
const Format& e4m3() {
  static const Format format(4, 3, true, 0x7f, 0x7e, 0x7f, false);
  return format;
}
const Format& e5m2() {
  static const Format format(5, 2, true, 0x7c, 0x7c, 0x7f, false);
  return format;
}

// A finite value coming in stays at or below `largest`.
uint32_t incoming(double value, uint32_t largest) {
  if (!std::isfinite(value)) return sen169().encode(value);
  const uint32_t code = sen169().encode(value);
  return std::min(code & 0x7fff, largest) | (code & 0x8000);
}

bool is_float(HostType type) { return type <= F8E5M2; }
double float_value(uint32_t bits) {
  const float value = __builtin_bit_cast(float, bits);
  return std::isnan(value) ? std::copysign(kNotANumber, bits >> 31 ? -1.0 : 1.0) : value;
}

// What a code on the card means, and the code of a value on the card: PyTorch's cast.
double card_value(HostType type, uint32_t code) {
  switch (type) {
    case F16:
    case BF16:
      return sen169().decode(code);
    case F32:
      return float_value(code);
    case F8E4M3:
      return e4m3().decode(code);
    case F8E5M2:
      return e5m2().decode(code);
    case I8:
      return int8_t(code);
    case I16:
      return int16_t(code);
    case U8:
      return code & 0xff;
    case I32:
    case I64:
      return int32_t(code);
    case Bool:
      return (code & 0x7fff) != 0;
  }
  return 0;
}
uint32_t card_cast(HostType from, HostType to, uint32_t code) {
  double value = card_value(from, code);
  if (to == Bool) return value != 0 ? 0x3e00u : 0;
  if (is_float(to)) {
    if (!std::isnan(value)) value = double(float(value));  // integers pass through fp32
    switch (to) {
      case F16:
      case BF16:
        return sen169().encode(value);
      case F8E4M3:
        return e4m3().encode(value);
      case F8E5M2:
        return e5m2().encode(value);
      default:
        break;
    }
    if (std::isnan(value)) return from == F32 ? code : 0x7fc00000u | (std::signbit(value) ? 0x80000000u : 0);
    return __builtin_bit_cast(uint32_t, float(value));
  }
  const bool fits = value > -2147483649.0 && value < 2147483648.0;
  if (to == I64 && value >= 2147483648.0) return 0x7fffffffu;
  const uint32_t integer = fits ? uint32_t(int32_t(value)) : 0x80000000u;
  const int bytes = to == U8 ? 1 : int(element_bytes(format_of(to)));
  return bytes == 4 ? integer : integer & ((1u << 8 * bytes) - 1);
}

std::mt19937& random_bits() {
  static std::mt19937 generator(7);
  return generator;
}

// Codes a well-formed tensor of this type may hold on the card: all of them up to 16 bits, edges and a random lot
// beyond.
std::vector<uint32_t> card_codes(HostType type) {
  const int64_t bytes = element_bytes(format_of(type));
  std::vector<uint32_t> codes;
  if (type == U8 || bytes < 4) {
    for (uint32_t code = 0; code < (type == U8 || bytes == 1 ? 256u : 65536u); ++code) codes.push_back(code);
    return codes;
  }
  for (uint32_t shift = 0; shift < 32; ++shift)
    for (uint32_t step : {-2u, -1u, 0u, 1u, 2u})
      for (uint32_t sign : {0u, 0x80000000u}) codes.push_back(((1u << shift) + step) ^ sign);
  if (type == F32) {
    // Around every code of the narrower formats, and around the middle between neighbours.
    for (const Format* format : {&sen169(), &half(), &bfloat(), &e4m3(), &e5m2()})
      for (size_t i = 0; i + 1 < format->values.size(); i += format->values.size() > 4096 ? 7 : 1)
        for (double value : {format->values[i], (format->values[i] + format->values[i + 1]) / 2})
          for (uint32_t step : {-1u, 0u, 1u}) {
            const uint32_t bits = __builtin_bit_cast(uint32_t, float(value)) + step;
            codes.push_back(bits);
            codes.push_back(bits ^ 0x80000000u);
          }
    for (float value : {255.5f,        256.f,         -128.9f, -129.f, 65535.f, 2147483520.f, 2147483648.f,
                        -2147483648.f, -2147483904.f, 3e9f,    1e20f,  -1e20f,  INFINITY,     -INFINITY,
                        NAN,           -NAN,          464.f,   465.f,  480.f,   61440.f,      0x1p-149f})
      codes.push_back(__builtin_bit_cast(uint32_t, value));
    for (uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu}) codes.push_back(bits);
  }
  for (int i = 0; i < 40000; ++i) codes.push_back(random_bits()() >> (i % 3 * 8));
  return codes;
}

std::vector<uint8_t> pack(const std::vector<uint32_t>& codes, int64_t bytes) {
  std::vector<uint8_t> data(codes.size() * bytes);
  for (size_t i = 0; i < codes.size(); ++i) std::memcpy(&data[i * bytes], &codes[i], bytes);
  return data;
}
std::vector<uint32_t> unpack(const std::vector<uint8_t>& data, int64_t bytes) {
  std::vector<uint32_t> codes(data.size() / bytes);
  for (size_t i = 0; i < codes.size(); ++i) std::memcpy(&codes[i], &data[i * bytes], bytes);
  return codes;
}

// Codes of up to 32 bits through a conversion and back out of its result.
std::vector<uint32_t> run(Convert convert, const std::vector<uint32_t>& codes, int64_t from_bytes, int64_t to_bytes) {
  const std::vector<uint8_t> src = pack(codes, from_bytes);
  std::vector<uint8_t> dst(codes.size() * to_bytes);
  convert(dst.data(), src.data(), codes.size());
  return unpack(dst, to_bytes);
}

void check_equal(const std::string& what, const std::vector<uint32_t>& in, const std::vector<uint32_t>& seen,
                 const std::vector<uint32_t>& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (seen[i] == wanted[i]) continue;
    char text[100];
    std::snprintf(text, sizeof text, ": code %#x gave %#x, not %#x", in[i], seen[i], wanted[i]);
    testing::fail(__FILE__, __LINE__, what + text);
    return;
  }
}

template <class F>
std::vector<uint32_t> each(const std::vector<uint32_t>& codes, F&& f) {
  std::vector<uint32_t> results;
  for (uint32_t code : codes) results.push_back(f(code));
  return results;
}

// Every code in order, and every code alone among ones: vector code may treat a stick of specials apart.
void check_transfer(const char* what, bool in, HostType type, uint32_t codes, uint32_t one,
                    uint32_t (*oracle)(uint32_t)) {
  constexpr uint32_t kChunk = 256;
  int64_t from = host_bytes(type), to = element_bytes(format_of(type));
  if (!in) std::swap(from, to);
  for (const char* level : levels()) {
    const Convert convert = in ? detail::host_to_device(level, type) : detail::device_to_host(level, type);
    const std::string where = std::string(level) + " " + what;
    for (uint32_t first = 0; first < codes; first += kChunk) {
      std::vector<uint32_t> all, alone(kChunk * 64, one), alone_wanted(kChunk * 64, oracle(one));
      for (uint32_t code = first; code < first + kChunk; ++code) all.push_back(code);
      const std::vector<uint32_t> wanted = each(all, oracle);
      for (uint32_t i = 0; i < kChunk; ++i) {
        alone[i * 64 + i % 64] = all[i];
        alone_wanted[i * 64 + i % 64] = wanted[i];
      }
      check_equal(where, all, run(convert, all, from, to), wanted);
      check_equal(where + " alone", alone, run(convert, alone, from, to), alone_wanted);
    }
  }
}

}  // namespace

TEST("formats: table") {
  CHECK(!std::strcmp(name(DataFormat::SEN169_FP16), "SEN169_FP16"));
  CHECK(!std::strcmp(name(DataFormat::SEN18F_FP24), "SEN18F_FP24"));
  CHECK(!std::strcmp(name(DataFormat(200)), "INVALID"));
  CHECK(!std::strcmp(name(F8E4M3), "float8_e4m3fn"));
  CHECK(elements_per_stick(DataFormat::SEN169_FP16) == 64);
  CHECK(elements_per_stick(DataFormat::IEEE_FP32) == 32);
  CHECK(elements_per_stick(DataFormat::SEN143_FP8) == 128);
  CHECK(elements_per_stick(DataFormat::SENUINT32) == 32);
  CHECK(elements_per_stick(DataFormat::IEEE_INT64) == 0);
  CHECK(element_bytes(DataFormat::INVALID) == 0);
  CHECK(format_of(I64) == DataFormat::IEEE_INT32 && host_bytes(I64) == 8);
  CHECK(format_of(U8) == DataFormat::SENUINT32 && host_bytes(U8) == 1);
  CHECK(format_of(Bool) == DataFormat::SEN169_FP16 && host_bytes(Bool) == 1);
}

TEST("formats: SEN169 values") {
  CHECK(sen169_to_float(0x3e00) == 1.0f);
  CHECK(sen169_to_float(0x5dff) == 65472.0f);
  CHECK(sen169_to_float(0x0001) == 0x1.008p-31f);
  CHECK(sen169_to_float(0x7ffd) == 0x1.fe8p32f);
  CHECK(std::isinf(sen169_to_float(0x7fff)) && std::isinf(sen169_to_float(0xffff)));
  CHECK(std::isnan(sen169_to_float(0x7ffe)) && std::isnan(sen169_to_float(0xfffe)));
  CHECK(sen169_from_float(-0.0f) == 0x8000);
  CHECK(sen169_from_float(0x1p-31f) == 0x0001);          // 2^-31 has no code: the nearest is one above
  CHECK(sen169_from_float(0x1.008p-32f) == 0x0001);      // exactly half the smallest
  CHECK(sen169_from_float(-0x1.007ffep-32f) == 0x8000);  // just below
  CHECK(sen169_from_float(1 + 0x1p-10f) == 0x3e01);      // a tie, away from zero
  CHECK(sen169_from_float(-1 - 0x1p-10f) == 0xbe01);
  CHECK(sen169_from_float(0x1.fe8p32f) == 0x7ffd);
  CHECK(sen169_from_float(0x1.febffep32f) == 0x7ffd);  // below half a unit past the largest
  CHECK(sen169_from_float(0x1.fecp32f) == 0x7fff);     // a tie, past it
  CHECK(sen169_from_float(-1e30f) == 0xffff);
  CHECK(sen169_from_float(NAN) == 0x7ffe);
}

TEST("formats: SEN169 both ways") {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = sen169_to_float(uint16_t(code));
    CHECK(sen169_from_float(value) == code);
    CHECK(std::isnan(value) || double(value) == sen169().decode(code));
  }
  for (uint32_t bits : card_codes(F32))
    CHECK(sen169_from_float(__builtin_bit_cast(float, bits)) == sen169().encode(float_value(bits)));
}

TEST("formats: transfers, every code") {
  check_transfer("f16 in", true, F16, 65536, 0x3c00, [](uint32_t c) { return incoming(half().decode(c), 0x5dff); });
  check_transfer("f16 out", false, F16, 65536, 0x3e00, [](uint32_t c) { return half().encode(sen169().decode(c)); });
  check_transfer("bf16 in", true, BF16, 65536, 0x3f80, [](uint32_t c) { return incoming(bfloat().decode(c), 0x7ffd); });
  check_transfer("bf16 out", false, BF16, 65536, 0x3e00,
                 [](uint32_t c) { return bfloat().encode(sen169().decode(c)); });
  check_transfer("bool in", true, Bool, 256, 1, [](uint32_t c) { return c ? 0x3e00u : 0u; });
  check_transfer("bool out", false, Bool, 65536, 0x3e00, [](uint32_t c) { return uint32_t((c & 0x7fff) != 0); });
  check_transfer("u8 in", true, U8, 256, 1, [](uint32_t c) { return c; });
  check_transfer("u8 out", false, U8, 1024, 1, [](uint32_t c) { return c & 0xff; });
  for (HostType type : {F8E4M3, F8E5M2, I8}) {
    check_transfer(name(type), true, type, 256, 1, [](uint32_t c) { return c; });
    check_transfer(name(type), false, type, 256, 1, [](uint32_t c) { return c; });
  }
  for (HostType type : {I16, F32, I32}) {
    check_transfer(name(type), true, type, 65536, 1, [](uint32_t c) { return c; });
    check_transfer(name(type), false, type, 65536, 1, [](uint32_t c) { return c; });
  }
}

TEST("formats: a second round trip changes nothing") {
  std::vector<uint32_t> all(65536);
  for (uint32_t code = 0; code < 65536; ++code) all[code] = code;
  for (const char* level : levels())
    for (HostType type : {F16, BF16}) {
      const Convert in = detail::host_to_device(level, type), out = detail::device_to_host(level, type);
      const auto card = run(in, all, 2, 2), host = run(out, card, 2, 2), card_again = run(in, host, 2, 2);
      check_equal("host again", all, run(out, card_again, 2, 2), host);
      // The largest code lies between two bfloat16 values, so what saturated there comes back as the code below it.
      check_equal("card again", all, card_again, each(card, [&](uint32_t code) {
                    return type == BF16 && (code & 0x7fff) == 0x7ffd ? code - 1 : code;
                  }));
      for (uint32_t code = 0; code < 65536; ++code) {
        const uint32_t magnitude = code & 0x7fff;
        if (type == BF16 || magnitude > 0x7c00) continue;
        // fp16 comes back at most one unit away, up for a tie, and finite if it was finite.
        CHECK(host[code] == code || (code % 2 && host[code] == (magnitude == 0x7bff ? code - 1 : code + 1)));
      }
    }
}

TEST("formats: int64") {
  for (const char* level : levels()) {
    const Convert in = detail::host_to_device(level, I64), out = detail::device_to_host(level, I64);
    for (size_t n = 1; n <= 70; ++n) {
      std::vector<int64_t> host(n), again(n);
      std::vector<int32_t> card(n);
      for (int64_t& value : host) value = int32_t(random_bits()());
      host[n / 2] = INT32_MIN;
      host[n - 1] = INT32_MAX;
      CHECK(in(card.data(), host.data(), n));
      CHECK(std::equal(card.begin(), card.end(), host.begin()));
      CHECK(out(again.data(), card.data(), n));
      CHECK(again == host);
      for (int64_t beyond : {int64_t(INT32_MAX) + 1, int64_t(INT32_MIN) - 1, INT64_MAX, INT64_MIN, int64_t(1) << 32}) {
        std::vector<int64_t> bad = host;
        bad[random_bits()() % n] = beyond;
        CHECK(!in(card.data(), bad.data(), n));
      }
    }
  }
}

TEST("formats: casts") {
  for (int f = 0; f < kHostTypes; ++f) {
    const HostType from = HostType(f);
    const std::vector<uint32_t> codes = card_codes(from);
    const int64_t from_bytes = element_bytes(format_of(from));
    for (int t = 0; t < kHostTypes; ++t) {
      const HostType to = HostType(t);
      const int64_t to_bytes = element_bytes(format_of(to));
      const std::string what = std::string(name(from)) + " to " + name(to);
      std::vector<uint32_t> wanted;
      for (uint32_t code : codes) {
        const bool copies = from == to && from != Bool;
        wanted.push_back(copies ? code : card_cast(from, to, code));
      }
      for (const char* level : levels())
        check_equal(level + (" " + what), codes, run(detail::device_cast(level, from, to), codes, from_bytes, to_bytes),
                    wanted);
    }
  }
}

TEST("formats: any length and alignment, nothing written past the end") {
  constexpr size_t kMost = 200;
  std::vector<uint8_t> random(8 * kMost + 64);
  for (uint8_t& byte : random) byte = uint8_t(random_bits()());
  const auto check = [&](const std::string& what, Convert convert, Convert reference, int64_t from, int64_t to) {
    std::vector<uint8_t> wanted(kMost * to), src(kMost * from + 8), dst(kMost * to + 64 + 8);
    for (size_t n = 0; n <= kMost; ++n)
      for (const auto& [a, b] : {std::pair{0, 0}, {1, 3}, {3, 0}, {0, 5}}) {
        std::memcpy(src.data() + a, random.data(), n * from);
        if (from == 8)  // int64 within 32 bits
          for (size_t i = 0; i < n; ++i) std::memset(&src[a + i * 8 + 4], src[a + i * 8 + 3] & 0x80 ? 0xff : 0, 4);
        std::fill(dst.begin(), dst.end(), 0xa5);
        const bool fits = convert(dst.data() + b, src.data() + a, n);
        bool wanted_fits = true;
        for (size_t i = 0; i < n; ++i) wanted_fits &= reference(&wanted[i * to], &src[a + i * from], 1);
        if (fits != wanted_fits || (fits && std::memcmp(dst.data() + b, wanted.data(), n * to))) {
          testing::fail(__FILE__, __LINE__, what + " differs at n = " + std::to_string(n));
          return;
        }
        for (size_t i = 0; i < dst.size(); ++i)
          if ((i < size_t(b) || i >= b + n * to) && dst[i] != 0xa5)
            return testing::fail(__FILE__, __LINE__, what + " wrote outside at n = " + std::to_string(n));
      }
  };
  for (const char* level : levels())
    for (int f = 0; f < kHostTypes; ++f) {
      const HostType from = HostType(f);
      const int64_t host = host_bytes(from), card = element_bytes(format_of(from));
      const std::string what = std::string(level) + " " + name(from);
      check(what + " in", detail::host_to_device(level, from), detail::host_to_device("portable", from), host, card);
      check(what + " out", detail::device_to_host(level, from), detail::device_to_host("portable", from), card, host);
      for (int t = 0; t < kHostTypes; ++t) {
        const HostType to = HostType(t);
        check(what + " to " + name(to), detail::device_cast(level, from, to), detail::device_cast("portable", from, to),
              card, element_bytes(format_of(to)));
      }
    }
}

// The choice is made once in a process, so each is made in a child that runs this test again.
TEST("formats: SPYRE_SIMD") {
  CHECK_THROWS(detail::host_to_device("sse9", F16), ConfigurationError, "SPYRE_SIMD is \"sse9\"");
  const std::vector<const char*> usable = levels();
  const char* wanted = std::getenv("SPYRE_SIMD");
  if (wanted && !std::strcmp(wanted, "sse9")) {
    CHECK_THROWS(simd_level(), ConfigurationError, "portable");
    CHECK_THROWS(host_to_device(F16), ConfigurationError, "names no instruction set");
    return;
  }
  if (wanted) {
    CHECK(!std::strcmp(simd_level(), wanted));
    CHECK(host_to_device(F16) == detail::host_to_device(wanted, F16));
    return;
  }
  CHECK(!std::strcmp(simd_level(), usable.back()));
  char self[4096] = {};
  CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  for (const char* level : {"sse9", "portable", "avx2", "avx512"}) {
    const bool known = std::any_of(usable.begin(), usable.end(), [&](const char* u) { return !std::strcmp(u, level); });
    if (!known && std::strcmp(level, "sse9")) continue;
    const std::string command = std::string("SPYRE_SIMD=") + level + " '" + self + "' 'formats: SPYRE_SIMD' >/dev/null";
    CHECK(std::system(command.c_str()) == 0);
  }
}
