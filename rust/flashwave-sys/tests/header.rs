//! The bindings against the headers, judged by a C compiler.
//!
//! `src/lib.rs` is turned into C, declaration by declaration: a struct whose members must have the offsets and types of
//! the header's, a prototype that must agree with the header's (C refuses a second one that does not), a constant that
//! must have the header's value. `repr(C)` promises that Rust lays out its structs as C does; that is checked too.
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use flashwave_sys::*;

const BINDINGS: &str = include_str!("../src/lib.rs");

fn c_type(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(pointee) = rust.strip_prefix("*mut ") {
        return format!("{}*", c_type(pointee));
    }
    if let Some(pointee) = rust.strip_prefix("*const ") {
        return format!("{} const*", c_type(pointee));
    }
    match rust {
        "c_void" => "void",
        "c_char" => "char",
        "c_int" => "int",
        "i32" => "int32_t",
        "u32" => "uint32_t",
        "i64" => "int64_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        "f32" => "float",
        "f64" => "double",
        name if name.starts_with("fw_") => name,
        other => panic!("no C type for {other}"),
    }
    .to_string()
}

/// `name: type` as a C member or parameter.
fn c_declaration(name: &str, rust: &str) -> String {
    let rust = rust.trim();
    let array = rust.strip_prefix('[').and_then(|r| r.strip_suffix(']')).and_then(|r| r.split_once(';'));
    if let Some((element, length)) = array {
        return format!("{} {name}[{}]", c_type(element), length.trim());
    }
    if let Some(function) = rust.strip_prefix("Option<unsafe extern \"C\" fn(").and_then(|r| r.strip_suffix('>')) {
        let (parameters, result) = function.rsplit_once(')').expect("a function type");
        let result = result.trim().strip_prefix("->").map_or("void".to_string(), c_type);
        return format!("{result} (*{name})({})", c_parameters(parameters));
    }
    if rust == "fw_job" {
        return format!("void (*{name})(void* arg, int32_t worker)");
    }
    format!("{} {name}", c_type(rust))
}

fn c_parameters(list: &str) -> String {
    let parameters: Vec<String> = list
        .split(',')
        .filter_map(|parameter| parameter.trim().split_once(':'))
        .map(|(name, rust)| c_declaration(name, rust))
        .collect();
    if parameters.is_empty() {
        "void".to_string()
    } else {
        parameters.join(", ")
    }
}

/// The text between `start` and the next `end`, and what follows it.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<(&'a str, &'a str)> {
    let text = &text[text.find(start)? + start.len()..];
    let length = text.find(end)?;
    Some((&text[..length], &text[length + end.len()..]))
}

fn write_structs(c: &mut String) -> usize {
    let (mut rest, mut count) = (BINDINGS, 0);
    while let Some((text, after)) = between(rest, "pub struct ", "\n}") {
        rest = after;
        let (name, body) = text.split_once('{').expect("a struct with fields");
        let name = name.trim();
        if name == "fw_device" {
            continue; // opaque
        }
        let fields: Vec<(&str, &str)> =
            body.split("pub ").filter_map(|field| field.trim().trim_end_matches(',').split_once(':')).collect();
        writeln!(c, "typedef struct rust_{name} {{").unwrap();
        for (field, rust) in &fields {
            writeln!(c, "  {};", c_declaration(field, rust)).unwrap();
        }
        writeln!(c, "}} rust_{name};").unwrap();
        writeln!(c, "_Static_assert(sizeof(rust_{name}) == sizeof({name}), \"size of {name}\");").unwrap();
        for (field, _) in &fields {
            writeln!(c, "SAME_FIELD({name}, {field});").unwrap();
        }
        count += 1;
    }
    count
}

fn write_functions(c: &mut String) -> usize {
    let (block, _) = between(BINDINGS, "extern \"C\" {", "\n}").expect("the functions");
    let (mut rest, mut count) = (block, 0);
    while let Some((text, after)) = between(rest, "pub fn ", ";") {
        rest = after;
        let (name, text) = text.split_once('(').expect("parameters");
        let (parameters, result) = text.rsplit_once(')').expect("the end of the parameters");
        let result = result.trim().strip_prefix("->").map_or("void".to_string(), c_type);
        writeln!(c, "{result} {name}({});", c_parameters(parameters)).unwrap();
        count += 1;
    }
    count
}

