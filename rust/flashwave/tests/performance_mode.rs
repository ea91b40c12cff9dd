//! `FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE`, which the library reads: fp16 is multiplied as bf16. A process of its own,
//! since the environment is the whole process's.
use flashwave::{Device, Exec, Problem, Sizes};
use half::f16;

const SIZES: Sizes = Sizes { batch: 1, seqlen_q: 70, seqlen_k: 70, heads_q: 2, heads_k: 2, dim_qk: 64, dim_v: 64 };

/// The output, and the kernel that made it.
fn forward(device: &Device) -> (Vec<f16>, String) {
    let numbers = |seed: usize| -> Vec<f16> {
        (0..70 * 2 * 64).map(|i| f16::from_f32(1.7 * ((i * 7 + seed * 131 + i * i % 97) as f32).sin())).collect()
    };
    let [q, k, v] = [1, 2, 3].map(|seed| device.upload(&numbers(seed)).unwrap());
    let mut o = device.upload(&vec![f16::NAN; 70 * 2 * 64]).unwrap();
    let report = Problem::new(SIZES, &q, &k, &v, &mut o).forward_with(device, &Exec::default()).unwrap();
    let kernel = report.kernel().to_string();
    (o.to_vec().unwrap(), kernel)
}

#[test]
fn fp16_is_multiplied_as_bf16() {
    let device = Device::open("emu:gfx90a").unwrap();
    let (exact, kernel) = forward(&device);
    assert!(kernel.contains("_f16_"), "{kernel}");
    std::env::set_var("FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE", "1");
    let (rounded, kernel) = forward(&device);
    assert!(kernel.contains("_bf16_"), "{kernel}");
    let distance = |(a, b): (&f16, &f16)| (a.to_f32() - b.to_f32()).abs();
    let largest = exact.iter().zip(&rounded).map(distance).fold(0.0, f32::max);
    assert!(largest > 5e-4 && largest < 2e-2, "{largest}");
}
