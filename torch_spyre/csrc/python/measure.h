// For benchmarks: calls of the card's C++ API timed without Python, and the limits of this machine.
#pragma once

#include <ATen/core/Tensor.h>

#include "card/card.h"

namespace torch_spyre {

// Best wall-clock seconds of one call of the card's C++ API.
double measure_to_card(const at::Tensor& to, const at::Tensor& from, int repeats);
double measure_to_host(const at::Tensor& to, const at::Tensor& from, int repeats);
double measure_launch(const std::shared_ptr<const spyre::JobPlan>& plan, int repeats);

// The limits of this machine with this many threads: fp32 operations per second, where a multiply-add counts as two,
// and the best seconds to read and write so many bytes once, divided among the threads.
double measure_multiply_add(int threads, int repeats);
double measure_stream(int64_t bytes_read, int64_t bytes_written, int threads, int repeats);

}  // namespace torch_spyre
