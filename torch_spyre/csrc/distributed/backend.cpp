#include "distributed/backend.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "runtime/calls/blocking.h"
#include "runtime/device/device.h"

namespace torch_spyre::distributed {

using c10d::OpType;
using c10d::ReduceOp;
using spyre::CollectiveKind;
using spyre::Segment;

namespace {

std::vector<std::string> names_of(const std::vector<int64_t>& global_ranks) {
  std::vector<std::string> names;
  for (const int64_t rank : global_ranks) names.push_back("rank " + std::to_string(rank));
  return names;
}

const char* name(ReduceOp::RedOpType op) {
  constexpr const char* kNames[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM", "?"};
  return kNames[static_cast<size_t>(op)];
}

std::string text(const at::Tensor& tensor) {
  std::ostringstream out;
  out << c10::toString(tensor.scalar_type()) << ' ' << tensor.sizes();
  return out.str();
}

// What is not a tensor that a card can take part with.
void check(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK(tensor.defined(), what, ": a tensor is not defined");
  TORCH_CHECK(tensor.device().type() == kSpyre, what, ": spyreccl exchanges tensors on 'spyre', got one on ",
              tensor.device());
  TORCH_CHECK(tensor.layout() == at::kStrided, what, ": spyreccl exchanges dense tensors, got a ", tensor.layout(),
              " one");
  TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(), what,
              ": resolve_conj() and resolve_neg() the tensor first, whose memory holds other values");
}

void check_written(const at::Tensor& tensor, const char* what) {
  check(tensor, what);
  for (int64_t i = 0; i < tensor.dim(); ++i)
    TORCH_CHECK(tensor.size(i) < 2 || tensor.stride(i) != 0, what,
                ": several elements of an output are in one place; clone() it first");
}

void check_same(const at::Tensor& a, const at::Tensor& b, const char* what) {
  TORCH_CHECK(a.device() == b.device(), what, ": tensors are on different cards, ", a.device(), " and ", b.device());
  TORCH_CHECK_TYPE(a.scalar_type() == b.scalar_type(), what, ": tensors have different dtypes, ", a.scalar_type(),
                   " and ", b.scalar_type());
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* what) {
  TORCH_CHECK(tensors.size() == 1, what, ": one card takes part with one tensor, got ", tensors.size());
  return tensors[0];
}

double factor_of(const ReduceOp& op) {
  const auto* supplement = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK(supplement, "ReduceOp.PREMUL_SUM needs its factor");
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item().toDouble() : supplement->double_factor;
}

spyre::Folding folding_of(const ReduceOp& op, at::ScalarType dtype, int members, const char* what) {
  spyre::Folding folding;
  folding.checked = dtype == at::kLong;
  const bool boolean = dtype == at::kBool, integer = at::isIntegralType(dtype, false);
  switch (static_cast<ReduceOp::RedOpType>(op)) {
    case ReduceOp::PREMUL_SUM:
      TORCH_CHECK(!boolean, what, ": ReduceOp.PREMUL_SUM does not take bool");
      folding.factor = factor_of(op);
      TORCH_CHECK(!integer || folding.factor == std::trunc(folding.factor), what, ": integers cannot be multiplied by ",
                  folding.factor);
      folding.function = "add";
      return folding;
    case ReduceOp::AVG:
      TORCH_CHECK(!boolean, what, ": ReduceOp.AVG does not take bool");
      folding.divisor = members;
      [[fallthrough]];
    case ReduceOp::SUM:
      folding.function = boolean ? "maximum" : "add";
      return folding;
    case ReduceOp::PRODUCT:
      folding.function = boolean ? "minimum" : "mul";
      return folding;
    case ReduceOp::MIN:
      folding.function = "minimum";
      return folding;
    case ReduceOp::MAX:
      folding.function = "maximum";
      return folding;
    case ReduceOp::BAND:
    case ReduceOp::BOR:
    case ReduceOp::BXOR: {
      TORCH_CHECK(boolean || integer, what, ": ReduceOp.", name(op), " takes integers and bool, not ", dtype);
      const bool both = op.op_ == ReduceOp::BAND, either = op.op_ == ReduceOp::BOR;
      if (boolean)
        folding.function = both ? "minimum" : either ? "maximum" : "ne";
      else
        folding.function = both ? "bitwise_and" : either ? "bitwise_or" : "bitwise_xor";
      return folding;
    }
    default:
      TORCH_CHECK(false, what, ": unknown reduction ", static_cast<int>(op.op_));
  }
}

void check_complex(const at::Tensor& tensor, const ReduceOp& op, const char* what) {
  if (tensor.is_complex())
    TORCH_CHECK(c10d::isComplexViewAsRealAllowed(op), what, ": ReduceOp.", name(op), " does not take complex numbers");
}

Segment all_of(const Operand& operand) { return {&operand.view, 0, operand.elements()}; }

}  // namespace

// --- what all calls share

struct SpyreCCL::Call {
  OpType op;
  CollectiveKind kind;
  std::string title{};
  std::vector<Operand> operands{};
  std::vector<at::Tensor> outputs{};
  std::function<void(spyre::Card&, spyre::Channels&, const std::vector<Operand>&)> run{};
  c10::Device device;
  at::ScalarType dtype = at::kByte;
  int64_t bytes = 0;
  int root = -1;
  int folding = -1;
  double factor = 1;
  std::vector<int64_t> shape{}, out{}, in{};
  milliseconds timeout{};
  bool blocks = false;

