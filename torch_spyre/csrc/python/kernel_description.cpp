#include "python/kernel_description.h"

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "card/card.h"
#include "runtime/device/device.h"

namespace py = pybind11;

namespace torch_spyre {

void refuse(const std::string& where, const std::string& why) { throw spyre::InvalidProgram(where + ": " + why); }

namespace {

// A short text for a value of any size and depth.
std::string shown(const py::handle& given) {
  constexpr size_t kMost = 80;
  PyObject* const text = PyObject_Repr(given.ptr());
  if (!text) {
    PyErr_Clear();
    return std::string("a ") + Py_TYPE(given.ptr())->tp_name;
  }
  const auto all = py::reinterpret_steal<py::str>(text).cast<std::string>();
  return all.size() <= kMost ? all : std::string("a ") + Py_TYPE(given.ptr())->tp_name;
}

bool is_text(const py::handle& given, const char* text) {
  return py::isinstance<py::str>(given) && PyUnicode_CompareWithASCIIString(given.ptr(), text) == 0;
}

template <typename Value>
Value field(const py::dict& from, const char* name, const std::string& where) {
  if (!from.contains(name)) refuse(where, std::string("lacks the field '") + name + "'");
  const py::object given = from[name];
  // pybind11 would make a list or a dictionary of whatever can be iterated.
  const bool is_kind = !std::is_base_of_v<py::object, Value> || py::isinstance<Value>(given) ||
                       (std::is_same_v<Value, py::list> && py::isinstance<py::tuple>(given));
  try {
    if (is_kind) return given.cast<Value>();
  } catch (const py::cast_error&) {
  }
  refuse(where, std::string("the field '") + name + "' has the wrong type: " + shown(given));
}

template <typename Value>
Value field(const py::dict& from, const char* name, const std::string& where, Value otherwise) {
  return from.contains(name) ? field<Value>(from, name, where) : otherwise;
}

// Refuses a dictionary with an unknown key: a misspelt field must not be ignored.
void check_fields(const py::dict& from, std::initializer_list<const char*> known, const std::string& where) {
  for (const auto& [key, value] : from) {
    if (std::none_of(known.begin(), known.end(), [key = key](const char* name) { return is_text(key, name); }))
      refuse(where, "unknown field " + shown(key));
  }
}

// A number; JSON has no inf and no nan, which are given as text.
double number(const py::handle& from, const char* name, const std::string& where) {
  constexpr std::pair<const char*, double> kNamed[] = {{"inf", INFINITY}, {"-inf", -INFINITY}, {"nan", NAN}};
  for (const auto& [text, value] : kNamed)
    if (is_text(from, text)) return value;
  try {
    return from.cast<double>();
  } catch (const py::cast_error&) {
    refuse(where, std::string("the field '") + name + "' has something else than a number: " + shown(from));
  }
}

// The index of a runtime scalar: "%2" stands for number 2 of a launch. -1 for anything else.
int runtime_scalar(const py::handle& from, const std::string& where) {
  if (!py::isinstance<py::str>(from) || PyUnicode_GetLength(from.ptr()) > 16) return -1;
  if (PyUnicode_GetLength(from.ptr()) == 0 || PyUnicode_ReadChar(from.ptr(), 0) != '%') return -1;
  const auto text = shown(from), digits = text.substr(2, text.size() - 3);  // without quotes and sign
  int number = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool whole = error == std::errc() && end == digits.data() + digits.size();
  if (!whole || number < 0 || number >= spyre::limits::kNumbers) refuse(where, text + " is no runtime scalar");
  return number;
}

// A format as a member of _C.DataFormats, or by its name.
spyre::DataFormat format_field(const py::dict& from, const std::string& where) {
  if (!from.contains("format") || !py::isinstance<py::str>(from["format"]))
    return field<spyre::DataFormat>(from, "format", where, spyre::DataFormat::SEN169_FP16);
  for (int i = 0; i <= static_cast<int>(spyre::DataFormat::SEN18F_FP24); ++i)
    if (is_text(from["format"], spyre::name(static_cast<spyre::DataFormat>(i))))
      return static_cast<spyre::DataFormat>(i);
  refuse(where, "there is no format " + shown(from["format"]));
}

// Checks the length of a list before its entries are read.
void check_count(const char* name, size_t count, size_t most, const std::string& where) {
  if (count > most)
    refuse(where, std::string("the field '") + name + "' has " + std::to_string(count) + " entries, the limit is " +
                      std::to_string(most));
}

// A text that messages will show.
std::string text_field(const py::dict& from, const char* name, const std::string& where) {
  auto text = field<std::string>(from, name, where, "");
  if (text.size() > spyre::limits::kText)
    refuse(where, std::string("the field '") + name + "' has " + std::to_string(text.size()) + " bytes, the limit is " +
                      std::to_string(spyre::limits::kText));
  return text;
}

spyre::Operand parse_operand(const py::dict& from, const std::string& where) {
  if (from.contains("value")) {
    check_fields(from, {"value", "format"}, where);
    const int scalar = runtime_scalar(from["value"], where);
    return {-1, 0, {}, format_field(from, where), -1, scalar < 0 ? number(from["value"], "value", where) : 0, scalar};
  }
  check_fields(from, {"argument", "lx", "offset", "strides", "format", "stick", "core_strides"}, where);
  const bool in_lx = from.contains("lx");
  if (in_lx == from.contains("argument")) refuse(where, "has the field 'argument' or the field 'lx', one of them");
  spyre::Operand operand{in_lx ? spyre::kLx : field<int>(from, "argument", where),
                         in_lx ? field<int64_t>(from, "lx", where) : field<int64_t>(from, "offset", where, 0),
                         field<spyre::Dims>(from, "strides", where), format_field(from, where),
                         field<int>(from, "stick", where, -1)};
  operand.core_strides = field<spyre::Dims>(from, "core_strides", where, {});
  return operand;
}

spyre::Indirect parse_indirect(const py::dict& from, const std::string& where) {
  check_fields(from, {"operand", "extent", "stride", "stick"}, where);
  return {field<int>(from, "operand", where), field<int64_t>(from, "extent", where),
          field<int64_t>(from, "stride", where), field<bool>(from, "stick", where, false)};
}

py::dict entry_of(const py::handle& entry, const std::string& where) {
  if (!py::isinstance<py::dict>(entry)) refuse(where, "is not a dictionary");
  return entry.cast<py::dict>();
}

}  // namespace

spyre::Program parse_program(const py::dict& from, const std::string& name,
                             const std::vector<int64_t>& argument_bytes) {
  spyre::Program program{name, argument_bytes, {}};
  const auto steps = field<py::list>(from, "steps", "program '" + name + "'");
  check_count("steps", steps.size(), spyre::limits::kSteps, "program '" + name + "'");
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string where = "program '" + name + "', step " + std::to_string(i);
    const py::dict given = entry_of(steps[i], where);
    check_fields(given,
                 {"op", "extents", "slices", "operands", "constant", "source", "function", "constants", "reduced",
                  "checked", "indirect", "tile", "staging", "special", "turn", "aten", "spec"},
                 where);
    spyre::Step step;
    if (!given.contains("op")) refuse(where, "lacks the field 'op'");
    step.op = spyre::op_code(text_field(given, "op", where));
    step.extents = field<spyre::Dims>(given, "extents", where);
    step.slices = field<spyre::Dims>(given, "slices", where, spyre::Dims(step.extents.size(), 1));
    step.constant = field<uint32_t>(given, "constant", where, 0);
    step.source = text_field(given, "source", where);
    step.aten = text_field(given, "aten", where);
    step.spec = field<int>(given, "spec", where, -1);
    step.function = text_field(given, "function", where);
    for (const py::handle value : field<py::list>(given, "constants", where, py::list())) {
      const int which = runtime_scalar(value, where);
      if (which >= 0) step.numbers.emplace_back(step.constants.size(), which);
      step.constants.push_back(which < 0 ? number(value, "constants", where) : 0);
    }
    step.reduced = field<int>(given, "reduced", where, 0);
    step.checked = field<bool>(given, "checked", where, false);
    step.tile = field<spyre::Dims>(given, "tile", where, {});
    step.staging = field<int64_t>(given, "staging", where, 0);
    step.special = field<bool>(given, "special", where, false);
    step.next_iteration = field<bool>(given, "turn", where, false);
    const auto operands = field<py::list>(given, "operands", where);
    check_count("operands", operands.size(), spyre::limits::kOperands, where);
    for (size_t o = 0; o < operands.size(); ++o) {
      const std::string which = where + ", operand " + std::to_string(o);
      step.operands.push_back(parse_operand(entry_of(operands[o], which), which));
    }
    for (const py::handle entry : field<py::list>(given, "indirect", where, py::list()))
      step.indirect.push_back(parse_indirect(entry_of(entry, where + ", indirect"), where + ", indirect"));
    program.steps.push_back(std::move(step));
  }
  return program;
}

