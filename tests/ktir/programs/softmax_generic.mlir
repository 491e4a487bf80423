// Rows of 4096 x 1024 through softmax, 128 rows a tile: as loop nests, with sums in fp32.
module {
  func.func @softmax(%x: index, %y: index) attributes {grid = [32]} {
    %id = ktdp.get_compute_tile_id : index
    %c0 = arith.constant 0 : index
    %rows = arith.constant 128 : index
    %row = arith.muli %id, %rows : index
    %xs = ktdp.construct_memory_view %x, sizes: [4096, 1024], strides: [1024, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 4095 >= 0, d1 >= 0, -d1 + 1023 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<4096x1024xf16>
    %ys = ktdp.construct_memory_view %y, sizes: [4096, 1024], strides: [1024, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 4095 >= 0, d1 >= 0, -d1 + 1023 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<4096x1024xf16>
    %t_at = ktdp.construct_access_tile %xs[%row, %c0] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 127 >= 0, d1 >= 0, -d1 + 1023 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<4096x1024xf16> -> !ktdp.access_tile<128x1024xindex>
    %t = ktdp.load %t_at : !ktdp.access_tile<128x1024xindex> -> tensor<128x1024xf16>
    %least = arith.constant dense<0xFC00> : tensor<128xf16>
    %none = arith.constant dense<0.0> : tensor<128xf32>
    %wide = tensor.empty() : tensor<128x1024xf32>
    %half = tensor.empty() : tensor<128x1024xf16>
    %largest = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
        ins(%t : tensor<128x1024xf16>) outs(%least : tensor<128xf16>) {
    ^bb0(%element: f16, %sofar: f16):
      %more = arith.maximumf %element, %sofar : f16
      linalg.yield %more : f16
    } -> tensor<128xf16>
    %weights = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}
        ins(%t, %largest : tensor<128x1024xf16>, tensor<128xf16>) outs(%wide : tensor<128x1024xf32>) {
    ^bb0(%element: f16, %most: f16, %out: f32):
      %a = arith.extf %element : f16 to f32
      %b = arith.extf %most : f16 to f32
      %below = arith.subf %a, %b : f32
      %weight = math.exp %below : f32
      linalg.yield %weight : f32
    } -> tensor<128x1024xf32>
    %sum = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
        ins(%weights : tensor<128x1024xf32>) outs(%none : tensor<128xf32>) {
    ^bb0(%element: f32, %sofar: f32):
      %more = arith.addf %element, %sofar : f32
      linalg.yield %more : f32
    } -> tensor<128xf32>
    %shares = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}
        ins(%weights, %sum : tensor<128x1024xf32>, tensor<128xf32>) outs(%half : tensor<128x1024xf16>) {
    ^bb0(%weight: f32, %total: f32, %out: f16):
      %share = arith.divf %weight, %total : f32
      %rounded = arith.truncf %share : f32 to f16
      linalg.yield %rounded : f16
    } -> tensor<128x1024xf16>
    %shares_to = ktdp.construct_access_tile %ys[%row, %c0] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 127 >= 0, d1 >= 0, -d1 + 1023 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<4096x1024xf16> -> !ktdp.access_tile<128x1024xindex>
    ktdp.store %shares, %shares_to : tensor<128x1024xf16>, !ktdp.access_tile<128x1024xindex>
    return
  }
}
