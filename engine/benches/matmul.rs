//! Matrix products by packed weights: in f32 of every stored type, in eight-bit integers of two.

mod shapes;

use criterion::{Criterion, criterion_group, criterion_main};
use engine::device::cpu::{Arithmetic, Cpu, Isa};
use engine::device::{Device, HostMatrix, RowOrder};
use engine::weights::{WeightType, random_tensor};
use shapes::{Case, Lazy, MODELS, TOKENS, device, measure, numbers};

/// Rows of products in eight-bit integers: those of every bench, and a full tile.
const INT8_TOKENS: [usize; 4] = [1, 8, 32, 512];
/// Weights that products in eight-bit integers keep in four bits, and in eight.
const INT8_TYPES: [WeightType; 2] = [WeightType::Q4_1, WeightType::Q8_0];

/// One product of `[t, k]` by `[n, k]`.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    pub t: usize,
    pub k: usize,
    pub n: usize,
    pub weight_type: WeightType,
}

/// `op` is `product` in `arithmetic`; what is done to its rows before is a part of it.
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

/// Products up and down a feed-forward layer of the two smaller models.
fn products(tokens: &[usize], types: &[WeightType]) -> Vec<Product> {
    let mut products = Vec::new();
    for shape in &MODELS[..2] {
        for t in tokens.iter().copied() {
            for weight_type in types.iter().copied() {
                let (k, n) = (shape.hidden, shape.intermediate);
                let both = [(k, n), (n, k)].map(|(k, n)| Product { t, k, n, weight_type });
                products.extend(both.iter().filter(|p| p.k.is_multiple_of(weight_type.block())));
            }
        }
    }
    products
}

/// `products` in `arithmetic` on every instruction set.
fn on_each(op: &'static str, arithmetic: Arithmetic, products: &[Product]) -> Vec<Lazy> {
    let lazy =
        |isa, product| -> Lazy { Box::new(move || case(op, device(isa), arithmetic, product)) };
    let isas = Isa::detected().into_iter();
    isas.flat_map(|isa| products.iter().map(move |product| lazy(isa, *product))).collect()
}

pub fn cases() -> Vec<Lazy> {
    on_each("matmul", Arithmetic::F32, &products(&TOKENS, &WeightType::ALL))
}

pub fn int8_cases() -> Vec<Lazy> {
    on_each("matmul_int8", Arithmetic::Int8, &products(&INT8_TOKENS, &INT8_TYPES))
}

/// The case that tests run.
pub fn smallest() -> Case {
    let product = Product { t: 1, k: 576, n: 1536, weight_type: WeightType::Q4_1 };
    case("matmul", device(Isa::best()), Arithmetic::F32, product)
}

fn all(criterion: &mut Criterion) {
    measure(criterion, "matmul", cases());
    measure(criterion, "matmul_int8", int8_cases());
}

criterion_group!(benches, all);
criterion_main!(benches);
