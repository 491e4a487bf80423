// Fills.
#include <ATen/MemoryOverlap.h>
#include <torch/library.h>

#include "aten/copy.h"
#include "runtime/calls/blocking.h"
#include "runtime/calls/logging.h"
#include "runtime/calls/origin.h"
#include "runtime/device/device.h"
#include "runtime/device/streams.h"
#include "runtime/numbers/scalars.h"
#include "runtime/storage/storage_view.h"

namespace torch_spyre {

namespace {

// The bits of a fill value, converted like an element of this dtype on its way to the card, so that torch.full(...)
// equals torch.full(...).to("spyre"). As in PyTorch, a value that a half cannot hold is an error for many elements, and
// infinite for one.
uint32_t fill_bits(const at::Scalar& value, at::ScalarType dtype, bool one_element) {
  if (dtype != at::kHalf && dtype != at::kBFloat16) return encode_constant(value, dtype);
  const auto any = value.to<float>();
  const uint16_t host = dtype == at::kHalf ? (one_element ? at::Half(any) : value.to<at::Half>()).x
                                           : (one_element ? at::BFloat16(any) : value.to<at::BFloat16>()).x;
  uint16_t code = 0;
  spyre::host_to_device(host_type(dtype))(&code, &host, 1);
  return code;
}

at::Tensor& fill_scalar(at::Tensor& self, const at::Scalar& value) {
  static const std::string* const kName = interned("aten::fill_");
  const OriginScope origin(kName);
  if (self.numel() == 0) return self;
  at::assert_no_internal_overlap(self);
  const auto device = self.device().index();
  if (is_byte_view(self)) {
    change_bytes(self, [&](const at::Tensor& bytes) { bytes.fill_(value); });
    return self;
  }
  if (self.is_complex()) {
    const auto number = value.to<c10::complex<float>>();
    at::Tensor real = complex_part(self, 0), imaginary = complex_part(self, 1);
    fill_scalar(real, number.real());
    fill_scalar(imaginary, number.imag());
    return self;
  }
  const uint32_t bits = fill_bits(value, self.scalar_type(), self.numel() == 1);
  if (logging_enabled()) log_line("fill " + log_text(self) + " on stream " + std::to_string(current_stream(device)));
  const spyre::DeviceView target = device_view(self);
  run_blocking([&] { card(device).fill(target, bits, current_stream(device)); });
  return self;
}

at::Tensor& fill_tensor(at::Tensor& self, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(),
              " dimensions.");
  if (value.device().type() == kSpyre) {
    copy_from(value.is_alias_of(self) ? value.clone() : value, self, false);
    return self;
  }
  return fill_scalar(self, value.to(self.scalar_type()).item());
}

at::Tensor& zero(at::Tensor& self) { return fill_scalar(self, 0); }

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("fill_.Scalar", fill_scalar);
  m.impl("fill_.Tensor", fill_tensor);
  m.impl("zero_", zero);
}

}  // namespace torch_spyre
