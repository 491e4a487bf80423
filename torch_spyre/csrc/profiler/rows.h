// The rows of a trace: of launches on the host, and of steps and transfers on the cards.
#pragma once

#include <IActivityProfiler.h>
#include <libkineto.h>

#include <functional>
#include <memory>
#include <set>

#include "profiler/recorder.h"

namespace torch_spyre::profiler {

// Makes the rows of the given types. `unix_time` gives the nanoseconds of a record's times.
void add_rows(libkineto::CpuTraceBuffer& to, Records records, const std::set<libkineto::ActivityType>& types,
              const std::function<int64_t(c10::approx_time_t)>& unix_time,
              const libkineto::getLinkedActivityCallback& host_op);

}  // namespace torch_spyre::profiler
