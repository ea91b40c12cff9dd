//! Training without a framework: gradient descent on q, k and v, so that causal attention gives what is wanted of it. The
//! numbers live in f32 on the host; the device gets them in bf16 and computes outputs and gradients.
//!
//! `FLASHWAVE_TEST_DEVICE` names it (`cuda:0`, `hip:0`); without, it is one emulated AMD GPU of each family after the other.
use flashwave::{Device, DeviceBuffer, Gradients, Problem, Sizes};
use half::bf16;

const SIZES: Sizes = Sizes { batch: 1, seqlen_q: 40, seqlen_k: 40, heads_q: 2, heads_k: 2, dim_qk: 32, dim_v: 32 };
const COUNT: usize = 40 * 2 * 32;

fn upload(device: &Device, numbers: &[f32]) -> DeviceBuffer<bf16> {
    device.upload(&numbers.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>()).unwrap()
}

fn download(numbers: &DeviceBuffer<bf16>) -> Vec<f32> {
    numbers.to_vec().unwrap().into_iter().map(bf16::to_f32).collect()
}

fn losses(device: &Device) -> Vec<f32> {
    let start = |t: usize| (0..COUNT).map(|i| ((7 * i + 131 * t + i * i % 97) as f32).sin()).collect();
    let mut weights: [Vec<f32>; 3] = [start(0), start(1), start(2)];
    let step = |_| {
        let [q, k, v] = weights.each_ref().map(|w| upload(device, w));
        let mut o = device.zeros::<bf16>(COUNT).unwrap();
        let mut lse = device.zeros::<f32>(40 * 2).unwrap();
        Problem::new(SIZES, &q, &k, &v, &mut o).lse(&mut lse).causal(true).forward(device).unwrap();
        let wanted = |i: usize| ((i % 61) as f32).cos() / 2.0;
        let d_o: Vec<f32> = download(&o).iter().enumerate().map(|(i, x)| x - wanted(i)).collect();
        let d_o_there = upload(device, &d_o);
        let [mut dq, mut dk, mut dv] = [(); 3].map(|()| device.zeros::<bf16>(COUNT).unwrap());
        let mut gradients = Gradients::new(&d_o_there).dq(&mut dq).dk(&mut dk).dv(&mut dv);
        let problem = Problem::of_forward(SIZES, &q, &k, &v, &o, &lse).causal(true);
        problem.backward(device, &mut gradients).unwrap();
        for (weights, gradient) in weights.iter_mut().zip([&dq, &dk, &dv]) {
            weights.iter_mut().zip(download(gradient)).for_each(|(w, g)| *w -= 0.3 * g);
        }
        d_o.iter().map(|x| x * x / 2.0 / COUNT as f32).sum()
    };
    (0..5).map(step).collect()
}

#[test]
fn losses_fall_as_on_the_cpu() {
    let names =
        std::env::var("FLASHWAVE_TEST_DEVICE").unwrap_or_else(|_| "emu:gfx942 emu:gfx1100 emu:gfx1201".to_string());
    let on_cpu = losses(&Device::cpu());
    for name in names.split_whitespace() {
        let there = losses(&Device::open(name).unwrap());
        for (there, here) in there.iter().zip(&on_cpu) {
            assert!((there - here).abs() <= 0.01 * here, "{name}: {there} and {here}");
        }
        assert!(there[4] < 0.7 * there[0], "{name}: {there:?}");
    }
}
