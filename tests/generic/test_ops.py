"""PyTorch's OpInfo database on the card: every op against the CPU, in all its forms. ``suites.toml`` steers it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_device_type import PrivateUse1TestBase, instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ErrorInput, OpInfo, SampleInput, UnaryUfuncInfo

from tests.card_storages import CardStorages
from tests.generic.suites import Case, suites
from tests.generic.values import (
    CARD_DTYPES,
    Expected,
    map_tensors,
    raised,
    same_bits,
    seed_like,
    tensors_of,
    to_host,
)

PrivateUse1TestBase.setUpClass()  # so that the generated classes are named after the device from the first one on

Arguments = tuple[Any, tuple[Any, ...], dict[str, Any]]  # input, others, keywords


def over(infos: list[OpInfo] | None = None) -> Callable[[Callable], Callable]:
    """The test of this name, for the ops and dtypes that the configuration gives it. Errors tell of which sample."""

    def decorate(test: Callable) -> Callable:
        @wraps(test)
        def noted(self: TestOps, device: str, dtype: torch.dtype, op: OpInfo) -> None:
            self.case = Case(test.__name__, op.full_name, str(dtype).removeprefix("torch."))
            self.sample = None
            try:
                test(self, device, dtype, op)
            except Exception as error:
                if self.sample is not None:
                    error.add_note(self.sample.summary())
                raise

        name = test.__name__
        return ops(suites().select(name, infos or op_db), allowed_dtypes=suites().dtypes(name))(noted)

    return decorate


def fits_card(x: Tensor) -> bool:
    try:
        x.to("spyre")
    except (TypeError, ValueError, NotImplementedError):
        return False
    return True


def on_card(arguments: Arguments, to_card: Callable[[Tensor], Tensor] = lambda x: x.to("spyre")) -> Arguments:
    def move(x: Any) -> Any:
        if isinstance(x, Tensor):
            return to_card(x).detach().requires_grad_(x.requires_grad)
        return torch.device("spyre") if isinstance(x, torch.device) else x

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: "spyre" if key == "device" and each == "cpu" else walk(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            made = [walk(each) for each in value]
            return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
        return move(value)

    return walk(arguments)


def call(function: Callable, arguments: Arguments) -> Any:
    given, args, kwargs = arguments
    torch.manual_seed(0)
    return function(given, *args, **kwargs)


def caller(function: Callable) -> Callable[[Arguments], Any]:
    return lambda arguments: call(function, arguments)


def arguments_of(sample: SampleInput) -> Arguments:
    return sample.input, sample.args, sample.kwargs


def error_inputs(op: OpInfo, device: str) -> Iterator[tuple[ErrorInput, ErrorInput | None]]:
    """Made for the card, and the same for the CPU where it has them all.

    Where dtypes come up that the card has not, they are those of the CPU, moved, without these.
    """
    torch.manual_seed(0)
    host = list(op.error_inputs_func(op, "cpu"))
    torch.manual_seed(0)
    try:
        card = list(op.error_inputs_func(op, device))
    except TypeError:
        for given in host:
            if all(fits_card(x) for x in tensors_of(arguments_of(given.sample_input))):
                moved = SampleInput(None)
                moved.input, moved.args, moved.kwargs = on_card(arguments_of(given.sample_input), CardStorages())
                yield ErrorInput(moved, error_type=given.error_type, error_regex=given.error_regex), given
        return
    yield from zip(card, host if len(host) == len(card) else [None] * len(card), strict=True)


def agree(error: Exception | None, refused: Exception | None) -> bool:
    """Whether the card raised what the CPU raised. It may do what only the CPU's kernel is missing."""
    return type(error) is type(refused) or (error is None and isinstance(refused, NotImplementedError))


def is_of(error: Exception | None, wanted: type[Exception]) -> bool:
    """A kind that PyTorch raises nothing more special of is raised as it is."""
    return type(error) is wanted or (wanted is Exception and error is not None)


