//! cuBLASLt, NVIDIA's GEMM library, opened at run time. Where it is not installed, or older than
//! the bindings, matrix multiplication uses Redline's own kernels only.

#![expect(unsafe_code, reason = "calls into the library, after the check that it is there")]

use std::ffi::c_void;
use std::panic;

use cudarc::cublaslt::{result, sys};
use cudarc::driver::sys as driver;

use super::libraries::Library;
use crate::buffer::DType;
use crate::driver::blas::{
    Algorithm, Blas, ColumnMatmul, Columns, Operands, Side, WORKSPACE_BYTES,
};
use crate::{Result, failed};
use engine_core::DeviceError;

/// Open cuBLASLt library whose calls run on the stream of one GPU.
#[derive(Debug)]
pub struct CublasLt {
    handle: sys::cublasLtHandle_t,
    context: driver::CUcontext,
    stream: driver::CUstream,
    version: String,
}

// SAFETY: a handle may be used by any thread on which its context is current, and every call makes
// it current.
unsafe impl Send for CublasLt {}
// SAFETY: as above; cuBLASLt allows concurrent calls on one handle.
unsafe impl Sync for CublasLt {}

impl CublasLt {
    /// Opens cuBLASLt for one GPU; `None` if it is not installed, too old or cannot be initialized.
    /// The context must be current, and must outlive the library, as must the stream.
    pub fn open(context: driver::CUcontext, stream: driver::CUstream) -> Option<Self> {
        Library::CublasLt.open()?;
        // A library older than the bindings lacks symbols, which cudarc reports by a panic.
        let opened = panic::catch_unwind(|| {
            let handle = result::create_handle().ok()?;
            let mut driver_version = 0;
            // SAFETY: the library is present, and `driver_version` is writable.
            let library_version = unsafe {
                driver::cuDriverGetVersion(&raw mut driver_version).result().ok()?;
                sys::cublasLtGetVersion()
            };
            Some((handle, format!("cuBLASLt {library_version}, driver {driver_version}")))
        });
        let (handle, version) = opened.ok().flatten()?;
        Some(Self { handle, context, stream, version })
    }

    /// Makes the GPU's context current on the calling thread.
    fn bind(&self) -> Result<()> {
        // SAFETY: the context was retained and not yet released.
        let bound = unsafe { cudarc::driver::result::ctx::set_current(self.context) };
        bound.map_err(|error| failed("cublaslt", format!("{error:?}")))
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        if self.bind().is_ok() {
            // SAFETY: nothing else has the handle any more.
            let _failed = unsafe { result::destroy_handle(self.handle) };
        }
    }
}

fn named(error: result::CublasError) -> DeviceError {
    failed("cublaslt", format!("{:?}", error.0))
}

/// cuBLASLt descriptors of one matrix multiplication: the operation and the layouts of its
/// operands.
struct Described {
    matmul: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    d: sys::cublasLtMatrixLayout_t,
}

impl Described {
    fn new(matmul: &ColumnMatmul) -> Result<Self, result::CublasError> {
        use sys::cublasLtMatmulDescAttributes_t as Of;
        let in_f32 = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        // Created one by one, so that `Drop` releases those created so far when a later one fails.
        let mut described = Self {
            matmul: result::create_matmul_desc(in_f32, sys::cudaDataType_t::CUDA_R_32F)?,
            a: std::ptr::null_mut(),
            b: std::ptr::null_mut(),
            d: std::ptr::null_mut(),
        };
        described.a = layout(&matmul.a.matrix)?;
        described.b = layout(&matmul.b.matrix)?;
        described.d = layout(&matmul.d)?;
        let sides = [
            (Of::CUBLASLT_MATMUL_DESC_TRANSA, &matmul.a),
            (Of::CUBLASLT_MATMUL_DESC_TRANSB, &matmul.b),
        ];
        for (attribute, Side { is_transposed, .. }) in sides {
            let transposed = i32::from(*is_transposed);
            let at = (&raw const transposed).cast::<c_void>();
            // SAFETY: the attribute is an i32, and the descriptor was just created.
            unsafe {
                result::set_matmul_desc_attribute(
                    described.matmul,
                    attribute,
                    at,
                    size_of::<i32>(),
                )?;
            }
        }
        Ok(described)
    }
}

