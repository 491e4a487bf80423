// The origin of queued work: the op, and the line of the user's program that called it. An error may surface long after
// the call.
#pragma once

#include <string>

#include "card/error.h"

namespace torch_spyre {

// The one copy of this text, which is never freed: for names of ops.
const std::string* interned(const std::string& text);

// While it lives, work that this thread submits has this op as its origin, and the line of Python that the thread
// executes. A nested scope changes nothing: the outermost op is the one that the user called.
class OriginScope {
 public:
  explicit OriginScope(const std::string* op);
  ~OriginScope();
  OriginScope(const OriginScope&) = delete;
  OriginScope& operator=(const OriginScope&) = delete;

 private:
  const bool outermost_;
};

// " (aten::mm, called in train.py, line 12)", or empty.
std::string text_of(const spyre::Origin& origin);

}  // namespace torch_spyre
