// Where an op was called: its name, and the line of the user's program. An error may surface long after the call.
#pragma once

#include <string>

#include "card/error.h"

namespace torch_spyre {

// The one text of its kind, which stays for good: for names of ops.
const std::string* interned(const std::string& text);

// What this thread submits while this lives comes from this op, called where the Python program of this thread stands;
// inside another one it changes nothing.
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
