"""load_model_to_spyre: one tensor at a time, each in the layout that the compiled model wants."""

import json
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from torch_spyre import model_utils
from torch_spyre._inductor import pipeline
from torch_spyre._inductor.layout.insert_restickify import insert_restickify
from torch_spyre.model_utils import load_model_to_spyre, wanted_layout

safetensors = pytest.importorskip("safetensors.torch")


class Small(nn.Module):
    """A convolution, a tied table, a constant."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 96, 4, stride=4)
        self.table = nn.Embedding(50, 96)
        self.mix = nn.Linear(96, 200)
        self.down = nn.Linear(200, 96, bias=False)
        self.head = nn.Linear(96, 50, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("scale", torch.tensor([0.5]), persistent=False)

    def forward(self, image, ids):
        x = self.patches(image).flatten(2).mT + self.table(ids)
        return self.head(self.down(torch.relu(self.mix(x))) * self.scale.to(x.dtype))


def image_and_ids():
    generator = torch.Generator().manual_seed(2)
    return torch.randn(2, 3, 16, 16, generator=generator), torch.randint(0, 50, (2, 16), generator=generator)


@contextmanager
def moved_weights(monkeypatch, model):
    """Names of the matrices that kernels compiled inside restickify before they use them."""
    moved = []
    weights = {tuple(p.shape): name for name, p in model.named_parameters() if p.dim() > 1}

    def watched(plan):
        insert_restickify(plan)
        for op in plan.kernel.ops:
            source = plan.kernel.buffers.get(getattr(op.ins[0], "buffer", "")) if op.name == "restickify" else None
            if source is not None and source.kind == "input" and tuple(source.size) in weights:
                moved.append(weights[tuple(source.size)])

    with monkeypatch.context() as patched, pipeline.replaced("insert_restickify", watched):
        patched.setenv("SPYRE_KERNEL_CACHE", "0")
        torch._dynamo.reset()
        yield moved


def compiled(model):
    image, ids = image_and_ids()
    with torch.no_grad(), torch.spyre.fallback("error"):
        return torch.compile(model, fullgraph=True)(image.to("spyre", torch.float16), ids.to("spyre"))


def test_compiled_forward_moves_no_weight(monkeypatch):
    with torch.device("meta"):
        plain = Small().half()
    plain.to_empty(device="spyre").load_state_dict(Small().state_dict())
    plain.scale = Small().scale.to("spyre")
    with moved_weights(monkeypatch, plain) as moved:
        compiled(plain)
    assert moved == ["patches.weight"]  # what loading and moving are there to avoid
    for loaded in (load_model_to_spyre(Small(), dtype=torch.float16), Small().to("spyre", torch.float16)):
        with moved_weights(monkeypatch, loaded) as moved:
            compiled(loaded)
        assert moved == []


def test_values_ties_and_constants(tmp_path):
    model = Small().eval()
    file = tmp_path / "model.safetensors"
    safetensors.save_model(model, str(file))
    with torch.device("meta"):
        loaded = Small()
    loaded.scale = model.scale
    parameters = dict(loaded.named_parameters())
    loaded = load_model_to_spyre(loaded, file, dtype=torch.float16)
    assert dict(loaded.named_parameters()) == parameters and loaded.head.weight is loaded.table.weight
    assert loaded.scale.dtype == torch.float32 and loaded.scale.device.type == "spyre"
    for name, value in model.state_dict().items():
        got = loaded.state_dict()[name]
        assert got.device.type == "spyre"
        assert torch.equal(got.cpu(), value.to("spyre", torch.float16).cpu()), name
    plain = Small().to("spyre", torch.float16)
    plain.load_state_dict(model.state_dict())
    assert torch.equal(compiled(loaded).cpu(), compiled(plain).cpu())


def test_weights_lie_along_their_outputs():
    """As the matrix unit takes them; a tied table keeps its rows."""
    head, table = nn.Linear(4096, 128256, bias=False, device="meta"), nn.Embedding(128256, 4096, device="meta")
    shape = (128256, 4096)
    assert wanted_layout(shape, torch.float16, [(head, "weight")]).device_size == [2004, 4096, 64]
    assert wanted_layout(shape, torch.float16, [(head, "weight"), (table, "weight")]) is None
    assert wanted_layout((10,), torch.float16, [(head, "bias")]) is None


class Experts(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.matrices = nn.Parameter(torch.randn(shape))

    def forward(self, x):
        return x @ self.matrices.transpose(1, 2)


def test_matrices_of_experts_lie_outputs_next_to_the_sticks():
    torch.manual_seed(0)
    experts, plain = Experts(6, 80, 100), Experts(6, 80, 100)
    plain.load_state_dict(experts.state_dict())
    x = torch.randn(6, 40, 100).half()
    experts.to("spyre", torch.float16)
    assert experts.matrices.device_tensor_layout().device_size == [2, 6, 80, 64]
    plain.matrices = nn.Parameter(plain.matrices.detach().half().to("spyre"))
    assert plain.matrices.device_tensor_layout() != experts.matrices.device_tensor_layout()
    assert torch.equal(experts.matrices.cpu(), plain.matrices.cpu())
    results = [torch.compile(each)(x.to("spyre")).cpu() for each in (experts, plain)]
    assert torch.equal(*results)


def test_what_is_one_matrix_lies_as_any_tensor():
    """Positions are added to what lies so; a transposed convolution goes through its weight in its own way."""
    assert wanted_layout((1, 197, 768), torch.float16, [(Experts(1, 1, 1), "matrices")]) is None
    assert wanted_layout((64, 128, 3), torch.float16, [(nn.ConvTranspose1d(64, 128, 3), "weight")]) is None


@pytest.mark.parametrize("move", [load_model_to_spyre, lambda module: module.to("spyre")])
def test_of_buffers_only_weights_of_linear_layers_lie_along_their_outputs(move):
    class Quantized(nn.Module):
        def __init__(self):
            super().__init__()
            self.in_features, self.out_features = 96, 200
            self.register_buffer("weight", torch.randint(-128, 128, (200, 96), dtype=torch.int8))
            self.register_buffer("scales", torch.ones(200, dtype=torch.float16))
            self.register_buffer("positions", torch.ones(3, 200, 96, dtype=torch.float16))

    module = Quantized()
    values = {name: value.clone() for name, value in module.named_buffers()}
    move(module)
    assert module.weight.device_tensor_layout().device_size == [2, 96, 128]
    for name in ("scales", "positions"):
        assert getattr(module, name).device_tensor_layout() == values[name].to("spyre").device_tensor_layout()
    assert all(torch.equal(value.cpu(), values[name]) for name, value in module.named_buffers())


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_modules_of_numbers_that_the_card_has_not(dtype):
    """On the CPU they are what they are, and they come to the card as numbers that it has."""
    for module in (nn.Linear(8, 8), Experts(2, 8, 8)):
        module.to(dtype)
        values = [each.detach().clone() for each in module.parameters()]
        module.to(dtype)
        assert all(torch.equal(a, b) for a, b in zip(module.parameters(), values, strict=True))
        with pytest.raises(TypeError, match=f"does not support dtype {dtype}"):
            module.to("spyre")
        if dtype.is_floating_point:
            module.to("spyre", torch.float16)
            assert {each.device.type for each in module.parameters()} == {"spyre"}


@pytest.mark.parametrize("move", [lambda m: m.to("spyre"), lambda m: m.to("spyre", torch.float16), lambda m: m.spyre()])
def test_modules_that_move_have_them_so(move):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.table = nn.Linear(96, 200), nn.Embedding(300, 96)
            self.head = nn.Linear(96, 300, bias=False)
            self.head.weight = self.table.weight

    torch.manual_seed(0)
    model = Tied()
    values = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    move(model)
    assert dict(model.named_parameters()) == parameters and model.head.weight is model.table.weight
    dtype = model.inner.weight.dtype
    assert model.inner.weight.device_tensor_layout() == wanted_layout((200, 96), dtype, [(model.inner, "weight")])
    assert model.table.weight.device_tensor_layout() == values["table.weight"].to("spyre", dtype).device_tensor_layout()
    for name, value in values.items():
        assert torch.equal(model.state_dict()[name].cpu(), value.to("spyre", dtype).cpu()), name
    x = torch.randn(5, 96).to("spyre", dtype)
    laid_out = model.inner(x)
    weight, bias = (values[f"inner.{name}"].to("spyre", dtype) for name in ("weight", "bias"))
    assert torch.equal(laid_out.cpu(), nn.functional.linear(x, weight, bias).cpu())


def test_timing_needs_no_values_and_the_layout_pays(python):
    """The head of Llama 3.1 on 512 rows: along its inputs it would be turned on every call."""
    done = python(
        """
        import torch
        from torch_spyre.model_utils import load_model_to_spyre
        def timed(head):
            x = torch.empty(512, 4096, dtype=torch.float16, device="spyre")
            start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
            with torch.no_grad():
                start.record(); head(x); end.record()
            torch.spyre.synchronize()
            return start.elapsed_time(end)
        make = lambda: torch.nn.Linear(4096, 128256, bias=False, device="meta", dtype=torch.float16)
        print(timed(make().to_empty(device="spyre")) / timed(load_model_to_spyre(make())))
        """,
        SPYRE_CARD="timing",
    )
    assert float(done.stdout) > 1.3, done.stderr  # modelled time: the same on every machine


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="no values .* no weights were given"):
        load_model_to_spyre(nn.Linear(2, 3, device="meta"))
    with pytest.raises(FileNotFoundError, match="has no config.json"):
        load_model_to_spyre(tmp_path)
    with pytest.raises(FileNotFoundError, match="no safetensors"):
        load_model_to_spyre(nn.Linear(2, 3), tmp_path)
    file = tmp_path / "model.safetensors"
    for weights, message in (
        ({"weight": torch.zeros(3, 2)}, "no weights for bias"),
        ({"weight": torch.zeros(2, 2)}, r"weight in .* is \[2, 2\], not \[3, 2\]"),
        ({"width": torch.zeros(2)}, "has width, which Linear has not"),
    ):
        safetensors.save_file(weights, str(file))
        with pytest.raises(ValueError, match=message):
            load_model_to_spyre(nn.Linear(2, 3), tmp_path)
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ValueError, match="damaged or not whole"):
        load_model_to_spyre(nn.Linear(2, 3), tmp_path)
    (tmp_path / model_utils.INDEX).write_text(json.dumps({"weight_map": {"weight": "model-1.safetensors"}}))
    with pytest.raises(FileNotFoundError, match="lacks model-1.safetensors"):
        load_model_to_spyre(nn.Linear(2, 3), tmp_path)


def test_host_holds_one_tensor(python, tmp_path):
    """Of sixteen tensors of 32 MiB in a file never more than a few; in timing mode the card itself keeps none."""
    safetensors.save_file(
        {f"{i}.weight": torch.zeros(4096, 4096, dtype=torch.float16) for i in range(16)}, tmp_path / "m"
    )
    done = python(
        f"""
        import resource, torch
        from torch_spyre.model_utils import load_model_to_spyre
        layers = [torch.nn.Linear(4096, 4096, bias=False, device="meta", dtype=torch.float16) for _ in range(16)]
        torch.zeros(1, device="spyre")
        import safetensors
        def anonymous():
            return int(next(l for l in open("/proc/self/status") if l.startswith("RssAnon")).split()[1]) // 1024
        before, peak, place = anonymous(), [], load_model_to_spyre.__globals__["_place"]
        def watched(*args):
            place(*args)
            peak.append(anonymous())
        load_model_to_spyre.__globals__["_place"] = watched
        load_model_to_spyre(torch.nn.Sequential(*layers), {str(tmp_path / "m")!r})
        print(len(peak), max(peak) - before)
        """,
        SPYRE_CARD="timing",
    )
    count, grown = map(int, done.stdout.split())
    assert count == 16 and grown < 4 * 32, done.stderr


@pytest.mark.slow
def test_weights_exist_once(python, tmp_path):
    """Whatever the process holds at its peak, mapped pages of the file included: the card's bytes and a little more."""
    count, size = 48, 4096 * 4096 * 2
    weights = {f"{i}.weight": torch.ones(4096, 4096, dtype=torch.bfloat16) for i in range(count)}
    safetensors.save_file(weights, tmp_path / "m")
    done = python(
        f"""
        import torch
        from pathlib import Path
        from torch_spyre.model_utils import load_model_to_spyre
        def status(field):
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
        layers = [torch.nn.Linear(4096, 4096, bias=False, device="meta") for _ in range({count})]
        torch.zeros(1, device="spyre")
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        load_model_to_spyre(torch.nn.Sequential(*layers), {str(tmp_path / "m")!r}, dtype=torch.float16)
        print(status("VmRSS") - before, status("VmHWM") - before)
        """,
    )
    held, peak = map(int, done.stdout.split())
    assert held >= count * size, "the card has them"
    assert peak <= count * size + 2**30, done.stderr


