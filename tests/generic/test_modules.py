"""PyTorch's ModuleInfo database on the card: what modules compute, their gradients, and how they travel."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.common_device_type import PrivateUse1TestBase, instantiate_device_type_tests
from torch.testing._internal.common_modules import ModuleErrorEnum, ModuleInfo, ModuleInput, module_db, modules
from torch.testing._internal.common_utils import TestCase

from tests.generic.suites import Case, suites
from tests.generic.values import CARD_DTYPES, Expected, map_tensors, raised, same_bits, seed_like, tensors_of, to_host

PrivateUse1TestBase.setUpClass()  # so that the generated classes are named after the device from the first one on

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def over(infos: list[ModuleInfo] | None = None) -> Callable[[Callable], Callable]:
    """The test of this name, for the modules and dtypes that the configuration gives it."""

    def decorate(test: Callable) -> Callable:
        @wraps(test)
        def named(self: TestModules, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool) -> None:
            self.case = Case(test.__name__, module_info.name, str(dtype).removeprefix("torch."))
            test(self, device, dtype, module_info, training)

        name = test.__name__
        return modules(suites().select(name, infos or module_db), allowed_dtypes=suites().dtypes(name))(named)

    return decorate


def to_card(values: Any) -> Any:
    return map_tensors(lambda x: x.detach().to("spyre").requires_grad_(x.requires_grad), values)


def run(module: nn.Module, inputs: Inputs) -> Any:
    torch.manual_seed(0)
    return module(*inputs[0], **inputs[1])


def state(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def takes_device(info: ModuleInfo) -> bool:
    return "device" in inspect.signature(info.module_cls.__init__).parameters


class TestModules(TestCase):
    case: Case

    def made(
        self, info: ModuleInfo, dtype: torch.dtype, training: bool, requires_grad: bool = False
    ) -> Iterator[tuple[nn.Module, Inputs]]:
        """Some modules on the host, with inputs; their parameters and buffers hold numbers of the card."""
        torch.manual_seed(0)
        given = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=requires_grad, training=training)
        for each in suites().some(self.case.template, [x for x in given if x.forward_input is not None]):
            made = build(info, each, dtype).train(training)
            inputs = (each.forward_input.args, each.forward_input.kwargs)
            if info.is_lazy:
                run(made, inputs)
            yield made.to("spyre").to("cpu"), inputs

    def expected(self, module: nn.Module, compute: Callable[[nn.Module, Inputs], Any], inputs: Inputs) -> Expected:
        """What the CPU gives for a module and inputs with the card's values: in float64, both are."""
        host = to_host(inputs)

        def call(values: tuple[list[Tensor], Inputs]) -> Any:
            own = copy.deepcopy(module)
            if any(x.dtype == torch.float64 for x in values[0]) or any(
                x.dtype == torch.float64 for x in tensors_of(values[1])
            ):
                own = own.double()
            with torch.no_grad():
                for mine, value in zip(state(own), values[0], strict=True):
                    mine.copy_(value)
            return compute(own, values[1])

        values = ([x.detach() for x in state(module)], host)
        return Expected(call, values, suites().roundings_of(self.case), suites().is_narrow(self.case))

    @over()
    def test_module_forward(self, device, dtype, module_info, training):
        """The module gives what it gives on the CPU, and keeps the same statistics."""

        def compute(module: nn.Module, inputs: Inputs) -> Any:
            with torch.no_grad():
                return [run(module, inputs), list(module.buffers())]

        for module, inputs in self.made(module_info, dtype, training):
            given = to_card(inputs)
            want = self.expected(module, compute, given)
            want.check(compute(copy.deepcopy(module).to("spyre"), given))

    @over()
    def test_module_noncontiguous(self, device, dtype, module_info, training):
        """Inputs that are views with gaps."""

        def gaps(x: Tensor) -> Tensor:
            return torch.stack([x, x], -1).to("spyre")[..., 1] if x.numel() else x.to("spyre")

        def compute(module: nn.Module, inputs: Inputs) -> Any:
            with torch.no_grad():
                return run(module, inputs)

        for module, inputs in self.made(module_info, dtype, training):
            given = map_tensors(gaps, inputs)
            self.expected(module, compute, given).check(compute(copy.deepcopy(module).to("spyre"), given))

    @over()
    def test_module_backward(self, device, dtype, module_info, training):
        """Gradients of inputs and parameters."""
        for module, inputs in self.made(module_info, dtype, training, requires_grad=True):
            wanted = [x.requires_grad for x in tensors_of(inputs)]

            def compute(module: nn.Module, inputs: Inputs, wanted: list[bool] = wanted) -> list[Tensor]:
                inputs = map_tensors(lambda x: x.detach(), inputs)
                leaves = [x.requires_grad_() for x, is_leaf in zip(tensors_of(inputs), wanted, strict=True) if is_leaf]
                leaves += [x for x in module.parameters() if x.requires_grad]
                results = [x for x in tensors_of(run(module, inputs)) if x.requires_grad]
                if not results:
                    return []
                found = torch.autograd.grad(results, leaves, [seed_like(x) for x in results], allow_unused=True)
                return [x if x is not None else torch.zeros(0, device=results[0].device) for x in found]

            given = to_card(inputs)
            want = self.expected(module, compute, given)
            want.check(compute(copy.deepcopy(module).to("spyre"), given))

    @over()
    def test_module_to(self, device, dtype, module_info, training):
        """``.to`` carries all of a module there and back, in place and with the same values."""
        for module, _ in self.made(module_info, dtype, training):
            there = copy.deepcopy(module)
            before = list(there.parameters())
            assert there.to(device) is there
            assert all(x.device.type == "spyre" for x in state(there))
            assert all(x is y for x, y in zip(there.parameters(), before, strict=True)), "parameters are replaced"
            assert [x.requires_grad for x in state(there)] == [x.requires_grad for x in state(module)]
            assert same_bits(state(there), state(module))
            assert same_bits(state(there.to("cpu")), state(module))

    @over([info for info in module_db if takes_device(info)])
    def test_module_made_there(self, device, dtype, module_info, training):
        """``device=`` makes parameters and buffers on the card."""
        given = module_info.module_inputs_func(
            module_info, device="cpu", dtype=dtype, requires_grad=False, training=training
        )
        for each in suites().some(self.case.template, given):
            module = build(module_info, each, dtype, device=device)
            assert all(x.device.type == "spyre" for x in state(module))
            if not module_info.is_lazy:
                torch.manual_seed(0)
                host = build(module_info, each, dtype, device="cpu")
                torch.manual_seed(0)
                card = build(module_info, each, dtype, device=device)
                assert same_bits(state(card), state(host.to(device))), "other initial values than the CPU's"

    @over()
    def test_module_state_dict(self, device, dtype, module_info, training):
        """A state travels between devices and through a file."""
        for module, _ in self.made(module_info, dtype, training):
            card = copy.deepcopy(module).to(device)
            other = copy.deepcopy(card)
            with torch.no_grad():
                for x in state(other):
                    x.zero_()
            other.load_state_dict(module.state_dict())
            assert same_bits(list(other.state_dict().values()), list(module.state_dict().values()))
            file = io.BytesIO()
            torch.save(card.state_dict(), file)
            for place in ("spyre", "cpu"):
                file.seek(0)
                loaded = torch.load(file, map_location=place)
                assert all(x.device.type == place for x in tensors_of(loaded))
                assert same_bits(tensors_of(loaded), tensors_of(module.state_dict()))
                fresh = copy.deepcopy(module)
                fresh.load_state_dict(loaded)
                assert same_bits(state(fresh), state(module))

    @over()
    def test_module_pickle(self, device, dtype, module_info, training):
        """A pickled or copied module computes the same."""
        for module, inputs in self.made(module_info, dtype, training):
            card, given = module.to(device), to_card(inputs)
            copies = [pickle.loads(pickle.dumps(card)), copy.deepcopy(card)]
            with torch.no_grad():
                want = tensors_of(run(copy.deepcopy(card), given))
                for other in copies:
                    assert all(x.device.type == "spyre" for x in state(other))
                    assert same_bits(tensors_of(run(other, given)), want)

    @over([info for info in module_db if "inplace" in inspect.signature(info.module_cls.__init__).parameters])
    def test_module_inplace(self, device, dtype, module_info, training):
        """``inplace=True`` writes the result into the input."""
        given = module_info.module_inputs_func(
            module_info, device="cpu", dtype=dtype, requires_grad=False, training=training
        )
        for each in suites().some(self.case.template, given):
            inputs = to_card((each.forward_input.args, each.forward_input.kwargs))
            want = run(build(module_info, each, dtype).to(device), inputs)
            inside = run(build(module_info, each, dtype, inplace=True).to(device), inputs)
            assert inside is inputs[0][0]
            assert same_bits([inside], [want])

    @over([info for info in module_db if info.module_error_inputs_func])
    def test_module_errors(self, device, dtype, module_info, training):
        """Wrong arguments and inputs raise what they raise on the CPU."""
        given = module_info.module_error_inputs_func(
            module_info, device="cpu", dtype=dtype, requires_grad=False, training=training
        )
        for each in given:
            wrong = each.module_error_input
            if each.error_on == ModuleErrorEnum.CONSTRUCTION_ERROR:
                with pytest.raises(each.error_type, match=each.error_regex):
                    build(module_info, wrong, dtype, **({"device": device} if takes_device(module_info) else {}))
                continue
            module, inputs = build(module_info, wrong, dtype).train(training), wrong.forward_input
            if any(x.dtype not in CARD_DTYPES for x in tensors_of((inputs.args, inputs.kwargs))):
                continue
            want = raised(lambda: module(*inputs.args, **inputs.kwargs))  # noqa: B023
            there, args, kwargs = copy.deepcopy(module).to(device), to_card(inputs.args), to_card(inputs.kwargs)
            error = raised(lambda: there(*args, **kwargs))  # noqa: B023
            assert type(error) is type(want) and (error is None or str(error)), f"{error!r}, not {want!r}"


def build(info: ModuleInfo, given: ModuleInput, dtype: torch.dtype, **more: Any) -> nn.Module:
    kwargs = {**given.constructor_input.kwargs, **more}
    if "dtype" in inspect.signature(info.module_cls.__init__).parameters:
        kwargs["dtype"] = dtype
    module = info.module_cls(*given.constructor_input.args, **kwargs)
    return module if "dtype" in kwargs or info.is_lazy else module.to(dtype)


instantiate_device_type_tests(TestModules, globals(), only_for="spyre")
