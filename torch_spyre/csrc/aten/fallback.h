// Ops without a card kernel run on the host: warned once per op, counted, or refused.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>

#include <cstdint>
#include <map>
#include <string>

namespace torch_spyre {

enum class FallbackMode { warn, error, count };
FallbackMode fallback_mode();
void set_fallback_mode(FallbackMode mode);
std::map<std::string, int64_t> fallback_counts();
void reset_fallback_counts();  // and warn anew

// Runs a call on the card, or else on the host.
void run_or_fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// Ops that fill self without reading it, and factories: the host makes their values, sending them is no detour.
void make_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Resizes an output as PyTorch does: it warns unless the output was empty. What it held is lost. Without strides it is
// contiguous.
void fit_output(const at::Tensor& output, c10::IntArrayRef size, c10::IntArrayRef strides = {});

}  // namespace torch_spyre
