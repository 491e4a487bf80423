// c = a b, 64 x 1024 by 1024 x 128, with K divided over 8 tiles: tile 0 adds the partial products of all.
module {
  func.func @matmul(%a: index, %b: index, %c: index) attributes {grid = [8]} {
    %id = ktdp.get_compute_tile_id : index
    %c0 = arith.constant 0 : index
    %depth = arith.constant 128 : index
    %k = arith.muli %id, %depth : index
    %as = ktdp.construct_memory_view %a, sizes: [64, 1024], strides: [1024, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 1023 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<64x1024xf16>
    %bs = ktdp.construct_memory_view %b, sizes: [1024, 128], strides: [128, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 1023 >= 0, d1 >= 0, -d1 + 127 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<1024x128xf16>
    %cs = ktdp.construct_memory_view %c, sizes: [64, 128], strides: [128, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 127 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<64x128xf16>
    %ak_at = ktdp.construct_access_tile %as[%c0, %k] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 127 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<64x1024xf16> -> !ktdp.access_tile<64x128xindex>
    %ak = ktdp.load %ak_at : !ktdp.access_tile<64x128xindex> -> tensor<64x128xf16>
    %bk_at = ktdp.construct_access_tile %bs[%k, %c0] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 127 >= 0, d1 >= 0, -d1 + 127 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<1024x128xf16> -> !ktdp.access_tile<128x128xindex>
    %bk = ktdp.load %bk_at : !ktdp.access_tile<128x128xindex> -> tensor<128x128xf16>
    %none = arith.constant dense<0.0> : tensor<64x128xf32>
    %partial = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]
    } ins(%ak, %bk : tensor<64x128xf16>, tensor<128x128xf16>) outs(%none : tensor<64x128xf32>) {
    ^bb0(%a_element: f16, %b_element: f16, %sum: f32):
      %a_wide = arith.extf %a_element : f16 to f32
      %b_wide = arith.extf %b_element : f16 to f32
      %product = arith.mulf %a_wide, %b_wide : f32
      %more = arith.addf %sum, %product : f32
      linalg.yield %more : f32
    } -> tensor<64x128xf32>
    %future = ktdp.inter_tile_produce producer_tiles_per_group = affine_set<(g, t) : (g == 0, t >= 0, -t + 7 >= 0)> : tensor<64x128xf32> -> !ktdp.tile_future<tensor<64x128xf32>, groups = affine_set<(g) : (g == 0)>> {
    ^bb0(%group: index):
      ktdp.yield_partial %partial : tensor<64x128xf32>
    }
    %total = ktdp.inter_tile_reduce(%future) consumer_tiles_per_group = affine_set<(g, t) : (g == 0, t == 0)>, identity(%none : tensor<64x128xf32>) : !ktdp.tile_future<tensor<64x128xf32>, groups = affine_set<(g) : (g == 0)>> -> tensor<64x128xf32> {
    ^bb0(%left: tensor<64x128xf32>, %right: tensor<64x128xf32>):
      %both = linalg.add ins(%left, %right : tensor<64x128xf32>, tensor<64x128xf32>) outs(%left : tensor<64x128xf32>) -> tensor<64x128xf32>
      ktdp.yield_reduced %both : tensor<64x128xf32>
    }
    %first = arith.cmpi eq, %id, %c0 : index
    scf.if %first {
      %rounded = arith.truncf %total : tensor<64x128xf32> to tensor<64x128xf16>
      %rounded_to = ktdp.construct_access_tile %cs[%c0, %c0] {
        access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 127 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
      } : memref<64x128xf16> -> !ktdp.access_tile<64x128xindex>
      ktdp.store %rounded, %rounded_to : tensor<64x128xf16>, !ktdp.access_tile<64x128xindex>
    }
    return
  }
}
