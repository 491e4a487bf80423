#include "runtime/storage/upload.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <memory>
#include <mutex>
#include <sstream>
#include <vector>

#include "runtime/calls/blocking.h"
#include "runtime/device/device.h"

namespace torch_spyre {

namespace {

using Losses = std::shared_ptr<spyre::Bf16Losses>;

// Follows bf16 uploads until they have been carried out, and warns once of finite values outside of the card's range.
class LossWatch {
 public:
  Losses follow(const spyre::HostView& values) {
    const std::lock_guard lock(mutex_);
    if (warned_ || values.type != spyre::HostType::BF16) return nullptr;
    sent_.push_back({std::make_shared<spyre::Bf16Losses>(), values.size});
    return sent_.back().losses;
  }

  void warn(const Losses& arrived) {
    std::string message;
    {
      const std::lock_guard lock(mutex_);
      for (size_t i = sent_.size(); i-- > 0;) {
        const Losses& losses = sent_[i].losses;
        if (losses != arrived && losses.use_count() > 1) continue;  // the copy is still under way
        if (losses->saturated() + losses->vanished() > 0) message = message_of(sent_[i]);
        sent_.erase(sent_.begin() + static_cast<ptrdiff_t>(i));
      }
      if (message.empty()) return;
      warned_ = true;
      sent_.clear();
    }
    TORCH_WARN(message);
  }

 private:
  struct Sent {
    Losses losses;
    spyre::Dims size;
  };

  static std::string message_of(const Sent& sent) {
    const int64_t saturated = sent.losses->saturated(), vanished = sent.losses->vanished();
    std::ostringstream text;
    text << saturated + vanished << " of the " << spyre::product(sent.size)
         << " values of a torch.bfloat16 tensor of size " << c10::IntArrayRef(sent.size)
         << " lie outside of the range of the card's 16-bit numbers, 4.67e-10 to 8.57e+09:";
    if (saturated)
      text << ' ' << saturated << " became the largest one (the largest was " << sent.losses->largest() << ')';
    if (saturated && vanished) text << ',';
    if (vanished) text << ' ' << vanished << " became 0 (the smallest was " << sent.losses->smallest() << ')';
    text << ". Send such a tensor as torch.float32, or scale it. This is said once; docs/dtypes.md has the ranges.";
    return text.str();
  }

  std::mutex mutex_;
  std::vector<Sent> sent_;
  bool warned_ = false;
};

LossWatch& watch() {
  static LossWatch watch;
  return watch;
}

}  // namespace

void upload(c10::DeviceIndex device, const spyre::DeviceView& to, spyre::HostView from, int stream,
            spyre::Card::Wait wait) {
  from.losses = watch().follow(from);
  run_blocking([&] { card(device).to_card(to, from, stream, wait); });
  watch().warn(wait == spyre::Card::Wait::yes ? from.losses : nullptr);
}

}  // namespace torch_spyre