  // A member of a group of `size` asks for it with `first`, which says device and dtype.
  Call(OpType op, CollectiveKind kind, const at::Tensor& first, int size)
      : op(op), kind(kind), device(first.device()), dtype(first.scalar_type()), out(size), in(size) {
    title = std::string(spyre::name(kind)) + " of " + text(first);
  }
  // The number of the operand.
  size_t reading(const at::Tensor& tensor) {
    operands.push_back(reads(tensor));
    return operands.size() - 1;
  }
  size_t writing(const at::Tensor& tensor) {
    operands.push_back(writes(tensor));
    outputs.push_back(tensor);
    return operands.size() - 1;
  }
  void reduces(const ReduceOp& op, const spyre::Folding& how) {
    folding = static_cast<int>(op.op_);
    factor = how.factor;
    title =
        std::string(spyre::name(kind)) + "(" + name(op.op_) + ")" + title.substr(std::string(spyre::name(kind)).size());
  }
};

SpyreCCL::SpyreCCL(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, milliseconds timeout,
                   const std::vector<int64_t>& global_ranks, const std::string& version, GlooFactory make_gloo)
    : Backend(rank, size),
      options_(c10::make_intrusive<Options>(timeout)),
      version_(version),
      make_gloo_(std::move(make_gloo)),
      members_([&] {
        TORCH_CHECK(size <= kMostMembers, "spyreccl has groups of at most ", kMostMembers, " members, not ", size);
        const std::vector<std::string> names = names_of(global_ranks);
        std::unique_ptr<Connection> connection;
        run_blocking([&] {
          connection = make_gloo_ ? std::make_unique<Connection>(
                                        store, rank, size, static_cast<int>(global_ranks[rank]), names, version,
                                        [=, this] { return make_gloo_(store, rank, size, timeout); })
                                  : std::make_unique<Connection>(rank, names);
        });
        return std::make_shared<Members>(std::move(connection), rank, names);
      }()),
      monitored_barrier_(store, rank, names_of(global_ranks)) {
  options_->global_ranks_in_group.assign(global_ranks.begin(), global_ranks.end());
  collectives_ = std::make_unique<CollectiveQueue>(members_);
  messages_ = std::make_unique<Messages>(members_);
}

c10::intrusive_ptr<c10d::Backend> SpyreCCL::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                  const std::vector<int>& ranks,
                                                  const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const auto own = std::find(ranks.begin(), ranks.end(), getRank());
  if (own == ranks.end()) return nullptr;
  std::vector<int64_t> global_ranks;
  for (const int rank : ranks) global_ranks.push_back(static_cast<int64_t>(options_->global_ranks_in_group.at(rank)));
  return c10::make_intrusive<SpyreCCL>(store, static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
                                       options->timeout, global_ranks, version_, make_gloo_);
}

// The threads may need the GIL, and wait for other members until they are told not to.
SpyreCCL::~SpyreCCL() {
  run_blocking([&] {
    messages_.reset();
    collectives_.reset();
  });
}

