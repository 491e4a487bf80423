// c = a b, 64 x 8192 by 8192 x 2048: each of 32 tiles has 64 columns, and loops over K by 512.
module {
  func.func @matmul(%a: index, %b: index, %c: index) attributes {grid = [32]} {
    %id = ktdp.get_compute_tile_id : index
    %c0 = arith.constant 0 : index
    %columns = arith.constant 64 : index
    %depth = arith.constant 512 : index
    %end = arith.constant 8192 : index
    %zero = arith.constant 0.0 : f16
    %column = arith.muli %id, %columns : index
    %as = ktdp.construct_memory_view %a, sizes: [64, 8192], strides: [8192, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 8191 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<64x8192xf16>
    %bs = ktdp.construct_memory_view %b, sizes: [8192, 2048], strides: [2048, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 8191 >= 0, d1 >= 0, -d1 + 2047 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<8192x2048xf16>
    %cs = ktdp.construct_memory_view %c, sizes: [64, 2048], strides: [2048, 1] {
      coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 2047 >= 0)>, memory_space = #ktdp.spyre_memory_space<HBM>
    } : memref<64x2048xf16>
    %empty = tensor.empty() : tensor<64x64xf32>
    %start = arith.constant 0.0 : f32
    %none = linalg.fill ins(%start : f32) outs(%empty : tensor<64x64xf32>) -> tensor<64x64xf32>
    %sums = scf.for %k = %c0 to %end step %depth iter_args(%partial = %none) -> (tensor<64x64xf32>) {
      %ak_at = ktdp.construct_access_tile %as[%c0, %k] {
        access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 511 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
      } : memref<64x8192xf16> -> !ktdp.access_tile<64x512xindex>
      %ak = ktdp.load %ak_at : !ktdp.access_tile<64x512xindex> -> tensor<64x512xf16>
      %bk_at = ktdp.construct_access_tile %bs[%k, %column] {
        access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 511 >= 0, d1 >= 0, -d1 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
      } : memref<8192x2048xf16> -> !ktdp.access_tile<512x64xindex>
      %bk = ktdp.load %bk_at : !ktdp.access_tile<512x64xindex> -> tensor<512x64xf16>
      %next = linalg.matmul ins(%ak, %bk : tensor<64x512xf16>, tensor<512x64xf16>) outs(%partial : tensor<64x64xf32>) -> tensor<64x64xf32>
      scf.yield %next : tensor<64x64xf32>
    }
    %rounded = arith.truncf %sums : tensor<64x64xf32> to tensor<64x64xf16>
    %rounded_to = ktdp.construct_access_tile %cs[%c0, %column] {
      access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>
    } : memref<64x2048xf16> -> !ktdp.access_tile<64x64xindex>
    ktdp.store %rounded, %rounded_to : tensor<64x64xf16>, !ktdp.access_tile<64x64xindex>
    return
  }
}
