// What a program may ask for at most. Far above what compiled models need; docs/programs.md says why each is as it is.
#pragma once

#include <cstdint>

namespace spyre::limits {

// More bytes than any card has. Sums of a few such numbers do not overflow.
constexpr int64_t kAddresses = int64_t{1} << 40;
constexpr int64_t kBytes = int64_t{1} << 56;  // where counts of bytes stop growing
constexpr size_t kArguments = 1 << 16;
constexpr size_t kSteps = 1 << 16;                           // of a plan, and of all its programs
constexpr size_t kDimensions = 64;                           // of a step
constexpr size_t kOperands = 64;                             // of a step
constexpr size_t kText = 1 << 16;                            // bytes of a name or a source
constexpr int kNumbers = 1 << 16;                            // of a launch
constexpr int64_t kBuffers = 1 << 30;                        // bytes of a plan's host buffers
constexpr int64_t kProducts = 1 << 22;                       // matrix products of one step
constexpr int64_t kTries = 1 << 22, kTriesPerStep = 1 << 8;  // of searches for dependent points, in a whole program
constexpr int64_t kOrdered = 1 << 26;                        // elements that a topk orders together

// Points that find no element of their own in memory. A step has some for every element that it touches, and all steps
// of a program together have some free.
constexpr double kFreePoints = 1LL << 30, kFreeMultiplications = 1LL << 32, kPointsPerElement = 1024;
// Two and a half hours in picoseconds: thousands of such launches are less than 64 bits hold.
constexpr int64_t kTime = int64_t{1} << 53;

}  // namespace spyre::limits
