#include "card/tiles/affine.h"

#include <algorithm>

#include "card/error.h"

namespace spyre::tiles {

namespace {

using Op = Expression::Op;

[[noreturn]] void malformed() { throw InvalidProgram("a malformed affine expression"); }

int64_t wrapped(unsigned __int128 value) { return static_cast<int64_t>(static_cast<uint64_t>(value)); }
int64_t sum(int64_t a, int64_t b) { return wrapped(uint64_t(a) + uint64_t(b)); }
int64_t product(int64_t a, int64_t b) { return wrapped(uint64_t(a) * uint64_t(b)); }

}  // namespace

int64_t floor_div(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return quotient - (a % b < 0);
}

Expression expression_of(std::span<const int64_t> pairs) {
  Expression result;
  int depth = 0;
  if (pairs.size() % 2) malformed();
  for (size_t i = 0; i < pairs.size(); i += 2) {
    if (pairs[i] < 0 || pairs[i] > int64_t(Op::mod)) malformed();
    const Expression::Term term{Op(pairs[i]), pairs[i + 1]};
    depth += term.op <= Op::symbol ? 1 : -1;
    if (depth < 1) malformed();
    result.terms.push_back(term);
  }
  if (depth != 1) malformed();
  return result;
}

BoundExpression::BoundExpression(const Expression& expression, int dimensions, std::span<const int64_t> symbols)
    : coefficients_(size_t(dimensions)), symbols_(symbols.begin(), symbols.end()) {
  // Linear forms on a stack, as long as all is linear.
  struct Form {
    std::vector<int64_t> coefficients;
    int64_t constant;
    bool fixed() const {
      return std::all_of(coefficients.begin(), coefficients.end(), [](int64_t c) { return c == 0; });
    }
  };
  std::vector<Form> stack;
  bool linear = true;
  for (const Expression::Term& term : expression.terms) {
    if (term.op == Op::dimension && (term.value < 0 || term.value >= dimensions)) malformed();
    if (term.op == Op::symbol && (term.value < 0 || size_t(term.value) >= symbols.size()))
      throw InvalidProgram("symbol s" + std::to_string(term.value) +
                           " has no value: " + std::to_string(symbols.size()) + " are bound");
    if (!linear) continue;
    if (term.op <= Op::symbol) {
      Form form{std::vector<int64_t>(size_t(dimensions)), term.value};
      if (term.op == Op::dimension) {
        form.coefficients[size_t(term.value)] = 1;
        form.constant = 0;
      } else if (term.op == Op::symbol) {
        form.constant = symbols[size_t(term.value)];
      }
      stack.push_back(std::move(form));
      continue;
    }
    Form right = std::move(stack.back());
    stack.pop_back();
    Form& left = stack.back();
    if (term.op == Op::add) {
      for (size_t i = 0; i < left.coefficients.size(); ++i)
        left.coefficients[i] = sum(left.coefficients[i], right.coefficients[i]);
      left.constant = sum(left.constant, right.constant);
    } else if (term.op == Op::multiply) {
      if (!right.fixed()) std::swap(left, right);
      if (!right.fixed()) throw InvalidProgram("an affine expression multiplies two dimensions");
      for (int64_t& c : left.coefficients) c = product(c, right.constant);
      left.constant = product(left.constant, right.constant);
    } else {
      if (!right.fixed() || right.constant <= 0)
        throw InvalidProgram("an affine expression divides by something else than a positive number");
      if (!left.fixed()) {
        linear = false;
        continue;
      }
      const int64_t a = left.constant, b = right.constant;
      left.constant = term.op == Op::floordiv ? floor_div(a, b)
                      : term.op == Op::mod    ? a - floor_div(a, b) * b
                                              : -floor_div(-a, b);
    }
  }
  if (linear) {
    coefficients_ = std::move(stack[0].coefficients);
    constant_ = stack[0].constant;
  } else {
    general_ = expression;
  }
}

int64_t BoundExpression::operator()(const int64_t* point) const {
  if (linear()) {
    int64_t value = constant_;
    for (size_t i = 0; i < coefficients_.size(); ++i) value = sum(value, product(coefficients_[i], point[i]));
    return value;
  }
  constexpr size_t kDeep = 64;
  int64_t stack[kDeep];
  size_t depth = 0;
  for (const Expression::Term& term : general_.terms) {
    if (term.op <= Op::symbol) {
      if (depth == kDeep) throw InvalidProgram("an affine expression is nested too deeply");
      stack[depth++] = term.op == Op::constant    ? term.value
                       : term.op == Op::dimension ? point[term.value]
                                                  : symbols_[size_t(term.value)];
      continue;
    }
    const int64_t b = stack[--depth];
    int64_t& a = stack[depth - 1];
    if (term.op >= Op::floordiv && b <= 0) throw InvalidProgram("an affine expression divides by zero or less");
    switch (term.op) {
      case Op::add:
        a = sum(a, b);
        break;
      case Op::multiply:
        a = product(a, b);
        break;
      case Op::floordiv:
        a = floor_div(a, b);
        break;
      case Op::ceildiv:
        a = -floor_div(-a, b);
        break;
      default:
        a -= floor_div(a, b) * b;
    }
  }
  return stack[0];
}

bool BoundExpression::uses(int dimension) const {
  if (linear()) return coefficient(dimension) != 0;
  return std::any_of(general_.terms.begin(), general_.terms.end(),
                     [&](const Expression::Term& term) { return term.op == Op::dimension && term.value == dimension; });
}

BoundSet bind(const IntegerSet& set, std::span<const int64_t> symbols) {
  BoundSet bound;
  bound.dimensions = set.dimensions;
  bound.equal = set.equal;
  for (const Expression& row : set.rows) bound.rows.emplace_back(row, set.dimensions, symbols);
  return bound;
}

bool BoundSet::contains(const int64_t* point) const {
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t value = rows[i](point);
    if (equal[i] ? value != 0 : value < 0) return false;
  }
  return true;
}

