// Tensors as views of their storage: in the storage's elements, on the card, and as host bytes.
#pragma once

#include "runtime/storage/storage.h"

namespace torch_spyre {

// A view in the elements of its storage. A complex tensor is a view of a float32 storage, whatever that storage's
// layout: complex numbers are kept on the card as on the host, in pairs of float32.
struct StoredView {
  at::ScalarType dtype;
  spyre::Dims size, strides;
  int64_t offset;
};
StoredView stored_view(at::ScalarType dtype, c10::IntArrayRef size, c10::IntArrayRef strides, int64_t offset);
// Storage elements for each element of a tensor.
inline int64_t stored_per_element(at::ScalarType dtype) { return dtype == at::kComplexFloat ? 2 : 1; }
// Raises unless all elements of a view are inside the storage: its padding belongs to no tensor.
void check_inside(const SpyreStorageImpl& storage, const StoredView& view);

spyre::DeviceView device_view(const at::Tensor& tensor);
spyre::DeviceView whole_view(SpyreStorageImpl& storage);

// PyTorch copies untyped storages through uint8 tensors over them. Over a typed storage such a tensor is a byte view:
// it stands for the bytes that the elements have on the host, which only copies and fills can produce.
bool is_byte_view(const at::Tensor& tensor);
// Reads all of a typed storage as host bytes, padding as zeros, and writes it back.
at::Tensor read_bytes(SpyreStorageImpl& storage);
void write_bytes(SpyreStorageImpl& storage, const at::Tensor& bytes);

}  // namespace torch_spyre