def warnings_of(function: Callable[[], Any]) -> int:
    """How often PyTorch warns of an output that does not fit."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        function()
    return sum("An output with one or more elements was resized" in str(each.message) for each in seen)


def strided(x: Tensor) -> Tensor:
    """The same values on the card, every other element of a larger tensor."""
    if x.dim() == 0 or x.numel() == 0:
        return x.to("spyre")
    return torch.stack([x, x], -1).to("spyre")[..., 1]


def transposed(x: Tensor) -> Tensor:
    """The same values on the card, the dimensions in the opposite order of memory."""
    order = list(reversed(range(x.dim())))
    return x.permute(order).contiguous().to("spyre").permute(order)


def expanded(x: Tensor) -> Tensor:
    """The first of a tensor's elements along its last dimension, again and again without memory for it."""
    return x[..., :1].to("spyre").expand(x.shape) if x.dim() and x.numel() else x.to("spyre")


def as_on_card(x: Tensor) -> Tensor:
    """A copy on the host with the strides that the tensor has on the card."""
    if not x.numel() or x.device.type == "cpu":
        return x.cpu()
    return torch.empty(span(x), dtype=x.dtype).as_strided(x.size(), x.stride()).copy_(x.cpu())


def forms_of(op: OpInfo) -> list[Callable]:
    """Ways to call an op besides the function."""
    others = [each for alias in op.aliases for each in (alias.op, alias.method_variant)]
    return [form for form in (op.get_method(), op.get_operator(), *others) if form is not None]


def inplace_forms_of(op: OpInfo) -> list[Callable]:
    others = [alias.inplace_variant for alias in op.aliases]
    return [form for form in (op.get_inplace(), op.get_inplace_operator(), *others) if form is not None]


