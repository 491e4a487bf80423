"""What goes wrong while a program runs, with the place of the op."""

from pathlib import Path

import numpy as np
import pytest

from torch_spyre import ktir

ADD = (Path(__file__).with_name("programs") / "vector_add.mlir").read_text()


def run(text, **more):
    x = np.ones(4096, np.float16)
    return ktir.load(text).run("add", **({"x": x, "y": x, "z": np.zeros_like(x)} | more))


def test_two_cores_that_write_the_same_element_are_a_race():
    text = ADD.replace("%za = ktdp.construct_access_tile %zs[%begin]", "%za = ktdp.construct_access_tile %zs[%size]")
    with pytest.raises(
        RuntimeError, match=r"32:5: ktdp.store: core \d+ writes what core \d+ writes at 32:5: ktdp.store"
    ):
        run(text)


def test_a_core_that_reads_what_another_writes_is_a_race():
    text = ADD.replace(
        "arith.muli %id, %size : index", "arith.muli %id, %size : index\n    %c1 = arith.constant 1 : index"
    )
    text = text.replace("%xs[%begin]", "%xs[%next]").replace(
        "%c1 = arith.constant 1 : index", "%c1 = arith.constant 1 : index\n    %next = arith.addi %begin, %c1 : index"
    )
    text = text.replace("construct_memory_view %x,", "construct_memory_view %z,")
    with pytest.raises(RuntimeError, match="reads what core|writes what core"):
        run(text)


def test_neighbours_that_share_no_element_are_no_race():
    assert (run(ADD)["z"] == 2).all()


def test_a_tile_that_does_not_fit_the_scratchpad():
    large = (
        ADD.replace("4096", "4194304").replace("4095", "4194303").replace("127", "2097151").replace("128", "2097152")
    )
    x = np.ones(4194304, np.float16)
    with pytest.raises(
        ValueError, match=r"28:10: ktdp.load: a tile of the shape \[2097152\] and type f16 does not fit"
    ):
        run(large, x=x, y=x, z=x)


def test_a_view_beyond_its_array():
    short = np.ones(4000, np.float16)
    with pytest.raises(ValueError, match="28:10: ktdp.load: a load reaches bytes 7936 to 8192 of x, which has 8000"):
        run(ADD, x=short)


def test_a_base_that_nothing_is_mapped_at():
    text = ADD.replace("construct_memory_view %x,", "construct_memory_view %size,")
    with pytest.raises(ValueError, match="ktdp.load: no memory is mapped at element 128, where a view begins"):
        run(text)


def test_arguments_that_do_not_fit():
    module = ktir.load(ADD)
    with pytest.raises(ktir.KtirError, match="@add needs y: index"):
        module.run("add", x=np.ones(4096, np.float16))
    with pytest.raises(ktir.KtirError, match="@add has no argument w; it has x, y, z"):
        module.run("add", w=1)
    with pytest.raises(ktir.KtirError, match="there is no function @sub; there are add"):
        module.run("sub")


def test_an_endless_loop_ends():
    text = """
    func.func @f() attributes {grid = [1]} {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %far = arith.constant 100000000000 : index
      %sum = scf.for %i = %c0 to %far step %c1 iter_args(%a = %c0) -> (index) {
        %b = arith.addi %a, %i : index
        scf.yield %b : index
      }
      %v = ktdp.construct_memory_view %sum, sizes: [1], strides: [1] : memref<1xf16>
      %at = ktdp.construct_access_tile %v[%c0] {access_tile_set = affine_set<(d0) : (d0 == 0)>}
          : memref<1xf16> -> !ktdp.access_tile<1xindex>
      %t = ktdp.load %at : !ktdp.access_tile<1xindex> -> tensor<1xf16>
      ktdp.store %t, %at : tensor<1xf16>, !ktdp.access_tile<1xindex>
      return
    }
    """
    with pytest.raises(ValueError, match="the program does not end within"):
        ktir.load(text).run("f")
