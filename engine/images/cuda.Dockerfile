# redline on NVIDIA GPUs, with the parts of CUDA 13.0 that it opens at run time: NVRTC, cuBLASLt and
# NCCL. From the repository's root:
#   docker build --file engine/images/cuda.Dockerfile --tag redline-cuda .
#   docker run --rm --gpus all -p 127.0.0.1:23333:23333 -v "$PWD/models:/models:ro" -v "$PWD/key:/key:ro" \
#     redline-cuda serve /models/MODEL --device cuda --host 0.0.0.0 --api-key-file /key
FROM rust:1.95-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo build --locked --release --package engine --bin redline

FROM nvidia/cuda:13.0.2-base-ubuntu24.04
RUN apt-get update \
 && apt-get install -y --no-install-recommends cuda-nvrtc-13-0 libcublas-13-0 libnccl2 \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /source/target/release/redline /usr/local/bin/redline
USER 65534:65534
EXPOSE 23333
ENTRYPOINT ["redline"]
CMD ["serve", "--help"]
