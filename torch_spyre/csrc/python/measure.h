#pragma once

#include "runtime/device.h"

namespace torch_spyre {

// Best wall-clock seconds of one call of the card's C++ API.
double measure_to_card(const at::Tensor& to, const at::Tensor& from, int repeats);
double measure_to_host(const at::Tensor& to, const at::Tensor& from, int repeats);
double measure_launch(const std::shared_ptr<const spyre::JobPlan>& plan, int repeats);

// What these threads of this machine do at most: fp32 operations per second, a multiply-add being two, and best seconds
// to read and write so many bytes once, each thread a part of its own.
double measure_multiply_add(int threads, int repeats);
double measure_stream(int64_t bytes_read, int64_t bytes_written, int threads, int repeats);

}  // namespace torch_spyre
