//! Emulated GEMM library: computes what cuBLASLt documents, one element at a time, in the memory of
//! the emulated GPU. Its algorithms differ only in name and in which sizes they support.

#![expect(unsafe_code, reason = "matrices are named by their addresses")]

use half::bf16;

use super::{Emulated, Work};
use engine_cuda::DType;
use engine_cuda::Result;
use engine_cuda::driver::{
    Address, Algorithm, Blas, ColumnMatmul, Columns, Operands, Side, WORKSPACE_BYTES,
};

/// Divisor of every number of result columns that algorithm 2 of the emulated GEMM library
/// supports, so that tests meet an algorithm that refuses a size.
const COLUMNS_OF_SECOND: usize = 8;

impl Blas for Emulated {
    fn version(&self) -> &str {
        "emulated"
    }

    fn algorithms(&self, matmul: &ColumnMatmul, most: usize) -> Result<Vec<Algorithm>> {
        let all = (1..=self.script.algorithms).map(|number| Algorithm([number; 8]));
        Ok(all.filter(|one| self.takes(matmul, *one)).take(most).collect())
    }

    fn takes(&self, matmul: &ColumnMatmul, algorithm: Algorithm) -> bool {
        algorithm.0[0] != 2 || matmul.d.cols.is_multiple_of(COLUMNS_OF_SECOND)
    }

    fn multiply(
        &self,
        matmul: &ColumnMatmul,
        algorithm: Algorithm,
        operands: &Operands,
    ) -> Result<()> {
        assert!(self.takes(matmul, algorithm), "the algorithm takes {matmul:?}");
        let inside = |at: Address, bytes: usize| {
            let state = self.state();
            let ends = [at, at.plus(bytes - 1)].map(|at| state.allocation(at, "a matmul"));
            assert!(ends[0].is_some() && ends[0] == ends[1], "{bytes} bytes at {at:x?}");
        };
        inside(operands.a, matmul.a.matrix.bytes());
        inside(operands.b, matmul.b.matrix.bytes());
        inside(operands.d, matmul.d.bytes());
        inside(operands.workspace, WORKSPACE_BYTES);
        self.begin(Work::Matmul { matmul: *matmul, algorithm, operands: *operands })
    }
}

/// Returns the address of element `[row, col]` of `matrix`, which begins at `start`.
fn at(start: Address, matrix: &Columns, row: usize, col: usize) -> Address {
    assert!(row < matrix.rows && col < matrix.cols, "the matrix has such an element");
    start.plus((col * matrix.stride + row) * matrix.dtype.bytes())
}

/// Returns element `[row, col]` of `matrix`, which begins at `start`, converted to f32.
fn read(start: Address, matrix: &Columns, row: usize, col: usize) -> f32 {
    let from = at(start, matrix, row, col).0 as *const u8;
    let mut bytes = [0; 4];
    let count = matrix.dtype.bytes();
    // SAFETY: the matrix is in device memory, as was checked when the multiplication was started.
    unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(from, count) };
    match matrix.dtype {
        DType::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        DType::F32 => f32::from_le_bytes(bytes),
    }
}

/// Returns element `[row, col]` of a factor after its transposition, converted to f32.
fn side(start: Address, side: &Side, row: usize, col: usize) -> f32 {
    let (row, col) = if side.is_transposed { (col, row) } else { (row, col) };
    read(start, &side.matrix, row, col)
}

