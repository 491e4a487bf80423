// z = x + y for n elements, n known at launch: each of 32 tiles loops over its blocks of 128.
// The last block is cut by the view: reads outside of it give 0, stores are dropped.
module {
  func.func @add(%n: !ktdp.runtime_arg<index, granularity = 1, upperbound = 1048576>, %x: index, %y: index, %z: index) attributes {grid = [32]} {
    %size = ktdp.runtime_arg_extract value from %n : !ktdp.runtime_arg<index, granularity = 1, upperbound = 1048576> -> index
    %id = ktdp.get_compute_tile_id : index
    %block = arith.constant 128 : index
    %all = arith.constant 4096 : index
    %begin = arith.muli %id, %block : index
    %xs = ktdp.construct_memory_view %x, sizes: [%size], strides: [1] {
      coordinate_set = affine_set<(d0)[s0] : (d0 >= 0, -d0 + s0 - 1 >= 0)>, memory_space = #ktdp.memory_space<global>
    } : memref<?xf16>
    %ys = ktdp.construct_memory_view %y, sizes: [%size], strides: [1] {
      coordinate_set = affine_set<(d0)[s0] : (d0 >= 0, -d0 + s0 - 1 >= 0)>, memory_space = #ktdp.memory_space<global>
    } : memref<?xf16>
    %zs = ktdp.construct_memory_view %z, sizes: [%size], strides: [1] {
      coordinate_set = affine_set<(d0)[s0] : (d0 >= 0, -d0 + s0 - 1 >= 0)>, memory_space = #ktdp.memory_space<global>
    } : memref<?xf16>
    scf.for %i = %begin to %size step %all {
      %a_at = ktdp.construct_access_tile %xs[%i] {
        access_tile_set = affine_set<(d0) : (d0 >= 0, -d0 + 127 >= 0)>, access_tile_order = affine_map<(d0) -> (d0)>
      } : memref<?xf16> -> !ktdp.access_tile<128xindex>
      %a = ktdp.load %a_at : !ktdp.access_tile<128xindex> -> tensor<128xf16>
      %b_at = ktdp.construct_access_tile %ys[%i] {
        access_tile_set = affine_set<(d0) : (d0 >= 0, -d0 + 127 >= 0)>, access_tile_order = affine_map<(d0) -> (d0)>
      } : memref<?xf16> -> !ktdp.access_tile<128xindex>
      %b = ktdp.load %b_at : !ktdp.access_tile<128xindex> -> tensor<128xf16>
      %sum = arith.addf %a, %b : tensor<128xf16>
      %sum_to = ktdp.construct_access_tile %zs[%i] {
        access_tile_set = affine_set<(d0) : (d0 >= 0, -d0 + 127 >= 0)>, access_tile_order = affine_map<(d0) -> (d0)>
      } : memref<?xf16> -> !ktdp.access_tile<128xindex>
      ktdp.store %sum, %sum_to : tensor<128xf16>, !ktdp.access_tile<128xindex>
    }
    return
  }
}
