"""The type stubs of _C name what the module has, and nothing else."""

import ast
from pathlib import Path

import torch_spyre
from torch_spyre import _C


def test_stub_names_are_the_modules_names():
    stub = ast.parse(Path(torch_spyre.__file__).with_name("_C.pyi").read_text())
    declared = {node.name for node in stub.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    declared |= {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)}
    assert declared == {name for name in dir(_C) if not name.startswith("_")}


def test_layout_and_format_members_match():
    stub = ast.parse(Path(torch_spyre.__file__).with_name("_C.pyi").read_text())
    formats = next(n for n in stub.body if isinstance(n, ast.ClassDef) and n.name == "DataFormats")
    declared = {a.targets[0].id: a.value.value for a in formats.body if isinstance(a, ast.Assign)}
    assert declared == {name: int(value) for name, value in _C.DataFormats.__members__.items()}
