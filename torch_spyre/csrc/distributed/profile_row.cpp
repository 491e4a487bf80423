#include "distributed/profile_row.h"

#include <atomic>
#include <utility>

namespace torch_spyre::distributed {

int next_row_lane() {
  static std::atomic<int> next{spyre::kFirstGroupLane};
  return next++;
}

ProfileRow ProfileRow::begin(const spyre::Card& card, int lane, const spyre::Event& done, std::string name,
                             std::string group) {
  ProfileRow row;
  const spyre::SubmissionObserver observer = spyre::submission_observer.load(std::memory_order_relaxed);
  if (!observer) return row;
  row.exchange_ = std::make_shared<spyre::Exchange>();
  row.exchange_->done = done;
  row.exchange_->name = std::move(name);
  row.exchange_->group = std::move(group);
  row.end_ = std::make_shared<spyre::ModelledEnd>();
  observer({.card = card.index(),
            .stream = lane,
            .end = row.end_,
            .duration = 0,
            .plan = nullptr,
            .origin = spyre::current_origin(),
            .exchange = row.exchange_});
  return row;
}

void ProfileRow::end(spyre::Picoseconds begin, spyre::Picoseconds waited, int64_t bytes, const char* algorithm,
                     spyre::Picoseconds time) const {
  if (!exchange_) return;
  exchange_->begin = begin;
  exchange_->waited = waited;
  exchange_->bytes = bytes;
  exchange_->algorithm = algorithm;
  end_->time = time;
}

}  // namespace torch_spyre::distributed
