//! Looks for ROCm. Nothing of it is linked: libflashwave loads `libamdhip64.so` when a GPU is first asked for, from
//! `ROCM_PATH` before any other place, and brings its kernels with it. `flashwave-sys` finds or builds that library.
use std::env;
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=ROCM_PATH");
    let Some(rocm) = env::var_os("ROCM_PATH").filter(|rocm| !rocm.is_empty()) else { return };
    let runtime = Path::new(&rocm).join("lib/libamdhip64.so");
    if !runtime.exists() {
        println!(
            "cargo:warning=ROCM_PATH is set, but there is no {}: hip:0 will be looked for elsewhere",
            runtime.display()
        );
    }
}
