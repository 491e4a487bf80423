#include "runtime/upload.h"

#include <mutex>
#include <sstream>

namespace torch_spyre {

namespace {

using Losses = std::shared_ptr<spyre::Bf16Losses>;

class Watch {
 public:
  Losses follow(const spyre::HostView& values) {
    const std::lock_guard lock(mutex_);
    if (told_ || values.type != spyre::HostType::BF16) return nullptr;
    sent_.push_back({std::make_shared<spyre::Bf16Losses>(), values.size});
    return sent_.back().losses;
  }

  void tell(const Losses& arrived) {
    std::string message;
    {
      const std::lock_guard lock(mutex_);
      for (size_t i = sent_.size(); i-- > 0;) {
        const Losses& losses = sent_[i].losses;
        if (losses != arrived && losses.use_count() > 1) continue;  // on its way
        if (losses->saturated() + losses->vanished() > 0) message = message_of(sent_[i]);
        sent_.erase(sent_.begin() + static_cast<ptrdiff_t>(i));
      }
      if (message.empty()) return;
      told_ = true;
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
  bool told_ = false;
};

Watch& watch() {
  static Watch watch;
  return watch;
}

}  // namespace

void send(c10::DeviceIndex device, const spyre::DeviceView& to, spyre::HostView from, int stream,
          spyre::Card::Wait wait) {
  from.losses = watch().follow(from);
  waiting([&] { card(device).to_card(to, from, stream, wait); });
  watch().tell(wait == spyre::Card::Wait::yes ? from.losses : nullptr);
}

}  // namespace torch_spyre
