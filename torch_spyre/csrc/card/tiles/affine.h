// Affine expressions, maps and integer sets of a tile program.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace spyre::tiles {

// An expression over dimensions and symbols in postfix order; products have a constant operand, and floordiv, ceildiv
// and mod a positive constant divisor.
struct Expression {
  enum class Op : int64_t { constant, dimension, symbol, add, multiply, floordiv, ceildiv, mod };
  struct Term {
    Op op;
    int64_t value = 0;  // of a constant; the number of a dimension or symbol
  };
  std::vector<Term> terms;
};

// From pairs (op, value). Throws InvalidProgram where it is not one expression.
Expression expression_of(std::span<const int64_t> pairs);

// An expression whose symbols have values: linear in the dimensions where that is all it is.
class BoundExpression {
 public:
  BoundExpression() = default;
  // `dimensions` of them; throws InvalidProgram for symbols or dimensions that there are not.
  BoundExpression(const Expression& expression, int dimensions, std::span<const int64_t> symbols);

  int64_t operator()(const int64_t* point) const;
  bool linear() const { return general_.terms.empty(); }
  int64_t constant() const { return constant_; }
  int64_t coefficient(int dimension) const { return coefficients_[size_t(dimension)]; }
  bool uses(int dimension) const;

 private:
  std::vector<int64_t> coefficients_;
  int64_t constant_ = 0;
  Expression general_;  // where it is not linear
  std::vector<int64_t> symbols_;
};

// Constraints: expression >= 0, or == 0.
struct IntegerSet {
  int dimensions = 0, symbols = 0;
  std::vector<Expression> rows;
  std::vector<bool> equal;
};

struct BoundSet {
  int dimensions = 0;
  std::vector<BoundExpression> rows;
  std::vector<bool> equal;

  bool contains(const int64_t* point) const;
  struct Interval {
    std::optional<int64_t> low, high;  // high is inside
  };
  // What the constraints say of each dimension, each alone, and together as far as intervals tell.
  std::vector<Interval> bounds() const;
  // Whether no constraint has more than one dimension, so that the set is a box.
  bool box() const;
};
BoundSet bind(const IntegerSet& set, std::span<const int64_t> symbols);

int64_t floor_div(int64_t a, int64_t b);

}  // namespace spyre::tiles
