//! Which instructions this processor has, chosen once at run time.

#![expect(unsafe_code, reason = "entering code compiled for more instructions than the default")]

#[cfg(target_arch = "x86_64")]
use super::int8::{Avx2Dots, Avx2VnniDots, Avx512Dots};
use super::int8::{Dots, PortableDots};
#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
use super::lanes::{Lanes, Portable};

/// An instruction set that this processor is known to have: only detection makes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2Vnni,
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
            let has_avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let has_avx512 = has_avx2 && is_x86_feature_detected!("avx512f");
            let kinds = [
                (
                    Kind::Avx512Vnni,
                    has_avx512
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512vnni"),
                ),
                (Kind::Avx512, has_avx512),
                (Kind::Avx2Vnni, has_avx2 && is_x86_feature_detected!("avxvnni")),
                (Kind::Avx2, has_avx2),
            ];
            found.extend(
                kinds.into_iter().filter(|(_, is_here)| *is_here).map(|(kind, _)| Self(kind)),
            );
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
            Kind::Avx512Vnni => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Vnni => "avx2-vnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            Kind::Portable => "portable",
        }
    }

    /// Runs `kernel` compiled for this instruction set.
    pub(super) fn run<K: Kernel>(self, kernel: K) {
        match self.0 {
            // SAFETY: values of these kinds exist only where detection found AVX-512F.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni | Kind::Avx512 => unsafe { run_avx512(kernel) },
            // SAFETY: values of these kinds exist only where detection found AVX2, FMA and F16C.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Vnni | Kind::Avx2 => unsafe { run_avx2(kernel) },
            Kind::Portable => kernel.run(Portable),
        }
    }

    /// Runs `kernel` of byte products compiled for this instruction set.
    pub(super) fn run_dots<K: DotKernel>(self, kernel: K) {
        match self.0 {
            // SAFETY: a value of this kind exists only where detection found its instructions.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => unsafe { run_avx512_dots(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Vnni => unsafe { run_avx2_vnni_dots(kernel) },
            // SAFETY: as above; AVX-512 is only said to be there where AVX2 is.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 | Kind::Avx2 => unsafe { run_avx2_dots(kernel) },
            Kind::Portable => kernel.run(PortableDots),
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

/// As [`Kernel`], over byte products.
pub(super) trait DotKernel {
    fn run<D: Dots>(self, dots: D);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn run_avx512_dots<K: DotKernel>(kernel: K) {
    // SAFETY: this function's own target features are those that `Avx512Dots` asks for.
    kernel.run(unsafe { Avx512Dots::new() });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn run_avx2_vnni_dots<K: DotKernel>(kernel: K) {
    // SAFETY: this function's own target features are those that `Avx2VnniDots` asks for.
    kernel.run(unsafe { Avx2VnniDots::new() });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2_dots<K: DotKernel>(kernel: K) {
    // SAFETY: this function's own target features are those that `Avx2Dots` asks for.
    kernel.run(unsafe { Avx2Dots::new() });
}
