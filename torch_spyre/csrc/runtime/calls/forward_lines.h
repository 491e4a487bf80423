// The lines of a forward pass, for what its backward pass submits: PyTorch's threads for backward passes execute no
// Python of the user's.
#pragma once

#include "card/error.h"

namespace torch_spyre {

// Notes that the op which this thread calls now has this line, if autograd has made a node since the op before.
void note_line(const spyre::Origin& line);

// Of the forward op that the backward node under way in this thread comes from. Between nodes, where gradients are
// added up, that of the node before. Null where it is not known.
const spyre::Origin* line_of_forward();

}  // namespace torch_spyre