SpyreCCL::WorkPointer SpyreCCL::start(Call call) {
  ++calls_;
  Request request;
  Announcement& announcement = request.announcement;
  announcement.kind = call.kind;
  announcement.dtype = static_cast<int32_t>(call.dtype);
  announcement.folding = call.folding;
  announcement.factor = call.factor;
  announcement.load = call.bytes;
  announcement.root = call.root;
  announcement.title = call.root >= 0 ? call.title + " with root " + members_->names[call.root] : call.title;
  announcement.shape = call.shape;
  announcement.out = call.out;
  announcement.in = call.in;
  request.operands = std::move(call.operands);
  request.run = std::move(call.run);
  request.timeout = timeout_of(call.timeout);
  request.group = getGroupUid();
  std::shared_ptr<Pending> pending;
  run_blocking([&] { pending = collectives_->start(call.device.index(), std::move(request)); });
  auto work = c10::make_intrusive<SpyreWork>(getRank(), call.op, call.device.index(), std::vector{pending},
                                             std::move(call.outputs), call.blocks);
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

void SpyreCCL::startCoalescing() {
  coalescing_ = true;
  coalesced_.clear();
}

SpyreCCL::WorkPointer SpyreCCL::endCoalescing() {
  coalescing_ = false;
  std::vector<std::shared_ptr<Pending>> pending;
  std::vector<at::Tensor> outputs;
  for (const auto& work : coalesced_) {
    pending.insert(pending.end(), work->pending().begin(), work->pending().end());
    outputs.insert(outputs.end(), work->outputs().begin(), work->outputs().end());
  }
  coalesced_.clear();
  return c10::make_intrusive<SpyreWork>(getRank(), OpType::COALESCED, current_device(), std::move(pending),
                                        std::move(outputs), false);
}

// --- reductions

SpyreCCL::WorkPointer SpyreCCL::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  only(tensors, "all_reduce");
  c10d::AllreduceCoalescedOptions all;
  static_cast<c10d::AllreduceOptions&>(all) = options;
  return allreduce_coalesced(tensors, all);
}

SpyreCCL::WorkPointer SpyreCCL::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  constexpr const char* kWhat = "all_reduce";
  TORCH_CHECK(!tensors.empty(), kWhat, " needs a tensor");
  Call call(OpType::ALLREDUCE, CollectiveKind::all_reduce, tensors[0], getSize());
  const spyre::Folding folding = folding_of(options.reduceOp, tensors[0].scalar_type(), getSize(), kWhat);
  for (const at::Tensor& tensor : tensors) {
    check_written(tensor, kWhat);
    check_same(tensor, tensors[0], kWhat);
    check_complex(tensor, options.reduceOp, kWhat);
    call.bytes += call.operands[call.writing(tensor)].bytes();
    call.shape.insert(call.shape.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  call.reduces(options.reduceOp, folding);
  call.timeout = options.timeout;
  call.blocks = !options.asyncOp;
  call.run = [folding](spyre::Card& card, spyre::Channels& channels, const std::vector<Operand>& operands) {
    // Below this everyone folds all parts, which takes one message instead of two, one after the other.
    constexpr int64_t kSmall = 32 * 1024;
    const int size = channels.size();
    for (const Operand& operand : operands) {
      spyre::Fold fold;
      fold.folding = folding;
      fold.part.resize(size);
      fold.keep.resize(size);
      if (operand.bytes() <= kSmall) {
        std::fill(fold.part.begin(), fold.part.end(), all_of(operand));
        fold.keep[channels.rank()] = all_of(operand);
        fold.kept_by = spyre::KeptBy::owner;
      } else {
        int64_t first = 0;
        const auto parts = spyre::equal_parts(operand.elements(), size, operand.layout->format);
        for (int rank = 0; rank < size; ++rank) {
          fold.part[rank] = fold.keep[rank] = {&operand.view, first, parts[rank]};
          first += parts[rank];
        }
      }
      spyre::fold(card, channels, fold);
    }
  };
  return start(std::move(call));
}

SpyreCCL::WorkPointer SpyreCCL::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  constexpr const char* kWhat = "reduce";
  const at::Tensor& tensor = only(tensors, kWhat);
  check_written(tensor, kWhat);
  check_complex(tensor, options.reduceOp, kWhat);
  Call call(OpType::REDUCE, CollectiveKind::reduce, tensor, getSize());
  const spyre::Folding folding = folding_of(options.reduceOp, tensor.scalar_type(), getSize(), kWhat);
  call.bytes = call.operands[call.writing(tensor)].bytes();
  call.shape = tensor.sizes().vec();
  call.reduces(options.reduceOp, folding);
  call.root = static_cast<int>(options.rootRank);
  call.timeout = options.timeout;
  call.blocks = !options.asyncOp;
  call.run = [folding, root = call.root](spyre::Card& card, spyre::Channels& channels,
                                         const std::vector<Operand>& operands) {
    spyre::Fold fold;
    fold.folding = folding;
    fold.kept_by = spyre::KeptBy::one;
    fold.keeper = root;
    int64_t first = 0;
    for (const int64_t count :
         spyre::equal_parts(operands[0].elements(), channels.size(), operands[0].layout->format)) {
      fold.part.push_back({&operands[0].view, first, count});
      first += count;
    }
    fold.keep = channels.rank() == root ? fold.part : std::vector<Segment>(channels.size());
    spyre::fold(card, channels, fold);
  };
  return start(std::move(call));
}