impl Drop for Described {
    fn drop(&mut self) {
        // SAFETY: each descriptor was created and is released once.
        unsafe {
            for layout in [self.a, self.b, self.d].into_iter().filter(|layout| !layout.is_null()) {
                let _failed = result::destroy_matrix_layout(layout);
            }
            let _failed = result::destroy_matmul_desc(self.matmul);
        }
    }
}

fn layout(matrix: &Columns) -> Result<sys::cublasLtMatrixLayout_t, result::CublasError> {
    let dtype = match matrix.dtype {
        DType::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
        DType::F32 => sys::cudaDataType_t::CUDA_R_32F,
    };
    let Columns { rows, cols, stride, .. } = *matrix;
    result::create_matrix_layout(dtype, rows as u64, cols as u64, stride as i64)
}

/// cuBLASLt search preference: the size of the workspace that an algorithm may use.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new() -> Result<Self, result::CublasError> {
        let preference = Self(result::create_matmul_pref()?);
        let bytes = WORKSPACE_BYTES;
        // SAFETY: the attribute is a number of that size, and the preference was just created.
        unsafe {
            result::set_matmul_pref_attribute(
                preference.0,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const bytes).cast(),
                size_of::<usize>(),
            )?;
        }
        Ok(preference)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: the preference was created and is released once.
        let _failed = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// Returns an empty search result for cuBLASLt to write to.
fn no_result() -> sys::cublasLtMatmulHeuristicResult_t {
    sys::cublasLtMatmulHeuristicResult_t {
        algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        workspaceSize: 0,
        state: sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
        wavesCount: 0.0,
        reserved: [0; 4],
    }
}

impl Blas for CublasLt {
    fn version(&self) -> &str {
        &self.version
    }

    fn algorithms(&self, matmul: &ColumnMatmul, most: usize) -> Result<Vec<Algorithm>> {
        self.bind()?;
        let described = Described::new(matmul).map_err(named)?;
        let preference = Preference::new().map_err(named)?;
        let mut found = vec![no_result(); most];
        let mut count = 0;
        // SAFETY: the descriptors live until the end of this call, and `found` has `most` elements.
        let asked = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                described.matmul,
                described.a,
                described.b,
                described.d,
                described.d,
                preference.0,
                most as i32,
                found.as_mut_ptr(),
                &raw mut count,
            )
        };
        match asked {
            // cuBLASLt has no algorithm for such a multiplication.
            sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED => return Ok(Vec::new()),
            status => status.result().map_err(named)?,
        }
        found.truncate(count as usize);
        let usable = found
            .into_iter()
            .filter(|one| one.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS)
            // Checked again, because the scratch memory has exactly this size.
            .filter(|one| one.workspaceSize <= WORKSPACE_BYTES);
        Ok(usable.map(|one| Algorithm(one.algo.data)).collect())
    }

    fn takes(&self, matmul: &ColumnMatmul, algorithm: Algorithm) -> bool {
        let (Ok(()), Ok(described)) = (self.bind(), Described::new(matmul)) else { return false };
        let algorithm = sys::cublasLtMatmulAlgo_t { data: algorithm.0 };
        let mut checked = no_result();
        // SAFETY: the descriptors live until the end of this call.
        let status = unsafe {
            sys::cublasLtMatmulAlgoCheck(
                self.handle,
                described.matmul,
                described.a,
                described.b,
                described.d,
                described.d,
                &raw const algorithm,
                &raw mut checked,
            )
        };
        status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS
            && checked.workspaceSize <= WORKSPACE_BYTES
    }

    fn multiply(
        &self,
        matmul: &ColumnMatmul,
        algorithm: Algorithm,
        operands: &Operands,
    ) -> Result<()> {
        self.bind()?;
        let described = Described::new(matmul).map_err(named)?;
        let algorithm = sys::cublasLtMatmulAlgo_t { data: algorithm.0 };
        let at = |address: super::Address| address.0 as *mut c_void;
        // SAFETY: the descriptors live until the end of this call, which copies the scalar factors
        // and the algorithm. What the kernel does to device memory is not checked here.
        unsafe {
            result::matmul(
                self.handle,
                described.matmul,
                (&raw const matmul.alpha).cast(),
                (&raw const matmul.beta).cast(),
                at(operands.a),
                described.a,
                at(operands.b),
                described.b,
                at(operands.d),
                described.d,
                at(operands.d),
                described.d,
                &raw const algorithm,
                at(operands.workspace),
                WORKSPACE_BYTES,
                self.stream.cast(),
            )
        }
        .map_err(named)
    }
}
