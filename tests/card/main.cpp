#include "testing.h"

int main(int argc, char** argv) { return spyre::testing::main_(argc, argv); }