fn write_constants(c: &mut String) -> usize {
    let mut count = 0;
    for line in BINDINGS.lines() {
        let Some((name, value)) = line.strip_prefix("pub const ").and_then(|line| line.split_once(':')) else {
            continue;
        };
        let (_, value) = value.split_once('=').expect("a value");
        let value = value.trim().trim_end_matches(';').replace("-f32::MAX", "-FLT_MAX");
        writeln!(c, "_Static_assert(({name}) == ({value}), \"value of {name}\");").unwrap();
        count += 1;
    }
    count
}

fn compile(c: &str) -> (bool, String) {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bindings{number}.c"));
    std::fs::write(&file, c).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_string());
    let arguments = ["-std=gnu11", "-fsyntax-only", "-Werror", "-I"];
    let output = Command::new(&compiler).args(arguments).arg(include).arg(&file).output();
    let output = output.unwrap_or_else(|error| panic!("{compiler}: {error}"));
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn bindings_in_c() -> String {
    let mut c = String::from(
        "#include <flashwave/candle.h>\n\
         #define SAME_FIELD(type, field) \\\n\
           _Static_assert(offsetof(rust_##type, field) == offsetof(type, field), \"offset of \" #field); \\\n\
           _Static_assert(__builtin_types_compatible_p(__typeof__(((rust_##type*)0)->field), \\\n\
             __typeof__(((type*)0)->field)), \"type of \" #field \" in \" #type)\n",
    );
    // As many as there were when this was written: a reader that overlooks some would find no fault with them.
    assert!(write_structs(&mut c) >= 10);
    assert!(write_functions(&mut c) >= 30);
    assert!(write_constants(&mut c) >= 25);
    c
}

#[test]
fn agree_with_the_headers() {
    let (ok, errors) = compile(&bindings_in_c());
    assert!(ok, "{errors}");
}

#[test]
fn every_function_of_the_headers_is_bound() {
    for header in ["flashwave.h", "candle.h"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/flashwave").join(header);
        let text = std::fs::read_to_string(path).unwrap();
        for declaration in text.split("\nFW_API ").skip(1) {
            let (before, _) = declaration.split_once('(').unwrap();
            let name = before.rsplit([' ', '*']).next().unwrap();
            assert!(BINDINGS.contains(&format!("pub fn {name}(")), "{name} of {header} has no binding");
        }
    }
}

/// The test above must be able to fail.
#[test]
fn differences_are_noticed() {
    let c = bindings_in_c();
    for (right, wrong) in [
        ("int64_t seqlen_k;", "int32_t seqlen_k;"),
        ("float softcap;", "uint32_t softcap;"),
        ("int64_t page_size;", "int64_t page_size; int64_t more;"),
        ("(FW_BF16) == (2)", "(FW_BF16) == (3)"),
        ("int32_t fw_get_num_threads(void)", "int32_t fw_get_num_threads(int32_t more)"),
    ] {
        assert!(c.contains(right), "{right}");
        assert!(!compile(&c.replacen(right, wrong, 1)).0, "{wrong} was not noticed");
    }
}

#[test]
fn sizes_in_rust_are_those_of_c() {
    // As tests/abi/layout.c pins them.
    assert_eq!(size_of::<fw_tensor>(), 48);
    assert_eq!(size_of::<fw_attention>(), 816);
    assert_eq!(size_of::<fw_gradients>(), 312);
    assert_eq!(size_of::<fw_rotary_embedding>(), 280);
    assert_eq!(size_of::<fw_merging>(), 232);
    assert_eq!(size_of::<fw_exec>(), 80);
    assert_eq!(size_of::<fw_report>(), 128);
    assert_eq!(size_of::<fw_device_info>(), 232);
    assert_eq!(size_of::<fw_cost>(), 24);
}

#[test]
fn init_fills_exactly_these_structs() {
    let mut attention = std::mem::MaybeUninit::<fw_attention>::uninit();
    let attention = unsafe {
        fw_attention_init(attention.as_mut_ptr(), size_of::<fw_attention>());
        attention.assume_init()
    };
    assert_eq!(attention.struct_size as usize, size_of::<fw_attention>());
    assert_eq!((attention.softmax_scale, attention.window_left, attention.window_right), (FW_SCALE_AUTO, -1, -1));
    assert!(attention.probs.data.is_null() && attention.probs.reserved == 0);
    assert_eq!(unsafe { fw_version() }, 0x000100);
}
