"""The ops that programs are made of, one row each: code, how operands are drawn, and the rule for its bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tests.fuzz import bounds
from tests.fuzz.bounds import Invalid, Ref, Rule

Choice = tuple[list[str], dict[str, Any]]
FLOATS = ("float16", "bfloat16", "float32")
DTYPES = (*FLOATS, "int64", "int32", "bool")


class Drawing(Protocol):
    """What a draw may ask for: a random generator, tensors that there are, new inputs."""

    rng: Any

    def ref(self, name: str) -> Ref: ...
    def pick(self, family: str = "any", test: Callable[[Ref], bool] = lambda ref: True) -> str: ...
    def mate(self, shape: tuple[int, ...], family: str = "any", same: bool = False) -> str: ...
    def new(self, shape: tuple[int, ...], dtype: str, kind: str | None = None, high: int = 0) -> str: ...


Draw = Callable[[Drawing], Choice]


@dataclass(frozen=True)
class Op:
    """``code`` takes operands by position and parameters by name.

    An op that writes has a ``target``, the operand written to, and ``pure`` code that gives what is written.
    ``pointwise``: the target may be an operand as well.
    """

    name: str
    code: str
    draw: Draw
    rule: Rule
    weight: float = 1
    target: int | None = None
    pure: str = ""
    pointwise: bool = False
    statement: bool = False


OPS: dict[str, Op] = {}


def add(name: str, code: str, draw: Draw, rule: Rule, **more: Any) -> None:
    assert name not in OPS, name
    OPS[name] = Op(name, code, draw, rule, **more)


# --- draws


def one(family: str = "any", **parameters: Callable[[Drawing, Ref], Any]) -> Draw:
    def draw(d: Drawing) -> Choice:
        name = d.pick(family)
        return [name], {key: make(d, d.ref(name)) for key, make in parameters.items()}

    return draw


def two(family: str = "any", **parameters: Callable[[Drawing, Ref], Any]) -> Draw:
    def draw(d: Drawing) -> Choice:
        name = d.pick(family)
        return [name, d.mate(d.ref(name).shape, family)], {k: make(d, d.ref(name)) for k, make in parameters.items()}

    return draw


def written(family: str = "any", mates: int = 1) -> Draw:
    """A target, and operands that broadcast to it."""

    def draw(d: Drawing) -> Choice:
        name = d.pick(family)
        return [name, *(d.mate(d.ref(name).shape, family) for _ in range(mates))], {}

    return draw


def into(count: int, family: str = "any") -> Draw:
    """``count`` operands of a shape, and a target of that shape."""

    def draw(d: Drawing) -> Choice:
        target = d.pick(family)
        return [*(d.mate(d.ref(target).shape, family) for _ in range(count)), target], {}

    return draw


def number(d: Drawing, ref: Ref) -> Any:
    whole = d.rng.choice((-3, -2, -1, 2, 3, 4))
    return whole if not ref.real or d.rng.random() < 0.5 else whole / 4


def a_dim(d: Drawing, ref: Ref) -> int:
    if not ref.shape:
        raise Invalid("no dimension")
    return d.rng.randrange(-len(ref.shape), len(ref.shape))


def some_dims(d: Drawing, ref: Ref) -> list[int]:
    if not ref.shape:
        raise Invalid("no dimension")
    return sorted(d.rng.sample(range(len(ref.shape)), d.rng.randint(1, len(ref.shape))))


def yes_or_no(d: Drawing, ref: Ref) -> bool:
    return d.rng.random() < 0.5


def among(*values: Any) -> Callable[[Drawing, Ref], Any]:
    return lambda d, ref: d.rng.choice(values)


# --- pointwise

EXACT_UNARY = {"neg": "number", "abs": "number", "relu": "number"}
for _name, _family in EXACT_UNARY.items():
    add(_name, f"{{0}}.{_name}()", one(_family), bounds.lipschitz(1, -1e4, 1e4), weight=0.6)
    add(
        f"{_name}_",
        f"{{0}}.{_name}_()",
        one(_family),
        bounds.lipschitz(1, -1e4, 1e4),
        target=0,
        pure=f"{{0}}.{_name}()",
        pointwise=True,
        weight=0.3,
    )

for _name in ("sign", "floor", "ceil", "trunc", "round", "frac"):
    add(_name, f"{{0}}.{_name}()", one("float"), bounds.discrete, weight=0.3)

SMOOTH = {
    "exp": (-4, 4),
    "expm1": (-4, 4),
    "exp2": (-4, 4),
    "tanh": (-4, 4),
    "sigmoid": (-4, 4),
    "erf": (-4, 4),
    "atan": (-4, 4),
    "asinh": (-4, 4),
    "sinh": (-4, 4),
    "sqrt": (0.25, 8),
    "rsqrt": (0.25, 8),
    "reciprocal": (0.25, 8),
    "log": (0.25, 8),
    "log2": (0.25, 8),
    "log1p": (0.25, 8),
}
for _name, (_low, _high) in SMOOTH.items():
    add(_name, f"{{0}}.{_name}()", one("float"), bounds.monotone(_low, _high), weight=0.4)
for _name in ("exp", "tanh", "sigmoid", "sqrt"):
    add(
        f"{_name}_",
        f"{{0}}.{_name}_()",
        one("float"),
        bounds.monotone(*SMOOTH[_name]),
        target=0,
        pure=f"{{0}}.{_name}()",
        pointwise=True,
        weight=0.2,
    )
for _name in ("silu", "gelu", "mish", "hardswish", "softplus", "elu", "leaky_relu", "hardsigmoid"):
    add(_name, f"F.{_name}({{0}})", one("float"), bounds.lipschitz(1.5), weight=0.3)
for _name in ("sin", "cos"):
    add(_name, f"{{0}}.{_name}()", one("float"), bounds.lipschitz(1), weight=0.4)

for _name, _rule, _weight in (
    ("add", bounds.added, 2),
    ("sub", bounds.added, 2),
    ("mul", bounds.multiplied, 2),
    ("maximum", bounds.selects(), 1),
    ("minimum", bounds.selects(), 1),
    ("div", bounds.divided, 0.7),
):
    _family = "any" if _name in ("add", "mul", "maximum", "minimum") else "number"
    _pure = f"torch.{_name}({{0}}, {{1}})"
    add(_name, _pure, two(_family), _rule, weight=_weight)
    add(
        f"{_name} out",
        f"torch.{_name}({{0}}, {{1}}, out={{2}})",
        into(2, _family),
        _rule,
        target=2,
        pure=_pure,
        pointwise=True,
        weight=0.3,
    )
    if _name not in ("maximum", "minimum"):
        add(
            f"{_name}_",
            f"{{0}}.{_name}_({{1}})",
            written(_family),
            _rule,
            target=0,
            pure=_pure,
            pointwise=True,
            weight=0.8 * _weight,
        )

for _name, _code in (
    ("add number", "{0} + {number}"),
    ("subtract from number", "{number} - {0}"),
    ("mul number", "{0} * {number}"),
):
    add(_name, _code, one("number", number=number), bounds.scaled)
add(
    "mul_ number",
    "{0}.mul_({number})",
    one("number", number=number),
    bounds.scaled,
    target=0,
    pure="{0} * {number}",
    pointwise=True,
)
add(
    "add_ number",
    "{0}.add_({number})",
    one("number", number=number),
    bounds.scaled,
    target=0,
    pure="{0} + {number}",
    pointwise=True,
)
add("div number", "{0} / {number}", one("number", number=among(2, 4, 3)), bounds.scaled)
add("square", "{0}.square()", one("number"), bounds.multiplied, weight=0.5)
add("cube", "{0} ** 3", one("number"), bounds.monotone(-8, 8), weight=0.3)


def _limits(d: Drawing) -> Choice:
    low = d.rng.choice((-2, -1, 0, 1))
    return [d.pick("number")], {"low": low, "high": low + d.rng.choice((0, 1, 2))}


add("clamp", "{0}.clamp({low}, {high})", _limits, bounds.selects(), weight=1.5)
add(
    "clamp_",
    "{0}.clamp_({low}, {high})",
    _limits,
    bounds.selects(),
    target=0,
    pure="{0}.clamp({low}, {high})",
    pointwise=True,
    weight=0.5,
)


def _three(d: Drawing) -> Choice:
    name = d.pick("number")
    shape = d.ref(name).shape
    return [name, d.mate(shape, "number"), d.mate(shape, "number")], {"number": d.rng.choice((1, 2, -1))}


add("addcmul", "torch.addcmul({0}, {1}, {2}, value={number})", _three, bounds.multiplied_and_added)

for _name in ("eq", "ne", "lt", "ge", "gt", "le"):
    add(_name, f"torch.{_name}({{0}}, {{1}})", two("any"), bounds.discrete, weight=0.5)
add("gt number", "{0} > {number}", one("number", number=number), bounds.discrete, weight=0.7)
for _name in ("floor", "trunc"):
    _code = f"torch.div({{0}}, {{1}}.abs() + 1, rounding_mode={_name!r})"
    add(f"div {_name}", _code, two("int"), bounds.discrete, weight=0.3)
add("remainder", "{0} % {number}", one("int", number=among(2, 3, 5, -4)), bounds.discrete, weight=0.4)
for _name in ("logical_and", "logical_or", "logical_xor"):
    add(_name, f"torch.{_name}({{0}}, {{1}})", two("any"), bounds.discrete, weight=0.3)
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    add(_name, f"torch.{_name}({{0}}, {{1}})", two("discrete"), bounds.discrete, weight=0.3)
    add(
        f"{_name}_",
        f"{{0}}.{_name}_({{1}})",
        written("discrete"),
        bounds.discrete,
        target=0,
        pure=f"torch.{_name}({{0}}, {{1}})",
        pointwise=True,
        weight=0.2,
    )
add("logical_not", "{0}.logical_not()", one("any"), bounds.discrete, weight=0.5)
add("shift", "{0} << {number}", one("int", number=among(0, 1, 3)), bounds.discrete, weight=0.2)

add("to", "{0}.to(torch.{dtype})", one("any", dtype=among(*DTYPES)), bounds.cast, weight=2)


def _choose(d: Drawing) -> Choice:
    name = d.pick()
    shape = d.ref(name).shape
    return [d.mate(shape, "bool"), name, d.mate(shape)], {}


add("where", "torch.where({0}, {1}, {2})", _choose, bounds.moved(1, 2), weight=1.5)


def _masked(d: Drawing) -> Choice:
    name = d.pick("number")
    return [name, d.mate(d.ref(name).shape, "bool")], {"number": number(d, d.ref(name))}


add("masked_fill", "{0}.masked_fill({1}, {number})", _masked, bounds.filled(0))
add(
    "masked_fill_",
    "{0}.masked_fill_({1}, {number})",
    _masked,
    bounds.filled(0),
    target=0,
    pure="{0}.masked_fill({1}, {number})",
    pointwise=True,
)
add(
    "set masked",
    "{0}[{1}] = {number}",
    lambda d: _masked_whole(d),
    bounds.filled(0),
    target=0,
    pure="{0}.masked_fill({1}, {number})",
    pointwise=True,
    statement=True,
    weight=0.5,
)


def _masked_whole(d: Drawing) -> Choice:
    name = d.pick("number")
    return [name, d.new(d.ref(name).shape, "bool")], {"number": number(d, d.ref(name))}


# --- views


def _index(d: Drawing) -> Choice:
    name = d.pick(test=lambda ref: len(ref.shape) > 0)
    parts = []
    for size in d.ref(name).shape:
        kind = d.rng.random()
        if kind < 0.35 or not size:
            parts.append(":")
        elif kind < 0.5:
            parts.append(str(d.rng.randrange(-size, size)))
        else:
            start = d.rng.randrange(size)
            stop = d.rng.randint(start if d.rng.random() < 0.05 else start + 1, size)
            step = d.rng.choice((1, 1, 1, 2, 3))
            parts.append(f"{start}:{stop}" + (f":{step}" if step > 1 else ""))
        if d.rng.random() < 0.05:
            parts.append("None")
    if d.rng.random() < 0.2:
        parts = ["...", *parts[-1:]]
    return [name], {"index": ", ".join(parts)}


add("slice", "{0}[{index}]", _index, bounds.moved(0), weight=4)


def _two_dims(d: Drawing) -> Choice:
    name = d.pick(test=lambda ref: len(ref.shape) > 1)
    rank = len(d.ref(name).shape)
    return [name], {"a": d.rng.randrange(rank), "b": d.rng.randrange(-rank, 0)}


add("transpose", "{0}.transpose({a}, {b})", _two_dims, bounds.moved(0), weight=2)
add("movedim", "{0}.movedim({a}, {b})", _two_dims, bounds.moved(0), weight=0.5)


def _permutation(d: Drawing) -> Choice:
    name = d.pick(test=lambda ref: len(ref.shape) > 1)
    order = list(range(len(d.ref(name).shape)))
    d.rng.shuffle(order)
    return [name], {"order": order}


add("permute", "{0}.permute({order})", _permutation, bounds.moved(0))
add(
    "unsqueeze",
    "{0}.unsqueeze({dim})",
    one("any", dim=lambda d, ref: d.rng.randint(0, len(ref.shape))),
    bounds.moved(0),
)
add("squeeze", "{0}.squeeze()", one("any"), bounds.moved(0), weight=0.5)
add("alias", "{0}.detach()", one("any"), bounds.moved(0), weight=0.2)


def _shape(d: Drawing) -> Choice:
    """Another shape: neighbours flattened, or the elements factored at random."""
    name = d.pick()
    size = list(d.ref(name).shape)
    if len(size) > 1 and d.rng.random() < 0.5:
        at = d.rng.randrange(len(size) - 1)
        size[at : at + 2] = [size[at] * size[at + 1]]
    elif size:
        at = d.rng.randrange(len(size))
        divisors = [n for n in range(1, size[at] + 1) if size[at] % n == 0] or [1]
        one_part = d.rng.choice(divisors)
        size[at : at + 1] = [one_part, size[at] // one_part]
        if d.rng.random() < 0.3:
            size = [math.prod(size[:-1]), size[-1]][:: d.rng.choice((1, -1))]
    return [name], {"size": size}


add("reshape", "{0}.reshape({size})", _shape, bounds.moved(0), weight=2)
add("view", "{0}.view({size})", _shape, bounds.moved(0), weight=1)
add("flatten", "{0}.flatten()", one("any"), bounds.moved(0), weight=0.5)


def _expansion(d: Drawing) -> Choice:
    """No 1 in front: that could be written through, which PyTorch compiles to x + (new - x), and that is rounded."""
    name = d.pick(test=lambda ref: len(ref.shape) < 5)
    size = [d.rng.choice((2, 3, 5)) if n == 1 and d.rng.random() < 0.7 else n for n in d.ref(name).shape]
    if d.rng.random() < 0.5 or size == list(d.ref(name).shape):
        size = [d.rng.choice((2, 3)), *size]
    return [name], {"size": size}


add("expand", "{0}.expand({size})", _expansion, bounds.moved(0), weight=1.5)


def _windows(d: Drawing) -> Choice:
    name = d.pick(test=lambda ref: len(ref.shape) in (1, 2, 3) and max(ref.shape) > 1)
    shape = d.ref(name).shape
    dim = d.rng.choice([i for i, n in enumerate(shape) if n > 1])
    size = d.rng.randint(1, min(shape[dim], 4))
    return [name], {"dim": dim, "size": size, "step": d.rng.choice((1, 1, 2, 3))}


add("unfold", "{0}.unfold({dim}, {size}, {step})", _windows, bounds.moved(0))
add(
    "diagonal",
    "{0}.diagonal({offset}, {a}, {b})",
    lambda d: (lambda c: (c[0], {**c[1], "offset": d.rng.choice((0, 0, 1, -1))}))(_two_dims(d)),
    bounds.moved(0),
)


def _strides(d: Drawing) -> Choice:
    """Any view of what the tensor itself reaches."""
    name = d.pick(test=lambda ref: ref.value.numel() > 1)
    value = d.ref(name).value
    first = value.storage_offset()
    last = first + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    size, stride, offset = [], [], d.rng.randint(first, last)
    room = last - offset
    for _ in range(d.rng.randint(1, 3)):
        step = d.rng.choice((0, 1, 1, 2, 3, *value.stride()))
        count = d.rng.choice((1, 2, 3, 5))
        count = min(count, room // step + 1 if step else count)
        room -= step * (count - 1)
        size.append(count)
        stride.append(step)
    return [name], {"size": size, "stride": stride, "offset": offset}


add("as_strided", "{0}.as_strided({size}, {stride}, {offset})", _strides, bounds.moved(0), weight=0.7)


def _part(d: Drawing) -> Choice:
    name = d.pick(test=lambda ref: len(ref.shape) > 0 and max(ref.shape) > 1)
    shape = d.ref(name).shape
    dim = d.rng.choice([i for i, n in enumerate(shape) if n > 1])
    pieces = d.rng.randint(2, min(shape[dim], 3))
    count = len(torch.empty(shape[dim]).chunk(pieces))
    return [name], {"pieces": pieces, "dim": dim, "i": d.rng.randrange(count)}


add("chunk", "{0}.chunk({pieces}, {dim})[{i}]", _part, bounds.moved(0))
add(
    "unbind",
    "{0}.unbind({dim})[{i}]",
    lambda d: (lambda c: (c[0], {"dim": c[1]["dim"], "i": 0}))(_part(d)),
    bounds.moved(0),
    weight=0.4,
)

# --- copies

add("clone", "{0}.clone()", one("any"), bounds.moved(0))
add("contiguous", "{0}.contiguous()", one("any"), bounds.moved(0))
add("flip", "{0}.flip({dim})", one("any", dim=some_dims), bounds.moved(0))
add("roll", "{0}.roll({by}, {dim})", one("any", by=among(1, -2, 5), dim=a_dim), bounds.moved(0))
add("triu", "{0}.triu({k})", one("any", k=among(0, 1, -1)), bounds.moved(0), weight=0.4)
add("tril", "{0}.tril({k})", one("any", k=among(0, 1, -1)), bounds.moved(0), weight=0.4)
add(
    "repeat",
    "{0}.repeat({times})",
    one("any", times=lambda d, ref: [d.rng.choice((1, 2)) for _ in range(max(len(ref.shape), 1))]),
    bounds.moved(0),
    weight=0.6,
)
add(
    "repeat_interleave",
    "{0}.repeat_interleave({times}, {dim})",
    one("any", times=among(1, 2, 3), dim=a_dim),
    bounds.moved(0),
    weight=0.5,
)


def _alike(d: Drawing) -> Choice:
    """Tensors of one shape, apart from one dimension."""
    name = d.pick(test=lambda ref: len(ref.shape) > 0)
    shape = tuple(d.ref(name).shape)
    dim = d.rng.randrange(len(shape))
    other = d.mate((*shape[:dim], d.rng.choice((shape[dim], 1, 3)), *shape[dim + 1 :]), same=True)
    return d.rng.sample([name, other], 2), {"dim": dim}


add("cat", "torch.cat([{0}, {1}], {dim})", _alike, bounds.moved(0, 1), weight=1.5)


def _equal(d: Drawing) -> Choice:
    name = d.pick(test=lambda ref: len(ref.shape) < 5)
    shape = tuple(d.ref(name).shape)
    return [name, d.mate(shape, same=True)], {"dim": d.rng.randint(0, len(shape))}


add("stack", "torch.stack([{0}, {1}], {dim})", _equal, bounds.moved(0, 1))


def _padding(d: Drawing) -> Choice:
    name = d.pick("number", test=lambda ref: len(ref.shape) > 0)
    dims = d.rng.randint(1, min(2, len(d.ref(name).shape)))
    return [name], {"pad": [d.rng.choice((0, 1, 2, 3)) for _ in range(2 * dims)], "number": number(d, d.ref(name))}


def _turned(d: Drawing) -> Choice:
    name = d.pick("float", test=lambda ref: len(ref.shape) in (2, 3) and ref.shape[-1] > 2)
    return [name], {"pad": [d.rng.choice((0, 1, 2)), 1]}


add("pad", "F.pad({0}, {pad}, value={number})", _padding, bounds.filled(0))
for _name in ("reflect", "replicate", "circular"):
    add(f"pad {_name}", f"F.pad({{0}}, {{pad}}, mode={_name!r})", _turned, bounds.moved(0), weight=0.2)

add(
    "new_full",
    "{0}.new_full({size}, {number})",
    one("number", size=lambda d, ref: list(ref.shape), number=number),
    bounds.made,
    weight=0.4,
)
add("zeros_like", "torch.zeros_like({0})", one("any"), bounds.made, weight=0.4)
add(
    "arange",
    "torch.arange({count}, dtype=torch.{dtype}, device={0}.device)",
    one("any", count=lambda d, ref: ref.shape[-1] if ref.shape else 3, dtype=among("int64", "float32", "int32")),
    bounds.made,
    weight=0.4,
)

# --- writes of other tensors

add(
    "copy_",
    "{0}.copy_({1})",
    written("any"),
    bounds.cast,
    target=0,
    pure="{1}",
    pointwise=True,
    weight=3,
)
add("zero_", "{0}.zero_()", one("any"), bounds.made, target=0, pure="torch.zeros_like({0})", pointwise=True, weight=0.5)
add(
    "fill_",
    "{0}.fill_({number})",
    one("number", number=number),
    bounds.made,
    target=0,
    pure="torch.full_like({0}, {number})",
    pointwise=True,
    weight=0.7,
)


def _setting(d: Drawing) -> Choice:
    (name,), parameters = _index(d)
    ref = d.ref(name)
    part = eval(f"x[{parameters['index']}]", {"x": ref.value})
    return [name, d.mate(tuple(part.shape))], parameters


def _set_slice(call: bounds.Call) -> tuple[torch.Tensor, torch.Tensor]:
    into, source = call.refs[0], call.cast(1)
    value, error = into.value.clone(), into.error.clone()
    where = {"value": value, "error": error, "v": source.value, "e": source.error}
    index = call.parameters["index"]
    exec(f"value[{index}] = v; error[{index}] = e", where)
    return value, error


add("set slice", "{0}[{index}] = {1}", _setting, _set_slice, target=0, pure="{0}", statement=True, weight=2)


# --- through indices


def _rows(d: Drawing) -> tuple[str, int]:
    name = d.pick(test=lambda ref: len(ref.shape) in (1, 2, 3) and 0 not in ref.shape)
    return name, d.rng.randrange(len(d.ref(name).shape))


def _along(kind: str) -> Draw:
    """A tensor, a dimension, and a few indices into it."""

    def draw(d: Drawing) -> Choice:
        name, dim = _rows(d)
        extent = d.ref(name).shape[dim]
        count = d.rng.randint(1, min(extent, 5))
        return [name, d.new((count,), "int64", kind, extent)], {"dim": dim}

    return draw


def _along_with_values(d: Drawing) -> Choice:
    (name, at), parameters = _along("order")(d)
    shape, dim = list(d.ref(name).shape), parameters["dim"]
    shape[dim] = d.ref(at).shape[0]
    dtype = str(d.ref(name).dtype).removeprefix("torch.")
    return [name, at, d.mate(tuple(shape), dtype, same=True)], parameters


add("index_select", "{0}.index_select({dim}, {1})", _along("index"), bounds.moved(0))
add(
    "index_fill",
    "{0}.index_fill({dim}, {1}, {number})",
    lambda d: (lambda c: (c[0], {**c[1], "number": number(d, d.ref(c[0][0]))}))(_along("order")(d)),
    bounds.filled(0),
    weight=0.5,
)
add("index_copy", "{0}.index_copy({dim}, {1}, {2})", _along_with_values, bounds.moved(0, 2), weight=0.7)
add(
    "index_copy_",
    "{0}.index_copy_({dim}, {1}, {2})",
    _along_with_values,
    bounds.moved(0, 2),
    target=0,
    pure="{0}.index_copy({dim}, {1}, {2})",
    weight=0.7,
)
add("index_add", "{0}.index_add({dim}, {1}, {2})", _along_with_values, bounds.summed(0, 2), weight=0.7)
add(
    "index_add_",
    "{0}.index_add_({dim}, {1}, {2})",
    _along_with_values,
    bounds.summed(0, 2),
    target=0,
    pure="{0}.index_add({dim}, {1}, {2})",
    weight=0.5,
)


def _everywhere(kind: str, values: bool) -> Draw:
    """gather and scatter: indices of the tensor's own shape, fewer along a dimension."""

    def draw(d: Drawing) -> Choice:
        name, dim = _rows(d)
        shape = list(d.ref(name).shape)
        extent = shape.pop(dim)
        count = d.rng.randint(1, min(extent, 4))
        at = d.new((*shape, count), "int64", kind, extent)
        shape.insert(dim, count)
        dtype = str(d.ref(name).dtype).removeprefix("torch.")
        return [name, at, *([d.mate(tuple(shape), dtype, same=True)] if values else [])], {"dim": dim}

    return draw