/// Computes the matrix multiplication `matmul` on the host processor, in the memory of the emulated
/// GPU.
pub(super) fn multiply(matmul: &ColumnMatmul, operands: &Operands) {
    let ColumnMatmul { a, b, d, alpha, beta } = matmul;
    let depth = if a.is_transposed { a.matrix.rows } else { a.matrix.cols };
    let depth_of_b = if b.is_transposed { b.matrix.cols } else { b.matrix.rows };
    assert_eq!(depth, depth_of_b, "both sides are as deep");
    for (row, col) in (0..d.cols).flat_map(|col| (0..d.rows).map(move |row| (row, col))) {
        let one = |i| side(operands.a, a, row, i) * side(operands.b, b, i, col);
        let sum: f32 = (0..depth).map(one).sum();
        // With a factor of zero the previous content must not be read: it may be NaN.
        let before = if *beta == 0.0 { 0.0 } else { beta * read(operands.d, d, row, col) };
        let result = alpha * sum + before;
        let to = at(operands.d, d, row, col).0 as *mut u8;
        let bytes = match d.dtype {
            DType::Bf16 => bf16::from_f32(result).to_le_bytes().to_vec(),
            DType::F32 => result.to_le_bytes().to_vec(),
        };
        // SAFETY: as for reading, and only one multiplication runs at a time.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Script;
    use super::*;
    use engine_cuda::driver::{Driver, Memory, Pinned};

    const MEMORY: u64 = 64 << 20;

    /// Test helper: allocates device memory, copies `values` to it and returns it.
    fn sent(driver: &Arc<dyn Driver>, values: &[f32]) -> Memory {
        let memory = Memory::new(driver, 4 * values.len()).unwrap();
        let mut host = Pinned::new(driver, 4 * values.len()).unwrap();
        host.bytes_mut().copy_from_slice(bytemuck::cast_slice(values));
        host.upload(memory.address(), 4 * values.len()).unwrap();
        memory
    }

    /// Multiplies [[1, 2], [3, 4], [5, 6]] by [[1, 0, 2], [0, 1, 3]] with the emulated GEMM
    /// library, each factor stored as it is and stored transposed.
    #[test]
    fn products_are_what_the_library_documents() {
        let Some(gpu) = Emulated::with(MEMORY, Script { algorithms: 1, ..Script::default() })
        else {
            return;
        };
        let driver: Arc<dyn Driver> = Arc::clone(&gpu) as _;
        let matrix = |rows, cols, stride| Columns { dtype: DType::F32, rows, cols, stride };
        let sides_of_a = [
            (matrix(3, 2, 4), false, vec![1.0, 3.0, 5.0, 9.0, 2.0, 4.0, 6.0]),
            (matrix(2, 3, 2), true, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        ];
        let sides_of_b = [
            (matrix(2, 3, 2), false, vec![1.0, 0.0, 0.0, 1.0, 2.0, 3.0]),
            (matrix(3, 2, 3), true, vec![1.0, 0.0, 2.0, 0.0, 1.0, 3.0]),
        ];
        let workspace = Memory::new(&driver, WORKSPACE_BYTES).unwrap();
        for (a, b) in sides_of_a.iter().flat_map(|a| sides_of_b.iter().map(move |b| (a, b))) {
            let [a_at, b_at, d_at] =
                [&a.2, &b.2, &vec![10.0; 9]].map(|values| sent(&driver, values));
            let side = |of: &(Columns, bool, Vec<f32>)| Side { matrix: of.0, is_transposed: of.1 };
            let (a, b, d) = (side(a), side(b), matrix(3, 3, 3));
            let matmul = ColumnMatmul { a, b, d, alpha: 2.0, beta: 0.5 };
            let operands = Operands {
                a: a_at.address(),
                b: b_at.address(),
                d: d_at.address(),
                workspace: workspace.address(),
            };
            gpu.multiply(&matmul, Algorithm([1; 8]), &operands).unwrap();
            let mut host = Pinned::new(&driver, 36).unwrap();
            host.download(0, d_at.address(), 36).unwrap();
            let got: &[f32] = bytemuck::cast_slice(host.bytes());
            // Twice [[1, 2, 8], [3, 4, 18], [5, 6, 28]] plus half of the previous 10, column major.
            assert_eq!(got, [7.0, 11.0, 15.0, 9.0, 13.0, 17.0, 21.0, 41.0, 61.0]);
        }
    }
}
