// The sum of what four tiles have, at every tile: partial sums go around a ring, from each tile to the next.
module {
  func.func @ring(%x: index, %y: index) attributes {grid = [4]} {
    %id = ktdp.get_compute_tile_id : index
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %rounds = arith.constant 3 : index
    %xs = ktdp.construct_memory_view %x, sizes: [4, 64], strides: [64, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 3 >= 0, d1 >= 0, -d1 + 63 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<4x64xf32>
    %ys = ktdp.construct_memory_view %y, sizes: [4, 64], strides: [64, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 3 >= 0, d1 >= 0, -d1 + 63 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<4x64xf32>
    %own_at = ktdp.construct_access_tile %xs[%id, %c0] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 0 >= 0, d1 >= 0, -d1 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<4x64xf32> -> !ktdp.access_tile<1x64xindex>
    %own = ktdp.load %own_at : !ktdp.access_tile<1x64xindex> -> tensor<64xf32>
    %sum, %last = scf.for %i = %c0 to %rounds step %c1 iter_args(%sofar = %own, %passed = %own) -> (tensor<64xf32>, tensor<64xf32>) {
      %future = ktdp.inter_tile_produce producer_tiles_per_group = affine_set<(g, t) : (t - g == 0)> : tensor<64xf32> -> !ktdp.tile_future<tensor<64xf32>, groups = affine_set<(g) : (g >= 0, -g + 3 >= 0)>> {
      ^bb0(%group: index):
        ktdp.yield_partial %passed : tensor<64xf32>
      }
      %received = ktdp.inter_tile_consume(%future) consumer_tiles_per_group = affine_set<(g, t) : (t - (g + 1) mod 4 == 0)> : !ktdp.tile_future<tensor<64xf32>, groups = affine_set<(g) : (g >= 0, -g + 3 >= 0)>> -> tensor<64xf32>
      %next = arith.addf %sofar, %received : tensor<64xf32>
      scf.yield %next, %received : tensor<64xf32>, tensor<64xf32>
    }
    %sum_to = ktdp.construct_access_tile %ys[%id, %c0] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 0 >= 0, d1 >= 0, -d1 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<4x64xf32> -> !ktdp.access_tile<1x64xindex>
    ktdp.store %sum, %sum_to : tensor<64xf32>, !ktdp.access_tile<1x64xindex>
    return
  }
}