SpyreCCL::WorkPointer SpyreCCL::reduce_scatter(Tensors& outputs, Lists& inputs,
                                               const c10d::ReduceScatterOptions& options) {
  constexpr const char* kWhat = "reduce_scatter";
  const at::Tensor& output = only(outputs, kWhat);
  TORCH_CHECK(inputs.size() == 1 && static_cast<int>(inputs[0].size()) == getSize(), kWhat,
              " needs a list of one input for each of the ", getSize(), " members");
  check_written(output, kWhat);
  check_complex(output, options.reduceOp, kWhat);
  Call call(OpType::REDUCE_SCATTER, CollectiveKind::reduce_scatter, output, getSize());
  const spyre::Folding folding = folding_of(options.reduceOp, output.scalar_type(), getSize(), kWhat);
  for (int rank = 0; rank < getSize(); ++rank) {
    const at::Tensor& input = inputs[0][rank];
    check(input, kWhat);
    check_same(input, output, kWhat);
    call.out[rank] = call.operands[call.reading(input)].elements();
  }
  const size_t kept = call.writing(output);
  TORCH_CHECK(call.operands[kept].elements() == call.out[getRank()], kWhat, ": the output has ", output.sizes(),
              ", this member's input ", inputs[0][getRank()].sizes());
  call.in.assign(getSize(), call.operands[kept].elements());
  call.bytes = call.operands[kept].bytes();
  call.reduces(options.reduceOp, folding);
  call.timeout = options.timeout;
  call.blocks = !options.asyncOp;
  call.run = [folding, kept](spyre::Card& card, spyre::Channels& channels, const std::vector<Operand>& operands) {
    spyre::Fold fold;
    fold.folding = folding;
    fold.kept_by = spyre::KeptBy::owner;
    for (int rank = 0; rank < channels.size(); ++rank) fold.part.push_back(all_of(operands[rank]));
    fold.keep.resize(channels.size());
    fold.keep[channels.rank()] = all_of(operands[kept]);
    spyre::fold(card, channels, fold);
  };
  return start(std::move(call));
}

SpyreCCL::WorkPointer SpyreCCL::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

