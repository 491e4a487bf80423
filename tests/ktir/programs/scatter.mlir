// Rows of a table of 512 x 64 at 128 indices: scatter, 32 indices a tile.
module {
  func.func @scatter(%table: index, %index: index, %rows: index) attributes {grid = [4]} {
    %id = ktdp.get_compute_tile_id : index
    %c0 = arith.constant 0 : index
    %count = arith.constant 32 : index
    %first = arith.muli %id, %count : index
    %ts = ktdp.construct_memory_view %table, sizes: [512, 64], strides: [64, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 511 >= 0, d1 >= 0, -d1 + 63 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<512x64xf16>
    %is = ktdp.construct_memory_view %index, sizes: [128], strides: [1] {
      coordinate_set = affine_set<(d0) : (d0 >= 0, -d0 + 127 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<128xi32>
    %rs = ktdp.construct_memory_view %rows, sizes: [128, 64], strides: [64, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 127 >= 0, d1 >= 0, -d1 + 63 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<128x64xf16>
    %at = ktdp.construct_indirect_access_tile intermediate_variables(%i, %d) %ts[ind(%is[%first + %i]), %d] {
      variables_space_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 31 >= 0, d1 >= 0, -d1 + 63 >= 0)>, variables_space_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<512x64xf16>, memref<128xi32> -> !ktdp.access_tile<32x64xindex>
    %given_at = ktdp.construct_access_tile %rs[%first, %c0] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 31 >= 0, d1 >= 0, -d1 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<128x64xf16> -> !ktdp.access_tile<32x64xindex>
    %given = ktdp.load %given_at : !ktdp.access_tile<32x64xindex> -> tensor<32x64xf16>
    ktdp.store %given, %at : tensor<32x64xf16>, !ktdp.access_tile<32x64xindex>
    return
  }
}
