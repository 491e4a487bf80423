// Exchanges between the cards of a group: here every member is a thread of one process.
#include "card/exchange.h"

#include <thread>

#include "streams.h"
#include "tensors.h"
#include "testing.h"

using namespace spyre;
using namespace spyre::testing;

namespace {

struct Member {
  std::unique_ptr<SharedGroup> group;
  std::unique_ptr<SharedChannels> channels;
};

std::vector<Member> group_of(int size) {
  std::vector<Member> members(size);
  std::vector<SharedSegment::Address> addresses;
  for (int rank = 0; rank < size; ++rank) {
    auto own = SharedSegment::create(SharedGroup::segment_bytes(size), 1000 + rank);
    addresses.push_back(own.address());
    members[rank].group = std::make_unique<SharedGroup>(rank, size, std::move(own));
  }
  for (int rank = 0; rank < size; ++rank) {
    for (int other = 0; other < size; ++other)
      if (other != rank)
        members[rank].group->join(other, SharedSegment::open(addresses[other], SharedGroup::segment_bytes(size)));
    members[rank].channels = std::make_unique<SharedChannels>(*members[rank].group);
  }
  return members;
}

void together(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

Segment all_of(const DeviceView& view) { return {&view, 0, product(view.size)}; }

}  // namespace

TEST("exchange: a segment of another process is found by its address, and nothing else is") {
  const auto own = SharedSegment::create(4096, 7);
  auto address = own.address();
  const auto same = SharedSegment::open(address, 4096);
  own.data()[100] = std::byte{5};
  CHECK(same.data()[100] == std::byte{5} && !same.owner_is_gone());
  CHECK_THROWS(SharedSegment::open(address, 8192), Error, "other shared memory than expected");
  address.token = 8;
  CHECK_THROWS(SharedSegment::open(address, 4096), Error, "other shared memory than expected");
  address.file = 9999;
  CHECK_THROWS(SharedSegment::open(address, 4096), Error, "cannot open the shared memory of process");
}

TEST("exchange: everyone gets everyone's part, for any layout") {
  Deadline deadline(60);
  constexpr int kSize = 3;
  Runtime runtime(options());
  Card& card = runtime.card(0);
  const auto members = group_of(kSize);
  const Dims size{70, 9000};  // several messages
  const auto count = product(size);
  together(kSize, [&](int rank) {
    Tensor mine(card, HostType::F32, size, rank == 1 ? Dims{1, 0} : Dims{});
    write(mine, floats(count, 1000.0f * static_cast<float>(rank)), rank);
    std::vector<std::unique_ptr<Tensor>> kept;
    std::vector<DeviceView> views;
    const DeviceView given = mine.view();
    for (int i = 0; i < kSize; ++i) kept.push_back(std::make_unique<Tensor>(card, HostType::F32, size));
    for (const auto& each : kept) views.push_back(each->view());
    std::vector<Segment> out(kSize, all_of(given)), in;
    for (const DeviceView& view : views) in.push_back(all_of(view));
    exchange(card, *members[rank].channels, out, in);
    for (int i = 0; i < kSize; ++i)
      CHECK(read<float>(*kept[i], rank) == floats(count, 1000.0f * static_cast<float>(i)));
  });
}

TEST("exchange: elements of a strided view travel in the order of the host, from any one to any other") {
  Runtime runtime(options());
  Card& card = runtime.card(0);
  const Dims size{5, 7, 100};
  Tensor tensor(card, HostType::F32, size), copy(card, HostType::F32, {5 * 7 * 100});
  write(tensor, floats(product(size)));
  const DeviceView turned = tensor.view({7, 100, 5}, {100, 1, 700});
  std::vector<float> expected;
  for (int64_t a = 0; a < 7; ++a)
    for (int64_t b = 0; b < 100; ++b)
      for (int64_t c = 0; c < 5; ++c) expected.push_back(static_cast<float>(a * 100 + b + c * 700));
  for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 3500}, {1, 3498}, {4, 2}, {499, 501}, {500, 500}, {3, 1500}, {3499, 1}, {7, 0}}) {
    std::vector<float> packed(count + 1, -1);
    card.pack(reinterpret_cast<std::byte*>(packed.data()), turned, first, count);
    CHECK(packed.back() == -1);
    packed.pop_back();
    CHECK(packed == std::vector<float>(expected.begin() + first, expected.begin() + first + count));
    card.unpack(copy.view(), reinterpret_cast<const std::byte*>(packed.data()), 0, count);
    write(copy, std::vector<float>(3500, 0.0f));
    card.unpack(copy.view({7, 100, 5}, {500, 5, 1}), reinterpret_cast<const std::byte*>(packed.data()), first, count);
    const std::vector<float> found = read<float>(copy);
    CHECK(std::equal(packed.begin(), packed.end(), found.begin() + first));
    CHECK(std::count(found.begin(), found.end(), 0.0f) >= 3500 - count - 1);
  }
}

TEST("exchange: a fold has the same bits for everyone, in the order of the ranks") {
  Deadline deadline(60);
  constexpr int kSize = 4;
  Runtime runtime(options());
  Card& card = runtime.card(0);
  const auto members = group_of(kSize);
  const Dims size{300, 1001};
  const auto count = product(size);
  const auto value = [](int rank, int64_t i) { return 1.0f / static_cast<float>(1 + rank + i % 1000); };
  std::vector<std::vector<float>> results(kSize);
  together(kSize, [&](int rank) {
    Tensor mine(card, HostType::F32, size);
    std::vector<float> values(count);
    for (int64_t i = 0; i < count; ++i) values[i] = value(rank, i);
    write(mine, values, rank);
    const DeviceView view = mine.view();
    Fold sum{.folding = {.function = "add"}};
    int64_t first = 0;
    for (const int64_t elements : equal_parts(count, kSize, DataFormat::IEEE_FP32)) {
      sum.part.push_back({&view, first, elements});
      first += elements;
    }
    CHECK(first == count);
    sum.keep = sum.part;
    fold(card, *members[rank].channels, sum);
    results[rank] = read<float>(mine, rank);
  });
  for (int64_t i = 0; i < count; ++i) {
    const float expected = ((value(0, i) + value(1, i)) + value(2, i)) + value(3, i);
    if (bits(results[0][i]) != bits(expected)) {
      CHECK(bits(results[0][i]) == bits(expected));
      break;
    }
  }
  for (const auto& each : results) CHECK(each == results[0]);
}

TEST("exchange: a member that goes on no more is heard of") {
  const auto members = group_of(2);
  CHECK(!members[0].group->failure(1));
  members[1].group->fail("it was interrupted");
  members[1].group->fail("another reason");
  CHECK(members[0].group->failure(1) == "it was interrupted");
  bool asked = false;
  members[0].channels->check = [&](int peer) {
    asked = peer == 1;
    throw CollectiveFailed("no point in waiting");
  };
  CHECK_THROWS(members[0].channels->receive(1, 10), CollectiveFailed, "no point in waiting");
  CHECK(asked);
}

TEST("exchange: parts are whole sticks, and all of the tensor") {
  for (const int64_t elements : {0, 1, 63, 64, 65, 1000, 49159, 1 << 20})
    for (const int members : {1, 2, 3, 8}) {
      const auto parts = equal_parts(elements, members, DataFormat::SEN169_FP16);
      int64_t sum = 0;
      for (size_t i = 0; i < parts.size(); ++i) {
        sum += parts[i];
        CHECK(parts[i] >= 0 && (parts[i] % 64 == 0 || sum == elements));
      }
      CHECK(sum == elements && static_cast<int>(parts.size()) == members);
    }
}
