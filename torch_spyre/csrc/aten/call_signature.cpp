#include "aten/call_signature.h"

#include <c10/core/DynamicCast.h>

#include <algorithm>
#include <cmath>

#include "runtime/storage/storage_view.h"

namespace torch_spyre {

namespace {

void put(std::string& key, const void* bytes, size_t count) { key.append(static_cast<const char*>(bytes), count); }
void put(std::string& key, int64_t number) { put(key, &number, sizeof number); }
void put(std::string& key, c10::IntArrayRef numbers) { put(key, numbers.data(), numbers.size() * sizeof(int64_t)); }
void put(std::string& key, const std::string& text) {
  put(key, static_cast<int64_t>(text.size()));
  key += text;
}
void put(std::string& key, const spyre::Layout& layout) {
  const char kind[] = {static_cast<char>(layout.format), static_cast<char>(layout.arrangement),
                       static_cast<char>(layout.device_size.size())};
  put(key, kind, sizeof kind);
  put(key, c10::IntArrayRef(layout.device_size));
  put(key, c10::IntArrayRef(layout.stride_map));
}

// The value of an argument that is a number, and not a flag or a size.
std::optional<double> scalar_value(const c10::IValue& value, c10::TypePtr type) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined() || !tensor.device().is_cpu() || tensor.dim() > 0 || tensor.is_conj() || tensor.is_neg() ||
        tensor.is_complex() || tensor.scalar_type() == at::kBool)
      return std::nullopt;
    return c10::fetch_and_cast<double>(tensor.scalar_type(), tensor.const_data_ptr());
  }
  if (value.isDouble()) return value.toDouble();
  if (!value.isInt()) return std::nullopt;
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::NumberType ? std::optional<double>(value.toInt()) : std::nullopt;
}

bool is_default(const c10::Argument& argument, double number) {
  const std::optional<c10::IValue>& value = argument.default_value();
  return value && value->isScalar() && value->toScalar().toDouble() == number;
}

// The largest finite value of a dtype that has infinities or NaN above it.
double largest(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return std::numeric_limits<at::Half>::max();
    case at::kBFloat16:
      return std::numeric_limits<at::BFloat16>::max();
    case at::kFloat:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::max();
  }
}

}  // namespace

CallSignature::CallSignature(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  key.reserve(1024);
  put(key, op.operator_name().name);
  put(key, op.operator_name().overload_name);
  const std::vector<c10::Argument>& schema = op.schema().arguments();
  for (size_t i = 0; complete && i < arguments.size(); ++i) {
    const auto value = scalar_value(arguments[i], schema[i].real_type());
    if (value && !is_default(schema[i], *value) && (std::fabs(*value) < limit_ || std::isinf(*value))) {
      add_scalar(arguments[i]);
      scalar_arguments.push_back(i);
      scalars.push_back(*value);
    } else {
      complete = add(arguments[i]);
    }
  }
  // as_strided counts from the start of the memory, and not from where a tensor begins in it.
  const bool counts = op.operator_name().name.find("as_strided") != std::string::npos;
  moved = counts ? unmoved(tensors) : moved_to_start(tensors);
  for (const MovedArgument& place : moved) put(key, place.offset);
}

std::string CallSignature::key_with_scalars(c10::ArrayRef<c10::IValue> arguments) const {
  CallSignature whole(key);
  for (const size_t i : scalar_arguments) whole.add(arguments[i]);
  return std::move(whole.key);
}

void CallSignature::add_scalar(const c10::IValue& value) {
  if (value.isTensor()) {
    key += 'N';
    key += static_cast<char>(value.toTensor().scalar_type());
    key += static_cast<char>(value.toTensor().unsafeGetTensorImpl()->is_wrapped_number());
  } else {
    key += value.isInt() ? 'I' : 'R';
  }
}

bool CallSignature::add(const c10::IValue& value) {
  if (value.isTensor()) return add(value.toTensor());
  if (value.isNone()) {
    key += 'n';
  } else if (value.isInt()) {
    key += 'i';
    put(key, value.toInt());
  } else if (value.isDouble()) {
    const double number = value.toDouble();
    key += 'd';
    put(key, &number, sizeof number);
  } else if (value.isBool()) {
    key += value.toBool() ? 'T' : 'F';
  } else if (value.isString()) {
    key += 's';
    put(key, value.toStringRef());
  } else if (value.isDevice()) {
    key += 'D';
    key += static_cast<char>(value.toDevice().type());
    key += static_cast<char>(value.toDevice().index());
  } else if (value.isList()) {
    const auto elements = value.toListRef();
    key += 'l';
    put(key, static_cast<int64_t>(elements.size()));
    for (const c10::IValue& element : elements)
      if (!add(element)) return false;
  } else {
    return false;  // generators, symbolic numbers, complex ones
  }
  return true;
}

bool CallSignature::add(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    key += 'u';
    return true;
  }
  const bool scalar = tensor.device().is_cpu();
  key += scalar ? 'c' : 't';
  key += static_cast<char>(tensor.scalar_type());
  if (scalar) {  // a constant of the kernel
    if (tensor.dim() > 0 || tensor.is_conj() || tensor.is_neg()) return false;
    key += static_cast<char>(tensor.unsafeGetTensorImpl()->is_wrapped_number());
    put(key, tensor.const_data_ptr(), tensor.element_size());
    return true;
  }
  SpyreStorageImpl& storage = storage_of(tensor);
  // Byte views and freed memory: the host fallback raises what is wrong with them.
  if (storage.untyped || storage.dtype != tensor.scalar_type() || (!storage.alive() && tensor.numel() != 0) ||
      (storage.dtype == at::kByte && is_byte_view(tensor)))
    return false;
  key += static_cast<char>(tensor.dim());
  put(key, tensor.sizes());
  put(key, tensor.strides());
  blocks_.push_back(storage.held().block);
  put(key, std::find(blocks_.begin(), blocks_.end(), blocks_.back()) - blocks_.begin());
  put(key, storage.layout());
  tensors.push_back(&tensor);
  limit_ = std::min(limit_, largest(tensor.scalar_type()));
  return true;
}

}  // namespace torch_spyre