class TestOps(TestCase):
    case: Case
    sample: SampleInput | None

    def samples(self, op: OpInfo, dtype: torch.dtype, requires_grad: bool = False) -> Iterator[Arguments]:
        """Arguments of some samples, on the host. Those that the card has no numbers for are left out."""
        found = 0
        torch.manual_seed(0)
        # Not op.sample_inputs: that looks through the stack for the test, which takes longer than many a test.
        for sample in suites().some(self.case.template, op.sample_inputs_func(op, "cpu", dtype, requires_grad)):
            self.sample, given = sample, arguments_of(sample)
            if all(fits_card(x) for x in tensors_of(given)):
                found += 1
                yield given
        if not found:
            pytest.skip("no sample has dtypes and values of the card")

    def samples_with_out(self, op: OpInfo, dtype: torch.dtype) -> Iterator[tuple[Arguments, Arguments, Any]]:
        """Arguments on the card and on the host, and the host's results, of samples whose results the card can hold."""
        for given in self.samples(op, dtype):
            arguments = self.on_card(given)
            host = to_host(arguments)
            plain = call(op.op, host)
            if tensors_of(plain) and all(x.dtype in CARD_DTYPES for x in tensors_of(plain)):
                yield arguments, host, plain

    def on_card(self, arguments: Arguments) -> Arguments:
        if not suites().stays_on_host(self.case):
            return on_card(arguments)
        return (on_card(arguments[:1])[0], *arguments[1:])

    def rearranged(self, arrange: Callable[[Tensor], Tensor], arguments: Arguments) -> Arguments:
        """On the card, with tensors that lie there as ``arrange`` makes them."""
        return map_tensors(lambda x: arrange(x.cpu()) if x.is_spyre else x, self.on_card(arguments))

    def expected(self, op: OpInfo, arguments: Arguments, function: Callable | None = None) -> Expected:
        """What the CPU gives for arguments with the card's values."""
        return self.expected_of(caller(function or op.op), arguments)

    def expected_of(self, function: Callable[[Arguments], Any], arguments: Arguments) -> Expected:
        roundings, narrow = suites().roundings_of(self.case), suites().is_narrow(self.case)
        return Expected(function, to_host(arguments), roundings, narrow)

    @over()
    def test_forward(self, device, dtype, op):
        """The op gives what the CPU gives, and its inputs are afterwards what they are there."""

        def compute(arguments: Arguments) -> Any:
            return [call(op.op, arguments), tensors_of(arguments)]

        for given in self.samples(op, dtype):
            arguments = self.on_card(given)
            self.expected_of(compute, arguments).check(compute(arguments))

    @over()
    def test_noncontiguous(self, device, dtype, op):
        """Views with gaps, and transposed ones."""
        for i, given in enumerate(self.samples(op, dtype)):
            arguments = self.rearranged((strided, transposed)[i % 2], given)
            if refused := raised(lambda a=arguments: call(op.op, map_tensors(as_on_card, a))):
                error = raised(lambda a=arguments: call(op.op, a))
                assert agree(error, refused), f"{error!r}, not {refused!r}"
                continue
            self.expected(op, arguments).check(call(op.op, arguments))

    @over([op for op in op_db if isinstance(op, BinaryUfuncInfo | UnaryUfuncInfo)])
    def test_expanded(self, device, dtype, op):
        """Inputs of stride 0; of two inputs, also one that is smaller than the other."""
        for given in self.samples(op, dtype):
            arguments = self.rearranged(expanded, given)
            self.expected(op, arguments).check(call(op.op, arguments))
        if isinstance(op, BinaryUfuncInfo):
            for left, right in (((5, 1), (1, 67)), ((3, 1, 2), (4, 1)), ((), (2, 3)), ((2, 65), ())):
                given = (lhs(op, left, dtype), (rhs(op, right, dtype),), {})
                arguments = self.on_card(given)
                self.expected(op, arguments).check(call(op.op, arguments))

    @over([op for op in op_db if forms_of(op)])
    def test_variants(self, device, dtype, op):
        """Method, operator and aliases give the very result of the function."""
        for given in self.samples(op, dtype):
            arguments = self.on_card(given)
            want = call(op.op, arguments)
            for form in forms_of(op):
                if refused := raised(lambda form=form, given=given: call(form, given)):
                    assert agree(raised(lambda form=form, a=arguments: call(form, a)), refused)
                    continue
                got = call(form, arguments)
                assert same_bits(tensors_of(got), tensors_of(want)), f"{form} gives something else"

    @over([op for op in op_db if inplace_forms_of(op)])
    def test_inplace(self, device, dtype, op):
        """The in-place forms write into their input and return it, or raise what the CPU raises."""
        for given in self.samples(op, dtype):
            for form in inplace_forms_of(op):
                host = copy.deepcopy(given)
                before = [y._version for y in tensors_of(host[0])]
                if refused := raised(lambda form=form, host=host: call(form, host)):
                    error = raised(lambda form=form, given=given: call(form, self.on_card(given)))
                    assert agree(error, refused), f"{form}: {error!r}, not {refused!r}"
                    continue
                arguments = self.on_card(given)
                want = self.expected(op, arguments, form)
                targets = tensors_of(arguments[0])
                got = call(form, arguments)
                want.check(targets if got is None else got)
                for x, y, version in zip(targets, tensors_of(host[0]), before, strict=True):
                    assert x._version or y._version == version, "autograd does not learn of the write"
                if got is not None:
                    assert got is arguments[0] or got.data_ptr() == arguments[0].data_ptr()

    @over([op for op in op_db if op.supports_out])
    def test_out(self, device, dtype, op):
        """``out=`` of the right shape, of none, with gaps, in another order, and of another shape, which warns."""
        for arguments, host, plain in self.samples_with_out(op, dtype):
            want = self.expected(op, arguments)
            for make in (torch.ones_like, empty, wider, other_strides, other_shape):
                on_host, out = out_like(plain, make), out_like(plain, lambda x, make=make: on_card_like(make(x)))
                if refused := raised(lambda: call_out(op, host, on_host)):  # noqa: B023
                    error = raised(lambda: call_out(op, arguments, out))  # noqa: B023
                    assert agree(error, refused), f"{make.__name__}: {error!r}, not {refused!r}"
                    continue
                messages = warnings_of(lambda: call_out(op, host, out_like(plain, make)))  # noqa: B023
                got: list[Any] = []
                seen = warnings_of(lambda: got.append(call_out(op, arguments, out)))  # noqa: B023
                assert seen or not messages, f"{make.__name__}: no warning of the resize"
                returned = tensors_of(got) or tensors_of(out)  # some return nothing
                assert all(x is y for x, y in zip(tensors_of(out), returned, strict=True)), "another tensor"
                want.check(tensors_of(out))
                if make in (torch.ones_like, wider, other_strides):
                    for x, y in zip(tensors_of(out), tensors_of(on_host), strict=True):
                        assert x.stride() == y.stride(), f"{make.__name__}: its strides are {x.stride()} now"

    @over([op for op in op_db if op.supports_out])
    def test_out_refused(self, device, dtype, op):
        """``out=`` of another dtype raises where it does on the CPU, on another device always."""
        for arguments, host, plain in self.samples_with_out(op, dtype):
            if raised(lambda: call_out(op, host, out_like(plain, torch.empty_like))):  # noqa: B023
                continue
            for kind in (torch.int32, torch.bool, torch.float16):

                def make(x: Tensor, kind: torch.dtype = kind) -> Tensor:
                    return torch.ones(x.shape, dtype=kind)

                refused = raised(lambda: call_out(op, host, out_like(plain, make)))  # noqa: B023
                error = raised(lambda: call_out(op, arguments, out_like(plain, lambda x: make(x).to("spyre"))))  # noqa: B023
                assert agree(error, refused), f"{kind}: {error!r}, not {refused!r}"
            error = raised(lambda: call_out(op, arguments, out_like(plain, torch.empty_like)))  # noqa: B023
            if any(x.numel() for x in tensors_of(plain)):
                assert isinstance(error, RuntimeError), f"out= on the CPU: {error!r}"

    @over()
    def test_strides(self, device, dtype, op):
        """Results lie in memory as the CPU's do."""
        for given in self.samples(op, dtype):
            for arrange in (lambda x: x.to("spyre"), transposed):
                arguments = self.rearranged(arrange, given)
                host = map_tensors(
                    lambda x: torch.empty_strided(x.size(), x.stride(), dtype=x.dtype).copy_(x), arguments
                )
                plain, got = call(op.op, to_host(host)), call(op.op, arguments)
                for g, p in zip(tensors_of(got), tensors_of(plain), strict=True):
                    if p.layout == torch.strided and p.numel() > 1:
                        steps = [(n, s, t) for n, s, t in zip(p.shape, p.stride(), g.stride(), strict=True) if n > 1]
                        assert all(s == t for _, s, t in steps), f"strides {g.stride()}, not {p.stride()}"

    @over([op for op in op_db if isinstance(op, BinaryUfuncInfo)])
    def test_promotion(self, device, dtype, op):
        """Two dtypes, a number, a tensor of no dimension: the result's dtype and value are the CPU's, or its error."""
        kinds = [torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64, torch.uint8, torch.bool]
        for other in kinds:
            for left, right in (
                (lhs(op, (3,), dtype), rhs(op, (3,), other)),
                (lhs(op, (3,), dtype), rhs(op, (), other)),
            ):
                for given in ((left, (right,), {}), (right, (left,), {})):
                    self._same_or_refused(op, dtype, given)
        for number in (2, 1.5, True):
            self._same_or_refused(op, dtype, (lhs(op, (3,), dtype), (number,), {}))

    def _same_or_refused(self, op: OpInfo, dtype: torch.dtype, given: Arguments) -> None:
        arguments = self.on_card(given)
        kinds = [x.dtype if isinstance(x, Tensor) else x for x in (given[0], *given[1])]
        if refused := raised(lambda: call(op.op, to_host(arguments))):
            error = raised(lambda: call(op.op, arguments))
            assert agree(error, refused), f"{kinds}: {error!r}, not {refused!r}"
            return
        try:
            self.expected(op, arguments).check(call(op.op, arguments))
        except AssertionError as error:
            raise AssertionError(f"{kinds}: {error}") from None

    @over()
    def test_views(self, device, dtype, op):
        """What aliases its input on the CPU aliases it on the card: writes show there."""
        views = 0  # some ops give them for some inputs
        for given in self.samples(op, dtype):
            if not isinstance(given[0], Tensor):
                continue
            arguments = self.on_card(given)
            host = to_host(arguments)
            results = [(p, c) for p, c in zip(*(tensors_of(call(op.op, a)) for a in (host, arguments)), strict=True)]
            for plain, card in results:
                if not shares(plain, host[0]):
                    assert not shares(card, arguments[0]) or not card.numel(), "a view, where the CPU copies"
                    continue
                views += 1
                assert card.size() == plain.size() and card.stride() == plain.stride()
                assert card.storage_offset() == plain.storage_offset()
                if plain.numel() and plain.dtype == card.dtype and not overlaps(plain):
                    values = torch.arange(plain.numel(), dtype=torch.float32).reshape(plain.shape).to(plain.dtype)
                    plain.copy_(values)
                    card.copy_(values.to("spyre"))
                    assert same_bits([arguments[0]], [host[0]]), "a write to the view does not show in its base"
        assert views, "none of the samples gives a view"

    @over([op for op in op_db if op.error_inputs_func])
    def test_errors(self, device, dtype, op):
        """Wrong inputs raise what they raise on the CPU."""
        faults = []
        for given, on_host in error_inputs(op, device):
            sample = given.sample_input
            if not tensors_of(arguments_of(sample)):
                continue
            error = raised(lambda: call(op.op, arguments_of(sample)))  # noqa: B023
            refused = on_host and raised(lambda: call(op.op, arguments_of(on_host.sample_input)))  # noqa: B023
            if refused is None and on_host is not None:
                continue  # an error of other devices
            wanted = type(refused) if refused else given.error_type
            if is_of(error, wanted) and str(error):
                continue
            if isinstance(error, IndexError) and "out of bounds" in str(error) and "out of bounds" in str(refused):
                continue  # of an index on the card, the stream knows no more than that
            faults.append(f"{sample.summary()}: {error!r}, not {wanted.__name__}: {refused or given.error_regex}")
        assert not faults, "\n".join(faults)

    @over([op for op in op_db if op.supports_autograd])
    def test_backward(self, device, dtype, op):
        """Gradients of all inputs."""
        for given in self.samples(op, dtype, requires_grad=True):
            arguments = self.on_card(given)
            leaves = [x.requires_grad for x in tensors_of(arguments)]
            if not any(leaves):
                continue

            def gradients(values: Arguments, leaves: list[bool] = leaves) -> list[Tensor]:
                values = map_tensors(lambda x: x.detach(), values)
                inputs = [x for x, wanted in zip(tensors_of(values), leaves, strict=True) if wanted]
                for x in inputs:
                    x.requires_grad_()
                results = tensors_of(self.sample.output_process_fn_grad(call(op.op, values)))
                results = [x for x in results if x.requires_grad]
                found = torch.autograd.grad(results, inputs, [seed_like(x) for x in results], allow_unused=True)
                return [x if x is not None else torch.zeros(0, device=inputs[0].device) for x in found]

            self.expected_of(gradients, arguments).check(gradients(arguments))


