"""candle-flash-rocm: its crate, its commands, its function for tensors in AMD memory, and text from a Llama."""

from __future__ import annotations

import array
import json
import os
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

promise = pytest.mark.promise
GPU = "emu:gfx942"


@pytest.fixture
def build(root) -> Path:
    if not (root / "build" / "libflashwave_emu.so").exists():
        pytest.skip("needs build/libflashwave.so and the emulator: make build")
    return root / "build"


@pytest.fixture
def crate(root, build, run):
    """cargo in the crate's folder, on the library in build/."""
    cargo = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo" / "bin"))
    if cargo is None:
        pytest.skip("needs cargo")

    def in_crate(*words: object, **options: Any):
        folder = root / "rust" / "candle-flash-rocm"
        return run(
            cargo, *words, cwd=folder, **{"FLASHWAVE_DIR": str(build), "FLASHWAVE_CANDLE_DEVICE": None, **options}
        )

    return in_crate


@promise("2.19", "Cargo.toml, build.rs, README.md, src/lib.rs, src/ffi.rs")
def test_files(root):
    for name in ("Cargo.toml", "build.rs", "README.md", "src/lib.rs", "src/ffi.rs"):
        assert (root / "rust" / "candle-flash-rocm" / name).exists(), name


@promise("2.1 2.2 2.3 2.4 2.5 2.6 2.7 2.8 2.9 2.10 2.15 2.18 2.23 2.26 2.29 2.31", "cargo test --features rocm")
def test_cargo_test(crate):
    done = crate("test", "--locked", "--features", "rocm").stdout
    for test in (
        "dense",
        "varlen",
        "the_operation_is_called_flash_attn_rocm",
        "every_feature",
        "says_the_same_on_every_device",
    ):
        assert any(test in line and line.endswith("... ok") for line in done.splitlines()), test
    # README.md: the document's example on Device::Cpu, ALiBi in candle's order, and in the other, which cannot compile.
    examples = [line for line in done.splitlines() if line.startswith("test candle-flash-rocm/src/lib.rs - (line")]
    assert len(examples) == 3 and all(line.endswith("... ok") for line in examples)
    assert sum("compile fail" in line for line in examples) == 1


@promise("2.12 2.25 1.23 3.8", "ROCM_PATH: build.rs looks there, and the HIP runtime is loaded from there")
def test_rocm_path(crate, build, run, tmp_path):
    warned = crate("build", "--locked", ROCM_PATH=str(tmp_path / "nowhere"))
    assert f"there is no {tmp_path}/nowhere/lib/libamdhip64.so" in warned.stderr
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libamdhip64.so").symlink_to(build / "libflashwave_emu.so")
    explained = run(
        build / "flashwave", "explain", "sq=8", "--device", "hip:0", ROCM_PATH=str(tmp_path), FLASHWAVE_HIP_LIBRARY=None
    )
    assert "hip:0 (gfx" in explained.stdout


@promise("2.14", "build.rs compiles the library and its kernels, and says which are left out")
@pytest.mark.timeout(3600)
@pytest.mark.skipif("FLASHWAVE_TEST_LONG" not in os.environ, reason="compiles everything anew: FLASHWAVE_TEST_LONG=1")
def test_build_rs(crate, root, tmp_path):
    options = "-GNinja -DFLASHWAVE_AMD_TARGETS=gfx942 -DFLASHWAVE_NVIDIA_TARGETS=none"
    words = ("test", "--locked", "--manifest-path", root / "rust" / "flashwave-sys" / "Cargo.toml")
    nothing = str(tmp_path / "no-pkg-config")
    done = crate(
        *words, "--target-dir", root / "out" / "promises" / "rust", timeout=3000, FLASHWAVE_DIR="",
        FLASHWAVE_CMAKE_ARGS=options, PKG_CONFIG_LIBDIR=nothing, PKG_CONFIG_PATH=nothing,
    )  # fmt: skip
    assert "libflashwave is built without the kernels of NVIDIA GPUs; none are chosen" in done.stderr
    assert "test result: ok" in done.stdout


# What a program compiled against the crate's first ffi.rs does: its own declaration, nothing returned.
CALLER = r"""
#include <flashwave/flashwave.h>
#include <stdio.h>
#include <stdlib.h>
extern void run_mha_rocm(const void*, const void*, const void*, const void*, const void*, const void*, const int32_t*,
  const int32_t*, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t,
  uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, float, uint32_t, uint32_t, uint32_t,
  uint32_t, int, int, int, int, int, float);
enum { kRows = 32, kHeads = 2, kDim = 64, kCount = kRows * kHeads * kDim };
int main(int argc, char** argv) {
  static uint16_t host[kCount], zeros[kCount];
  fw_device* device;
  void *qk, *v, *o;
  const uint32_t row = kHeads * kDim, batch = kRows * row, heads_k = argc > 1 ? 3 : kHeads;
  int i, wrong = 0;
  if (fw_device_open(getenv("FLASHWAVE_CANDLE_DEVICE"), &device)) return 2;
  for (i = 0; i < kCount; ++i) host[i] = 0x3c00; /* 1 in fp16: the mean of ones is 1 */
  if (fw_device_alloc(device, sizeof host, &qk) || fw_device_alloc(device, sizeof host, &v) ||
      fw_device_alloc(device, sizeof host, &o)) return 2;
  fw_device_copy(device, qk, host, sizeof host, FW_HOST_TO_DEVICE, NULL);
  fw_device_copy(device, v, host, sizeof host, FW_HOST_TO_DEVICE, NULL);
  fw_device_copy(device, o, zeros, sizeof host, FW_HOST_TO_DEVICE, NULL);
  run_mha_rocm(qk, qk, v, o, NULL, NULL, NULL, NULL, batch, batch, batch, batch, 0, row, row, row, row, kDim, kDim,
               kDim, kDim, 1, kHeads, heads_k, kDim, kDim, 0.125f, kRows, kRows, 128, 128, 0, 1, 0, -1, 0, 0.0f);
  fw_device_synchronize(device, NULL);
  fw_device_copy(device, host, o, sizeof host, FW_DEVICE_TO_HOST, NULL);
  fw_device_synchronize(device, NULL);
  for (i = 0; i < kCount; ++i) wrong += host[i] != 0x3c00;
  printf("%d wrong of %d\n", wrong, kCount);
  return wrong != 0;
}
"""


