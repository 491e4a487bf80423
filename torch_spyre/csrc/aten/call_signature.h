// The signature of an eager call: everything that its kernel depends on.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <limits>
#include <string>

#include "card/card.h"
#include "runtime/storage/argument_placement.h"

namespace torch_spyre {

// The signature as bytes, in `key`, except for the values of runtime scalars, which kernels may leave to their
// launches. A number is no runtime scalar, and is part of the key, where the kernel may depend on its value: the
// default of an argument stands for a simpler op; and ops differ in what they do with NaN, or with a number larger than
// the dtype of a tensor of the call can hold. Tensors are in the signature as if they began at their places `moved`.
class CallSignature {
 public:
  CallSignature(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

  // The key of a kernel that was compiled for the scalar values of one call.
  std::string key_with_scalars(c10::ArrayRef<c10::IValue> arguments) const;

  std::string key;
  c10::SmallVector<const at::Tensor*, 8> tensors;  // those on the card, lists flattened
  MovedArguments moved;                            // where they begin, as far as a kernel depends on it
  c10::SmallVector<size_t, 4> scalar_arguments;    // positions of the runtime scalars
  c10::SmallVector<double, 4> scalars;             // and their values
  bool complete = true;                            // false: no kernel can take one of the arguments

 private:
  explicit CallSignature(std::string from) : key(std::move(from)) {}
  void add_scalar(const c10::IValue& value);
  bool add(const c10::IValue& value);
  bool add(const at::Tensor& tensor);

  double limit_ = std::numeric_limits<double>::max();  // runtime scalars are below it
  c10::SmallVector<const spyre::Block*, 8> blocks_;    // of `tensors`
};

}  // namespace torch_spyre
