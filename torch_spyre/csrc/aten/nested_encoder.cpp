// nn.TransformerEncoder with a padding mask, in evaluation. PyTorch makes a nested tensor of the batch for it. On the
// card such a tensor is a view of the padded batch that it was made from, and the layers compute with the padded batch.
#include <ATen/NestedTensorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include "aten/dispatch.h"
#include "aten/sparse_and_nested.h"
#include "runtime/numbers/dtypes.h"
#include "runtime/storage/storage.h"

namespace torch_spyre {

namespace {

// A mask of the tokens that are not padding, on the host.
at::Tensor token_mask(const at::Tensor& lengths, int64_t tokens) { return at::arange(tokens) < lengths.unsqueeze(1); }

bool is_left_aligned(const at::Tensor& batch, const at::Tensor& mask) {
  const at::Tensor host = mask.cpu();
  return batch.dim() == 3 && host.dim() == 2 && host.equal(token_mask(host.sum(1), host.size(1)));
}

at::Tensor from_mask(const at::Tensor& batch, const at::Tensor& mask, bool mask_check) {
  TORCH_CHECK(mask.scalar_type() == at::kBool && batch.dim() == 3 && batch.sizes().slice(0, 2) == mask.sizes(),
              "a nested tensor is made from a batch of 3 dimensions and a mask of the first 2 in torch.bool, not from ",
              batch.sizes(), " and ", mask.sizes(), " in ", dtype_name(mask.scalar_type()));
  const at::Tensor host = mask.cpu(), lengths = host.sum(1);
  TORCH_CHECK(!mask_check || host.equal(token_mask(lengths, batch.size(1))), "the mask has to be left aligned");
  const at::Tensor widths = at::full_like(lengths, batch.size(2));
  const at::Tensor sizes = at::stack({lengths, widths}, 1), strides = at::stack({widths, at::ones_like(widths)}, 1);
  const at::Tensor offsets = at::arange(batch.size(0)) * (batch.size(1) * batch.size(2));
  return at::detail::make_tensor<at::native::NestedTensorImpl>(batch.clone(at::MemoryFormat::Contiguous).flatten(),
                                                               sizes, strides, offsets);
}

// The padded batch behind a nested tensor; nothing if it was made in another way.
std::optional<at::Tensor> padded_batch(const at::Tensor& nested) {
  const auto* impl = at::native::get_nested_tensor_impl(nested);
  const at::Tensor &sizes = impl->get_nested_sizes(), &strides = impl->get_nested_strides();
  if (nested.dim() != 3 || sizes.size(0) == 0 || sizes.numel() == 0) return std::nullopt;
  const int64_t count = sizes.size(0), width = sizes[0][1].item<int64_t>(), held = storage_of(nested).elements();
  if (width == 0 || held % (count * width) != 0) return std::nullopt;
  const int64_t tokens = held / (count * width);
  const at::Tensor widths = at::full_like(sizes.select(1, 1), width);
  const bool regular = sizes.select(1, 1).equal(widths) &&
                       strides.equal(at::stack({widths, at::ones_like(widths)}, 1)) &&
                       impl->get_storage_offsets().equal(at::arange(count) * (tokens * width)) &&
                       sizes.select(1, 0).le(tokens).all().item<bool>();
  if (!regular) return std::nullopt;
  at::Tensor batch = at::empty({0}, nested.options().layout(at::kStrided));
  return batch.set_(nested.storage(), 0, {count, tokens, width}, {tokens * width, width, 1});
}

at::Tensor padding(const at::Tensor& nested, const at::Tensor& batch) {
  const at::Tensor lengths = at::native::get_nested_sizes(nested).select(1, 0);
  return token_mask(lengths, batch.size(1)).logical_not().to(batch.device());
}

// Padding is computed too, as keys that the mask excludes from attention.
void encoder_layer(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const at::Tensor nested = torch::jit::peek(*stack, 0, count).toTensor();
  const auto position = [&](const char* name) { return static_cast<size_t>(*op.schema().argumentIndexWithName(name)); };
  c10::IValue& mask = torch::jit::peek(*stack, position("mask"), count);
  const std::optional<at::Tensor> batch = nested.is_nested() ? padded_batch(nested) : std::nullopt;
  if (!batch || !mask.isNone()) return dispatch_op(op, stack);
  torch::jit::peek(*stack, 0, count) = *batch;
  mask = padding(nested, *batch);
  torch::jit::peek(*stack, position("mask_type"), count) = int64_t{1};  // of keys
  op.callBoxed(stack);
  const at::Tensor result = torch::jit::pop(*stack).toTensor();
  stack->emplace_back(make_nested(result.contiguous().flatten(), nested));
}

at::Tensor to_padded(const at::Tensor& nested, double value, at::OptionalIntArrayRef size) {
  const std::optional<at::Tensor> batch = padded_batch(nested);
  if (!batch || (size && *size != batch->sizes()))
    return with_components_on(nested, at::kCPU).to_padded_tensor(value, size).to(nested.device());
  const at::Tensor filled = batch->masked_fill(padding(nested, *batch).unsqueeze(-1), value);
  if (size) return filled;
  const at::Tensor lengths = at::native::get_nested_sizes(nested).select(1, 0);
  return filled.narrow(1, 0, lengths.max().item<int64_t>()).contiguous();
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_tensor_from_mask", from_mask);
  m.impl("_nested_tensor_from_mask_left_aligned", is_left_aligned);
}

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("_transformer_encoder_layer_fwd", torch::CppFunction::makeFromBoxedFunction<&encoder_layer>());
  m.impl("to_padded_tensor", to_padded);
}

}  // namespace torch_spyre
