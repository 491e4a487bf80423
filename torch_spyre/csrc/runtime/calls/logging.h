// The log of transfers and launches: TORCH_SPYRE_DEBUG=1 turns it on, SPYRE_LOG_FILE names its file.
#pragma once

#include <string>

namespace torch_spyre {

bool logging_enabled();
void log_line(const std::string& line);

}  // namespace torch_spyre
