// The parts of the Python module torch_spyre._C.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_spyre {

void bind_layouts(pybind11::module_& m);      // layouts, and tensors with a layout
void bind_kernels(pybind11::module_& m);      // preparing and launching kernels, eager kernels, the host fallback
void bind_tiles(pybind11::module_& m);        // tile programs: functions of KTIR
void bind_runtime(pybind11::module_& m);      // cards, streams, memory, interrupts
void bind_distributed(pybind11::module_& m);  // spyreccl

}  // namespace torch_spyre
