// Ops and ways to write them that the other programs do not have.
#set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 3 >= 0, d1 >= 0, -d1 + 63 >= 0)>
#hbm = #ktdp.spyre_memory_space<HBM>
!tile = tensor<4x64xf16>
module @m {
  func.func @f(%x: index, %y: index, %n: index) attributes {grid = [1, 1], sym = "a"} {
    %i, %j = ktdp.get_compute_tile_id : index, index
    %c0 = arith.constant 0 : index
    %c4 = arith.constant 4 : index
    %c64 = arith.constant 64 : index
    %c1 = arith.constant 1 : index
    %v = ktdp.construct_memory_view %x, sizes: [%n, 64], strides: [%c64, 1] {coordinate_set = affine_set<(d0, d1)[s0] : (d0 >= 0, -d0 + s0 - 1 >= 0, d1 >= 0, -d1 + 63 >= 0)>, memory_space = #hbm} : index, index -> memref<?x64xf16>
    %w = ktdp.construct_memory_view %y, sizes: [4, 64], strides: [64, 1] {coordinate_set = #set, memory_space = #hbm} : memref<4x64xf16>
    %a = ktdp.construct_access_tile %v[%c0, %c0] {access_tile_set = #set, access_tile_order = affine_map<(d0, d1) -> (d0, d1)>, base_map = affine_map<(d0, d1) -> (d0, d1)>} : memref<?x64xf16> -> !ktdp.access_tile<4x64xindex>
    %b = ktdp.construct_access_tile %w[%c0, %c0] {access_tile_set = #set} : memref<4x64xf16> -> !ktdp.access_tile<4x64xindex>
    %t = ktdp.load %a : !ktdp.access_tile<4x64xindex> -> !tile
    %init = tensor.empty() : tensor<4xf32>
    %z = arith.constant 0.000000e+00 : f32
    %zf = linalg.fill ins(%z : f32) outs(%init : tensor<4xf32>) -> tensor<4xf32>
    %tw = arith.extf %t fastmath<fast> : !tile to tensor<4x64xf32>
    %s = linalg.reduce ins(%tw : tensor<4x64xf32>) outs(%zf : tensor<4xf32>) dimensions = [1] (%in: f32, %acc: f32) {
      %q = arith.addf %in, %acc : f32
      linalg.yield %q : f32
    }
    %e = tensor.expand_shape %s [[0, 1]] output_shape [4, 1] : tensor<4xf32> into tensor<4x1xf32>
    %e2 = tensor.collapse_shape %e [[0, 1]] : tensor<4x1xf32> into tensor<4xf32>
    %big = tensor.empty() : tensor<4x64xf32>
    %bc = linalg.broadcast ins(%e2 : tensor<4xf32>) outs(%big : tensor<4x64xf32>) dimensions = [1]
    %tr0 = tensor.empty() : tensor<64x4xf32>
    %tr = linalg.transpose ins(%bc : tensor<4x64xf32>) outs(%tr0 : tensor<64x4xf32>) permutation = [1, 0]
    %back = linalg.transpose ins(%tr : tensor<64x4xf32>) outs(%big : tensor<4x64xf32>) permutation = [1, 0]
    %g = tensor.generate {
    ^bb0(%p: index, %r: index):
      %pi = arith.index_cast %p : index to i32
      %pf = arith.sitofp %pi : i32 to f32
      %el = tensor.extract %back[%p, %r] : tensor<4x64xf32>
      %k = arith.addf %pf, %el : f32
      tensor.yield %k : f32
    } : tensor<4x64xf32>
    %cond = arith.cmpi ne, %n, %c0 : index
    %res = scf.if %cond -> (tensor<4x64xf32>) {
      scf.yield %g : tensor<4x64xf32>
    } else {
      scf.yield %big : tensor<4x64xf32>
    }
    %row = tensor.extract_slice %res[1, 0] [1, 64] [1, 1] : tensor<4x64xf32> to tensor<64xf32>
    %ins = tensor.insert_slice %row into %res[0, 0] [1, 64] [1, 1] : tensor<64xf32> into tensor<4x64xf32>
    %mapped = linalg.map { math.absf } ins(%ins : tensor<4x64xf32>) outs(%big : tensor<4x64xf32>)
    %lt = arith.cmpf olt, %mapped, %ins : tensor<4x64xf32>
    %sel = arith.select %lt, %mapped, %ins : tensor<4x64xi1>, tensor<4x64xf32>
    %h = arith.truncf %sel : tensor<4x64xf32> to !tile
    %sum, %cnt = scf.for %it = %c0 to %c4 step %c1 iter_args(%acc = %h, %cc = %c0) -> (!tile, index) {
      %nn = arith.addi %cc, %c1 overflow<nsw> : index
      %aa = spyreop.relu %acc : !tile
      scf.yield %aa, %nn : !tile, index
    }
    ktdp.store %sum, %b : !tile, !ktdp.access_tile<4x64xindex>
    func.return
  }
}