SpyreCCL::WorkPointer SpyreCCL::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                const c10d::ReduceScatterOptions& options) {
  constexpr const char* kWhat = "reduce_scatter_tensor";
  TORCH_CHECK(!outputs.empty() && outputs.size() == inputs.size(), kWhat, " needs an input for each output");
  check_written(outputs[0], kWhat);
  Call call(OpType::_REDUCE_SCATTER_BASE, CollectiveKind::reduce_scatter, inputs[0], getSize());
  const spyre::Folding folding = folding_of(options.reduceOp, outputs[0].scalar_type(), getSize(), kWhat);
  for (size_t i = 0; i < outputs.size(); ++i) {
    check_written(outputs[i], kWhat);
    check(inputs[i], kWhat);
    check_same(inputs[i], outputs[0], kWhat);
    check_same(outputs[i], outputs[0], kWhat);
    check_complex(outputs[i], options.reduceOp, kWhat);
    TORCH_CHECK(inputs[i].numel() == outputs[i].numel() * getSize(), kWhat, ": the input ", inputs[i].sizes(),
                " is not ", getSize(), " times the output ", outputs[i].sizes());
    call.reading(inputs[i]);
    const Operand& kept = call.operands[call.writing(outputs[i])];
    call.bytes += kept.bytes();
    for (int rank = 0; rank < getSize(); ++rank) {
      call.out[rank] += kept.elements();
      call.in[rank] += kept.elements();
    }
  }
  call.reduces(options.reduceOp, folding);
  call.timeout = options.timeout;
  call.blocks = !options.asyncOp;
  call.run = [folding](spyre::Card& card, spyre::Channels& channels, const std::vector<Operand>& operands) {
    for (size_t i = 0; i < operands.size(); i += 2) {
      const Operand &input = operands[i], &output = operands[i + 1];
      spyre::Fold fold;
      fold.folding = folding;
      fold.kept_by = spyre::KeptBy::owner;
      for (int rank = 0; rank < channels.size(); ++rank)
        fold.part.push_back({&input.view, rank * output.elements(), output.elements()});
      fold.keep.resize(channels.size());
      fold.keep[channels.rank()] = all_of(output);
      spyre::fold(card, channels, fold);
    }
  };
  return start(std::move(call));
}

// --- exchanges

namespace {

constexpr size_t kNothing = static_cast<size_t>(-1);

// Which part of which operand goes to a member, or comes from it.
struct Part {
  size_t operand = kNothing;
  int64_t first = 0, count = 0;
};

Segment segment_of(const Part& part, const std::vector<Operand>& operands) {
  if (part.operand == kNothing) return {};
  return {&operands[part.operand].view, part.first, part.count};
}

auto exchanging(std::vector<Part> out, std::vector<Part> in) {
  return [out = std::move(out), in = std::move(in)](spyre::Card& card, spyre::Channels& channels,
                                                    const std::vector<Operand>& operands) {
    std::vector<Segment> sent, received;
    for (const Part& part : out) sent.push_back(segment_of(part, operands));
    for (const Part& part : in) received.push_back(segment_of(part, operands));
    spyre::exchange(card, channels, sent, received);
  };
}

}  // namespace

SpyreCCL::WorkPointer SpyreCCL::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  constexpr const char* kWhat = "broadcast";
  const at::Tensor& tensor = only(tensors, kWhat);
  check_written(tensor, kWhat);
  Call call(OpType::BROADCAST, CollectiveKind::broadcast, tensor, getSize());
  call.root = static_cast<int>(options.rootRank);
  TORCH_CHECK(call.root >= 0 && call.root < getSize(), kWhat, ": there is no member ", call.root);
  const size_t operand = call.writing(tensor);
  call.bytes = call.operands[operand].bytes();
  call.shape = tensor.sizes().vec();
  const Part whole{operand, 0, call.operands[operand].elements()};
  std::vector<Part> out(getSize()), in(getSize());
  if (getRank() == call.root) {
    std::fill(out.begin(), out.end(), whole);
    out[getRank()] = {};
  } else {
    in[call.root] = whole;
  }
  call.timeout = options.timeout;
  call.blocks = !options.asyncOp;
  call.run = exchanging(std::move(out), std::move(in));
  return start(std::move(call));
}

SpyreCCL::WorkPointer SpyreCCL::allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  constexpr const char* kWhat = "all_gather";
  const at::Tensor& input = only(inputs, kWhat);
  TORCH_CHECK(outputs.size() == 1 && static_cast<int>(outputs[0].size()) == getSize(), kWhat,
              " needs a list of one output for each of the ", getSize(), " members");
  check(input, kWhat);
  Call call(OpType::ALLGATHER, CollectiveKind::all_gather, input, getSize());
  const size_t given = call.reading(input);
  const int64_t elements = call.operands[given].elements();
  call.bytes = call.operands[given].bytes();
  std::vector<Part> out(getSize(), Part{given, 0, elements}), in(getSize());
  call.out.assign(getSize(), elements);
  for (int rank = 0; rank < getSize(); ++rank) {
    check_written(outputs[0][rank], kWhat);
    check_same(outputs[0][rank], input, kWhat);
    const size_t kept = call.writing(outputs[0][rank]);
    in[rank] = {kept, 0, call.operands[kept].elements()};
    call.in[rank] = in[rank].count;
  }
  TORCH_CHECK(call.in[getRank()] == elements, kWhat, ": the input has ", input.sizes(), ", this member's output ",
              outputs[0][getRank()].sizes());
  call.timeout = options.timeout;
  call.blocks = !options.asyncOp;
  call.run = exchanging(std::move(out), std::move(in));
  return start(std::move(call));
}

