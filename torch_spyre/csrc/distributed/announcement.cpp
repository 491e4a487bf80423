#include "distributed/announcement.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace torch_spyre::distributed {

namespace {

constexpr size_t kTitle = 224, kShape = 8;

struct Wire {
  uint64_t sequence;
  int64_t clock, load;
  double factor;
  int32_t dtype, folding, root;
  uint8_t kind, failed;
  uint8_t rank_of_shape;
  int64_t shape[kShape];
  char title[kTitle];
};

}  // namespace

int64_t Announcement::size(int members) {
  return static_cast<int64_t>(sizeof(Wire)) + 2 * members * static_cast<int64_t>(sizeof(int64_t));
}

std::vector<std::byte> Announcement::bytes(int members) const {
  std::vector<std::byte> result(size(members));
  Wire wire{};
  wire.sequence = sequence;
  wire.clock = clock;
  wire.load = load;
  wire.factor = factor;
  wire.dtype = dtype;
  wire.folding = folding;
  wire.root = root;
  wire.kind = static_cast<uint8_t>(kind);
  wire.failed = failed;
  wire.rank_of_shape = static_cast<uint8_t>(std::min(shape.size(), size_t{255}));
  std::copy_n(shape.begin(), std::min(shape.size(), kShape), wire.shape);
  // Of long ones, as those of several tensors, the last place has a digest.
  if (shape.size() > kShape)
    wire.shape[kShape - 1] = std::accumulate(shape.begin(), shape.end(), int64_t{0}, [](int64_t digest, int64_t size) {
      return static_cast<int64_t>(static_cast<uint64_t>(digest) * 0x100000001b3 + static_cast<uint64_t>(size) + 1);
    });
  std::strncpy(wire.title, title.c_str(), kTitle - 1);
  std::memcpy(result.data(), &wire, sizeof(wire));
  auto* counts = reinterpret_cast<int64_t*>(result.data() + sizeof(wire));
  std::copy(out.begin(), out.end(), counts);
  std::copy(in.begin(), in.end(), counts + members);
  return result;
}

Announcement Announcement::from(const std::byte* bytes, int members) {
  Wire wire;
  std::memcpy(&wire, bytes, sizeof(wire));
  Announcement result;
  result.sequence = wire.sequence;
  result.clock = wire.clock;
  result.load = wire.load;
  result.factor = wire.factor;
  result.dtype = wire.dtype;
  result.folding = wire.folding;
  result.root = wire.root;
  result.kind = static_cast<spyre::CollectiveKind>(wire.kind);
  result.failed = wire.failed;
  result.shape.assign(wire.shape, wire.shape + std::min<size_t>(wire.rank_of_shape, kShape));
  if (wire.rank_of_shape > kShape) result.shape.push_back(wire.rank_of_shape);
  result.title.assign(wire.title, strnlen(wire.title, kTitle));
  std::vector<int64_t> counts(2 * members);
  std::memcpy(counts.data(), bytes + sizeof(wire), counts.size() * sizeof(int64_t));
  result.out.assign(counts.begin(), counts.begin() + members);
  result.in.assign(counts.begin() + members, counts.end());
  return result;
}

std::string mismatch(const std::vector<Announcement>& all, const std::vector<std::string>& names) {
  const Announcement& first = all.front();
  for (size_t i = 1; i < all.size(); ++i) {
    const Announcement& other = all[i];
    const bool same = first.sequence == other.sequence && first.kind == other.kind && first.dtype == other.dtype &&
                      first.folding == other.folding && first.root == other.root && first.factor == other.factor &&
                      first.shape == other.shape;
    if (!same)
      return "the members of the group ask for different collectives: " + names[0] + " calls " + first.title + ", " +
             names[i] + " calls " + other.title;
  }
  for (size_t from = 0; from < all.size(); ++from)
    for (size_t to = 0; to < all.size(); ++to)
      if (all[from].out[to] != all[to].in[from])
        return "the members of the group ask for different sizes: " + names[from] + " sends " +
               std::to_string(all[from].out[to]) + " elements to " + names[to] + " (" + all[from].title + "), which " +
               "wants " + std::to_string(all[to].in[from]) + " (" + all[to].title + ")";
  return "";
}

}  // namespace torch_spyre::distributed
