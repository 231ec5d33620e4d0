# syntax=docker/dockerfile:1
# The loop on one or more NVIDIA GPUs, for x86-64 and aarch64 (DGX Spark) alike:
#
#   docker build -t tuneloop .
#   docker run --gpus all --ipc=host --name loop tuneloop          # make run: the default policy, then the verdict
#   docker cp loop:/home/ubuntu/tuneloop/data/compare/report.html .
#
# docs/gpu.md has models and volumes. What is pinned: CUDA by the base image, torch and every other package by
# constraints.txt, Python by Ubuntu 24.04 (3.12). tests/doctor/test_dockerfile.py holds these against one another.
FROM nvidia/cuda:13.0.3-base-ubuntu24.04

ARG PYTHON_VERSION=3.12
ARG TORCH_VERSION=2.13.0

# gcc and Python's headers are for Triton, which compiles its launchers at run time. Ubuntu keeps only the newest
# build of a package, so versions cannot be pinned here. The folders are made for the user below, who is the base
# image's own (1000), and so is whoever owns the files on most one-user machines.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends \
      ca-certificates gcc git libc6-dev make \
      "python${PYTHON_VERSION}" "python${PYTHON_VERSION}-dev" "python${PYTHON_VERSION}-venv" \
 && rm -rf /var/lib/apt/lists/* \
 && install --directory --owner ubuntu --group ubuntu /home/ubuntu/tuneloop /home/ubuntu/.cache

USER ubuntu
WORKDIR /home/ubuntu/tuneloop
ENV PYTHON="python${PYTHON_VERSION}" \
    PATH="/home/ubuntu/tuneloop/.venv/bin:${PATH}"

COPY --chown=ubuntu:ubuntu . .

# Experiments are commits, and DVC makes none without a name. Then the set-up, in one layer with its check: torch is
# the pinned one, and built for CUDA.
RUN --mount=type=cache,target=/home/ubuntu/.cache/pip,uid=1000,gid=1000 \
    git config --global user.name tuneloop \
 && git config --global user.email tuneloop@localhost \
 && make venv \
 && python -c "import torch; v, c = torch.__version__.split('+')[0], torch.version.cuda; assert v == '${TORCH_VERSION}' and c, (v, c)"

CMD ["make", "run"]