SpyreCCL::WorkPointer SpyreCCL::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

SpyreCCL::WorkPointer SpyreCCL::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& options) {
  startCoalescing();
  for (size_t i = 0; i < inputs.size(); ++i) {
    Lists one(1);
    for (Tensors& of_member : outputs) one[0].push_back(of_member.at(i));
    Tensors input{inputs[i]};
    allgather(one, input, options);
  }
  return endCoalescing();
}

SpyreCCL::WorkPointer SpyreCCL::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                const c10d::AllgatherOptions& options) {
  constexpr const char* kWhat = "all_gather_into_tensor";
  TORCH_CHECK(!outputs.empty() && outputs.size() == inputs.size(), kWhat, " needs an input for each output");
  check(inputs[0], kWhat);
  Call call(OpType::_ALLGATHER_BASE, CollectiveKind::all_gather, inputs[0], getSize());
  for (size_t i = 0; i < outputs.size(); ++i) {
    check(inputs[i], kWhat);
    check_written(outputs[i], kWhat);
    check_same(inputs[i], inputs[0], kWhat);
    check_same(outputs[i], inputs[0], kWhat);
    TORCH_CHECK(outputs[i].numel() == inputs[i].numel() * getSize(), kWhat, ": the output ", outputs[i].sizes(),
                " is not ", getSize(), " times the input ", inputs[i].sizes());
    const Operand& given = call.operands[call.reading(inputs[i])];
    call.bytes += given.bytes();
    for (int rank = 0; rank < getSize(); ++rank) {
      call.out[rank] += given.elements();
      call.in[rank] += given.elements();
    }
    call.writing(outputs[i]);
  }
  call.timeout = options.timeout;
  call.blocks = !options.asyncOp;
  call.run = [](spyre::Card& card, spyre::Channels& channels, const std::vector<Operand>& operands) {
    for (size_t i = 0; i < operands.size(); i += 2) {
      const int64_t each = operands[i].elements();
      std::vector<Segment> sent(channels.size(), all_of(operands[i])), received;
      for (int rank = 0; rank < channels.size(); ++rank) received.push_back({&operands[i + 1].view, rank * each, each});
      spyre::exchange(card, channels, sent, received);
    }
  };
  return start(std::move(call));
}

SpyreCCL::WorkPointer SpyreCCL::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  constexpr const char* kWhat = "gather";
  const at::Tensor& input = only(inputs, kWhat);
  check(input, kWhat);
  const int root = static_cast<int>(options.rootRank);
  TORCH_CHECK(root >= 0 && root < getSize(), kWhat, ": there is no member ", root);
  const bool keeps = getRank() == root;
  TORCH_CHECK(keeps ? outputs.size() == 1 && static_cast<int>(outputs[0].size()) == getSize()
                    : outputs.empty() || outputs[0].empty(),
              kWhat, " needs a list of one output for each of the ", getSize(),
              " members on the root, and none on the others");
  Call call(OpType::GATHER, CollectiveKind::gather, input, getSize());
  call.root = root;
  const size_t given = call.reading(input);
  call.bytes = call.operands[given].bytes();
  std::vector<Part> out(getSize()), in(getSize());
  out[root] = {given, 0, call.operands[given].elements()};
  call.out[root] = out[root].count;
  for (int rank = 0; keeps && rank < getSize(); ++rank) {
    check_written(outputs[0][rank], kWhat);
    check_same(outputs[0][rank], input, kWhat);
    const size_t kept = call.writing(outputs[0][rank]);
    in[rank] = {kept, 0, call.operands[kept].elements()};
    call.in[rank] = in[rank].count;
  }
  call.timeout = options.timeout;
  call.blocks = !options.asyncOp;
  call.run = exchanging(std::move(out), std::move(in));
  return start(std::move(call));
}

