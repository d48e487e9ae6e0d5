//! Which instructions this processor has, chosen once at run time.

#![expect(unsafe_code, reason = "entering code compiled for more instructions than the default")]

#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
use super::lanes::{Lanes, Portable};

/// An instruction set that this processor is known to have: only detection makes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl Isa {
    /// All that this processor has, the best first.
    pub fn detected() -> Vec<Self> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                found.push(Self(Kind::Avx512));
            }
            if is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
            {
                found.push(Self(Kind::Avx2));
            }
        }
        found.push(Self(Kind::Portable));
        found
    }

    pub fn best() -> Self {
        Self::detected()[0]
    }

    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            Kind::Portable => "portable",
        }
    }

    /// Runs `kernel` compiled for this instruction set.
    pub(super) fn run<K: Kernel>(self, kernel: K) {
        match self.0 {
            // SAFETY: a value of this kind exists only where detection found AVX-512F.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { run_avx512(kernel) },
            // SAFETY: a value of this kind exists only where detection found AVX2, FMA and F16C.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { run_avx2(kernel) },
            Kind::Portable => kernel.run(Portable),
        }
    }
}

/// An operation written once over [`Lanes`]. `run` has to be `#[inline(always)]`, with everything
/// hot that it calls, so that it is compiled within a function of the right instruction set.
pub(super) trait Kernel {
    fn run<L: Lanes>(self, lanes: L);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn run_avx512<K: Kernel>(kernel: K) {
    // SAFETY: this function's own target features are those that `Avx512` asks for.
    kernel.run(unsafe { Avx512::new() });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<K: Kernel>(kernel: K) {
    // SAFETY: this function's own target features are those that `Avx2` asks for.
    kernel.run(unsafe { Avx2::new() });
}
