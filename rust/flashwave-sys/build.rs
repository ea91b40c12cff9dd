//! Finds libflashwave, or builds it. See the crate's documentation.
//!
//! Links to the library, under both of its names, are put into `OUT_DIR`: cargo lets `cargo run` and `cargo test` of every
//! crate that depends on this one find libraries there, but nowhere outside of the target folder.
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARY: &str = "libflashwave.so";
/// What a program linked with it asks for when it starts: the library of a build or an installation, but not the one
/// built below, has a version in its name.
const SONAME: &str = "libflashwave.so.0";
/// Looked for beside the library by the devices `emu:*`.
const EMULATOR: &str = "libflashwave_emu.so";

fn main() {
    for variable in ["FLASHWAVE_DIR", "FLASHWAVE_CMAKE_ARGS", "PKG_CONFIG_PATH", "ROCM_PATH", "GPU_ARCHS", "DOCS_RS"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    if env::var_os("DOCS_RS").is_some() {
        return; // documentation needs no library
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let folder = match env::var_os("FLASHWAVE_DIR").filter(|folder| !folder.is_empty()) {
        Some(prefix) => in_prefix(Path::new(&prefix)),
        None => by_pkg_config().unwrap_or_else(|| build_from_source(&out)),
    };
    println!("cargo:rerun-if-changed={}", folder.join(LIBRARY).display());
    println!("cargo:libdir={}", folder.display());

    let links = out.join("lib");
    std::fs::create_dir_all(&links).expect("a folder in OUT_DIR");
    for name in [LIBRARY, SONAME, EMULATOR] {
        link(&folder.join(name), &links.join(name));
    }
    println!("cargo:rustc-link-search=native={}", links.display());
    println!("cargo:rustc-link-lib=dylib=flashwave");
}

fn in_prefix(prefix: &Path) -> PathBuf {
    let multiarch = format!("lib/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default());
    let folders = ["lib", "lib64", &multiarch, ""].map(|folder| prefix.join(folder));
    let found = folders.iter().find(|folder| folder.join(LIBRARY).exists());
    let found =
        found.unwrap_or_else(|| panic!("FLASHWAVE_DIR={}: no {LIBRARY} in it, nor in its lib", prefix.display()));
    std::path::absolute(found).expect("a current folder")
}

fn by_pkg_config() -> Option<PathBuf> {
    let version = env!("CARGO_PKG_VERSION");
    let asked = ["--atleast-version", version, "--print-errors", "flashwave"];
    if !Command::new("pkg-config").args(asked).output().ok()?.status.success() {
        return None;
    }
    let answer = Command::new("pkg-config").args(["--variable=libdir", "flashwave"]).output().ok()?;
    let folder = PathBuf::from(String::from_utf8(answer.stdout).ok()?.trim());
    folder.join(LIBRARY).exists().then_some(folder)
}

/// The shared library alone, with the kernels that the compilers found here can make: those of CPUs always.
fn build_from_source(out: &Path) -> PathBuf {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let source = manifest.join("../..");
    if !source.join("src/api").exists() {
        panic!(
            "libflashwave is not found. Install it (make install) and set FLASHWAVE_DIR to its prefix or PKG_CONFIG_PATH to \
             its lib/pkgconfig, or build this crate inside flashwave's source tree"
        );
    }
    let source = source.canonicalize().expect("the source tree");
    for part in ["CMakeLists.txt", "include", "src", "kernels", "cmake"] {
        println!("cargo:rerun-if-changed={}", source.join(part).display());
    }
    let build = out.join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&source).arg("-B").arg(&build);
    configure.args(["-DCMAKE_BUILD_TYPE=Release", "-DFLASHWAVE_WHEEL=ON", "-DFLASHWAVE_BUILD_TESTS=OFF"]);
    configure.arg("-DFLASHWAVE_EMULATOR=OFF");
    configure.args(env::var("FLASHWAVE_CMAKE_ARGS").unwrap_or_default().split_whitespace());
    for line in said(&mut configure).lines() {
        if let Some(missing) = line.strip_prefix("-- Left out: ") {
            println!("cargo:warning=libflashwave is built without {missing}");
        }
    }
    let jobs = env::var("NUM_JOBS").unwrap_or_else(|_| "1".into());
    run(Command::new("cmake").arg("--build").arg(&build).args(["--target", "flashwave", "--parallel", &jobs]));
    build
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    assert!(status.success(), "{command:?} failed");
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?} failed:\n{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Nothing is done for a file that is not there.
fn link(file: &Path, link: &Path) {
    let _ = std::fs::remove_file(link);
    if file.exists() {
        std::os::unix::fs::symlink(file, link).expect("a link in OUT_DIR");
    }
}
