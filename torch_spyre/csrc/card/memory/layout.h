// Layouts: how a tensor's elements are placed in sticks.
//
// device_size is row-major with one stick last; stride_map gives, per device dimension, the host stride of one step
// (-1: synthetic, only coordinate 0 holds data; 0: every coordinate holds the same data). One identity says it all:
//     host_offset = dot(device_coordinates, stride_map)
// A stick whose stride another dimension has, too, holds one value: only its lane 0 counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "card/error.h"
#include "card/memory/loop_nest.h"
#include "card/numeric/formats.h"

namespace spyre {

struct Layout {
  Dims device_size;
  Dims stride_map;
  DataFormat format = DataFormat::INVALID;
  int arrangement = 0;  // ElementArrangement: how elements sit inside a stick; 0 = in order

  bool operator==(const Layout&) const = default;
  int64_t device_elements() const;
  int64_t device_bytes() const;  // kStickBytes * product(device_size[:-1])
  std::string str() const;
};

// The layout of a dense host tensor. `dim_order` names host dimensions, the last one becomes the stick; a last
// entry of -1 makes it sparse (one element per stick). Empty means 0 ... n-1. Dimensions of one coordinate have stride
// -1; only the tiles of a given order keep theirs, a stick times that inside them. Throws InvalidLayout.
Layout default_layout(const Dims& host_size, const Dims& host_strides, DataFormat format, Dims dim_order = {});

// The same places, with stride -1 wherever a dimension does not tell elements apart: those of one coordinate, and the
// stick where another dimension has its stride.
Layout canonical(const Layout& layout);

// Bytes of the default layout without building it: what torch.empty needs.
int64_t default_layout_bytes(const int64_t* host_size, size_t rank, DataFormat format);

// One step from a host offset to a device offset: coordinate = (offset % previous unit) / unit.
struct Level {
  int64_t unit;           // host elements per step
  int64_t extent;         // coordinates of this device dimension
  int64_t device_stride;  // device elements per step
};

// A layout as levels with decreasing units, a mixed-radix number system, and the dimensions that replicate data.
struct Places {
  std::vector<Level> levels;
  std::vector<Level> replicas;  // unit 0
};
Places places(const Layout& layout);

// Rewrites one side of a nest from host offsets to device offsets, splitting loops until each is affine on the card.
// Throws InvalidLayout when an element of the nest has no place in the layout.
std::vector<Nest> lower(const Places& places, int side, const Nest& nest);

// Throws InvalidLayout unless every element of a host tensor of this shape has a place of its own.
void check_layout(const Layout& layout, const Dims& host_size, const Dims& host_strides);

}  // namespace spyre
