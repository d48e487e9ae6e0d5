//! Benchmark of matrix multiplication (GEMM) with packed weights: f32 arithmetic with every stored
//! format, 8-bit integer arithmetic with two, bf16 arithmetic with one.

mod shapes;

use criterion::{Criterion, criterion_group, criterion_main};
use engine_core::{Device, HostMatrix, RowOrder, WeightType};
use engine_cpu::{Arithmetic, Cpu, Isa};
use engine_weights::random_tensor;
use shapes::{Case, Lazy, MODELS, TOKENS, device, measure, numbers};

/// Numbers of rows for 8-bit integer and bf16 arithmetic: those of every benchmark, and a full
/// tile.
const NARROW_TOKENS: [usize; 4] = [1, 8, 32, 512];
/// Formats that 8-bit integer arithmetic stores in four bits, and in eight bits.
const INT8_TYPES: [WeightType; 2] = [WeightType::Q4_1, WeightType::Q8_0];

/// Matrix multiplication of `[t, k]` by the transpose of `[n, k]`.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    pub t: usize,
    pub k: usize,
    pub n: usize,
    pub weight_type: WeightType,
}

/// Case of `product` in the given arithmetic, named `op`. Preparing the rows, such as quantizing
/// them, is part of the measured time.
pub fn case(op: &str, cpu: Cpu, arithmetic: Arithmetic, product: Product) -> Case {
    let Product { t, k, n, weight_type } = product;
    let mut cpu = cpu.with(arithmetic);
    let stored = random_tensor(1, "bench", weight_type, &[n, k]);
    let host = HostMatrix { weight_type, n, k, bytes: &stored.bytes, order: RowOrder::AsStored };
    let w = cpu.matrix(&[host]).expect("the weights fit into memory");
    let mut x = cpu.buffer(k).expect("a buffer");
    let mut out = cpu.buffer(n).expect("a buffer");
    cpu.write(&mut x, &numbers(t * k)).expect("rows of k");
    cpu.resize(&mut out, t).expect("rows of n");
    Case {
        id: format!("{op}/T{t}_K{k}_N{n}_{}/{}", weight_type.name(), cpu.isa().name()),
        flops: 2 * (t * n * k) as u64,
        bytes: (stored.bytes.len() + 4 * t * (n + k)) as u64,
        run: Box::new(move || cpu.matmul(&x, &w, &mut out).expect("a product")),
    }
}

/// Up and down projections of the feed-forward layers of the two smaller models.
fn products(tokens: &[usize], types: &[WeightType]) -> Vec<Product> {
    let mut products = Vec::new();
    for shape in &MODELS[..2] {
        for t in tokens.iter().copied() {
            for weight_type in types.iter().copied() {
                let (k, n) = (shape.hidden, shape.intermediate);
                let both = [(k, n), (n, k)].map(|(k, n)| Product { t, k, n, weight_type });
                // A row must consist of whole blocks of its format.
                products.extend(both.iter().filter(|p| p.k.is_multiple_of(weight_type.block())));
            }
        }
    }
    products
}

/// Cases of `products` in the given arithmetic on each of `isas`.
fn on_each(
    isas: impl IntoIterator<Item = Isa>,
    op: &'static str,
    arithmetic: Arithmetic,
    products: &[Product],
) -> Vec<Lazy> {
    let lazy =
        |isa, product| -> Lazy { Box::new(move || case(op, device(isa), arithmetic, product)) };
    let each = |isa| products.iter().map(move |product| lazy(isa, *product));
    isas.into_iter().flat_map(each).collect()
}

pub fn cases() -> Vec<Lazy> {
    on_each(Isa::detected(), "matmul", Arithmetic::F32, &products(&TOKENS, &WeightType::ALL))
}

pub fn int8_cases() -> Vec<Lazy> {
    let products = products(&NARROW_TOKENS, &INT8_TYPES);
    on_each(Isa::detected(), "matmul_int8", Arithmetic::Int8, &products)
}

pub fn bf16_cases() -> Vec<Lazy> {
    // Only instruction sets with bf16 instructions can compute these cases.
    let isas = Isa::detected().into_iter().filter(|isa| isa.has_bf16());
    let products = products(&NARROW_TOKENS, &[WeightType::Bf16]);
    on_each(isas, "matmul_bf16", Arithmetic::Bf16, &products)
}

/// Smallest case, run by tests.
pub fn smallest() -> Case {
    let product = Product { t: 1, k: 576, n: 1536, weight_type: WeightType::Q4_1 };
    case("matmul", device(Isa::best()), Arithmetic::F32, product)
}

fn all(criterion: &mut Criterion) {
    measure(criterion, "matmul", cases());
    measure(criterion, "matmul_int8", int8_cases());
    measure(criterion, "matmul_bf16", bf16_cases());
}

criterion_group!(benches, all);
criterion_main!(benches);
