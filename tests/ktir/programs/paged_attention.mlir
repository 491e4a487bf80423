// Attention of 8 queries with 32 heads, which share 8 heads of keys and values, over 128 positions in pages of 16.
// A tile has one query, and loops over the heads of keys: the page table says where positions are.
module {
  func.func @paged_attention(%q: index, %k: index, %v: index, %table: index, %o: index) attributes {grid = [8]} {
    %query = ktdp.get_compute_tile_id : index
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    %heads = arith.constant 8 : index
    %qs = ktdp.construct_memory_view %q, sizes: [8, 32, 128], strides: [4096, 128, 1] {
      coordinate_set = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 7 >= 0, d1 >= 0, -d1 + 31 >= 0, d2 >= 0, -d2 + 127 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<8x32x128xf16>
    %ks = ktdp.construct_memory_view %k, sizes: [256, 16, 8, 128], strides: [16384, 1024, 128, 1] {
      coordinate_set = affine_set<(d0, d1, d2, d3) : (d0 >= 0, -d0 + 255 >= 0, d1 >= 0, -d1 + 15 >= 0, d2 >= 0, -d2 + 7 >= 0, d3 >= 0, -d3 + 127 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<256x16x8x128xf16>
    %vs = ktdp.construct_memory_view %v, sizes: [256, 16, 8, 128], strides: [16384, 1024, 128, 1] {
      coordinate_set = affine_set<(d0, d1, d2, d3) : (d0 >= 0, -d0 + 255 >= 0, d1 >= 0, -d1 + 15 >= 0, d2 >= 0, -d2 + 7 >= 0, d3 >= 0, -d3 + 127 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<256x16x8x128xf16>
    %ts = ktdp.construct_memory_view %table, sizes: [8, 8], strides: [8, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 7 >= 0, d1 >= 0, -d1 + 7 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<8x8xi32>
    %os = ktdp.construct_memory_view %o, sizes: [8, 32, 128], strides: [4096, 128, 1] {
      coordinate_set = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 7 >= 0, d1 >= 0, -d1 + 31 >= 0, d2 >= 0, -d2 + 127 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<8x32x128xf16>
    %zero = arith.constant 0.0 : f32
    %lowest = arith.constant 0xFF800000 : f32
    %scale = arith.constant 0.08838834764 : f32
    %no_scores = tensor.splat %zero : tensor<4x128xf32>
    %least = tensor.splat %lowest : tensor<4xf32>
    %none = tensor.splat %zero : tensor<4xf32>
    %no_result = tensor.splat %zero : tensor<4x128xf32>
    scf.for %head = %c0 to %heads step %c1 {
      %first = arith.muli %head, %c4 : index
      %qt_at = ktdp.construct_access_tile %qs[%query, %first, %c0] {
        access_tile_set = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 0 >= 0, d1 >= 0, -d1 + 3 >= 0, d2 >= 0, -d2 + 127 >= 0)>, access_tile_order = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
      } : memref<8x32x128xf16> -> !ktdp.access_tile<1x4x128xindex>
      %qt = ktdp.load %qt_at : !ktdp.access_tile<1x4x128xindex> -> tensor<4x128xf16>
      %k_at = ktdp.construct_indirect_access_tile
          intermediate_variables(%tk, %dk)
          %ks[ind(%ts[%query, %tk floordiv 16]), (%tk mod 16), (%head), (%dk)] {
        variables_space_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 127 >= 0, d1 >= 0, -d1 + 127 >= 0)>, variables_space_order = affine_map<(d0, d1) -> (d0, d1)>
      } : memref<256x16x8x128xf16>, memref<8x8xi32> -> !ktdp.access_tile<128x128xindex>
      %kt = ktdp.load %k_at : !ktdp.access_tile<128x128xindex> -> tensor<128x128xf16>
      %v_at = ktdp.construct_indirect_access_tile
          intermediate_variables(%tv, %dv)
          %vs[ind(%ts[%query, %tv floordiv 16]), (%tv mod 16), (%head), (%dv)] {
        variables_space_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 127 >= 0, d1 >= 0, -d1 + 127 >= 0)>, variables_space_order = affine_map<(d0, d1) -> (d0, d1)>
      } : memref<256x16x8x128xf16>, memref<8x8xi32> -> !ktdp.access_tile<128x128xindex>
      %vt = ktdp.load %v_at : !ktdp.access_tile<128x128xindex> -> tensor<128x128xf16>
      %scores = linalg.matmul ins(%qt, %kt : tensor<4x128xf16>, tensor<128x128xf16>)
          outs(%no_scores : tensor<4x128xf32>) indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>] -> tensor<4x128xf32>
      %scales = tensor.splat %scale : tensor<4x128xf32>
      %scaled = arith.mulf %scores, %scales : tensor<4x128xf32>
      %largest = linalg.reduce { arith.maximumf } ins(%scaled : tensor<4x128xf32>) outs(%least : tensor<4xf32>) dimensions = [1]
      %most = linalg.broadcast ins(%largest : tensor<4xf32>) outs(%no_scores : tensor<4x128xf32>) dimensions = [1]
      %below = arith.subf %scaled, %most : tensor<4x128xf32>
      %weights = math.exp %below : tensor<4x128xf32>
      %sum = linalg.reduce { arith.addf } ins(%weights : tensor<4x128xf32>) outs(%none : tensor<4xf32>) dimensions = [1]
      %all = linalg.broadcast ins(%sum : tensor<4xf32>) outs(%no_scores : tensor<4x128xf32>) dimensions = [1]
      %shares = arith.divf %weights, %all : tensor<4x128xf32>
      %half = arith.truncf %shares : tensor<4x128xf32> to tensor<4x128xf16>
      %sums = linalg.matmul ins(%half, %vt : tensor<4x128xf16>, tensor<128x128xf16>) outs(%no_result : tensor<4x128xf32>) -> tensor<4x128xf32>
      %result = arith.truncf %sums : tensor<4x128xf32> to tensor<4x128xf16>
      %result_to = ktdp.construct_access_tile %os[%query, %first, %c0] {
        access_tile_set = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 0 >= 0, d1 >= 0, -d1 + 3 >= 0, d2 >= 0, -d2 + 127 >= 0)>, access_tile_order = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
      } : memref<8x32x128xf16> -> !ktdp.access_tile<1x4x128xindex>
      ktdp.store %result, %result_to : tensor<4x128xf16>, !ktdp.access_tile<1x4x128xindex>
    }
    return
  }
}
