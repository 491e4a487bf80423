// Storages with a device layout.
//
// The layout belongs to the storage; tensors over it keep plain host sizes, strides and offsets. A storage without
// a dtype (torch.UntypedStorage) keeps host bytes as they are until a tensor gives it one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <atomic>

#include "card/card.h"
#include "runtime/numbers/dtypes.h"

namespace torch_spyre {

class SpyreStorageImpl final : public c10::StorageImpl {
 public:
  SpyreStorageImpl(size_t bytes, c10::DataPtr data, c10::Allocator* allocator, bool resizable);
  ~SpyreStorageImpl() override;

  // The host tensor that the layout was made for.
  at::ScalarType dtype = at::kByte;
  spyre::Dims size, strides;
  bool untyped = false;
  // Host elements between the start of the allocation and element 0 of this storage: not 0 in imported views only.
  int64_t base_offset = 0;
  // The storage whose memory this one shares; its owner may free or move that memory.
  const SpyreStorageImpl* base = nullptr;
  // The bytes after the host shape, up to nbytes(), are zeros without memory on the card.
  bool zero_tail = false;

  const spyre::Held& held() const { return held_; }
  // Whether there is memory, and it is still the memory that was shared.
  bool alive() const { return held_.block && (!base || (base->alive() && base->held_.block == held_.block)); }
  const spyre::Layout& layout() const;  // a default layout is built on first use
  bool has_default_layout() const;
  // Host elements that tensors over this storage can reach.
  int64_t elements() const;
  void set_layout(spyre::Layout layout);
  // The type that transfers convert from and to; untyped bytes are moved unconverted.
  spyre::HostType type() const { return untyped ? spyre::HostType::I8 : host_type(dtype); }
  // Makes this a storage of nbytes() host bytes without a dtype, over the memory of its data pointer.
  void set_untyped();
  // Replaces memory and description; the caller has copied the contents.
  void adopt(size_t bytes, c10::DataPtr data, SpyreStorageImpl&& description);
  void find_block();  // call it after setting data_ptr

 private:
  spyre::Held held_;
  mutable std::atomic<const spyre::Layout*> layout_{nullptr};
};

SpyreStorageImpl& storage_of(const at::Tensor& tensor);
// The storage itself; or, where torch made a plain storage around a device address (from_blob, DLPack), a storage that
// shares the memory at that address.
c10::Storage spyre_storage(const c10::Storage& storage);

// Elements from the first to the last that a strided host tensor reaches, both included.
int64_t host_elements(c10::IntArrayRef size, c10::IntArrayRef strides);
// Whether a strided host tensor has neither gaps between its elements nor overlaps.
bool is_dense(c10::IntArrayRef size, c10::IntArrayRef strides);
// The size of a storage for PyTorch: max(device bytes, host bytes).
size_t storage_bytes(int64_t device_bytes, c10::IntArrayRef size, c10::IntArrayRef strides, at::ScalarType dtype);

c10::intrusive_ptr<SpyreStorageImpl> make_storage(c10::IntArrayRef size, c10::IntArrayRef strides, at::ScalarType dtype,
                                                  c10::DeviceIndex device, const spyre::Layout* layout = nullptr);
c10::intrusive_ptr<SpyreStorageImpl> make_contiguous_storage(c10::IntArrayRef size, at::ScalarType dtype,
                                                             c10::DeviceIndex device);
c10::intrusive_ptr<SpyreStorageImpl> make_untyped_storage(size_t bytes, c10::DeviceIndex device);
// A storage on the memory of `base`, read through another layout.
c10::intrusive_ptr<SpyreStorageImpl> alias_storage(const at::Tensor& base, c10::IntArrayRef size,
                                                   c10::IntArrayRef strides, at::ScalarType dtype,
                                                   const spyre::Layout& layout);

}  // namespace torch_spyre
