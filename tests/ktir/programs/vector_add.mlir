// z = x + y, 4096 elements over 32 tiles.
#elements = affine_set<(d0) : (d0 >= 0, -d0 + 4095 >= 0)>
#tile = affine_set<(d0) : (d0 >= 0, -d0 + 127 >= 0)>
#order = affine_map<(d0) -> (d0)>
module {
  func.func @add(%x: index, %y: index, %z: index) attributes {grid = [32]} {
    %size = arith.constant 128 : index
    %id = ktdp.get_compute_tile_id : index
    %begin = arith.muli %id, %size : index
    %xs = ktdp.construct_memory_view %x, sizes: [4096], strides: [1] {
      coordinate_set = #elements, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<4096xf16>
    %ys = ktdp.construct_memory_view %y, sizes: [4096], strides: [1] {
      coordinate_set = #elements, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<4096xf16>
    %zs = ktdp.construct_memory_view %z, sizes: [4096], strides: [1] {
      coordinate_set = #elements, memory_space = #ktdp.memory_space<global>
    } : memref<4096xf16>
    %xa = ktdp.construct_access_tile %xs[%begin] {
      access_tile_set = #tile, access_tile_order = #order
    } : memref<4096xf16> -> !ktdp.access_tile<128xindex>
    %ya = ktdp.construct_access_tile %ys[%begin] {
      access_tile_set = #tile, access_tile_order = #order
    } : memref<4096xf16> -> !ktdp.access_tile<128xindex>
    %za = ktdp.construct_access_tile %zs[%begin] {
      access_tile_set = #tile, access_tile_order = #order
    } : memref<4096xf16> -> !ktdp.access_tile<128xindex>
    %a = ktdp.load %xa : !ktdp.access_tile<128xindex> -> tensor<128xf16>
    %b = ktdp.load %ya : !ktdp.access_tile<128xindex> -> tensor<128xf16>
    %empty = tensor.empty() : tensor<128xf16>
    %sum = linalg.add ins(%a, %b : tensor<128xf16>, tensor<128xf16>) outs(%empty : tensor<128xf16>) -> tensor<128xf16>
    ktdp.store %sum, %za : tensor<128xf16>, !ktdp.access_tile<128xindex>
    return
  }
}
