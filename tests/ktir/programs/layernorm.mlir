// layer_norm of 1151 rows of 8192, in fp32: each of 32 tiles has 36 rows, four at a time. What is beyond the last row
// reads as 0 and is not stored.
module {
  func.func @layernorm(%x: index, %weight: index, %bias: index, %y: index) attributes {grid = [32]} {
    %id = ktdp.get_compute_tile_id : index
    %c0 = arith.constant 0 : index
    %rows = arith.constant 36 : index
    %four = arith.constant 4 : index
    %first = arith.muli %id, %rows : index
    %end = arith.addi %first, %rows : index
    %xs = ktdp.construct_memory_view %x, sizes: [1151, 8192], strides: [8192, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 1150 >= 0, d1 >= 0, -d1 + 8191 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<1151x8192xf16>
    %ws = ktdp.construct_memory_view %weight, sizes: [8192], strides: [1] {
      coordinate_set = affine_set<(d0) : (d0 >= 0, -d0 + 8191 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<8192xf16>
    %bs = ktdp.construct_memory_view %bias, sizes: [8192], strides: [1] {
      coordinate_set = affine_set<(d0) : (d0 >= 0, -d0 + 8191 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<8192xf16>
    %ys = ktdp.construct_memory_view %y, sizes: [1151, 8192], strides: [8192, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 1150 >= 0, d1 >= 0, -d1 + 8191 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<1151x8192xf16>
    %w_at = ktdp.construct_access_tile %ws[%c0] {
      access_tile_set = affine_set<(d0) : (d0 >= 0, -d0 + 8191 >= 0)>, access_tile_order = affine_map<(d0) -> (d0)>
    } : memref<8192xf16> -> !ktdp.access_tile<8192xindex>
    %w = ktdp.load %w_at : !ktdp.access_tile<8192xindex> -> tensor<8192xf16>
    %b_at = ktdp.construct_access_tile %bs[%c0] {
      access_tile_set = affine_set<(d0) : (d0 >= 0, -d0 + 8191 >= 0)>, access_tile_order = affine_map<(d0) -> (d0)>
    } : memref<8192xf16> -> !ktdp.access_tile<8192xindex>
    %b = ktdp.load %b_at : !ktdp.access_tile<8192xindex> -> tensor<8192xf16>
    %none = arith.constant dense<0.0> : tensor<4xf32>
    %share = arith.constant 1.220703125e-04 : f32
    %epsilon = arith.constant 1.0e-5 : f32
    %wide = tensor.empty() : tensor<4x8192xf32>
    %half = tensor.empty() : tensor<4x8192xf16>
    scf.for %row = %first to %end step %four {
      %t_at = ktdp.construct_access_tile %xs[%row, %c0] {
        access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 3 >= 0, d1 >= 0, -d1 + 8191 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
      } : memref<1151x8192xf16> -> !ktdp.access_tile<4x8192xindex>
      %t = ktdp.load %t_at : !ktdp.access_tile<4x8192xindex> -> tensor<4x8192xf16>
      %x_wide = arith.extf %t : tensor<4x8192xf16> to tensor<4x8192xf32>
      %sum = linalg.reduce { arith.addf } ins(%x_wide : tensor<4x8192xf32>) outs(%none : tensor<4xf32>) dimensions = [1]
      %shares = tensor.splat %share : tensor<4xf32>
      %mean = arith.mulf %sum, %shares : tensor<4xf32>
      %centred = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}
          ins(%x_wide, %mean : tensor<4x8192xf32>, tensor<4xf32>) outs(%wide : tensor<4x8192xf32>) {
      ^bb0(%element: f32, %middle: f32, %out: f32):
        %away = arith.subf %element, %middle : f32
        linalg.yield %away : f32
      } -> tensor<4x8192xf32>
      %squares = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
          ins(%centred : tensor<4x8192xf32>) outs(%none : tensor<4xf32>) {
      ^bb0(%away: f32, %sofar: f32):
        %square = arith.mulf %away, %away : f32
        %more = arith.addf %sofar, %square : f32
        linalg.yield %more : f32
      } -> tensor<4xf32>
      %scale = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
          ins(%squares : tensor<4xf32>) outs(%none : tensor<4xf32>) {
      ^bb0(%square: f32, %out: f32):
        %variance = arith.mulf %square, %share : f32
        %positive = arith.addf %variance, %epsilon : f32
        %factor = math.rsqrt %positive : f32
        linalg.yield %factor : f32
      } -> tensor<4xf32>
      %normed = linalg.generic {
        indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>],
        iterator_types = ["parallel", "parallel"]
      } ins(%centred, %scale, %w, %b : tensor<4x8192xf32>, tensor<4xf32>, tensor<8192xf16>, tensor<8192xf16>) outs(%half : tensor<4x8192xf16>) {
      ^bb0(%away: f32, %factor: f32, %gain: f16, %shift: f16, %out: f16):
        %gain_wide = arith.extf %gain : f16 to f32
        %shift_wide = arith.extf %shift : f16 to f32
        %unit = arith.mulf %away, %factor : f32
        %scaled = arith.mulf %unit, %gain_wide : f32
        %moved = arith.addf %scaled, %shift_wide : f32
        %rounded = arith.truncf %moved : f32 to f16
        linalg.yield %rounded : f16
      } -> tensor<4x8192xf16>
      %normed_to = ktdp.construct_access_tile %ys[%row, %c0] {
        access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 3 >= 0, d1 >= 0, -d1 + 8191 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
      } : memref<1151x8192xf16> -> !ktdp.access_tile<4x8192xindex>
      ktdp.store %normed, %normed_to : tensor<4x8192xf16>, !ktdp.access_tile<4x8192xindex>
    }
    return
  }
}