SpyreCCL::WorkPointer SpyreCCL::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) {
  constexpr const char* kWhat = "scatter";
  const at::Tensor& output = only(outputs, kWhat);
  check_written(output, kWhat);
  const int root = static_cast<int>(options.rootRank);
  TORCH_CHECK(root >= 0 && root < getSize(), kWhat, ": there is no member ", root);
  const bool gives = getRank() == root;
  TORCH_CHECK(gives ? inputs.size() == 1 && static_cast<int>(inputs[0].size()) == getSize()
                    : inputs.empty() || inputs[0].empty(),
              kWhat, " needs a list of one input for each of the ", getSize(),
              " members on the root, and none on the others");
  Call call(OpType::SCATTER, CollectiveKind::scatter, output, getSize());
  call.root = root;
  const size_t kept = call.writing(output);
  call.bytes = call.operands[kept].bytes();
  std::vector<Part> out(getSize()), in(getSize());
  in[root] = {kept, 0, call.operands[kept].elements()};
  call.in[root] = in[root].count;
  for (int rank = 0; gives && rank < getSize(); ++rank) {
    check(inputs[0][rank], kWhat);
    check_same(inputs[0][rank], output, kWhat);
    const size_t given = call.reading(inputs[0][rank]);
    out[rank] = {given, 0, call.operands[given].elements()};
    call.out[rank] = out[rank].count;
  }
  call.timeout = options.timeout;
  call.blocks = !options.asyncOp;
  call.run = exchanging(std::move(out), std::move(in));
  return start(std::move(call));
}

SpyreCCL::WorkPointer SpyreCCL::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  constexpr const char* kWhat = "all_to_all";
  TORCH_CHECK(static_cast<int>(outputs.size()) == getSize() && static_cast<int>(inputs.size()) == getSize(), kWhat,
              " needs one input and one output for each of the ", getSize(), " members");
  check(inputs[0], kWhat);
  Call call(OpType::ALLTOALL, CollectiveKind::all_to_all, inputs[0], getSize());
  std::vector<Part> out(getSize()), in(getSize());
  for (int rank = 0; rank < getSize(); ++rank) {
    check(inputs[rank], kWhat);
    check_written(outputs[rank], kWhat);
    check_same(inputs[rank], inputs[0], kWhat);
    check_same(outputs[rank], inputs[0], kWhat);
    const size_t given = call.reading(inputs[rank]);
    out[rank] = {given, 0, call.operands[given].elements()};
    call.bytes += call.operands[given].bytes();
    const size_t kept = call.writing(outputs[rank]);
    in[rank] = {kept, 0, call.operands[kept].elements()};
    call.out[rank] = out[rank].count;
    call.in[rank] = in[rank].count;
  }
  call.timeout = options.timeout;
  call.blocks = !options.asyncOp;
  call.run = exchanging(std::move(out), std::move(in));
  return start(std::move(call));
}

namespace {

// Parts of an operand along its first dimension.
std::vector<Part> parts_of(const at::Tensor& tensor, size_t operand, int64_t elements,
                           const std::vector<int64_t>& sizes, int members, const char* what) {
  const int64_t rows = tensor.dim() ? tensor.size(0) : 1;
  TORCH_CHECK(!sizes.empty() || rows % members == 0, what, ": dimension 0 of ", tensor.sizes(), " does not divide by ",
              members);
  TORCH_CHECK(sizes.empty() || (static_cast<int>(sizes.size()) == members &&
                                std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == rows),
              what, ": split sizes ", sizes, " do not add up to dimension 0 of ", tensor.sizes());
  const int64_t row = rows ? elements / rows : 0;
  std::vector<Part> parts;
  int64_t first = 0;
  for (int rank = 0; rank < members; ++rank) {
    const int64_t count = row * (sizes.empty() ? rows / members : sizes[rank]);
    parts.push_back({operand, first, count});
    first += count;
  }
  return parts;
}

}  // namespace

