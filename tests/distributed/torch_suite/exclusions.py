"""What of PyTorch's tests is not for cards, or has to be read with other words, and why."""

# In the source of the tests, after ``cuda`` has become ``spyre``.
REPLACEMENTS: dict[str, str] = {
    "torch.double": "torch.float",  # the card has no float64
    "(torch.long, -1e15, False)": "(torch.long, -1e9, False)",  # the card keeps int64 in 32 bits
    "model.fc1.double()": "model.fc1.half()",
    '"double, float"': '"c10::Half, float"',
    # A ResNet-50, of which a convolution would unfold into 24 GiB, and whose training takes minutes.
    "if HAS_TORCHVISION:\n                resnet_model": "if False:\n                resnet_model",
    'str(x.t.device) == "cpu"': 'str(x.t.device).startswith("spyre")',  # where tensors are that name no device
    # A time of the day is exchanged, which needs float64: a time of the hour will do.
    "torch.DoubleTensor(1).fill_(0.0)": "torch.zeros(1)",
    "expected_time.fill_(time.time() + WAIT_TIME)": "expected_time.fill_(time.time() % 3600 + WAIT_TIME)",
    "float(time.time())": "float(time.time() % 3600)",
    # What PyTorch calls all backends that are not its own.
    '"backend_name"), dist.get_backend(group_id)': '"backend_name"), "custom"',
    # A branch for each backend in the middle of a test, where that of NCCL is for devices.
    'if BACKEND == "nccl":\n                rank_to_GPU': 'if BACKEND == "spyreccl":\n                rank_to_GPU',
}

# Tests that are not run, by the reason.
EXCLUDED: dict[str, tuple[str, ...]] = {
    "an option of NCCL's": ("test_nccl_high_priority_stream",),
    "the card has no sparse tensors": ("test_sparse_all_reduce_sum", "test_sparse_all_reduce_sum_cuda"),
    "asks that a storage has exactly the bytes of its elements; those of cards are padded to sticks": (
        "test_ddp_native_mixed_precision_no_grad_as_bucket_view_no_set_grad_none",
        "test_ddp_native_mixed_precision_grad_as_bucket_view_no_set_grad_none",
        "test_ddp_native_mixed_precision_grad_as_bucket_view_set_grad_to_none",
        "test_ddp_native_mixed_precision_no_grad_as_bucket_view_set_grad_to_none",
    ),
    "takes for granted that a clock runs between two events with no work in between; that of a card does not": (
        "test_ddp_logging_data_gpu",
    ),
}
