"""A file as PyTorch's repository has them, for the runner to run; pytest does not look for files of this name."""

import os

import torch
from torch.testing._internal.common_device_type import (
    dtypes,
    instantiate_device_type_tests,
    onlyCUDA,
    onlyNativeDeviceTypes,
    ops,
)
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db, modules
from torch.testing._internal.common_utils import TestCase, parametrize, run_tests


class TestSmall(TestCase):
    @ops([op for op in op_db if op.name in ("add", "neg", "sin", "mul")])
    def test_forward(self, device, dtype, op):
        for sample in op.sample_inputs(device, dtype):
            others = [each.cpu() if isinstance(each, torch.Tensor) else each for each in sample.args]
            want = op(sample.input.cpu(), *others, **sample.kwargs)
            self.assertEqual(op(sample.input, *sample.args, **sample.kwargs).cpu(), want)

    @ops([op for op in op_db if op.name == "mul"], dtypes=(torch.float32,))
    def test_given(self, device, dtype, op):
        (sample,) = op.sample_inputs(device, dtype)
        self.assertEqual((sample.input.shape, sample.input.stride(), sample.args), ((2, 3), (1, 2), (3,)))
        self.assertEqual(op(sample.input, *sample.args).cpu(), torch.full((2, 3), 6.0))

    @dtypes(torch.float32, torch.float64, torch.int64)
    def test_dtypes(self, device, dtype):
        self.assertEqual(torch.ones(3, dtype=dtype, device=device).sum().item(), 3)

    @onlyCUDA
    def test_only_cuda(self, device):
        self.assertEqual(torch.device(device).type, "spyre")

    @onlyCUDA
    def test_only_cuda_unlisted(self, device):
        self.assertEqual(torch.device(device).type, "cuda")

    @onlyNativeDeviceTypes
    def test_native(self, device):
        self.assertEqual(torch.device(device).type, "spyre")

    @parametrize("n", [1, 2, 3])
    def test_is_one(self, device, n):
        self.assertEqual(n, 1)

    def test_ends_the_process(self, device):
        os._exit(-11)

    def test_left_out(self, device):
        raise AssertionError("it is not to run")

    @modules([info for info in module_db if info.name in ("nn.Linear", "nn.ReLU")])
    def test_module(self, device, dtype, module_info, training):
        given = module_info.module_inputs_func(
            module_info, device=device, dtype=dtype, requires_grad=False, training=training
        )
        self.assertTrue(given)


class TestPlain(TestCase):
    def test_host(self):
        self.assertEqual(torch.ones(1).item(), 1)

    def test_surprise(self):
        self.assertTrue(True)

    def test_other(self):
        raise AssertionError


instantiate_device_type_tests(TestSmall, globals())

if __name__ == "__main__":
    run_tests()
