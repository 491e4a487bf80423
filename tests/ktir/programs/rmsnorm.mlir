// rms_norm of 64 x 256 over 2 x 2 tiles: two tiles share the rows, and add up their squares.
module {
  func.func @rmsnorm(%x: index, %weight: index, %y: index) attributes {grid = [2, 2]} {
    %i, %j = ktdp.get_compute_tile_id : index, index
    %rows = arith.constant 32 : index
    %columns = arith.constant 128 : index
    %row = arith.muli %i, %rows : index
    %column = arith.muli %j, %columns : index
    %xs = ktdp.construct_memory_view %x, sizes: [64, 256], strides: [256, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 255 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<64x256xf16>
    %ws = ktdp.construct_memory_view %weight, sizes: [256], strides: [1] {
      coordinate_set = affine_set<(d0) : (d0 >= 0, -d0 + 255 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<256xf16>
    %ys = ktdp.construct_memory_view %y, sizes: [64, 256], strides: [256, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 255 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<64x256xf16>
    %t_at = ktdp.construct_access_tile %xs[%row, %column] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 31 >= 0, d1 >= 0, -d1 + 127 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<64x256xf16> -> !ktdp.access_tile<32x128xindex>
    %t = ktdp.load %t_at : !ktdp.access_tile<32x128xindex> -> tensor<32x128xf16>
    %w_at = ktdp.construct_access_tile %ws[%column] {
      access_tile_set = affine_set<(d0) : (d0 >= 0, -d0 + 127 >= 0)>, access_tile_order = affine_map<(d0) -> (d0)>
    } : memref<256xf16> -> !ktdp.access_tile<128xindex>
    %w = ktdp.load %w_at : !ktdp.access_tile<128xindex> -> tensor<128xf16>
    %none = arith.constant dense<0.0> : tensor<32xf32>
    %share = arith.constant 0.00390625 : f32
    %epsilon = arith.constant 1.0e-5 : f32
    %half = tensor.empty() : tensor<32x128xf16>
    %squares = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
        ins(%t : tensor<32x128xf16>) outs(%none : tensor<32xf32>) {
    ^bb0(%element: f16, %sofar: f32):
      %wide = arith.extf %element : f16 to f32
      %square = arith.mulf %wide, %wide : f32
      %more = arith.addf %sofar, %square : f32
      linalg.yield %more : f32
    } -> tensor<32xf32>
    %future = ktdp.inter_tile_produce producer_tiles_per_group = affine_set<(g, i, j) : (i - g == 0, j >= 0, -j + 1 >= 0)> : tensor<32xf32> -> <(tensor<32xf32>), groups = affine_set<(g) : (g >= 0, -g + 1 >= 0)>> {
    ^bb0(%group: index):
      ktdp.yield_partial %squares : tensor<32xf32>
    }
    %sum = ktdp.inter_tile_reduce(%future) consumer_tiles_per_group = affine_set<(g, i, j) : (i - g == 0, j >= 0, -j + 1 >= 0)>, identity(%none : tensor<32xf32>) : !ktdp.tile_future<tensor<32xf32>, groups = affine_set<(g) : (g >= 0, -g + 1 >= 0)>> -> tensor<32xf32> {
    ^bb0(%left: tensor<32xf32>, %right: tensor<32xf32>):
      %both = arith.addf %left, %right : tensor<32xf32>
      ktdp.yield_reduced %both : tensor<32xf32>
    }
    %normed = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}
        ins(%t, %sum, %w : tensor<32x128xf16>, tensor<32xf32>, tensor<128xf16>) outs(%half : tensor<32x128xf16>) {
    ^bb0(%element: f16, %square: f32, %gain: f16, %out: f16):
      %mean = arith.mulf %square, %share : f32
      %positive = arith.addf %mean, %epsilon : f32
      %factor = math.rsqrt %positive : f32
      %wide = arith.extf %element : f16 to f32
      %unit = arith.mulf %wide, %factor : f32
      %rounded = arith.truncf %unit : f32 to f16
      %scaled = arith.mulf %rounded, %gain : f16
      linalg.yield %scaled : f16
    } -> tensor<32x128xf16>
    %normed_to = ktdp.construct_access_tile %ys[%row, %column] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 31 >= 0, d1 >= 0, -d1 + 127 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<64x256xf16> -> !ktdp.access_tile<32x128xindex>
    ktdp.store %normed, %normed_to : tensor<32x128xf16>, !ktdp.access_tile<32x128xindex>
    return
  }
}
