// Storages that get another size, shape or dtype.
#pragma once

#include "runtime/storage/storage_view.h"

namespace torch_spyre {

// Gives the storage a new host shape; elements keep their host offsets, as many as fit.
void reshape_storage(SpyreStorageImpl& storage, c10::IntArrayRef size, c10::IntArrayRef strides);
void resize_storage_bytes(SpyreStorageImpl& storage, size_t bytes);
// Turns untyped bytes into elements of `dtype`, laid out for a tensor of this shape where it covers the storage.
void assign_dtype(SpyreStorageImpl& storage, at::ScalarType dtype, int64_t offset, c10::IntArrayRef size,
                  c10::IntArrayRef strides);
// Gives the zeros after a storage's host shape memory on the card, where a view reaches them.
void materialize_zero_tail(SpyreStorageImpl& storage, const StoredView& view);

}  // namespace torch_spyre
