// A storage that knows its layout.
//
// The layout belongs to the storage; tensors over it keep plain host sizes, strides and offsets. A storage without
// a dtype (torch.UntypedStorage) keeps host bytes as they are until a tensor gives it one.
#pragma once

#include <c10/core/StorageImpl.h>

#include "runtime/device.h"

namespace torch_spyre {

class SpyreStorageImpl final : public c10::StorageImpl {
 public:
  SpyreStorageImpl(size_t bytes, c10::DataPtr data, c10::Allocator* allocator, bool resizable);
  ~SpyreStorageImpl() override;

  // The host tensor that the layout was made for.
  at::ScalarType dtype = at::kByte;
  spyre::Dims size, strides;
  bool untyped = false;
  // Host elements between the allocation's start and this storage's element 0 (imported views).
  int64_t origin = 0;
  // Another storage whose memory this one shows; that one's owner may free or move it.
  const SpyreStorageImpl* base = nullptr;
  // The bytes past the host shape, up to nbytes(), were zeros and have no place on the card.
  bool zero_tail = false;

  const spyre::Held& held() const { return held_; }
  // Whether there is memory, and it is still the memory that was shared.
  bool alive() const { return held_.block && (!base || (base->alive() && base->held_.block == held_.block)); }
  const spyre::Layout& layout() const;  // built on first use when it is the default
  bool has_default_layout() const;
  // Host elements that tensors over this storage can reach.
  int64_t elements() const;
  void set_layout(spyre::Layout layout);
  // The type to convert by: untyped bytes are moved as they are.
  spyre::HostType type() const { return untyped ? spyre::HostType::I8 : host_type(dtype); }
  // Replaces memory and description; contents are the caller's business.
  void adopt(size_t bytes, c10::DataPtr data, SpyreStorageImpl&& description);
  void find_block();  // after data_ptr was set

 private:
  spyre::Held held_;
  mutable std::atomic<const spyre::Layout*> layout_{nullptr};
};

SpyreStorageImpl& storage_of(const at::Tensor& tensor);
// The storage itself, or for one that torch made around an address of ours (from_blob, DLPack) a window on its memory.
c10::Storage spyre_storage(const c10::Storage& storage);
// Sizes as the card's memory needs them: max(device bytes, host bytes).
size_t storage_bytes(int64_t device_bytes, c10::IntArrayRef size, c10::IntArrayRef strides, at::ScalarType dtype);

// A view in the elements of its storage. Complex numbers lie on the card as they do on the host, in pairs of float32:
// a complex tensor is a view of a float32 storage, whatever that storage's layout.
struct StoredView {
  at::ScalarType dtype;
  spyre::Dims size, strides;
  int64_t offset;
};
StoredView as_stored(at::ScalarType dtype, c10::IntArrayRef size, c10::IntArrayRef strides, int64_t offset);
// Elements of the storage that one of a tensor takes.
inline int64_t parts(at::ScalarType dtype) { return dtype == at::kComplexFloat ? 2 : 1; }

// New storages.
c10::intrusive_ptr<SpyreStorageImpl> make_storage(c10::IntArrayRef size, c10::IntArrayRef strides, at::ScalarType dtype,
                                                  c10::DeviceIndex device, const spyre::Layout* layout = nullptr);
c10::intrusive_ptr<SpyreStorageImpl> make_contiguous_storage(c10::IntArrayRef size, at::ScalarType dtype,
                                                             c10::DeviceIndex device);
// The same memory under another layout.
c10::intrusive_ptr<SpyreStorageImpl> alias_storage(const at::Tensor& base, c10::IntArrayRef size,
                                                   c10::IntArrayRef strides, at::ScalarType dtype,
                                                   const spyre::Layout& layout);

// Gives the storage a new host shape; its elements keep their host offsets, as many as fit.
void reshape_storage(SpyreStorageImpl& storage, c10::IntArrayRef size, c10::IntArrayRef strides);
void resize_storage_bytes(SpyreStorageImpl& storage, size_t bytes);
// Turns untyped bytes into elements of `dtype`, laid out for a tensor of this shape where that covers the storage.
void give_dtype(SpyreStorageImpl& storage, at::ScalarType dtype, int64_t offset, c10::IntArrayRef size,
                c10::IntArrayRef strides);

spyre::DeviceView device_view(const at::Tensor& tensor);
spyre::DeviceView whole_view(SpyreStorageImpl& storage);

// PyTorch copies untyped storages through uint8 tensors over them. Over a typed storage such a tensor stands for the
// bytes that its elements have on the host, which only copies and fills can make.
bool byte_window(const at::Tensor& tensor);
// All of a typed storage as host bytes, padding as zeros, and back.
at::Tensor read_bytes(SpyreStorageImpl& storage);
void write_bytes(SpyreStorageImpl& storage, const at::Tensor& bytes);

// Raises unless the elements of such a view are all inside the storage: its padding is nobody's.
// A tensor may come to reach into the zeros behind a storage's host shape: they get a place then.
void reach_zero_tail(SpyreStorageImpl& storage, const StoredView& view);
void check_inside(const SpyreStorageImpl& storage, const StoredView& view);

// The allocator of device memory, and of pinned host memory.
c10::DataPtr allocate(c10::DeviceIndex device, size_t bytes);
// The block behind a data pointer; `own` says whether our allocator handed it out (else it is a window on another
// storage's memory).
spyre::Held block_of(const c10::DataPtr& data, bool& own);
c10::Allocator* device_allocator();
c10::Allocator* pinned_allocator();
bool is_pinned(const void* pointer);
// The block of a pinned host tensor (null block where it is not pinned).
spyre::Held pinned_block(const c10::DataPtr& data);
void register_allocators();

}  // namespace torch_spyre