SpyreCCL::WorkPointer SpyreCCL::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                              const c10d::AllToAllOptions& options) {
  constexpr const char* kWhat = "all_to_all_single";
  check(input, kWhat);
  check_written(output, kWhat);
  check_same(input, output, kWhat);
  Call call(OpType::ALLTOALL_BASE, CollectiveKind::all_to_all, input, getSize());
  const size_t given = call.reading(input), kept = call.writing(output);
  std::vector<Part> out = parts_of(input, given, call.operands[given].elements(), input_splits, getSize(), kWhat);
  std::vector<Part> in = parts_of(output, kept, call.operands[kept].elements(), output_splits, getSize(), kWhat);
  for (int rank = 0; rank < getSize(); ++rank) {
    call.out[rank] = out[rank].count;
    call.in[rank] = in[rank].count;
  }
  call.bytes = call.operands[given].bytes();
  call.timeout = options.timeout;
  call.blocks = !options.asyncOp;
  call.run = exchanging(std::move(out), std::move(in));
  return start(std::move(call));
}

// --- barriers and messages

SpyreCCL::WorkPointer SpyreCCL::barrier(const c10d::BarrierOptions& options) {
  const at::Tensor here = at::empty({0}, at::TensorOptions().device(kSpyre, current_device()).dtype(at::kByte));
  Call call(OpType::BARRIER, CollectiveKind::barrier, here, getSize());
  call.title = "barrier";
  call.timeout = options.timeout;
  call.blocks = true;  // of the host, by its nature
  return start(std::move(call));
}

void SpyreCCL::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  ++calls_;
  run_blocking(
      [&] { monitored_barrier_.wait(timeout_of(options.timeout), wait_all_ranks, spyre::Runtime::interrupted); });
}

SpyreCCL::WorkPointer SpyreCCL::message(std::shared_ptr<Pending> pending, OpType op, const at::Tensor& tensor) {
  ++calls_;
  // Its wait() blocks the host: send() and recv() are nothing but isend() and irecv() with a wait(), after which
  // programs ask for the sender, or whether it is complete.
  auto work = c10::make_intrusive<SpyreWork>(getRank(), op, tensor.device().index(), std::vector{std::move(pending)},
                                             Tensors{tensor}, true);
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

void SpyreCCL::check_not_lone(const char* what) const {
  TORCH_CHECK(!members_->connection->is_lone(), what,
              ": the other members of a lone group are this one, and there is nobody to exchange messages with");
}

SpyreCCL::WorkPointer SpyreCCL::send(Tensors& tensors, int to, int tag) {
  check_not_lone("send");
  const at::Tensor& tensor = only(tensors, "send");
  check(tensor, "send");
  TORCH_CHECK(to >= 0 && to < getSize(), "send: there is no member ", to);
  std::shared_ptr<Pending> pending;
  run_blocking(
      [&] { pending = messages_->start(Messages::Kind::send, tensor, to, tag, options_->timeout, getGroupUid()); });
  return message(std::move(pending), OpType::SEND, tensor);
}

SpyreCCL::WorkPointer SpyreCCL::recv(Tensors& tensors, int from, int tag) {
  check_not_lone("recv");
  const at::Tensor& tensor = only(tensors, "recv");
  check_written(tensor, "recv");
  TORCH_CHECK(from >= 0 && from < getSize(), "recv: there is no member ", from);
  std::shared_ptr<Pending> pending;
  run_blocking([&] {
    pending = messages_->start(Messages::Kind::receive, tensor, from, tag, options_->timeout, getGroupUid());
  });
  return message(std::move(pending), OpType::RECV, tensor);
}

SpyreCCL::WorkPointer SpyreCCL::recvAnysource(Tensors& tensors, int tag) {
  check_not_lone("recv");
  const at::Tensor& tensor = only(tensors, "recv");
  check_written(tensor, "recv");
  std::shared_ptr<Pending> pending;
  run_blocking([&] {
    pending = messages_->start(Messages::Kind::receive, tensor, kAnySource, tag, options_->timeout, getGroupUid());
  });
  return message(std::move(pending), OpType::RECVANYSOURCE, tensor);
}

// --- the end

c10d::ErrorType SpyreCCL::getError() {
  return members_->failure().empty() ? c10d::ErrorType::SUCCESS : c10d::ErrorType::COMM_ERROR;
}

void SpyreCCL::abort() { members_->fail("it aborted its process group"); }

void SpyreCCL::shutdown() {
  run_blocking([&] {
    messages_->drain();
    collectives_->drain();
    members_->connection->leave();
  });
}

}  // namespace torch_spyre::distributed
