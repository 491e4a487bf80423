"""The type stubs of _C name what the module has, and nothing else; the public names are documented."""

import ast
from pathlib import Path

import pytest

import torch_spyre
from torch_spyre import _C

TEXT = Path(torch_spyre.__file__).with_name("_C.pyi").read_text()
STUB = ast.parse(TEXT)
INTERNAL = next(number for number, line in enumerate(TEXT.splitlines(), 1) if line.startswith("# --- Internal"))
PUBLIC = [n for n in STUB.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.lineno < INTERNAL]


def test_stub_names_are_the_modules_names():
    declared = {node.name for node in STUB.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    declared |= {node.target.id for node in STUB.body if isinstance(node, ast.AnnAssign)}
    assert declared == {name for name in dir(_C) if not name.startswith("_")}


def test_layout_and_format_members_match():
    formats = next(n for n in STUB.body if isinstance(n, ast.ClassDef) and n.name == "DataFormats")
    declared = {a.targets[0].id: a.value.value for a in formats.body if isinstance(a, ast.Assign)}
    assert declared == {name: int(value) for name, value in _C.DataFormats.__members__.items()}


@pytest.mark.parametrize("node", PUBLIC, ids=lambda node: node.name)
def test_public_names_are_documented(node):
    assert ast.get_docstring(node)
    doc = getattr(_C, node.name).__doc__
    assert doc.partition("\n\n")[2] if isinstance(node, ast.FunctionDef) else doc, "help() shows no text"


def test_the_known_names_are_public():
    known = """SpyreTensorLayout DataFormats ElementArrangement get_spyre_tensor_layout set_spyre_tensor_layout
    get_device_dtype get_elem_in_stick empty_with_layout spyre_empty_with_layout as_strided_with_layout
    reinterpret_tensor_with_layout copy_tensor encode_constant JobPlan prepare_kernel launch_jobplan launch_kernel
    start_runtime free_runtime"""
    assert set(known.split()) <= {node.name for node in PUBLIC}
