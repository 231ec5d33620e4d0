"""Prefect flows. DVC decides what must run; these start it, watch it and show what came of it.

A flow never imports torch, transformers, vllm or great_expectations: stages are processes of DVC's.
"""
