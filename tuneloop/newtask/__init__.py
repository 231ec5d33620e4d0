"""`tuneloop new-task NAME`: a small working task with its test, to begin one's own from (`template/` is one)."""
