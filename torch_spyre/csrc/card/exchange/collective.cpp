#include "card/exchange/collective.h"

#include <algorithm>
#include <cstring>

#include "card/error.h"
#include "card/kernels/compute.h"
#include "card/program/step_ops.h"

namespace spyre {

namespace {

int64_t element_bytes(const Segment& segment) {
  return segment.view ? element_bytes(segment.view->layout->format) : int64_t{1};
}

// The part of a segment that goes in message number `message`.
Segment cut(const Segment& segment, int64_t message) {
  const int64_t each = Channels::kMessageBytes / element_bytes(segment);
  const int64_t first = std::min(segment.count, message * each);
  return {segment.view, segment.first + first, std::min(each, segment.count - first)};
}

int64_t messages(const Segment& segment) {
  return (segment.count * element_bytes(segment) + Channels::kMessageBytes - 1) / Channels::kMessageBytes;
}

int64_t most_messages(const std::vector<Segment>& segments) {
  int64_t most = 0;
  for (const Segment& segment : segments) most = std::max(most, messages(segment));
  return most;
}

void pack(Card& card, std::byte* to, const Segment& from) { card.pack(to, *from.view, from.first, from.count); }
void unpack(Card& card, const Segment& to, const std::byte* from) { card.unpack(*to.view, from, to.first, to.count); }

void send(Card& card, Channels& channels, int to, const Segment& segment) {
  const int64_t bytes = segment.count * element_bytes(segment);
  pack(card, channels.reserve(to, bytes), segment);
  channels.send(to, bytes);
}

void receive(Card& card, Channels& channels, int from, const Segment& segment) {
  unpack(card, segment, channels.receive(from, segment.count * element_bytes(segment)));
  channels.release(from);
}

// Elements in a row of memory as an operand of a step.
Operand dense(DataFormat format) { return {.strides = {kStickBytes}, .format = format, .stick = 0}; }
Operand constant(DataFormat format, double value) {
  return {.argument = kConstant, .strides = {0}, .format = format, .value = value};
}

Step elementwise(const std::string& function, std::vector<Operand> operands, int64_t count, bool checked) {
  Step step;
  step.op = OpCode::elementwise;
  step.extents = {count};
  step.slices = {1};
  step.operands = std::move(operands);
  step.function = function;
  step.checked = checked;
  return step;
}

// Arithmetic on `count` elements in a row, as the card's own kernels do it.
class Arithmetic {
 public:
  Arithmetic(const Folding& folding, DataFormat format) : folding_(folding), format_(format) {}
  void scale(std::byte* values, int64_t count) const {
    if (folding_.factor != 1) with_constant("mul", folding_.factor, values, count);
  }
  void add(std::byte* to, const std::byte* a, const std::byte* b, int64_t count) const {
    run_elementwise(
        elementwise(folding_.function, {dense(format_), dense(format_), dense(format_)}, count, folding_.checked), 0,
        {to, const_cast<std::byte*>(a), const_cast<std::byte*>(b)});
  }
  void divide(std::byte* values, int64_t count) const {
    const bool real = domain_of(format_) == Domain::real;
    if (folding_.divisor != 1) with_constant(real ? "div" : "trunc_divide", folding_.divisor, values, count);
  }

