# The tasks of this repository; `just` lists them.

set shell := ["bash", "-euo", "pipefail", "-c"]

# Set OUTRIDER_DATA to run the tests that need real corpora.
export HF_HUB_OFFLINE := "1"
export MPLBACKEND := "Agg"

# List the tasks.
default:
    @just --list

# Everything CI runs, in this environment.
check: lint docs test

# Style, types and the fast tests, in about a minute.
quick: lint
    pytest -m "not slow and not dist and not corpus" -q

# Style, types and import directions.
lint:
    ruff check
    ruff format --check
    mypy
    lint-imports

# All tests; arguments go to pytest: `just test tests/torch/nn -k sliding`.
test *arguments:
    pytest {{ arguments }}

# Rewrite the files in the project's style.
format:
    ruff check --fix
    ruff format

# Build the documentation as CI does.
docs:
    mkdocs build --strict

# Read the documentation while writing it.
serve-docs:
    mkdocs serve

# Build into dist/ the wheels of a release for Linux on x86-64 and aarch64, and test them.
wheels:
    native/wheels.sh dist
    native/tests/wheels.sh dist

# Measure training and decoding on this machine, relative to other engines.
bench:
    outrider lab bench train --quick --json bench-train.json
    outrider lab bench decode demo/en-de --quick --json bench-decode.json