namespace {

// A reference that a plan holds and any thread may drop: it is dropped under the GIL.
std::shared_ptr<py::object> shared(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            py::gil_scoped_acquire gil;
            delete held;
          }};
}

// A host step gets the plan's buffers as bytearrays and may change them in place.
std::function<void(std::vector<std::string>&)> host_step(py::object body) {
  return [body = shared(std::move(body))](std::vector<std::string>& buffers) {
    py::gil_scoped_acquire gil;
    py::list given;
    for (const std::string& buffer : buffers) given.append(py::bytearray(buffer.data(), buffer.size()));
    (*body)(given);
    if (given.size() != buffers.size()) throw spyre::Error("a host step changed the number of buffers");
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (!py::isinstance<py::bytearray>(given[i]))
        throw spyre::Error("a host step put something else than a bytearray in place of buffer " + std::to_string(i));
      const auto changed = py::reinterpret_borrow<py::bytearray>(given[i]);
      if (changed.size() != buffers[i].size()) throw spyre::Error("a host step changed the size of a buffer");
      buffers[i].assign(PyByteArray_AsString(changed.ptr()), changed.size());
    }
  };
}

std::string buffer_bytes(const py::handle& buffer, const std::string& where) {
  if (!py::isinstance<py::bytes>(buffer)) refuse(where, "a buffer is not bytes: " + shown(buffer));
  return buffer.cast<std::string>();
}

}  // namespace

