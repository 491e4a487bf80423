#include "card/clock/work.h"

namespace spyre {

Work move_of(int64_t bytes_read, int64_t bytes_written, int cores, bool restickifies) {
  Work work;
  work.unit = Work::Unit::move;
  work.cores = cores;
  work.restickifies = restickifies;
  work.traffic.resize(2);
  work.traffic[0].written = true;
  work.traffic[0].bytes = bytes_written;
  work.traffic[1].bytes = bytes_read;
  for (Traffic& stream : work.traffic) stream.run = 1 << 20;
  return work;
}

}  // namespace spyre