bool BoundSet::box() const {
  for (const BoundExpression& row : rows) {
    int used = 0;
    for (int d = 0; d < dimensions; ++d) used += row.uses(d);
    if (!row.linear() || used > 1) return false;
  }
  return true;
}

std::vector<BoundSet::Interval> BoundSet::bounds() const {
  std::vector<Interval> result{size_t(dimensions)};
  // One constraint at a time: the others' intervals bound what is left for a dimension. A few rounds reach what
  // triangles and bands need.
  for (int round = 0; round < dimensions + 1; ++round)
    for (size_t r = 0; r < rows.size(); ++r)
      for (int d = 0; rows[r].linear() && d < dimensions; ++d)
        for (int sign : {1, -1}) {
          if (sign < 0 && !equal[r]) continue;
          const int64_t own = sign * rows[r].coefficient(d);
          if (own == 0) continue;
          // own * x + rest >= 0 with the largest rest there is
          int64_t rest = sign * rows[r].constant();
          bool known = true;
          for (int e = 0; e < dimensions; ++e) {
            const int64_t c = sign * rows[r].coefficient(e);
            if (e == d || c == 0) continue;
            const std::optional<int64_t>& limit = c > 0 ? result[size_t(e)].high : result[size_t(e)].low;
            known &= limit.has_value();
            if (known) rest = sum(rest, product(c, *limit));
          }
          if (!known) continue;
          Interval& at = result[size_t(d)];
          if (own > 0) {
            const int64_t low = -floor_div(rest, own);
            at.low = at.low ? std::max(*at.low, low) : low;
          } else {
            const int64_t high = floor_div(rest, -own);
            at.high = at.high ? std::min(*at.high, high) : high;
          }
        }
  return result;
}

}  // namespace spyre::tiles
