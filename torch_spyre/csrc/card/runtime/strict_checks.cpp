// What strict mode refuses while a program runs.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "card/card.h"
#include "card/error.h"
#include "card/memory/shadow.h"
#include "card/program/core_split.h"
#include "card/runtime/tensor_info.h"

namespace spyre {

// Strict mode: nothing is read that was never written, and no core touches what another one writes in the same step.
void Card::check_step(const Program& program, size_t index, const std::vector<Held>& held,
                      const std::vector<std::byte*>& bases) {
  const Step& step = program.steps[index];
  const auto fail = [&](const std::string& what) {
    throw UndefinedBehavior("program '" + program.name + "', step " + std::to_string(index) + " (" + name(step.op) +
                            (step.function.empty() ? "" : " " + step.function) +
                            (step.source.empty() ? "" : ", " + step.source) + "): " + what + " (SPYRE_CARD=strict)");
  };
  const auto text = [](int64_t number) { return std::to_string(number); };
  // "element [1, 70] of argument 1 (float16[4, 100])"
  const auto place = [&](size_t operand, int64_t byte) {
    const Operand& which = step.operands[operand];
    if (which.in_lx()) return "byte " + text(byte) + " of LX";
    const TensorInfos& described = DescribedArguments::current();
    const size_t argument = static_cast<size_t>(which.argument);
    if (!described) return "byte " + text(byte) + " of argument " + text(which.argument);
    if (argument >= described->size())
      return "byte " + text(byte) + " of the kernel's own memory " + text(which.argument);
    const TensorInfo& tensor = (*described)[argument];
    return tensor.element(byte) + " of argument " + text(which.argument) + " (" + tensor.text() + ")";
  };
  // The elements that a core touches of an operand, as places in its block.
  const auto touched = [&](int core, size_t operand, const auto& body) {
    for_each_touched(step, core, operand, bases, [&](const Nest& nest) {
      Nest inside = nest;
      inside.offset[0] += held[operand].shift / element_bytes(step.operands[operand].format);
      body(inside);
    });
  };
  const auto each = [&](int core, size_t operand, const auto& body) {
    end_if_stopped();
    touched(core, operand,
            [&](const Nest& nest) { for_each_element(nest, 0, element_bytes(step.operands[operand].format), body); });
  };
  const bool updates = updates_written(step);
  const Block& target = *held[0].block;
  // core + 1, at an element's first byte. Pages that no core writes take no memory.
  const std::unique_ptr<uint8_t, decltype(&std::free)> writers(
      static_cast<uint8_t*>(std::calloc(std::max<int64_t>(target.bytes, 1), 1)), &std::free);
  if (!writers) throw std::bad_alloc();
  uint8_t* const writer = writers.get();
  for (int core = 0; core < step.cores(); ++core)
    each(core, 0, [&](int64_t at) {
      if (writer[at] && writer[at] != core + 1)
        fail("cores " + text(writer[at] - 1) + " and " + text(core) + " both write " + place(0, at));
      writer[at] = static_cast<uint8_t>(core + 1);
    });
  for (int core = 0; core < step.cores(); ++core)
    for (size_t operand = updates ? 0 : 1; operand < step.operands.size(); ++operand) {
      if (step.operands[operand].is_constant()) continue;
      const Block& source = *held[operand].block;
      const Shadow& shadow = *Shadow::of(held[operand].memory);
      touched(core, operand, [&](const Nest& nest) {
        const int64_t at = shadow.unwritten(source, nest, 0, element_bytes(step.operands[operand].format));
        if (at >= 0)
          fail("core " + text(core) + " reads " + place(operand, at) +
               ", which was never written; initialise the tensor first");
      });
      if (&source != &target) continue;
      each(core, operand, [&](int64_t at) {
        if (writer[at] && writer[at] != core + 1)
          fail("core " + text(core) + " reads " + place(operand, at) + ", which core " + text(writer[at] - 1) +
               " writes");
      });
    }
  for (int core = 0; core < step.cores(); ++core)
    touched(core, 0, [&](const Nest& nest) {
      Shadow::of(held[0].memory)->wrote(target, nest, 0, element_bytes(step.operands[0].format));
    });
}

}  // namespace spyre