std::shared_ptr<const spyre::JobPlan> prepare_kernel(const py::dict& description) {
  spyre::JobPlan plan;
  if (!description.contains("name")) refuse("kernel", "lacks the field 'name'");
  plan.name = text_field(description, "name", "kernel");
  const std::string where = "kernel '" + plan.name + "'";
  plan.argument_bytes = field<std::vector<int64_t>>(description, "arguments", where);
  plan.allocations = field<std::vector<int64_t>>(description, "allocate", where, {});
  for (const py::handle buffer : field<py::list>(description, "buffers", where, py::list()))
    plan.buffers.push_back(buffer_bytes(buffer, where));
  std::vector<int64_t> all_bytes = plan.argument_bytes;
  all_bytes.insert(all_bytes.end(), plan.allocations.begin(), plan.allocations.end());
  spyre::Card& on = card(-1);
  const auto steps = field<py::list>(description, "steps", where);
  check_count("steps", steps.size(), spyre::limits::kSteps, where);
  size_t all_steps = 0;
  for (const py::handle entry : steps) {
    if (!py::isinstance<py::dict>(entry)) refuse(where, "a step is not a dictionary");
    const auto given = entry.cast<py::dict>();
    if (!given.contains("type")) refuse(where, "lacks the field 'type'");
    const auto type = text_field(given, "type", where);
    using Type = spyre::JobStep::Type;
    spyre::JobStep step{};
    if (type == "Compute") {
      step.type = Type::Compute;
      spyre::Program program = parse_program(field<py::dict>(given, "program", where), plan.name, all_bytes);
      check_count("steps", all_steps += program.steps.size(), spyre::limits::kSteps, where);
      step.program = on.prepare(std::move(program));
    } else if (type == "HostCompute") {
      step.type = Type::HostCompute;
      const auto function = field<py::object>(given, "function", where);
      if (!PyCallable_Check(function.ptr())) refuse(where, "the field 'function' cannot be called");
      step.host = host_step(function);
    } else if (type == "H2D" || type == "D2H") {
      step.type = type == "H2D" ? Type::H2D : Type::D2H;
      step.argument = field<int>(given, "argument", where);
      step.offset = field<int64_t>(given, "offset", where, 0);
      step.buffer = field<int>(given, "buffer", where);
    } else {
      refuse(where, "unknown step type '" + type.substr(0, 80) + "'; there are H2D, D2H, Compute and HostCompute");
    }
    plan.steps.push_back(std::move(step));
  }
  return on.prepare(std::move(plan));
}

}  // namespace torch_spyre
