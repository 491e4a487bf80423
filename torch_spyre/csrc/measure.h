#pragma once

#include "device.h"

namespace torch_spyre {

// Best wall-clock seconds of one call of the card's C++ API.
double measure_to_card(const at::Tensor& to, const at::Tensor& from, int repeats);
double measure_to_host(const at::Tensor& to, const at::Tensor& from, int repeats);
double measure_launch(const std::shared_ptr<const spyre::JobPlan>& plan, int repeats);

}  // namespace torch_spyre
