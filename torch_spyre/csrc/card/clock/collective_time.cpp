#include "card/clock/collective_time.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "card/clock/work.h"

namespace spyre {

const char* name(CollectiveKind kind) {
  constexpr const char* kNames[] = {"all_reduce", "reduce",         "broadcast",  "all_gather", "gather",
                                    "scatter",    "reduce_scatter", "all_to_all", "barrier",    "send"};
  return kNames[static_cast<size_t>(kind)];
}

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

Links::Links(const Hardware& hardware)
    : hardware_(hardware), clock_(hardware), wanted_(environment("COLL_ALLREDUCE_ALGO")) {}

const char* Links::wanted() const {
  if (wanted_.empty()) return nullptr;
  if (wanted_ == "Ring") return "ring";
  if (wanted_ == "ReduceScatterAllGather") return "reduce_scatter_all_gather";
  throw ConfigurationError("COLL_ALLREDUCE_ALGO is Ring or ReduceScatterAllGather, not '" + wanted_ + "'");
}

// How far apart the cards are: 0 behind one PCI switch, 1 one hop between switches, 2 two hops, 3 through the host.
int Links::tier(const std::vector<int>& cards) const {
  if (cards.empty()) return 0;
  const auto [low, high] = std::minmax_element(cards.begin(), cards.end());
  const auto in_one = [&](const char* size) {
    const int each = static_cast<int>(hardware_[size]);
    return *low / each == *high / each;
  };
  return in_one("link_switch_cards") ? 0 : in_one("link_near_cards") ? 1 : in_one("link_far_cards") ? 2 : 3;
}

// From one card to the next.
double Links::hop(const CollectiveShape& shape, double bytes) const {
  constexpr const char* kRates[] = {"link_switch_gb_per_s", "link_near_gb_per_s", "link_far_gb_per_s",
                                    "link_host_gb_per_s"};
  return 1000 * hardware_["link_fixed_us"] + bytes / hardware_[kRates[tier(shape.cards)]];
}

// From one card to all others, which the link's owner feeds together.
double Links::multicast(const CollectiveShape& shape, double bytes) const {
  const double receivers = static_cast<double>(shape.cards.size()) - 1;
  return (1 + hardware_["link_multicast_share"] * (receivers - 1)) * hop(shape, bytes);
}

// The parts of other cards onto this one's, by the vector units.
double Links::fold(double bytes, int others) const {
  const auto whole = static_cast<int64_t>(bytes);
  Work work;
  work.cores = static_cast<int>(hardware_["cores"]);
  work.traffic = {{.written = true, .bytes = whole, .run = whole}};
  work.traffic.resize(2 + others, {.bytes = whole, .run = whole});
  work.sticks = others * std::ceil(bytes / hardware_["stick_bytes"] / work.cores);
  return 1000 * hardware_["link_sum_us"] + static_cast<double>(clock_.kernel(work)) / 1000;
}

// Parts of equal size to all cards (or from all, each folded into what is there): the distance doubles in every step,
// and so does what is sent, until all but a card's own part has gone.
double Links::doubling(const CollectiveShape& shape, double part, bool folds) const {
  const size_t cards = shape.cards.size();
  double ns = 0;
  for (size_t distance = 1; distance < cards; distance *= 2) {
    const double sent = part * static_cast<double>(std::min(distance, cards - distance));
    ns += hop(shape, sent) + (folds ? fold(sent) : 0);
  }
  return ns;
}

std::vector<CollectiveTime> Links::candidates(const CollectiveShape& shape) const {
  const auto ranks = static_cast<double>(shape.cards.size());
  const auto bytes = static_cast<double>(shape.bytes);
  if (ranks <= 1) return {{"alone", 0}};
  const double others = ranks - 1, levels = std::ceil(std::log2(ranks)), part = bytes / ranks;
  const auto step = [&](double sent) { return hop(shape, sent); };
  std::vector<CollectiveTime> found;
  switch (shape.kind) {
    case CollectiveKind::all_reduce:
      found = {{"ring", 2 * others * step(part) + others * fold(part)},
               {"reduce_scatter_all_gather", doubling(shape, part, true) + doubling(shape, part, false)},
               {"tree", 2 * levels * step(bytes) + levels * fold(bytes)},
               {"pipeline", others * (step(bytes) + fold(bytes)) + multicast(shape, bytes)},
               {"all_gather_sum", doubling(shape, bytes, false) + fold(bytes, static_cast<int>(others))}};
      break;
    case CollectiveKind::reduce:
      found = {{"ring", others * (2 * step(part) + fold(part))},
               {"tree", levels * (step(bytes) + fold(bytes))},
               {"pipeline", others * (step(bytes) + fold(bytes))}};
      break;
    case CollectiveKind::reduce_scatter:
      found = {{"ring", others * (step(bytes) + fold(bytes))}, {"doubling", doubling(shape, bytes, true)}};
      break;
    case CollectiveKind::broadcast:
      found = {
          {"multicast", multicast(shape, bytes)}, {"tree", levels * step(bytes)}, {"ring", 2 * others * step(part)}};
      break;
    case CollectiveKind::all_gather:
      found = {{"ring", others * step(bytes)},
               {"doubling", doubling(shape, bytes, false)},
               {"multicast", ranks * multicast(shape, bytes)}};
      break;
    case CollectiveKind::gather:
    case CollectiveKind::scatter:
      found = {{"linear", others * step(bytes)}, {"tree", doubling(shape, bytes, false)}};
      break;
    case CollectiveKind::all_to_all:
      found = {{"pairwise", others * step(part)}};
      break;
    case CollectiveKind::barrier:
      found = {{"tree", 2 * levels * step(0)}};
      break;
    case CollectiveKind::message:
      found = {{"direct", step(bytes)}};
      break;
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.ns < b.ns; });
  return found;
}

CollectiveTime Links::fastest(const CollectiveShape& shape) const {
  const std::vector<CollectiveTime> found = candidates(shape);
  if (const char* named = shape.kind == CollectiveKind::all_reduce ? wanted() : nullptr)
    for (const CollectiveTime& each : found)
      if (std::string(each.algorithm) == named) return each;
  return found.front();
}

}  // namespace spyre
