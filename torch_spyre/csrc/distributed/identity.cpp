#include "distributed/identity.h"

#include <iomanip>
#include <sstream>

#include "runtime/device/device.h"

namespace torch_spyre::distributed {

CardIdentity this_card_identity(int global_rank, const std::string& version) {
  constexpr const char* kModes[] = {"run", "timing", "strict"};
  spyre::Card& here = card(current_device());
  CardIdentity result;
  result.version = version;
  result.hardware = std::to_string(here.hardware_digest());
  result.mode = kModes[static_cast<int>(here.mode())];
  const char* wanted = here.links().wanted();
  result.algorithm = wanted ? wanted : "-";
  result.cores = here.cores();
  result.physical = here.physical();
  result.cards = device_count();
  result.global_rank = global_rank;
  return result;
}

std::string difference(const CardIdentity& a, const CardIdentity& b) {
  const auto text = [](const char* what, const auto& first, const auto& second) {
    std::ostringstream out;
    out << what << " " << first << " for one, " << second << " for the other";
    return out.str();
  };
  if (a.version != b.version) return text("versions of torch_spyre differ:", a.version, b.version);
  if (a.cards != b.cards) return text("numbers of cards differ (AIU_WORLD_SIZE, SPYRE_DEVICES):", a.cards, b.cards);
  if (a.mode != b.mode) return text("SPYRE_CARD differs:", a.mode, b.mode);
  if (a.algorithm != b.algorithm) return text("COLL_ALLREDUCE_ALGO differs:", a.algorithm, b.algorithm);
  if (a.cores != b.cores) return text("numbers of cores differ:", a.cores, b.cores);
  if (a.hardware != b.hardware) return "they have different hardware descriptions (SPYRE_HARDWARE)";
  return "";
}

std::string Identity::text() const {
  std::ostringstream out;
  out << std::quoted(card.version) << ' ' << std::quoted(card.hardware) << ' ' << card.mode << ' ' << card.algorithm
      << ' ' << card.cores << ' ' << card.cards << ' ' << card.physical << ' ' << card.global_rank << ' '
      << std::quoted(address.host) << ' ' << address.process << ' ' << address.file << ' ' << address.token;
  return out.str();
}

Identity Identity::from(const std::string& text) {
  std::istringstream in(text);
  Identity result;
  in >> std::quoted(result.card.version) >> std::quoted(result.card.hardware) >> result.card.mode >>
      result.card.algorithm >> result.card.cores >> result.card.cards >> result.card.physical >>
      result.card.global_rank >> std::quoted(result.address.host) >> result.address.process >> result.address.file >>
      result.address.token;
  if (!in)
    throw spyre::CollectiveFailed("a member of the group is of another version of torch_spyre: it says '" + text + "'");
  return result;
}

}  // namespace torch_spyre::distributed