def lhs(op: BinaryUfuncInfo, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    from torch.testing import make_tensor

    torch.manual_seed(1)
    return make_tensor(shape, dtype=dtype, device="cpu", **fitting(op.lhs_make_tensor_kwargs, dtype))


def rhs(op: BinaryUfuncInfo, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    from torch.testing import make_tensor

    torch.manual_seed(2)
    return make_tensor(shape, dtype=dtype, device="cpu", **fitting(op.rhs_make_tensor_kwargs, dtype))


def fitting(kwargs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    limits = {"low": 0 if dtype in (torch.uint8, torch.bool) else -5, "high": 5}
    return limits | {key: value for key, value in kwargs.items() if value is not None}


def overlaps(x: Tensor) -> bool:
    """Whether two elements share memory."""
    places = torch.arange(x.storage_offset() + span(x)).as_strided(x.size(), x.stride(), x.storage_offset())
    return places.unique().numel() < x.numel()


def span(x: Tensor) -> int:
    """Elements of memory from a tensor's first to its last."""
    return 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0


def shares(x: Tensor, base: Tensor) -> bool:
    return x.layout == base.layout == torch.strided and x.untyped_storage()._cdata == base.untyped_storage()._cdata


def out_like(results: Any, make: Callable[[Tensor], Tensor]) -> Any:
    """Outputs made after results; None where there is no tensor to be one."""
    if isinstance(results, Tensor):
        return make(results)
    if isinstance(results, (tuple, list)) and results and all(isinstance(x, Tensor) for x in results):
        return tuple(make(x) for x in results)
    return None


def call_out(op: OpInfo, arguments: Arguments, out: Any) -> Any:
    return call(op.op, (arguments[0], arguments[1], arguments[2] | {"out": out}))


def on_card_like(x: Tensor) -> Tensor:
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="spyre").fill_(1)


def empty(x: Tensor) -> Tensor:
    return x.new_empty(0)


def other_shape(x: Tensor) -> Tensor:
    return x.new_ones((*x.shape, 2))


def other_strides(x: Tensor) -> Tensor:
    order = list(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


def wider(x: Tensor) -> Tensor:
    return x.new_ones((*x.shape, 2))[..., 0]


instantiate_device_type_tests(TestOps, globals(), only_for="spyre")
