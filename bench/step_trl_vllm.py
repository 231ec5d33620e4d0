"""TRL's side of the benchmark with vLLM in the same process.

    python -m bench.step_trl_vllm FOLDER RESULT      (started by bench.gspo_step)

See bench/step_trl.py. Wants a vLLM that fits TRL and torch (TRL 1.16 says 0.22 to 0.31 and warns of others).
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Before vllm is imported: TRL hands weights over inside one process.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from bench.step_trl import main

    sys.exit(main(vllm=True))
