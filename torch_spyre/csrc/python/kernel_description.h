// Kernels as plain descriptions: dictionaries, lists and numbers, whose types torch_spyre.kernel_types declares. They
// may come from files of any origin, so everything is checked.
#pragma once

#include <pybind11/pytypes.h>

#include <memory>
#include <string>
#include <vector>

#include "card/card.h"

namespace torch_spyre {

// Builds a plan from the description of a kernel. Raises InvalidProgram for a description that is malformed, beyond the
// limits, or against the rules of the hardware.
std::shared_ptr<const spyre::JobPlan> prepare_kernel(const pybind11::dict& description);

// The program of a description ("steps"), as it was given: the card has not checked it yet.
spyre::Program parse_program(const pybind11::dict& from, const std::string& name,
                             const std::vector<int64_t>& argument_bytes);

[[noreturn]] void refuse(const std::string& where, const std::string& why);

}  // namespace torch_spyre
