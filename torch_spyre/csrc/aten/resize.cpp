#include "aten/resize.h"

#include <ATen/native/Resize.h>
#include <torch/library.h>

#include "aten/factories.h"
#include "runtime/storage/storage_resize.h"

namespace torch_spyre {

void resize_output(const at::Tensor& output, c10::IntArrayRef size, c10::IntArrayRef strides) {
  SpyreStorageImpl& storage = storage_of(output);
  const int64_t elements = output.numel() * stored_per_element(output.scalar_type());
  const bool whole = output.is_contiguous() && elements == storage.elements() && storage.resizable();
  if (whole && output.sizes() != size) resize_storage_bytes(storage, 0);  // its contents need not be copied
  at::native::resize_output(output, size);
  if (strides.empty() || output.strides() == strides) return;
  if (whole) reshape_storage(storage, size, strides);
  output.unsafeGetTensorImpl()->set_sizes_and_strides(size, strides);
}

namespace {

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> memory_format) {
  check_sizes(size);
  const spyre::Dims strides = strides_in(size, memory_format);
  // Without a memory format any strides will do: the result of an in-place op goes back into a view.
  if (self.sizes() == size && (!is_channels_last(memory_format) || self.strides() == c10::IntArrayRef(strides)))
    return self;
  SpyreStorageImpl& storage = storage_of(self);
  const int64_t each = stored_per_element(self.scalar_type());
  const int64_t held = storage.held().block ? storage.elements() / each : 0;
  const int64_t count = c10::multiply_integers(size), needed = count ? self.storage_offset() + count : 0;
  if (needed > held) {
    TORCH_CHECK(storage.resizable(), "this spyre tensor shares another's memory and cannot be made larger");
    if (self.storage_offset() == 0 && each == 1) {
      reshape_storage(storage, size, strides);
    } else {
      reshape_storage(storage, {each * needed}, {1});
    }
  }
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, strides);
  return self;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("resize_", resize); }

}  // namespace torch_spyre
