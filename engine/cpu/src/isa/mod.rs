//! Instruction sets of the processor, detected at run time, and dispatch of kernels to the code
//! compiled for them.

#![expect(unsafe_code, reason = "entering code compiled for more instructions than the default")]

/// Defines methods of the vector traits, inlined into code that is compiled for the instruction
/// set. A `plain fn` needs no instruction of the set; the others are sound because `self` proves
/// that the processor has the instructions, and the caller of an `unsafe fn` vouches for the memory
/// behind its pointers.
macro_rules! operations {
    () => {};
    (plain fn $name:ident($self:ident $($args:tt)*) -> $out:ty { $($body:tt)* } $($rest:tt)*) => {
        #[inline(always)]
        fn $name($self $($args)*) -> $out { $($body)* }
        operations! { $($rest)* }
    };
    (fn $name:ident($self:ident $($args:tt)*) -> $out:ty { $($body:tt)* } $($rest:tt)*) => {
        #[inline(always)]
        fn $name($self $($args)*) -> $out {
            // SAFETY: `self` proves that the processor has the instructions.
            unsafe { $($body)* }
        }
        operations! { $($rest)* }
    };
    (unsafe fn $name:ident($self:ident $($args:tt)*) -> $out:ty { $($body:tt)* } $($rest:tt)*) => {
        #[inline(always)]
        unsafe fn $name($self $($args)*) -> $out {
            // SAFETY: as above, and the caller vouches for the memory.
            unsafe { $($body)* }
        }
        operations! { $($rest)* }
    };
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use super::lanes::{Dots, Lanes, Pairs};
use portable::{Portable, PortableDots, PortablePairs};

/// Instruction set that the processor is known to have: only detection creates values of this type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa {
    kind: Kind,
    name: &'static str,
    /// True for the instruction set of AVX-512 with VNNI where the processor also has AVX-512 BF16.
    has_bf16: bool,
}

/// Instruction set for which kernels are compiled.
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
    /// Returns the instruction sets with kernels of their own that the processor has, the best
    /// first and the portable one last.
    pub fn detected() -> Vec<Self> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let has_avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let has_avx512 = has_avx2 && is_x86_feature_detected!("avx512f");
            let has_vnni = has_avx512
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vnni");
            // Used together with VNNI only, which all processors with AVX-512 BF16 have.
            let has_bf16 = has_vnni && is_x86_feature_detected!("avx512bf16");
            let has_avx_vnni = has_avx2 && is_x86_feature_detected!("avxvnni");
            let kinds = [
                (Kind::Avx512Vnni, "avx512-vnni-bf16", has_bf16),
                (Kind::Avx512Vnni, "avx512-vnni", has_vnni && !has_bf16),
                (Kind::Avx512, "avx512", has_avx512),
                (Kind::Avx2Vnni, "avx2-vnni", has_avx_vnni),
                (Kind::Avx2, "avx2", has_avx2),
            ];
            let here = kinds.into_iter().filter(|(_, _, is_here)| *is_here);
            let has_bf16 = |kind| has_bf16 && kind == Kind::Avx512Vnni;
            found.extend(here.map(|(kind, name, _)| Self { kind, name, has_bf16: has_bf16(kind) }));
        }
        found.push(Self { kind: Kind::Portable, name: "portable", has_bf16: false });
        found
    }

    /// Returns the best instruction set that the processor has.
    pub fn best() -> Self {
        Self::detected()[0]
    }

    /// Returns the name of the instruction set in messages, records and benchmarks, such as
    /// `avx512-vnni`.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Returns true if the instruction set has bf16 dot products; the others emulate them in
    /// portable code.
    pub fn has_bf16(self) -> bool {
        self.has_bf16
    }

    /// Runs a kernel of f32 vectors compiled for this instruction set.
    pub(super) fn run<K: Kernel>(self, kernel: K) {
        match self.kind {
            // SAFETY: values of these kinds exist only where detection found AVX-512F.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni | Kind::Avx512 => unsafe { avx512::run(kernel) },
            // SAFETY: values of these kinds exist only where detection found AVX2, FMA and F16C.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Vnni | Kind::Avx2 => unsafe { avx2::run(kernel) },
            Kind::Portable => kernel.run(Portable),
        }
    }

    /// Runs a kernel of int8 dot products compiled for this instruction set; AVX-512 without VNNI
    /// runs the one for AVX2.
    pub(super) fn run_dots<K: DotKernel>(self, kernel: K) {
        match self.kind {
            // SAFETY: a value of this kind exists only where detection found its instructions.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => unsafe { avx512::run_dots(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Vnni => unsafe { avx2::run_vnni_dots(kernel) },
            // SAFETY: as above; a kind with AVX-512 exists only where AVX2 was detected too.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 | Kind::Avx2 => unsafe { avx2::run_dots(kernel) },
            Kind::Portable => kernel.run(PortableDots),
        }
    }

    /// Runs a kernel of bf16 dot products compiled for AVX-512 BF16, or in portable code on
    /// instruction sets without bf16.
    pub(super) fn run_pairs<K: PairKernel>(self, kernel: K) {
        match self.kind {
            // SAFETY: `has_bf16` is true only where detection found AVX-512 BF16, AVX-512BW and
            // AVX-512F.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni if self.has_bf16 => unsafe { avx512::run_pairs(kernel) },
            _ => kernel.run(PortablePairs),
        }
    }
}

/// Kernel written once over f32 vectors ([`Lanes`]). `run` and all hot functions that it calls must
/// be `#[inline(always)]`, so that they are compiled inside a function with the right target
/// features.
pub(super) trait Kernel {
    fn run<L: Lanes>(self, lanes: L);
}

/// Kernel written once over int8 dot products ([`Dots`]); the rules of [`Kernel`] about inlining
/// apply.
pub(super) trait DotKernel {
    fn run<D: Dots>(self, dots: D);
}

/// Kernel written once over bf16 dot products ([`Pairs`]); the rules of [`Kernel`] about inlining
/// apply.
pub(super) trait PairKernel {
    fn run<P: Pairs>(self, pairs: P);
}
