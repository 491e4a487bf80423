// A listener to eager ops, for reports: it hears of each kernel that was launched and of each op that the host did.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <string>

#include "card/card.h"

namespace torch_spyre {

extern std::atomic<bool> listening_to_ops;

// Called with the op's name, and the plan that was launched or the reason why the host did it. None: no listener.
void set_op_listener(pybind11::object listener);
void tell_op_listener(const std::string& op, const std::shared_ptr<const spyre::JobPlan>& plan,
                      const std::string& reason);

inline void notify_op_listener(const std::string& op, const std::shared_ptr<const spyre::JobPlan>& plan,
                               const std::string& reason) {
  if (listening_to_ops.load(std::memory_order_relaxed)) tell_op_listener(op, plan, reason);
}

}  // namespace torch_spyre