_AT = "{1}.movedim(-1, {dim})"
add("gather", f"{{0}}.gather({{dim}}, {_AT})", _everywhere("index", False), bounds.moved(0), weight=1.5)
add("scatter", f"{{0}}.scatter({{dim}}, {_AT}, {{2}})", _everywhere("order", True), bounds.moved(0, 2))
add(
    "scatter_",
    f"{{0}}.scatter_({{dim}}, {_AT}, {{2}})",
    _everywhere("order", True),
    bounds.moved(0, 2),
    target=0,
    pure=f"{{0}}.scatter({{dim}}, {_AT}, {{2}})",
    weight=0.7,
)
add("scatter_add", f"{{0}}.scatter_add({{dim}}, {_AT}, {{2}})", _everywhere("index", True), bounds.summed(0, 2))


def _advanced(d: Drawing) -> Choice:
    name, dim = _rows(d)
    extent = d.ref(name).shape[dim]
    at = d.new((min(extent, 3),), "int64", "order", extent)
    return [name, at], {"index": ":, " * dim}


def _advanced_with_values(d: Drawing) -> Choice:
    (name, at), parameters = _advanced(d)
    shape = list(d.ref(name).shape)
    shape[len(parameters["index"]) // 3] = d.ref(at).shape[0]
    dtype = str(d.ref(name).dtype).removeprefix("torch.")
    return [name, at, d.mate(tuple(shape), dtype)], parameters


def _set_index(call: bounds.Call) -> tuple[torch.Tensor, torch.Tensor]:
    into, at, source = call.refs[0], call.refs[1], call.cast(2)
    value, error = into.value.clone(), into.error.clone()
    where = {"value": value, "error": error, "at": at.value, "v": source.value, "e": source.error}
    index = f"{call.parameters['index']}at"
    exec(f"value[{index}] = v; error[{index}] = e", where)
    return value, error


add("index", "{0}[{index}{1}]", _advanced, bounds.moved(0))
add("set index", "{0}[{index}{1}] = {2}", _advanced_with_values, _set_index, target=0, pure="{0}", statement=True)


def _table(d: Drawing) -> Choice:
    name = d.pick(test=lambda ref: len(ref.shape) == 2 and 0 not in ref.shape)
    size = d.rng.choice(((3,), (2, 3), (1,), (5, 1)))
    return [d.new(size, "int64", "index", d.ref(name).shape[0]), name], {}


add("embedding", "F.embedding({0}, {1})", _table, bounds.moved(1))
add(
    "put accumulate",
    "{0}.index_put(({1},), {2}, accumulate=True)",
    lambda d: _put(d),
    bounds.summed(0, 2),
    weight=0.6,
)


def _put(d: Drawing) -> Choice:
    name = d.pick(test=lambda ref: len(ref.shape) in (1, 2) and 0 not in ref.shape)
    shape = d.ref(name).shape
    at = d.new((4,), "int64", "index", shape[0])
    dtype = str(d.ref(name).dtype).removeprefix("torch.")
    return [name, at, d.mate((4, *shape[1:]), dtype, same=True)], {}


# --- folds

_over = one("number", dim=some_dims, keepdim=yes_or_no)
add("sum", "{0}.sum({dim}, keepdim={keepdim})", one("any", dim=some_dims, keepdim=yes_or_no), bounds.summed(0))
add("sum all", "{0}.sum()", one("any"), bounds.summed(0), weight=0.5)
add(
    "mean",
    "{0}.mean({dim}, keepdim={keepdim})",
    one("float", dim=some_dims, keepdim=yes_or_no),
    bounds.summed(0, exactly=False),
)
for _name in ("amax", "amin"):
    add(_name, f"{{0}}.{_name}({{dim}}, keepdim={{keepdim}})", _over, bounds.selects(), weight=0.7)
_along_one = one("number", dim=a_dim, keepdim=yes_or_no)
add("max", "{0}.max({dim}, keepdim={keepdim}).values", _along_one, bounds.selects(), weight=0.5)
add("max at", "{0}.max({dim}, keepdim={keepdim}).indices", _along_one, bounds.discrete, weight=0.4)
for _name in ("argmax", "argmin"):
    add(_name, f"{{0}}.{_name}({{dim}}, keepdim={{keepdim}})", _along_one, bounds.discrete, weight=0.4)
add("any", "{0}.any({dim})", one("any", dim=a_dim), bounds.discrete, weight=0.4)
add("all", "{0}.all({dim})", one("any", dim=a_dim), bounds.discrete, weight=0.4)
add("prod", "{0}.sign().prod({dim})", one("number", dim=a_dim), bounds.discrete, weight=0.3)
add("cumsum", "{0}.cumsum({dim})", one("any", dim=a_dim), bounds.summed(0))
add(
    "topk",
    "{0}.topk({k}, {dim}).values",
    lambda d: (lambda c: (c[0], {"k": d.rng.randint(1, min(3, _extent(d, c))), "dim": c[1]["dim"]}))(_along_one(d)),
    bounds.selects(),
    weight=0.4,
)


def _extent(d: Drawing, choice: Choice) -> int:
    extent = d.ref(choice[0][0]).shape[choice[1]["dim"]]
    if not extent:
        raise Invalid("nothing to choose from")
    return extent


_real = one("float", dim=a_dim, keepdim=yes_or_no)
add("softmax", "{0}.softmax({dim})", _real, bounds.softmax)
add("log_softmax", "{0}.log_softmax({dim})", _real, bounds.log_softmax, weight=0.5)
add("logsumexp", "{0}.logsumexp({dim}, keepdim={keepdim})", _real, bounds.logsumexp, weight=0.4)
_spread = one("float", dim=some_dims, keepdim=yes_or_no, correction=among(0, 1))
add("var", "{0}.var({dim}, correction={correction}, keepdim={keepdim})", _spread, bounds.variance(False), weight=0.5)
add("std", "{0}.std({dim}, correction={correction}, keepdim={keepdim})", _spread, bounds.variance(True), weight=0.4)
_reals = one("float", dim=some_dims, keepdim=yes_or_no)
add("norm", "torch.linalg.vector_norm({0}, 2, {dim}, keepdim={keepdim})", _reals, bounds.norm, weight=0.4)


def _normal(weights: int) -> Draw:
    def draw(d: Drawing) -> Choice:
        name = d.pick("float", test=lambda ref: len(ref.shape) > 0 and ref.shape[-1] > 1)
        size, dtype = d.ref(name).shape[-1], str(d.ref(name).dtype).removeprefix("torch.")
        return [name, *(d.mate((size,), dtype, same=True) for _ in range(weights))], {"size": [size]}

    return draw


add("layer_norm", "F.layer_norm({0}, {size})", _normal(0), bounds.layer_norm, weight=0.7)
add("layer_norm affine", "F.layer_norm({0}, {size}, {1}, {2})", _normal(2), bounds.layer_norm, weight=0.5)
add("rms_norm", "F.rms_norm({0}, {size}, {1}, eps=1e-5)", _normal(1), bounds.rms_norm, weight=0.5)

# --- products


def _matrices(left: tuple[int, ...], right: int, same: int = 0, family: str = "number") -> Draw:
    """Ranks of the two sides; batch dimensions of the right are the left's."""

    def draw(d: Drawing) -> Choice:
        name = d.pick(family, test=lambda ref: len(ref.shape) in left)
        shape, dtype = d.ref(name).shape, str(d.ref(name).dtype).removeprefix("torch.")
        columns = d.rng.choice((1, 2, 5, 64, 65))
        other = (shape[-1],) if right == 1 else (*shape[: right - 2], shape[-1], columns)
        return [name, d.mate(tuple(other), dtype, same=True)], {}

    return draw


add("matmul", "{0} @ {1}", _matrices((1, 2, 3, 4), 2), bounds.product, weight=2)
add("matmul vector", "{0} @ {1}", _matrices((1, 2, 3), 1), bounds.product, weight=0.5)
add("bmm", "{0} @ {1}", _matrices((3,), 3), bounds.product)


def _gram(d: Drawing) -> Choice:
    return [d.pick("float", test=lambda ref: len(ref.shape) > 1)], {}


def _turned_product(call: bounds.Call) -> tuple[torch.Tensor, torch.Tensor]:
    ref = call.refs[0]
    both = bounds.Call("{0} @ {1}.mT", (ref, ref), {}, call.dtype)
    return bounds.product(both)


add("gram", "{0} @ {0}.mT", _gram, _turned_product, weight=0.7)


def _affine(d: Drawing) -> Choice:
    name = d.pick("float", test=lambda ref: len(ref.shape) in (2, 3))
    size, dtype = d.ref(name).shape[-1], str(d.ref(name).dtype).removeprefix("torch.")
    columns = d.rng.choice((1, 3, 64, 65))
    return [name, d.mate((columns, size), dtype, same=True), d.mate((columns,), dtype, same=True)], {}


add(
    "linear",
    "F.linear({0}, {1}, {2})",
    _affine,
    bounds.product_and_sum("{0} @ {1}.mT", 0, 1, 2),
)


def _addition(d: Drawing) -> Choice:
    (a, b), _ = _matrices((2,), 2, family="float")(d)
    dtype = str(d.ref(a).dtype).removeprefix("torch.")
    shape = (d.ref(a).shape[0], d.ref(b).shape[1])
    return [d.mate(shape, dtype), a, b], {}


add("addmm", "torch.addmm({0}, {1}, {2})", _addition, bounds.product_and_sum("{0} @ {1}", 1, 2, 0))


def _kernel(d: Drawing) -> Choice:
    name = d.pick("float", test=lambda ref: len(ref.shape) == 3 and ref.shape[-1] > 2)
    dtype = str(d.ref(name).dtype).removeprefix("torch.")
    weight = d.new((d.rng.choice((1, 3)), d.ref(name).shape[1], d.rng.choice((1, 2, 3))), dtype)
    return [name, weight], {"stride": d.rng.choice((1, 2)), "padding": d.rng.choice((0, 1))}


add("conv1d", "F.conv1d({0}, {1}, stride={stride}, padding={padding})", _kernel, bounds.product, weight=0.4)
