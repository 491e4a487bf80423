// silu(x w1) * (x w3), 16 x 256 by 256 x 512: 64 columns a tile, the activation with its own rounding.
module {
  func.func @swiglu(%x: index, %w1: index, %w3: index, %y: index) attributes {grid = [8]} {
    %id = ktdp.get_compute_tile_id : index
    %c0 = arith.constant 0 : index
    %count = arith.constant 64 : index
    %column = arith.muli %id, %count : index
    %xs = ktdp.construct_memory_view %x, sizes: [16, 256], strides: [256, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 15 >= 0, d1 >= 0, -d1 + 255 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<16x256xf16>
    %gs = ktdp.construct_memory_view %w1, sizes: [256, 512], strides: [512, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 255 >= 0, d1 >= 0, -d1 + 511 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<256x512xf16>
    %us = ktdp.construct_memory_view %w3, sizes: [256, 512], strides: [512, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 255 >= 0, d1 >= 0, -d1 + 511 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<256x512xf16>
    %ys = ktdp.construct_memory_view %y, sizes: [16, 512], strides: [512, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 15 >= 0, d1 >= 0, -d1 + 511 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<16x512xf16>
    %t_at = ktdp.construct_access_tile %xs[%c0, %c0] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 15 >= 0, d1 >= 0, -d1 + 255 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<16x256xf16> -> !ktdp.access_tile<16x256xindex>
    %t = ktdp.load %t_at : !ktdp.access_tile<16x256xindex> -> tensor<16x256xf16>
    %g_at = ktdp.construct_access_tile %gs[%c0, %column] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 255 >= 0, d1 >= 0, -d1 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<256x512xf16> -> !ktdp.access_tile<256x64xindex>
    %g = ktdp.load %g_at : !ktdp.access_tile<256x64xindex> -> tensor<256x64xf16>
    %u_at = ktdp.construct_access_tile %us[%c0, %column] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 255 >= 0, d1 >= 0, -d1 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<256x512xf16> -> !ktdp.access_tile<256x64xindex>
    %u = ktdp.load %u_at : !ktdp.access_tile<256x64xindex> -> tensor<256x64xf16>
    %zero = arith.constant 0.0 : f16
    %none = tensor.splat %zero : tensor<16x64xf16>
    %gate = linalg.matmul ins(%t, %g : tensor<16x256xf16>, tensor<256x64xf16>) outs(%none : tensor<16x64xf16>) -> tensor<16x64xf16>
    %up = linalg.matmul ins(%t, %u : tensor<16x256xf16>, tensor<256x64xf16>) outs(%none : tensor<16x64xf16>) -> tensor<16x64xf16>
    %both = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}
        ins(%gate, %up : tensor<16x64xf16>, tensor<16x64xf16>) outs(%none : tensor<16x64xf16>) {
    ^bb0(%a: f16, %b: f16, %out: f16):
      %active = spyreop.silu %a : f16
      %product = arith.mulf %active, %b : f16
      linalg.yield %product : f16
    } -> tensor<16x64xf16>
    %both_to = ktdp.construct_access_tile %ys[%c0, %column] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 15 >= 0, d1 >= 0, -d1 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<16x512xf16> -> !ktdp.access_tile<16x64xindex>
    ktdp.store %both, %both_to : tensor<16x64xf16>, !ktdp.access_tile<16x64xindex>
    return
  }
}
