// A minimal test frame for the card's C++ unit tests: TEST("name") { CHECK(...); CHECK_THROWS(expr, Type, "part of
// message"); }
#pragma once

#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

namespace spyre::testing {

struct Case {
  const char* name;
  void (*run)();
};
inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
inline int& failures() {
  static int count = 0;
  return count;
}
inline bool add(const char* name, void (*run)()) {
  cases().push_back({name, run});
  return true;
}
inline void fail(const char* file, int line, const std::string& what) {
  ++failures();
  std::printf("%s:%d: %s\n", file, line, what.c_str());
}

// Runs every test whose name contains the first argument (all without one).
inline int main_(int argc, char** argv) {
  int passed = 0, failed = 0;
  for (const Case& test : cases()) {
    if (argc > 1 && !std::strstr(test.name, argv[1])) continue;
    const int before = failures();
    try {
      test.run();
    } catch (const std::exception& error) {
      fail(test.name, 0, std::string("threw ") + error.what());
    }
    const bool ok = failures() == before;
    ok ? ++passed : ++failed;
    if (!ok) std::printf("FAILED %s\n", test.name);
  }
  std::printf("card: %d passed, %d failed\n", passed, failed);
  return failed != 0 || passed == 0;
}

}  // namespace spyre::testing

#define SPYRE_JOIN2(a, b) a##b
#define SPYRE_JOIN(a, b) SPYRE_JOIN2(a, b)
#define TEST(text)                                                                                          \
  static void SPYRE_JOIN(test_, __LINE__)();                                                                \
  static const bool SPYRE_JOIN(added_, __LINE__) = spyre::testing::add(text, &SPYRE_JOIN(test_, __LINE__)); \
  static void SPYRE_JOIN(test_, __LINE__)()
#define CHECK(condition) \
  if (!(condition)) spyre::testing::fail(__FILE__, __LINE__, "CHECK(" #condition ")")
#define CHECK_THROWS(expression, Type, part)                                                       \
  try {                                                                                            \
    expression;                                                                                    \
    spyre::testing::fail(__FILE__, __LINE__, #expression " did not throw " #Type);                 \
  } catch (const Type& error) {                                                                    \
    if (!std::strstr(error.what(), part))                                                          \
      spyre::testing::fail(__FILE__, __LINE__, std::string(#expression " said: ") + error.what()); \
  }