 private:
  void with_constant(const char* function, double value, std::byte* values, int64_t count) const {
    run_elementwise(
        elementwise(function, {dense(format_), dense(format_), constant(format_, value)}, count, folding_.checked), 0,
        {values, values, nullptr});
  }
  const Folding& folding_;
  const DataFormat format_;
};

// From member `self` on, so that not all begin with the same one.
int member(const Channels& channels, int turn) { return (channels.rank() + turn) % channels.size(); }

}  // namespace

void exchange(Card& card, Channels& channels, const std::vector<Segment>& out, const std::vector<Segment>& in) {
  const int self = channels.rank();
  const int64_t most = std::max(most_messages(out), most_messages(in));
  std::vector<std::byte> own;
  for (int64_t message = 0; message < most; ++message) {
    for (int turn = 0; turn < channels.size(); ++turn) {
      const int to = member(channels, turn);
      const Segment part = cut(out[to], message);
      if (part.count == 0) continue;
      if (to != self) {
        send(card, channels, to, part);
        continue;
      }
      own.resize(part.count * element_bytes(part));
      pack(card, own.data(), part);
      unpack(card, cut(in[self], message), own.data());
    }
    for (int turn = 1; turn < channels.size(); ++turn) {
      const int from = member(channels, channels.size() - turn);
      const Segment part = cut(in[from], message);
      if (part.count > 0) receive(card, channels, from, part);
    }
  }
}

void fold(Card& card, Channels& channels, const Fold& fold) {
  const int self = channels.rank(), size = channels.size();
  const DataFormat format = fold.part.front().view->layout->format;
  const int64_t bytes = element_bytes(format), most = most_messages(fold.part);
  const Arithmetic arithmetic(fold.folding, format);
  std::vector<std::byte> own(Channels::kMessageBytes), result(Channels::kMessageBytes);
  const auto keeps = [&](int rank, int owner) {
    return fold.kept_by == KeptBy::all || (fold.kept_by == KeptBy::owner ? rank == owner : rank == fold.keeper);
  };
  for (int64_t message = 0; message < most; ++message) {
    for (int turn = 1; turn < size; ++turn) {
      const int to = member(channels, turn);
      const Segment part = cut(fold.part[to], message);
      if (part.count == 0) continue;
      std::byte* const room = channels.reserve(to, part.count * bytes);
      pack(card, room, part);
      arithmetic.scale(room, part.count);
      channels.send(to, part.count * bytes);
    }
    if (const Segment part = cut(fold.part[self], message); part.count > 0) {
      pack(card, own.data(), part);
      arithmetic.scale(own.data(), part.count);
      const auto given = [&](int rank) {
        return rank == self ? own.data() : channels.receive(rank, part.count * bytes);
      };
      const auto done_with = [&](int rank) {
        if (rank != self) channels.release(rank);
      };
      std::vector<int> receivers;
      for (int turn = 1; turn < size; ++turn)
        if (const int to = member(channels, turn); keeps(to, self)) receivers.push_back(to);
      // The last addition writes into the message to the first receiver, which saves a copy.
      std::byte* sum = size == 1 ? own.data() : result.data();
      const std::byte* so_far = given(0);
      for (int rank = 1; rank < size; ++rank) {
        const std::byte* const next = given(rank);
        if (rank == size - 1 && !receivers.empty()) sum = channels.reserve(receivers[0], part.count * bytes);
        arithmetic.add(sum, so_far, next, part.count);
        if (rank == 1) done_with(0);
        done_with(rank);
        so_far = sum;
      }
      arithmetic.divide(sum, part.count);
      // A message stays as it is when it is sent: only this member writes into its place.
      for (size_t i = 0; i < receivers.size(); ++i) {
        if (i > 0) std::memcpy(channels.reserve(receivers[i], part.count * bytes), sum, part.count * bytes);
        channels.send(receivers[i], part.count * bytes);
      }
      if (keeps(self, self)) unpack(card, cut(fold.keep[self], message), sum);
    }
    for (int turn = 1; turn < size; ++turn) {
      const int from = member(channels, size - turn);
      if (const Segment part = cut(fold.keep[from], message); keeps(self, from) && part.count > 0)
        receive(card, channels, from, part);
    }
  }
}

std::vector<int64_t> equal_parts(int64_t elements, int members, DataFormat format) {
  const int64_t stick = elements_per_stick(format);
  const int64_t sticks = (elements + stick - 1) / stick;
  std::vector<int64_t> counts;
  for (int64_t rank = 0, begin = 0; rank < members; ++rank) {
    const int64_t end = std::min(elements, (sticks * (rank + 1) / members) * stick);
    counts.push_back(end - begin);
    begin = end;
  }
  return counts;
}

}  // namespace spyre
