#!/usr/bin/env bash
# Installs the wheels of FOLDER (dist unless told; native/wheels.sh builds it) as a user does, without an
# index and without a compiler, and translates. Where qemu-user and apt are installed, it does the same
# with an aarch64 Python of Debian 12 in an emulator; nothing is installed on this machine.
#
#     native/tests/wheels.sh [FOLDER]
#
# PYTHONS: interpreters to test with, "python3.11 python3.12" unless told.
set -euo pipefail

native=$(cd "$(dirname "$0")/.." && pwd)
folder=$(cd "${1:-$native/../dist}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
read -ra pythons <<<"${PYTHONS:-python3.11 python3.12}"
sentences="请问最近的地铁站在哪里？
我明天早上八点要去北京，请帮我叫一辆出租车。
他们没有回答这个问题。"
translations="Where's the nearest subway station?"

# check COMMAND...: the core computes the same with all instruction sets, and all machines translate alike.
check() {
  "$@" "$native/tests/wheel_test.py"
  local text
  text=$("$@" -m outrider translate --model "$native/../demo/zh-en" <<<"$sentences")
  echo "$text"
  [[ $text == "$translations"* ]] || { echo "expected $translations" >&2; exit 1; }
  translations=$text # the next ones write the same
}

for python in "${pythons[@]}"; do
  "$python" -m pip download -q --only-binary :all: --find-links "$folder" --dest "$work/house" \
    'outrider[serve]'
  "$python" -m venv "$work/clean"
  alone=(env -i PATH="$work/clean/bin" HOME="$work" OUTRIDER_CACHE=off)
  "${alone[@]}" python -m pip install -q --no-index --find-links "$work/house" 'outrider[serve]'
  "${alone[@]}" python -c 'import importlib.util, shutil, sys; print(sys.version.split()[0]); sys.exit(
    any(shutil.which(name) for name in ("cc", "gcc", "g++", "clang", "cmake"))
    or importlib.util.find_spec("torch") is not None)'
  du --summarize --human-readable "$work/clean"/lib/python3*/site-packages
  check "${alone[@]}" python
  rm -rf "$work/clean" "$work/house"
done

if ! command -v qemu-aarch64 >/dev/null || ! command -v apt-get >/dev/null; then
  echo "aarch64 is not tested: it needs Debian or Ubuntu and qemu-user"
  exit
fi
state=$work/apt
mkdir -p "$state"/{lists,archives}/partial "$work/root"
echo "deb [arch=arm64] http://deb.debian.org/debian bookworm main" >"$state/sources"
touch "$state/status"
apt=(apt-get -qq -o "Dir::State=$state" -o "Dir::State::status=$state/status" -o "Dir::Cache=$state"
  -o "Dir::Etc::sourcelist=$state/sources" -o Dir::Etc::sourceparts=/dev/null
  -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root)
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends --download-only python3.11 libstdc++6 >/dev/null
for package in "$state"/archives/*.deb; do dpkg-deb -x "$package" "$work/root"; done
arm=(--only-binary :all: --python-version 3.11)
for name in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014; do arm+=(--platform "${name}_aarch64"); done
"${pythons[0]}" -m pip install -q "${arm[@]}" --find-links "$folder" --target "$work/arm" outrider
check env PYTHONPATH="$work/arm" OUTRIDER_CACHE=off \
  qemu-aarch64 -L "$work/root" "$work/root/usr/bin/python3.11" -S
echo "aarch64 passed in an emulator"
