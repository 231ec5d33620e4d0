"""tuneloop: baseline → feedback → post-training → retest in the same environment."""

import os

__version__ = "0.1.0"

# Before torch loads. OpenMP threads that spin for long while they wait make every parallel operation a
# hundred times slower as soon as another process wants the same cores; threads that sleep at once need
# 0.1 ms to wake, which doubles the time of a small model's step. So: sleep, after a few microseconds.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
# Nothing is fetched at run time unless a user asks for it.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