@pytest.mark.filterwarnings("error::UserWarning")
def test_names_of_another_time_are_translated(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    model = transformers.BertModel(config)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = safetensors.load_file(file)
    for kind in ("weight", "bias"):
        weights[f"embeddings.LayerNorm.{'gamma' if kind == 'weight' else 'beta'}"] = weights.pop(
            f"embeddings.LayerNorm.{kind}"
        )
    safetensors.save_file(weights, str(file), metadata={"format": "pt"})
    loaded = load_model_to_spyre(tmp_path)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name].cpu(), value.to("spyre").cpu()), name


def test_weights_of_another_form_are_said_to_take_memory(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=2,
        vocab_size=64,
    )
    model = transformers.MixtralForCausalLM(config).half()
    model.save_pretrained(tmp_path)  # with a matrix for each expert
    with pytest.warns(UserWarning, match="has its weights in another form than MixtralForCausalLM"):
        loaded = load_model_to_spyre(tmp_path)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name].cpu(), value.to("spyre").cpu()), name


@pytest.mark.slow
@pytest.mark.parametrize("key", ["llama", "gpt2", "granite_hybrid"])
def test_hugging_face_directory(key, tmp_path):
    pytest.importorskip("transformers")
    from tests.models.architectures import load

    architecture = load(key)
    model = architecture.build("tiny", torch.float16)
    model.save_pretrained(tmp_path)
    loaded = load_model_to_spyre(tmp_path)
    assert {p.device.type for p in [*loaded.parameters(), *loaded.buffers()]} == {"spyre"}
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name].cpu(), value.to("spyre").cpu()), name
    ids = architecture.inputs(model.config, 9)["input_ids"].to("spyre")
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits.cpu(), model.to("spyre")(ids).logits.cpu())


@pytest.mark.parametrize("shape", [(12, 1, 1), (1, 12, 1), (12, 3, 1), (12, 1, 3), (1, 1, 12)])
def test_scales_of_three_dimensions_are_no_experts(shape):
    module = torch.nn.Module()
    module.scale = torch.nn.Parameter(torch.randn(shape))
    expected = module.scale.detach().clone()
    assert torch.equal(module.to("spyre").scale.cpu(), expected)
