//! Runs the smallest case of every benchmark once, so that none breaks unnoticed. Nothing is timed.

#![expect(clippy::duplicate_mod, reason = "each bench is a crate of its own that shares tables")]

/// True for a size such as `T1`: a capital letter and a number.
fn is_size(word: &str) -> bool {
    let number = word.strip_prefix(|letter: char| letter.is_ascii_uppercase());
    number.is_some_and(|number| number.parse::<usize>().is_ok())
}

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
                // MoE dispatch only copies rows, so it has no floating-point operations.
                let copies = stringify!($op) == "dispatch";
                assert!((case.flops > 0 || copies) && case.bytes > 0, "{case:?}");
            )*
        }

        #[test]
        fn case_ids_name_op_shape_and_instruction_set() {
            let isas: Vec<&str> =
                engine_cpu::Isa::detected().iter().map(|isa| isa.name()).collect();
            $(
                let id = $op::smallest().id;
                let parts: Vec<&str> = id.split('/').collect();
                assert!(parts.len() == 3 && isas.contains(&parts[2]), "{id}");
                // Sizes, then the data type: `T1_K576_q4_1`.
                let words: Vec<&str> = parts[1].split('_').collect();
                let sizes = words.iter().take_while(|word| is_size(word)).count();
                assert!(0 < sizes && sizes < words.len(), "{id}");
                assert!(!$op::cases().is_empty(), "{id}");
                // The group of criterion would be dead code here otherwise.
                let _runs_them: fn() = $op::benches;
            )*
        }
    };
}

benches! {
    add_bias: "../benches/add_bias.rs",
    add_rms_norm: "../benches/add_rms_norm.rs",
    attention: "../benches/attention.rs",
    clamped_swiglu: "../benches/clamped_swiglu.rs",
    combine: "../benches/combine.rs",
    delta_net: "../benches/delta_net.rs",
    dispatch: "../benches/dispatch.rs",
    embed: "../benches/embed.rs",
    expert_matmul: "../benches/expert_matmul.rs",
    matmul: "../benches/matmul.rs",
    rms_norm: "../benches/rms_norm.rs",
    rope: "../benches/rope.rs",
    route: "../benches/route.rs",
    sample: "../benches/sample.rs",
    sigmoid_mul: "../benches/sigmoid_mul.rs",
    silu_mul: "../benches/silu_mul.rs",
    step: "../benches/step.rs",
}
