// What collectives take: the public trace, and what has to hold for any sizes.
#include "card/clock/collective_time.h"

#include <cstdlib>

#include "testing.h"

using namespace spyre;
using namespace spyre::testing;

namespace {

Hardware hardware() { return Hardware::from_file(SPYRE_HARDWARE_FILE); }

std::vector<int> cards(int count, int first = 0) {
  std::vector<int> found;
  for (int i = 0; i < count; ++i) found.push_back(first + i);
  return found;
}

double time_of(const Links& links, const CollectiveShape& shape, const std::string& algorithm) {
  for (const CollectiveTime& each : links.candidates(shape))
    if (each.algorithm == algorithm) return each.ns;
  fail(__FILE__, __LINE__, "no " + algorithm);
  return 0;
}

constexpr CollectiveKind kKinds[] = {
    CollectiveKind::all_reduce, CollectiveKind::reduce,         CollectiveKind::broadcast,  CollectiveKind::all_gather,
    CollectiveKind::gather,     CollectiveKind::scatter,        CollectiveKind::all_to_all, CollectiveKind::barrier,
    CollectiveKind::message,    CollectiveKind::reduce_scatter,
};

}  // namespace

TEST("collectives: a chain of 4 cards takes what the public trace shows") {
  const Links links(hardware());
  const int64_t bytes = 512 * 1024;
  const double whole = time_of(links, {CollectiveKind::all_reduce, bytes, cards(4)}, "pipeline") / 1000;
  const double hop = time_of(links, {CollectiveKind::message, bytes, cards(2)}, "direct") / 1000;
  const double multicast = time_of(links, {CollectiveKind::broadcast, bytes, cards(4)}, "multicast") / 1000;
  const double add = (whole - multicast) / 3 - hop;
  CHECK(whole >= 150 && whole <= 190);
  CHECK(hop >= 22.6 && hop <= 25.95);
  CHECK(multicast >= 0.9 * 56 && multicast <= 1.1 * 56);
  CHECK(add >= 0.9 * 16.5 && add <= 1.1 * 16.5);
}

TEST("collectives: more bytes and more cards never take less, and one card takes nothing") {
  const Links links(hardware());
  for (const CollectiveKind kind : kKinds) {
    CHECK(links.fastest({kind, 1 << 20, cards(1)}).ns == 0);
    for (int count = 2; count <= 17; ++count) {
      double before = -1;
      for (int64_t bytes : {int64_t{0}, int64_t{2}, int64_t{128}, int64_t{4096}, int64_t{100'000}, int64_t{1} << 20,
                            int64_t{77} << 20, int64_t{1} << 30}) {
        const double now = links.fastest({kind, bytes, cards(count)}).ns;
        CHECK(now > 0 && now >= before);
        // Of all_to_all a card sends all of its bytes, to however many.
        const bool grows = count > 2 && kind != CollectiveKind::message;
        if (grows && now < links.fastest({kind, bytes, cards(count - 1)}).ns)
          fail(__FILE__, __LINE__,
               std::string(name(kind)) + " of " + std::to_string(bytes) + " bytes is faster on " +
                   std::to_string(count) + " cards than on one less");
        before = now;
      }
    }
  }
}

TEST("collectives: the farther cards are apart, the longer it takes") {
  const Links links(hardware());
  const auto between = [&](int a, int b) { return links.fastest({CollectiveKind::message, 1 << 20, {a, b}}).ns; };
  CHECK(between(0, 3) < between(3, 4));     // of two switches
  CHECK(between(0, 7) < between(7, 8));     // two hops apart
  CHECK(between(0, 15) < between(15, 16));  // through the host
  CHECK(between(0, 3) == between(5, 6) && between(2, 9) == between(9, 2));
}

TEST("collectives: few bytes go in few steps, many in parts") {
  const Links links(hardware());
  const auto chosen = [&](int64_t bytes) {
    return std::string(links.fastest({CollectiveKind::all_reduce, bytes, cards(8)}).algorithm);
  };
  CHECK(chosen(128) == "all_gather_sum");
  CHECK(chosen(64 << 20) == "reduce_scatter_all_gather" || chosen(64 << 20) == "ring");
}

TEST("collectives: COLL_ALLREDUCE_ALGO decides, and has to name an algorithm") {
  const CollectiveShape shape{CollectiveKind::all_reduce, 1 << 20, cards(8)};
  const auto named = [&](const char* value) {
    setenv("COLL_ALLREDUCE_ALGO", value, 1);
    const Links links(hardware());
    unsetenv("COLL_ALLREDUCE_ALGO");
    return std::string(links.fastest(shape).algorithm);
  };
  CHECK(named("Ring") == "ring");
  CHECK(named("ReduceScatterAllGather") == "reduce_scatter_all_gather");
  CHECK_THROWS(named("Rnig"), ConfigurationError, "'Rnig'");
}
