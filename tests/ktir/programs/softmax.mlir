// Rows of 4096 x 1024 through softmax, 128 rows a tile: with reductions and broadcasts.
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
    %lowest = arith.constant 0xFC00 : f16
    %zero = arith.constant 0.0 : f16
    %row_values = tensor.empty() : tensor<128xf16>
    %values = tensor.empty() : tensor<128x1024xf16>
    %least = linalg.fill ins(%lowest : f16) outs(%row_values : tensor<128xf16>) -> tensor<128xf16>
    %none = linalg.fill ins(%zero : f16) outs(%row_values : tensor<128xf16>) -> tensor<128xf16>
    %largest = linalg.reduce { arith.maximumf } ins(%t : tensor<128x1024xf16>) outs(%least : tensor<128xf16>) dimensions = [1]
    %largest_all = linalg.broadcast ins(%largest : tensor<128xf16>) outs(%values : tensor<128x1024xf16>) dimensions = [1]
    %below = linalg.sub ins(%t, %largest_all : tensor<128x1024xf16>, tensor<128x1024xf16>) outs(%values : tensor<128x1024xf16>) -> tensor<128x1024xf16>
    %weights = math.exp %below : tensor<128x1024xf16>
    %sum = linalg.reduce { arith.addf } ins(%weights : tensor<128x1024xf16>) outs(%none : tensor<128xf16>) dimensions = [1]
    %sum_all = linalg.broadcast ins(%sum : tensor<128xf16>) outs(%values : tensor<128x1024xf16>) dimensions = [1]
    %shares = linalg.div ins(%weights, %sum_all : tensor<128x1024xf16>, tensor<128x1024xf16>) outs(%values : tensor<128x1024xf16>) -> tensor<128x1024xf16>
    %shares_to = ktdp.construct_access_tile %ys[%row, %c0] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 127 >= 0, d1 >= 0, -d1 + 1023 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<4096x1024xf16> -> !ktdp.access_tile<128x1024xindex>
    ktdp.store %shares, %shares_to : tensor<128x1024xf16>, !ktdp.access_tile<128x1024xindex>
    return
  }
}
