// A listener to eager ops, for reports: it hears of each kernel that was launched and of each op that the host does.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <string>

#include "card/card.h"

namespace torch_spyre {

extern std::atomic<bool> listening_to_ops;

// "launched": a kernel. "begins" and "ends": an op that the host does, around its transfers.
enum class OpEvent { launched, begins, ends };

// Called with the event, the op's name, the plan that was launched, and the reason why the host does it. None: no
// listener.
void set_op_listener(pybind11::object listener);
void tell_op_listener(OpEvent event, const std::string& op, const std::shared_ptr<const spyre::JobPlan>& plan,
                      const std::string& reason);

inline void notify_op_listener(OpEvent event, const std::string& op, const std::shared_ptr<const spyre::JobPlan>& plan,
                               const std::string& reason) {
  if (listening_to_ops.load(std::memory_order_relaxed)) tell_op_listener(event, op, plan, reason);
}

}  // namespace torch_spyre
