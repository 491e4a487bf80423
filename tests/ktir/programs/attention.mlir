// Attention of 8 heads, 128 queries and keys of 64, a head a tile: scores in fp32, softmax by rows.
module {
  func.func @attention(%q: index, %k: index, %v: index, %o: index) attributes {grid = [8]} {
    %head = ktdp.get_compute_tile_id : index
    %c0 = arith.constant 0 : index
    %qs = ktdp.construct_memory_view %q, sizes: [8, 128, 64], strides: [8192, 64, 1] {
      coordinate_set = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 7 >= 0, d1 >= 0, -d1 + 127 >= 0, d2 >= 0, -d2 + 63 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<8x128x64xf16>
    %ks = ktdp.construct_memory_view %k, sizes: [8, 128, 64], strides: [8192, 64, 1] {
      coordinate_set = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 7 >= 0, d1 >= 0, -d1 + 127 >= 0, d2 >= 0, -d2 + 63 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<8x128x64xf16>
    %vs = ktdp.construct_memory_view %v, sizes: [8, 128, 64], strides: [8192, 64, 1] {
      coordinate_set = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 7 >= 0, d1 >= 0, -d1 + 127 >= 0, d2 >= 0, -d2 + 63 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<8x128x64xf16>
    %os = ktdp.construct_memory_view %o, sizes: [8, 128, 64], strides: [8192, 64, 1] {
      coordinate_set = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 7 >= 0, d1 >= 0, -d1 + 127 >= 0, d2 >= 0, -d2 + 63 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<8x128x64xf16>
    %qt_at = ktdp.construct_access_tile %qs[%head, %c0, %c0] {
      access_tile_set = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 0 >= 0, d1 >= 0, -d1 + 127 >= 0, d2 >= 0, -d2 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
    } : memref<8x128x64xf16> -> !ktdp.access_tile<1x128x64xindex>
    %qt = ktdp.load %qt_at : !ktdp.access_tile<1x128x64xindex> -> tensor<128x64xf16>
    %kt_at = ktdp.construct_access_tile %ks[%head, %c0, %c0] {
      access_tile_set = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 0 >= 0, d1 >= 0, -d1 + 127 >= 0, d2 >= 0, -d2 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
    } : memref<8x128x64xf16> -> !ktdp.access_tile<1x128x64xindex>
    %kt = ktdp.load %kt_at : !ktdp.access_tile<1x128x64xindex> -> tensor<128x64xf16>
    %vt_at = ktdp.construct_access_tile %vs[%head, %c0, %c0] {
      access_tile_set = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 0 >= 0, d1 >= 0, -d1 + 127 >= 0, d2 >= 0, -d2 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
    } : memref<8x128x64xf16> -> !ktdp.access_tile<1x128x64xindex>
    %vt = ktdp.load %vt_at : !ktdp.access_tile<1x128x64xindex> -> tensor<128x64xf16>
    %zero = arith.constant 0.0 : f32
    %lowest = arith.constant 0xFF800000 : f32
    %scale = arith.constant 0.125 : f32
    %no_scores = tensor.splat %zero : tensor<128x128xf32>
    %least = tensor.splat %lowest : tensor<128xf32>
    %none = tensor.splat %zero : tensor<128xf32>
    %no_result = tensor.splat %zero : tensor<128x64xf32>
    %scores = linalg.matmul_transpose_b ins(%qt, %kt : tensor<128x64xf16>, tensor<128x64xf16>) outs(%no_scores : tensor<128x128xf32>) -> tensor<128x128xf32>
    %scales = tensor.splat %scale : tensor<128x128xf32>
    %scaled = arith.mulf %scores, %scales : tensor<128x128xf32>
    %largest = linalg.reduce { arith.maximumf } ins(%scaled : tensor<128x128xf32>) outs(%least : tensor<128xf32>) dimensions = [1]
    %weights = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}
        ins(%scaled, %largest : tensor<128x128xf32>, tensor<128xf32>) outs(%no_scores : tensor<128x128xf32>) {
    ^bb0(%score: f32, %most: f32, %out: f32):
      %below = arith.subf %score, %most : f32
      %weight = math.exp %below : f32
      linalg.yield %weight : f32
    } -> tensor<128x128xf32>
    %sum = linalg.reduce { arith.addf } ins(%weights : tensor<128x128xf32>) outs(%none : tensor<128xf32>) dimensions = [1]
    %shares = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}
        ins(%weights, %sum : tensor<128x128xf32>, tensor<128xf32>) outs(%no_scores : tensor<128x128xf32>) {
    ^bb0(%weight: f32, %total: f32, %out: f32):
      %share = arith.divf %weight, %total : f32
      linalg.yield %share : f32
    } -> tensor<128x128xf32>
    %half = arith.truncf %shares : tensor<128x128xf32> to tensor<128x128xf16>
    %sums = linalg.matmul ins(%half, %vt : tensor<128x128xf16>, tensor<128x64xf16>) outs(%no_result : tensor<128x64xf32>) -> tensor<128x64xf32>
    %result = arith.truncf %sums : tensor<128x64xf32> to tensor<128x64xf16>
    %result_to = ktdp.construct_access_tile %os[%head, %c0, %c0] {
      access_tile_set = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 0 >= 0, d1 >= 0, -d1 + 127 >= 0, d2 >= 0, -d2 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
    } : memref<8x128x64xf16> -> !ktdp.access_tile<1x128x64xindex>
    ktdp.store %result, %result_to : tensor<128x64xf16>, !ktdp.access_tile<1x128x64xindex>
    return
  }
}
