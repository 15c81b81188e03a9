#!/usr/bin/env bash
# Runs core_test and random calls for SECONDS (default 10) under the sanitizers, and core_test for ARM
# if a cross-compiler and an emulator are installed.
#
#     native/tests/sanitize.sh [SECONDS] [SEED]
set -euo pipefail

seconds=${1:-10}
seed=${2:-0}
native=$(cd "$(dirname "$0")/.." && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

# build_test NAME CMAKE-OPTIONS...
build_test() {
  local name=$1
  shift
  cmake -S "$native" -B "$build/$name" -DOUTRIDER_PYTHON=OFF -DOUTRIDER_TESTS=ON "$@" >/dev/null
  cmake --build "$build/$name" --parallel "$(nproc)" >/dev/null
}

# ThreadSanitizer fails with the address space randomisation of new kernels.
still=()
if setarch "$(uname -m)" -R true 2>/dev/null; then still=(setarch "$(uname -m)" -R); fi

build_test address -DOUTRIDER_SANITIZE=address,undefined,float-cast-overflow
build_test thread -DOUTRIDER_SANITIZE=thread

# In parallel, because neither uses two cores.
check_addresses() {
  "$build/address/core_test" --seed "$seed"
  "$build/address/core_test" --fuzz "$seconds" --seed "$seed"
}
check_addresses >"$build/address.log" 2>&1 &
addresses=$!

echo "== ThreadSanitizer"
"${still[@]}" "$build/thread/core_test" --seed "$seed"
"${still[@]}" "$build/thread/core_test" --fuzz "$((seconds < 30 ? seconds : 30))" --seed "$seed"

echo "== AddressSanitizer, UndefinedBehaviorSanitizer"
status=0
wait "$addresses" || status=$?
cat "$build/address.log"
((status == 0)) || exit "$status"

echo "== ARM"
if ! command -v aarch64-linux-gnu-g++ >/dev/null; then
  echo "skipped: no aarch64-linux-gnu-g++ (apt-get install g++-aarch64-linux-gnu)"
else
  build_test arm -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
  if command -v qemu-aarch64 >/dev/null; then
    qemu-aarch64 -L /usr/aarch64-linux-gnu "$build/arm/core_test" --seed "$seed"
  else
    echo "compiled; not run: no qemu-aarch64 (apt-get install qemu-user)"
  fi
fi
