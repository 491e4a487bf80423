"""Forms of access tiles, memory and ops that the whole programs do not have."""

from pathlib import Path

import numpy as np
import pytest
import torch

from torch_spyre import ktir

PROGRAMS = Path(__file__).with_name("programs")

COPY = """
func.func @copy(%x: index, %y: index) attributes {grid = [1]} {
  %c0 = arith.constant 0 : index
  %xs = ktdp.construct_memory_view %x, sizes: [8, 16], strides: [16, 1] {
    memory_space = #ktdp.memory_space<global>} : memref<8x16xTYPE>
  %ys = ktdp.construct_memory_view %y, sizes: [TO], strides: [STRIDE, 1] {
    memory_space = #ktdp.memory_space<global>} : memref<YTYPE>
  %from = ktdp.construct_access_tile %xs[%c0, %c0] {
    access_tile_set = SET, access_tile_order = ORDER} : memref<8x16xTYPE> -> !ktdp.access_tile<TILEindex>
  %to = ktdp.construct_access_tile %ys[%c0, %c0] {
    access_tile_set = TOSET} : memref<YTYPE> -> !ktdp.access_tile<TILEindex>
  %t = ktdp.load %from : !ktdp.access_tile<TILEindex> -> tensor<TILETYPE>
  ktdp.store %t, %to : tensor<TILETYPE>, !ktdp.access_tile<TILEindex>
  return
}
"""
BOX = "affine_set<(d0, d1) : (d0 >= 0, -d0 + 7 >= 0, d1 >= 0, -d1 + 15 >= 0)>"


def copy(of="f16", points=BOX, order="(d0, d1)", shape=(8, 16), target=BOX):
    text = COPY.replace("YTYPE", f"{shape[0]}x{shape[1]}xTYPE").replace("TOSET", target)
    text = text.replace("ORDER", f"affine_map<(d0, d1) -> {order}>").replace("TO", f"{shape[0]}, {shape[1]}")
    text = text.replace("STRIDE", str(shape[1])).replace("SET", points).replace("TILE", f"{shape[0]}x{shape[1]}x")
    return ktir.load(text.replace("TYPE", of))


def test_ops_and_ways_to_write_them():
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float16)
    result = ktir.load(PROGRAMS / "forms.mlir").run("f", x=x, y=np.zeros_like(x), n=4)["y"]
    rows = np.repeat(x.astype(np.float32).sum(1, keepdims=True), 64, 1) + np.arange(4)[:, None]
    rows[0] = rows[1]
    np.testing.assert_allclose(result, np.maximum(rows, 0), rtol=2**-11, atol=1e-4)


def test_what_a_polyhedron_lacks_is_zero():
    triangle = BOX.replace(")>", ", d0 - d1 >= 0)>")
    x = np.arange(1, 129, dtype=np.float16).reshape(8, 16)
    # d1 <= d0 bounds d1 by 7: the tile has 8 columns
    small = "affine_set<(d0, d1) : (d0 >= 0, -d0 + 7 >= 0, d1 >= 0, -d1 + 7 >= 0)>"
    result = copy(points=triangle, shape=(8, 8), target=small).run("copy", x=x, y=np.zeros((8, 8), np.float16))["y"]
    assert np.array_equal(result, np.tril(x[:, :8]))


def test_an_order_permutes_the_dimensions_of_the_tile():
    x = np.arange(128, dtype=np.float16).reshape(8, 16)
    turned = "affine_set<(d0, d1) : (d0 >= 0, -d0 + 15 >= 0, d1 >= 0, -d1 + 7 >= 0)>"
    module = copy(order="(d1, d0)", shape=(16, 8), target=turned)
    assert np.array_equal(module.run("copy", x=x, y=np.zeros((16, 8), np.float16))["y"], x.T)


@pytest.mark.parametrize("of, dtype", [("f32", torch.float32), ("bf16", torch.bfloat16), ("i32", torch.int32)])
def test_torch_in_and_out(of, dtype):
    x = (torch.randn(8, 16) * 100).to(dtype)
    result = copy(of).run("copy", x=x, y=torch.zeros_like(x))["y"]
    assert result.dtype == dtype and torch.equal(result, x)


def test_memory_at_addresses_is_given_back():
    text = copy().program.source.text
    text = text.replace("%x: index, %y: index", "").replace("  %c0", "  %x = arith.constant 100 : index\n  %c0", 1)
    text = text.replace("  %c0", "  %y = arith.constant 5000 : index\n  %c0", 1)
    x = np.arange(128, dtype=np.float16).reshape(8, 16)
    given = np.zeros_like(x)
    result = ktir.load(text).run("copy", memory={100: x, 5000: given})
    assert np.array_equal(result[5000], x) and not given.any()


def test_a_grid_counts_dimension_0_fastest():
    text = """
    func.func @f(%x: index) attributes {grid = [2, 3]} {
      %i, %j = ktdp.get_compute_tile_id : index, index
      %c1 = arith.constant 1 : index
      %c10 = arith.constant 10 : index
      %v = ktdp.construct_memory_view %x, sizes: [3, 2], strides: [2, 1] : memref<3x2xi32>
      %at = ktdp.construct_access_tile %v[%j, %i] {
        access_tile_set = affine_set<(d0, d1) : (d0 == 0, d1 == 0)>} : memref<3x2xi32> -> !ktdp.access_tile<1x1xindex>
      %tens = arith.muli %i, %c10 : index
      %place = arith.addi %tens, %j : index
      %number = arith.index_cast %place : index to i32
      %t = tensor.splat %number : tensor<1x1xi32>
      ktdp.store %t, %at : tensor<1x1xi32>, !ktdp.access_tile<1x1xindex>
      return
    }
    """
    result = ktir.load(text).run("f", x=np.zeros((3, 2), np.int32))["x"]
    assert result.tolist() == [[0, 10], [1, 11], [2, 12]]
