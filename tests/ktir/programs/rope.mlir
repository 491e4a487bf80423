// Rotary embedding of 40 heads x 4096 positions x 128: each of 32 tiles has 128 positions of all heads.
// The first half of a head is rotated with the second.
module {
  func.func @rope(%x: index, %cos: index, %sin: index, %y: index) attributes {grid = [32]} {
    %id = ktdp.get_compute_tile_id : index
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %heads = arith.constant 40 : index
    %half = arith.constant 64 : index
    %positions = arith.constant 128 : index
    %position = arith.muli %id, %positions : index
    %xs = ktdp.construct_memory_view %x, sizes: [40, 4096, 128], strides: [524288, 128, 1] {
      coordinate_set = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 39 >= 0, d1 >= 0, -d1 + 4095 >= 0, d2 >= 0, -d2 + 127 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<40x4096x128xf16>
    %cs = ktdp.construct_memory_view %cos, sizes: [4096, 64], strides: [64, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 4095 >= 0, d1 >= 0, -d1 + 63 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<4096x64xf16>
    %ss = ktdp.construct_memory_view %sin, sizes: [4096, 64], strides: [64, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 4095 >= 0, d1 >= 0, -d1 + 63 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<4096x64xf16>
    %ys = ktdp.construct_memory_view %y, sizes: [40, 4096, 128], strides: [524288, 128, 1] {
      coordinate_set = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 39 >= 0, d1 >= 0, -d1 + 4095 >= 0, d2 >= 0, -d2 + 127 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<40x4096x128xf16>
    %c_at = ktdp.construct_access_tile %cs[%position, %c0] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 127 >= 0, d1 >= 0, -d1 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<4096x64xf16> -> !ktdp.access_tile<128x64xindex>
    %c = ktdp.load %c_at : !ktdp.access_tile<128x64xindex> -> tensor<128x64xf16>
    %s_at = ktdp.construct_access_tile %ss[%position, %c0] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 127 >= 0, d1 >= 0, -d1 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<4096x64xf16> -> !ktdp.access_tile<128x64xindex>
    %s = ktdp.load %s_at : !ktdp.access_tile<128x64xindex> -> tensor<128x64xf16>
    scf.for %head = %c0 to %heads step %c1 {
      %a_at = ktdp.construct_access_tile %xs[%head, %position, %c0] {
        access_tile_set = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 0 >= 0, d1 >= 0, -d1 + 127 >= 0, d2 >= 0, -d2 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
      } : memref<40x4096x128xf16> -> !ktdp.access_tile<1x128x64xindex>
      %a = ktdp.load %a_at : !ktdp.access_tile<1x128x64xindex> -> tensor<128x64xf16>
      %b_at = ktdp.construct_access_tile %xs[%head, %position, %half] {
        access_tile_set = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 0 >= 0, d1 >= 0, -d1 + 127 >= 0, d2 >= 0, -d2 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
      } : memref<40x4096x128xf16> -> !ktdp.access_tile<1x128x64xindex>
      %b = ktdp.load %b_at : !ktdp.access_tile<1x128x64xindex> -> tensor<128x64xf16>
      %a_cos = arith.mulf %a, %c : tensor<128x64xf16>
      %b_sin = arith.mulf %b, %s : tensor<128x64xf16>
      %first = arith.subf %a_cos, %b_sin : tensor<128x64xf16>
      %b_cos = arith.mulf %b, %c : tensor<128x64xf16>
      %a_sin = arith.mulf %a, %s : tensor<128x64xf16>
      %second = arith.addf %b_cos, %a_sin : tensor<128x64xf16>
      %first_to = ktdp.construct_access_tile %ys[%head, %position, %c0] {
        access_tile_set = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 0 >= 0, d1 >= 0, -d1 + 127 >= 0, d2 >= 0, -d2 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
      } : memref<40x4096x128xf16> -> !ktdp.access_tile<1x128x64xindex>
      ktdp.store %first, %first_to : tensor<128x64xf16>, !ktdp.access_tile<1x128x64xindex>
      %second_to = ktdp.construct_access_tile %ys[%head, %position, %half] {
        access_tile_set = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 0 >= 0, d1 >= 0, -d1 + 127 >= 0, d2 >= 0, -d2 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
      } : memref<40x4096x128xf16> -> !ktdp.access_tile<1x128x64xindex>
      ktdp.store %second, %second_to : tensor<128x64xf16>, !ktdp.access_tile<1x128x64xindex>
    }
    return
  }
}
