// What strict mode refuses while a program runs.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "card/card.h"
#include "card/error.h"
#include "card/memory/shadow.h"
#include "card/program/core_split.h"

namespace spyre {

// Strict mode: nothing is read that was never written, and no core touches what another one writes in the same step.
void Card::check_step(const Program& program, size_t index, const std::vector<Held>& held,
                      const std::vector<std::byte*>& bases) {
  const Step& step = program.steps[index];
  const auto fail = [&](const std::string& what) {
    throw UndefinedBehavior("program '" + program.name + "', step " + std::to_string(index) + " (" + name(step.op) +
                            (step.source.empty() ? "" : ", " + step.source) + "): " + what);
  };
  const auto text = [](int64_t number) { return std::to_string(number); };
  const auto place = [&](size_t operand) {
    const Operand& which = step.operands[operand];
    return which.in_lx() ? std::string("LX") : "argument " + text(which.argument);
  };
  const auto each = [&](int core, size_t operand, const auto& body) {
    end_if_stopped();
    for_each_touched(step, core, operand, bases, [&](const Nest& nest) {
      for_each_element(nest, 0, element_bytes(step.operands[operand].format), body);
    });
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
        fail("cores " + text(writer[at] - 1) + " and " + text(core) + " both write byte " + text(at) + " of " +
             place(0));
      writer[at] = static_cast<uint8_t>(core + 1);
    });
  for (int core = 0; core < step.cores(); ++core)
    for (size_t operand = updates ? 0 : 1; operand < step.operands.size(); ++operand) {
      if (step.operands[operand].is_constant()) continue;
      const Block& source = *held[operand].block;
      const Shadow& shadow = *Shadow::of(held[operand].memory);
      for_each_touched(step, core, operand, bases, [&](const Nest& nest) {
        if (!shadow.written(source, nest, 0, element_bytes(step.operands[operand].format)))
          fail("core " + text(core) + " reads memory of " + place(operand) +
               " that was never written (SPYRE_CARD=strict)");
      });
      if (&source != &target) continue;
      each(core, operand, [&](int64_t at) {
        if (writer[at] && writer[at] != core + 1)
          fail("core " + text(core) + " reads byte " + text(at) + " of " + place(operand) + ", which core " +
               text(writer[at] - 1) + " writes");
      });
    }
  for (int core = 0; core < step.cores(); ++core)
    for_each_touched(step, core, 0, bases, [&](const Nest& nest) {
      Shadow::of(held[0].memory)->wrote(target, nest, 0, element_bytes(step.operands[0].format));
    });
}

}  // namespace spyre
