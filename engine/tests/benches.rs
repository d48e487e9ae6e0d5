//! Every bench runs once at its smallest shape, so that none breaks unseen. Nothing is timed.

#![expect(clippy::duplicate_mod, reason = "each bench is a crate of its own that shares shapes.rs")]

macro_rules! benches {
    ($($op:ident: $path:literal),* $(,)?) => {
        $(
            #[path = $path]
            mod $op;
        )*

        #[test]
        fn the_smallest_case_of_every_bench_runs() {
            $(
                let mut case = $op::smallest();
                (case.run)();
                assert!(case.id.starts_with(concat!(stringify!($op), "/")), "{case:?}");
                assert!(case.flops > 0 && case.bytes > 0, "{case:?}");
            )*
        }

        #[test]
        fn case_ids_name_op_shape_and_instruction_set() {
            let isas: Vec<&str> =
                engine::device::cpu::Isa::detected().iter().map(|isa| isa.name()).collect();
            $(
                let id = $op::smallest().id;
                let parts: Vec<&str> = id.split('/').collect();
                assert!(parts.len() == 3 && isas.contains(&parts[2]), "{id}");
                assert!(!$op::cases().is_empty(), "{id}");
                let _runs_them: fn() = $op::benches;
            )*
        }
    };
}

benches! {
    attention: "../benches/attention.rs",
    matmul: "../benches/matmul.rs",
    rms_norm: "../benches/rms_norm.rs",
    rope: "../benches/rope.rs",
    sample: "../benches/sample.rs",
    silu_mul: "../benches/silu_mul.rs",
}
