// torch.arange as a program of one step, built here: the compiler would make a kernel for each length.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "aten/resize.h"
#include "runtime/device/device.h"
#include "runtime/launch.h"
#include "runtime/storage/storage.h"

namespace torch_spyre {

namespace {

// Fills a tensor whose sticks are contiguous.
void count_up(const at::Tensor& tensor, const at::Scalar& start, const at::Scalar& step) {
  const spyre::Card& on = card(tensor.device().index());
  const spyre::DataFormat format = storage_of(tensor).layout().format;
  const bool integer = at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
  const auto number = [&](const at::Scalar& value) {
    return integer ? static_cast<double>(value.toLong()) : value.toDouble();
  };
  const int64_t sticks = (tensor.numel() - 1) / spyre::elements_per_stick(format) + 1;
  spyre::Step counting;
  counting.op = spyre::OpCode::iota;
  counting.extents = {tensor.numel()};
  counting.slices = {std::min<int64_t>(on.cores(), sticks)};
  counting.operands = {{0, 0, {spyre::kStickBytes}, format, 0}};
  counting.constants = {number(start), number(step)};
  counting.checked = tensor.scalar_type() == at::kLong;
  spyre::Program program;
  program.name = "arange";
  program.argument_bytes = {sticks * spyre::kStickBytes};
  program.steps = {counting};
  spyre::JobPlan plan;
  plan.name = program.name;
  plan.argument_bytes = program.argument_bytes;
  plan.steps.emplace_back();
  plan.steps[0].type = spyre::JobStep::Type::Compute;
  plan.steps[0].program = on.prepare(std::move(program));
  launch_jobplan(on.prepare(std::move(plan)), {&tensor});
}

at::Tensor& arange_out(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, at::Tensor& out) {
  const auto dtype = out.scalar_type();
  if (dtype == at::kBool || at::isFloat8Type(dtype)) {  // the host has the error
    out.copy_(at::arange(start, end, step, out.options().device(at::kCPU)));
    return out;
  }
  const at::Tensor shape = at::arange(start, end, step, out.options().device(at::kMeta));
  resize_output(out, shape.sizes());
  if (out.numel() == 0) return out;
  const auto& storage = storage_of(out);
  const bool own = storage.has_default_layout() && storage.elements() == out.numel() && !storage.base_offset &&
                   storage.size.size() == 1 && out.is_contiguous() && !out.storage_offset();
  const at::Tensor made = own ? out : at::empty(shape.sizes(), out.options());
  count_up(made, start, step);
  if (!own) out.copy_(made);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("arange.start_out", arange_out); }

}  // namespace torch_spyre
