// Tile programs from their descriptions in Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "card/tiles.h"

namespace torch_spyre {

// Raises InvalidProgram for what is malformed.
std::shared_ptr<const spyre::tiles::TileProgram> tile_program(const pybind11::dict& description);

}  // namespace torch_spyre