@promise(
    "2.11 2.21 2.22",
    "run_mha_rocm with the 37 parameters of its ffi.rs, by -lflash_attn_ck: computes; a failure ends with a message",
)
def test_37_parameters(root, build, run, tmp_path):
    compiler = next((path for path in map(shutil.which, ("cc", "clang-22", "clang")) if path), None)
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "caller.c").write_text(CALLER)
    run(
        compiler,
        "caller.c",
        "-I",
        root / "include",
        "-L",
        build,
        "-lflash_attn_ck",
        f"-Wl,-rpath,{build}",
        "-o",
        "caller",
        cwd=tmp_path,
    )
    assert "0 wrong" in run(tmp_path / "caller", FLASHWAVE_CANDLE_DEVICE=GPU).stdout
    failed = run(tmp_path / "caller", "with 3 key heads", status=-6, FLASHWAVE_CANDLE_DEVICE=GPU)  # SIGABRT
    assert "run_mha_rocm: FW_INVALID_ARGUMENT: heads_q must be a multiple of heads_k" in failed.stderr


LETTERS = " abcdefghijklmnopqrstuvwxyz.,!?\n"
WIDTH, WIDTH_K, HIDDEN, LAYERS = 64, 32, 96, 2


def write_checkpoint(folder: Path) -> None:
    """A small Llama with random weights, as transformers saves one: config.json, model.safetensors, tokenizer.json."""
    draw = random.Random(5)
    shapes = {"model.embed_tokens.weight": (len(LETTERS), WIDTH), "model.norm.weight": (WIDTH,)}
    shapes["lm_head.weight"] = (len(LETTERS), WIDTH)
    for n in range(LAYERS):
        for name, shape in {
            "input_layernorm": (WIDTH,),
            "self_attn.q_proj": (WIDTH, WIDTH),
            "self_attn.k_proj": (WIDTH_K, WIDTH),
            "self_attn.v_proj": (WIDTH_K, WIDTH),
            "self_attn.o_proj": (WIDTH, WIDTH),
            "post_attention_layernorm": (WIDTH,),
            "mlp.gate_proj": (HIDDEN, WIDTH),
            "mlp.up_proj": (HIDDEN, WIDTH),
            "mlp.down_proj": (WIDTH, HIDDEN),
        }.items():
            shapes[f"model.layers.{n}.{name}.weight"] = shape
    header, data = {}, b""
    for name, shape in shapes.items():
        scale = 1.0 if "embed" in name else 1.4 / shape[-1] ** 0.5
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        values = array.array("f", (1.0 if len(shape) == 1 else draw.gauss(0, scale) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    config = {"hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_attention_heads": 4, "num_key_value_heads": 2}
    config |= {"num_hidden_layers": LAYERS, "vocab_size": len(LETTERS), "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(config))
    model = {"type": "WordLevel", "vocab": {letter: i for i, letter in enumerate(LETTERS)}, "unk_token": " "}
    split = {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None}
    tokenizer |= {"pre_tokenizer": split, "post_processor": None, "decoder": {"type": "Fuse"}, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


@promise(
    "2.29",
    "cargo run --example generate --features rocm: text from a Llama in safetensors, the same on every device",
)
def test_text_generation(crate, build, run, tmp_path):
    write_checkpoint(tmp_path / "model")
    listed = run(build / "flashwave", "devices", "--json").stdout
    devices = ["cpu", GPU] + [d["device"] for d in map(json.loads, listed.splitlines()) if d["kind"] in ("cuda", "hip")]
    words = ("run", "--locked", "--quiet", "--features", "rocm", "--example", "generate", "--", tmp_path / "model")
    said = {}
    for device in devices:
        options = ("--prompt", "once upon a time", "--count", "24", "--dtype", "f32", "--compare", "--device", device)
        done = crate(*words, *options)
        ours, candles = done.stdout[: len(done.stdout) // 2], done.stdout[len(done.stdout) // 2 :]
        assert ours == candles and "candle's own operations say the same" in done.stderr
        assert f"attention on {device}" in done.stderr
        said[device] = ours
    assert len(set(said.values())) == 1 and said["cpu"].startswith("once upon a time")
    assert len(set(said["cpu"].removeprefix("once upon a time"))) > 3
    fast = crate(*words, "--prompt", "once upon a time", "--count", "4", "--dtype", "f16", "--device", GPU)
    assert fast.stdout.startswith("once upon a time")
    lacking = crate(*words[:-1], tmp_path, "--tokens", "1,2", status=1)
    assert "config.json" in lacking.stderr
