// How a step is split over cores: the points that a core takes, and the addresses that operands have there.
#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "card/memory/loop_nest.h"
#include "card/program/program.h"

namespace spyre {

// How many of the last dimensions are folded.
size_t folded_dimensions(const Step& step);
// The operand of which indices choose each element, or -1.
int indexed_operand(const Step& step);
// The indices that move the address of an operand.
std::span<const Indirect> indices_of(const Step& step, size_t operand);
// Whether the written operand is read too.
bool updates_written(const Step& step);
// The points of each dimension that a core takes, all but the last.
Dims points_per_core(const Step& step);
// The points over which a core's scratchpad is walked: those of one core, or all of an operand across cores.
Dims points_in_lx(const Step& step, size_t operand);
// First and one-past-last byte that an operand may touch over so many points of each dimension.
std::pair<int64_t, int64_t> reach(const Step& step, size_t operand, const Dims& points);
// Bytes of an operand behind so many points of each dimension, each counted once, sticks as a whole. What an index
// leads to is counted once per point.
int64_t bytes_behind(const Step& step, size_t operand, const Dims& points);

// The part of a step that one core carries out, with a loop for each dimension and a side for each of the first kSides
// operands; in elements. Along its sticks an operand's stride is the distance of two. A loop of count 0: nothing to do.
Nest core_nest(const Step& step, int core);
// That part as nests in which every stride is the distance of two elements: whole sticks first, then what is left of
// the last. They add up to the part in this order; none if there is nothing to do.
std::vector<Nest> affine_nests(const Step& step, int core);
std::vector<Nest> kept_nests(const Step& step, int core);    // without the folded dimensions
std::vector<Nest> folded_nests(const Step& step, int core);  // only those, from where a kept point begins
// The elements of one operand that a core touches, on side 0, in nests. `bases[i]` is where the argument of operand i
// begins: where indices lead is looked up, and what they lead to out of bounds is left out.
void for_each_touched(const Step& step, int core, size_t operand, const std::vector<std::byte*>& bases,
                      const std::function<void(const Nest&)>& body);

// Bytes of each core's LX up to the last that an operand is in.
int64_t lx_bytes_of(const Program& program);
// Bytes of LX for two tiles of every operand in device memory; 0 where the step names no tile.
int64_t tile_bytes(const Step& step);

}  // namespace spyre
