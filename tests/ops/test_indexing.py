"""Reading and writing through index tensors."""

import torch
import torch.nn.functional as F

from tests.ops.grid import FLOATS, LAYOUTS, Case, Row, check, check_together, exact, ids, mask, real, total

# A shape is (rows of the table, columns, how many indices).
SHAPES = ((3, 65, 7), (64, 64, 64), (1, 1, 1), (129, 3, 127), (65, 1000, 5), (1000, 63, 3), (127, 129, 65))
BOTH = (*FLOATS, torch.int64)
LOSSLESS = tuple(name for name in LAYOUTS if name != "expanded")  # which of several values stays is not said


def rows(s):
    return s[0]


def columns(s):
    return s[1]


def count(s):
    return s[2:]


def table(s):
    return s[:2]


def values(s):
    return (s[2], s[1])


def row(name, function, *inputs, bound=exact, dtypes=BOTH, **more):
    return Row(name, function, inputs or (real(of=table), ids(rows, count)), bound, dtypes, shapes=SHAPES, **more)


def adding(name, function, *inputs):
    return row(name, function, *inputs, bound=total(function, lambda *t: t[-1].numel() + 1))


def permuted(s):
    """As many different rows as there are."""
    return (s[0],)


def order(shape, dtype, generator):
    return torch.randperm(shape[0], generator=generator)


whole, some = real(of=table), real(of=values)
same = real(of=table)

ROWS = [
    row("embedding", lambda x, i: F.embedding(i, x)),
    row("embedding 2", lambda x, i: F.embedding(i, x), whole, ids(rows, lambda s: (2, 3))),
    row("embedding padded", lambda x, i: F.embedding(i, x, padding_idx=0)),
    row("index", lambda x, i: x[i]),
    row("index negative", lambda x, i: x[i], whole, ids(rows, count, low=-1)),
    row("index 1", lambda x, i: x[:, i], whole, ids(columns, count)),
    row("index int32", lambda x, i: x[i.int()]),
    row("index both", lambda x, i, j: x[i, j], whole, ids(rows, count), ids(columns, count)),
    row("index outer", lambda x, i, j: x[i[:, None], j], whole, ids(rows, lambda s: (5,)), ids(columns, count)),
    row(
        "index apart",
        lambda x, i, j: x.unflatten(0, (1, -1))[:, i, None, j],
        whole,
        ids(rows, count),
        ids(columns, count),
    ),
    row("index matrix", lambda x, i: x[i], whole, ids(rows, lambda s: (2, 3))),
    row("index of 3", lambda x, i: x[:, i], real(of=lambda s: (2, *table(s))), ids(rows, count)),
    row("index of transposed", lambda x, i: x.t()[i], whole, ids(columns, count)),
    row("index of slice", lambda x, i: x[:, 1:][i], real(of=lambda s: (s[0], s[1] + 1)), ids(rows, count)),
    row("index_select", lambda x, i: x.index_select(0, i)),
    row("index_select 1", lambda x, i: x.index_select(1, i), whole, ids(columns, count)),
    row("gather", lambda x, i: x.gather(0, i), whole, ids(rows, values)),
    row("gather 1", lambda x, i: x.gather(1, i), whole, ids(columns, lambda s: (s[0], s[2]))),
    row("gather fewer", lambda x, i: x.gather(1, i), whole, ids(columns, lambda s: (1, s[2]))),
    row("take_along_dim", lambda x, i: x.take_along_dim(i, 1), whole, ids(columns, lambda s: (s[0], s[2]))),
    row("flip", lambda x: x.flip(0), whole),
    row("flip 1", lambda x: x.flip(-1), whole),
    row("flip both", lambda x: x.flip(0, 1), whole),
    row("index_put", lambda x, v, i: x.index_put((i,), v), whole, same, order, layouts=LOSSLESS),
    row("index_put number", lambda x, i: x.index_put((i,), torch.tensor(2, dtype=x.dtype, device=x.device))),
    row("index_put row", lambda x, v, i: x.index_put((i,), v), whole, real(of=lambda s: s[1:2]), ids(rows, count)),
    row(
        "index_put 1",
        lambda x, v, i: _set(x, (slice(None), i), v),
        whole,
        real(of=lambda s: (s[0], 1)),
        ids(columns, count),
    ),
    row("setitem", lambda x, i: _set(x, i), whole, ids(rows, count)),
    row("index_copy", lambda x, v, i: x.index_copy(0, i, v), whole, same, order, layouts=LOSSLESS),
    row("index_fill", lambda x, i: x.index_fill(0, i, 3)),
    row("scatter", lambda x, v, i: x.scatter(0, i[:, None].expand(v.shape), v), whole, same, order, layouts=LOSSLESS),
    row("scatter number", lambda x, i: x.scatter(0, i, 1.0 if x.is_floating_point() else 1), whole, ids(rows, values)),
    row("scatter fewer", lambda x, v, i: x.scatter(1, i, v), whole, same, ids(columns, lambda s: (s[0], 1))),
    adding(
        "index_put accumulated", lambda x, v, i: x.index_put((i,), v, accumulate=True), whole, some, ids(rows, count)
    ),
    adding(
        "index_put all accumulated",
        lambda x, v, i, j: x.index_put((i, j), v, accumulate=True),
        whole,
        real(of=count),
        ids(rows, count),
        ids(columns, count),
    ),
    adding("index_add", lambda x, v, i: x.index_add(0, i, v), whole, some, ids(rows, count)),
    adding("index_add alpha", lambda x, v, i: x.index_add(0, i, v, alpha=2), whole, some, ids(rows, count)),
    adding(
        "index_add 1", lambda x, v, i: x.index_add(1, i, v), whole, real(of=lambda s: (s[0], s[2])), ids(columns, count)
    ),
    adding("scatter_add", lambda x, v, i: x.scatter_add(0, i, v), whole, some, ids(rows, values)),
    adding(
        "scatter_add 1",
        lambda x, v, i: x.scatter_add(1, i, v),
        whole,
        real(of=lambda s: (s[0], s[2])),
        ids(columns, lambda s: (s[0], s[2])),
    ),
    adding("scatter_reduce sum", lambda x, v, i: x.scatter_reduce(0, i, v, "sum"), whole, some, ids(rows, values)),
    row("scatter_reduce amax", lambda x, v, i: x.scatter_reduce(0, i, v, "amax"), whole, some, ids(rows, values)),
    row("scatter_reduce amin", lambda x, v, i: x.scatter_reduce(0, i, v, "amin"), whole, some, ids(rows, values)),
    row("masked_scatter free", lambda x, m: torch.where(m, x, x.flip(0)), whole, mask(table)),
]


def _set(x, i, v=0):
    x = x.clone()
    x[i] = v
    return x


def test_eager(case: Case) -> None:
    check(case)


def test_compiled(cases: list[Case]) -> None:
    check_together(cases)
