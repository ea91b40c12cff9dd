#!/usr/bin/env bash
# Installs the Python package for this machine and checks it.
#
#   scripts/install_flash_attention_ck.sh [--python PYTHON] [--wheel FILE | --build] [--dry-run]
#
# Says which GPUs and which PyTorch it finds, takes the wheel that is given or lies in out/wheel, or builds one for the GPUs
# of this machine (--build: in any case), installs it with pip, and runs the self-check. Its end says what is missing and
# how to get it. The exit status is 0 if the package computes right results, also where a GPU or PyTorch is missing.
# --dry-run only says what would be done.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3} wheel="" build=0 dry=0
usage() { sed -nE '2,/^set /{s/^# ?//p}' "$0"; }
while [ $# -gt 0 ]; do
  case "$1" in
    --python) python=${2:?--python takes a path}; shift 2 ;;
    --wheel) wheel=${2:?--wheel takes a file}; shift 2 ;;
    --build) build=1; shift ;;
    --dry-run) dry=1; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "install: no option '$1'" >&2; usage >&2; exit 2 ;;
  esac
done

advice=()
say() { printf '%-9s %s\n' "$1" "$2"; }
do_it() { if [ $dry = 1 ]; then echo "would run: $*"; else "$@"; fi; }

# ----------------------------------------------------------------------------------------------------------- machine

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
  echo "install: $python is not there or older than Python 3.9; --python names another" >&2
  exit 1
fi
if ! "$python" -m pip --version >/dev/null 2>&1; then
  echo "install: $python has no pip: install python3-pip, or make an environment: $python -m venv ~/flashwave" >&2
  exit 1
fi
# Debian 12, Ubuntu 23.04 and later (PEP 668).
if [ -z "${PIP_BREAK_SYSTEM_PACKAGES-}" ] && "$python" -c '
import os, sys, sysconfig
marked = os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED"))
sys.exit(not (marked and sys.prefix == sys.base_prefix))'; then
  echo "install: $python is the system's own, which pip may not change. Make an environment and name it:" >&2
  echo "  $python -m venv ~/flashwave-env && $0 --python ~/flashwave-env/bin/python" >&2
  exit 1
fi
say python "$("$python" -c 'import sys; print(sys.executable, sys.version.split()[0])')"

amd_gpus() {  # gfx942 gfx1100 ...
  local rocminfo=rocminfo
  [ -x "${ROCM_PATH:-/opt/rocm}/bin/rocminfo" ] && rocminfo=${ROCM_PATH:-/opt/rocm}/bin/rocminfo
  "$rocminfo" 2>/dev/null | sed -nE 's/^ *Name: +(gfx[0-9a-f]+)$/\1/p' | sort -u | tr '\n' ' '
}
amd=$(amd_gpus || true) amd=${amd% } nvidia=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sort -u | paste -sd, || true)
if [ -e /dev/kfd ] || [ -n "$amd" ]; then
  version=$(cat "${ROCM_PATH:-/opt/rocm}/.info/version" 2>/dev/null || echo "of unknown version")
  say GPU "AMD ${amd:-(rocminfo does not say which)}, ROCm $version"
  [ -r /dev/kfd ] || advice+=("this user may not read /dev/kfd: sudo usermod -aG render,video \$USER, then log in again")
elif [ -n "$nvidia" ]; then
  say GPU "NVIDIA $nvidia"
else
  say GPU "neither ROCm nor CUDA is found: the kernels of this CPU serve (AMD GPUs can be emulated)"
fi

torch=$("$python" -c '
import torch
print(torch.__version__, "ROCm" if torch.version.hip else "CUDA" if torch.version.cuda else "CPU")' 2>/dev/null || true)
say PyTorch "${torch:-is not installed: only NumPy arrays and the command line will work}"
case "$torch" in
  "") advice+=("PyTorch: pip install torch, for ROCm with --index-url https://download.pytorch.org/whl/rocm6.4") ;;
  *ROCm) ;;
  *) if [ -e /dev/kfd ]; then advice+=("this PyTorch is not built for ROCm and sees no AMD GPU: pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/rocm6.4"); fi ;;
esac

# ------------------------------------------------------------------------------------------------------------- wheel

[ -n "$wheel" ] || [ $build = 1 ] || wheel=$(ls out/wheel/flashwave-*.whl 2>/dev/null | head -1 || true)
if [ -n "$wheel" ] && [ ! -e "$wheel" ]; then
  echo "install: there is no $wheel" >&2
  exit 1
fi
if [ -z "$wheel" ]; then
  missing=()
  for tool in cmake ninja; do command -v $tool >/dev/null || missing+=($tool); done
  command -v clang++-22 >/dev/null || command -v clang++ >/dev/null || command -v g++ >/dev/null || missing+=("a C++ compiler")
  if [ ${#missing[@]} -gt 0 ] && [ $dry = 0 ]; then
    echo "install: no wheel in out/wheel, and to build one ${missing[*]} are missing: run scripts/setup --for build first" >&2
    exit 1
  fi
  # Kernels of the GPUs that are here, or of all where none is.
  if [ -n "$amd" ]; then
    export GPU_ARCHS=${GPU_ARCHS:-${amd// /;}} FLASHWAVE_NVIDIA_TARGETS=${FLASHWAVE_NVIDIA_TARGETS:-none}
  elif [ -n "$nvidia" ]; then
    export FLASHWAVE_AMD_TARGETS=${FLASHWAVE_AMD_TARGETS:-none}
  fi
  say wheel "is built for ${GPU_ARCHS:-${nvidia:-all GPUs}}: some minutes"
  do_it scripts/wheel
  wheel=$(ls out/wheel/flashwave-*.whl 2>/dev/null | head -1 || true)
fi
say wheel "${wheel:-out/wheel/flashwave-*.whl}"
do_it "$python" -m pip install --disable-pip-version-check --quiet --force-reinstall --no-deps "${wheel:-out/wheel/flashwave-*.whl}"

# -------------------------------------------------------------------------------------------------------- self-check

cd /  # not the sources, which would be imported in place of what was installed
status=0
do_it "$python" -m flashwave.doctor || status=$?
if [ ${#advice[@]} -gt 0 ]; then
  echo "to do:"
  printf -- '- %s\n' "${advice[@]}"
fi
if [ $status -ne 0 ]; then
  echo "install: the self-check failed; docs/troubleshooting.md goes through the causes" >&2
  exit $status
fi
if [ $dry = 0 ]; then echo "installed; try: $python -c 'import flash_attention_amd'"; fi
