// 256 x 64 elements that lie in the scratchpads of four tiles, 64 rows each, as one view: tile i copies rows that
// belong to two of them.
module {
  func.func @copy(%x: index, %y: index) attributes {grid = [4]} {
    %id = ktdp.get_compute_tile_id : index
    %c0 = arith.constant 0 : index
    %c32 = arith.constant 32 : index
    %count = arith.constant 64 : index
    %own = arith.muli %id, %count : index
    %xs = ktdp.construct_memory_view %x, sizes: [256, 64], strides: [64, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 255 >= 0, d1 >= 0, -d1 + 63 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<256x64xf16>
    %ys = ktdp.construct_memory_view %y, sizes: [256, 64], strides: [64, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 255 >= 0, d1 >= 0, -d1 + 63 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<256x64xf16>
    %mine = ktdp.construct_memory_view %c0, sizes: [64, 64], strides: [64, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 63 >= 0)>, memory_space = #ktdp.spyre_memory_space<LX>
    } : memref<64x64xf16>
    %t_at = ktdp.construct_access_tile %xs[%own, %c0] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<256x64xf16> -> !ktdp.access_tile<64x64xindex>
    %t = ktdp.load %t_at : !ktdp.access_tile<64x64xindex> -> tensor<64x64xf16>
    %t_to = ktdp.construct_access_tile %mine[%c0, %c0] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<64x64xf16> -> !ktdp.access_tile<64x64xindex>
    ktdp.store %t, %t_to : tensor<64x64xf16>, !ktdp.access_tile<64x64xindex>
    %part0 = ktdp.construct_memory_view %c0, sizes: [64, 64], strides: [64, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 - 0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 63 >= 0)>, memory_space = #ktdp.spyre_memory_space<LX, core = 0>
    } : memref<64x64xf16>
    %part1 = ktdp.construct_memory_view %c0, sizes: [64, 64], strides: [64, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 - 64 >= 0, -d0 + 127 >= 0, d1 >= 0, -d1 + 63 >= 0)>, memory_space = #ktdp.spyre_memory_space<LX, core = 1>
    } : memref<64x64xf16>
    %part2 = ktdp.construct_memory_view %c0, sizes: [64, 64], strides: [64, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 - 128 >= 0, -d0 + 191 >= 0, d1 >= 0, -d1 + 63 >= 0)>, memory_space = #ktdp.spyre_memory_space<LX, core = 2>
    } : memref<64x64xf16>
    %part3 = ktdp.construct_memory_view %c0, sizes: [64, 64], strides: [64, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 - 192 >= 0, -d0 + 255 >= 0, d1 >= 0, -d1 + 63 >= 0)>, memory_space = #ktdp.spyre_memory_space<LX, core = 3>
    } : memref<64x64xf16>
    %all = ktdp.construct_distributed_memory_view(%part0, %part1, %part2, %part3 : memref<64x64xf16>, memref<64x64xf16>, memref<64x64xf16>, memref<64x64xf16>) : memref<256x64xf16>
    %shifted = arith.addi %own, %c32 : index
    %moved_at = ktdp.construct_access_tile %all[%shifted, %c0] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<256x64xf16> -> !ktdp.access_tile<64x64xindex>
    %moved = ktdp.load %moved_at : !ktdp.access_tile<64x64xindex> -> tensor<64x64xf16>
    %moved_to = ktdp.construct_access_tile %ys[%own, %c0] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<256x64xf16> -> !ktdp.access_tile<64x64xindex>
    ktdp.store %moved, %moved_to : tensor<64x64xf16>, !ktdp.access_tile<64x64xindex>
    return
  }
}
