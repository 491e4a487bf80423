// Copies between host and card, on a card and between cards.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace torch_spyre {

// aten::_copy_from: copies the values of `from` into `to`, broadcast and converted.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking);

// Changes the host bytes that a byte view stands for: reads the storage, applies `change` to the bytes, writes it back.
void change_bytes(const at::Tensor& view, const std::function<void(const at::Tensor&)>& change);
// The real (0) or imaginary (1) part of a complex tensor, as a view.
at::Tensor complex_part(const at::Tensor& tensor, int64_t which);
// A tensor as the log shows it.
std::string log_text(const at::Tensor& tensor);

// Whether int64 data going to the card warns.
bool downcast_warning();
void set_downcast_warning(bool on);

}  // namespace torch_spyre
