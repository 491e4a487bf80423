"""The rooms of the package in layers: a room imports from rooms below it, and from nothing above.

Imports inside functions and for types count too. There is no exception; one would be listed here with its reason.
"""

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_spyre.caching import version

ROOT = Path(__file__).parents[1]

# From the bottom to the top. A room has the files whose paths begin with one of these; the longest beginning counts.
LAYERS = {
    "base": (
        "constants.py",
        "kernel_types.py",
        "units.py",
        "progress.py",
        "directories.py",
        "logging.py",
        "compile_records.py",
        "compile_time.py",
        "failures.py",
        "signals.py",
    ),
    "card": ("card/",),
    "smi": ("smi/",),
    "settings": ("_inductor/config.py", "_inductor/errors.py", "_inductor/verification.py"),
    "ops": ("ops/",),
    "ir": ("ir/",),
    "device": ("device/", "streams.py"),
    "backend": ("backend/",),
    "caching": ("caching/",),
    "loop_ir": ("_inductor/loop_ir/",),
    "lowerings": ("_inductor/lowerings/",),
    "layout": ("_inductor/layout/",),
    "planning": ("_inductor/planning/",),
    "passes": ("_inductor/passes/",),
    "pipeline": ("_inductor/conditions.py", "_inductor/pipeline.py", "_inductor/compiler.py"),
    "dimension names": ("_inductor/propagate_named_dims.py",),
    "fx": ("_inductor/fx/",),
    "hooks": ("_inductor/",),
    "execution": ("execution/",),
    "eager": ("eager/",),
    "compiler": ("compiler.py", "logging_config.py"),
    "distributed": ("distributed/",),
    "tools": (
        "timing/",
        "profiler/",
        "models/",
        "compare/",
        "testing/",
        "model_utils.py",
        "explain/",
        "provenance.py",
        "provenance_viewer.py",
        "ktir/",
    ),
    "diagnostics": ("diagnostics/",),
    "serving": ("serving/",),
    "package": ("__init__.py", "cli.py", "device/extensions.py", "device/module_moves.py"),  # these patch PyTorch
}


def sources() -> list[str]:
    return sorted(str(path.relative_to(ROOT / "torch_spyre")) for path in (ROOT / "torch_spyre").rglob("*.py"))


def room_of(file: str) -> str:
    found = [(len(start), room) for room, starts in LAYERS.items() for start in starts if file.startswith(start)]
    assert found, f"torch_spyre/{file} is in no room of the layer table"
    return max(found)[1]


def file_of(module: str) -> str | None:
    """The file of a module of the package, relative to it."""
    path = Path(*module.split(".")[1:])
    for each in (path.with_suffix(".py") if path.name else path, path / "__init__.py"):
        if (ROOT / "torch_spyre" / each).is_file():
            return str(each)
    return None


def imports(file: str) -> Iterator[str]:
    """The files of the package that a file imports, at its top, in functions, or for its types."""
    package = ["torch_spyre", *Path(file).parent.parts]
    for node in ast.walk(ast.parse((ROOT / "torch_spyre" / file).read_text())):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            modules = [f"{start}.{alias.name}" if file_of(f"{start}.{alias.name}") else start for alias in node.names]
        else:
            continue
        for module in modules:
            if module.startswith("torch_spyre.") and (found := file_of(module)):
                yield found


@pytest.mark.parametrize("file", sources())
def test_nothing_is_imported_from_above(file):
    order = list(LAYERS)
    for imported in imports(file):
        assert order.index(room_of(imported)) <= order.index(room_of(file)), f"{file} imports {imported} from above"


# Rooms that no compiled kernel follows from.
OUTSIDE = (
    "compare",
    "device",
    "diagnostics",
    "distributed",
    "explain",
    "ktir",
    "models",
    "profiler",
    "serving",
    "smi",
    "testing",
    "timing",
)


def rooms() -> list[str]:
    package = ROOT / "torch_spyre"
    return sorted(path.name for path in package.iterdir() if path.is_dir() and list(path.rglob("*.py")))


def test_every_room_is_in_the_key_or_named():
    assert set(rooms()) == {*version.ROOMS, *OUTSIDE}


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A copy of the package's Python files."""
    copy = tmp_path_factory.mktemp("copy") / "torch_spyre"
    shutil.copytree(ROOT / "torch_spyre", copy, ignore=shutil.ignore_patterns("csrc", "*.so", "__pycache__"))
    return copy


def folders() -> list[str]:
    """Every folder inside the rooms that shape a kernel."""
    found = (path for room in version.ROOMS for path in (ROOT / "torch_spyre" / room).rglob("*.py"))
    return sorted({str(path.parent.relative_to(ROOT / "torch_spyre")) for path in found})


@pytest.mark.parametrize("folder", folders())
def test_a_new_file_changes_the_key_of_the_caches(folder, package):
    version._own_version.cache_clear()
    before = version.compiler_version(package)
    new = package / folder / "one_file_more.py"
    new.write_text("")
    version._own_version.cache_clear()
    assert version.compiler_version(package) != before
    new.unlink()
    version._own_version.cache_clear()
    assert version.compiler_version(package) == before
