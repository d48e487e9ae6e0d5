# redline on a CPU. From the repository's root:
#   docker build --file engine/images/cpu.Dockerfile --tag redline .
#   docker run --rm -p 127.0.0.1:23333:23333 -v "$PWD/models:/models:ro" -v "$PWD/key:/key:ro" \
#     redline serve /models/MODEL.gguf --host 0.0.0.0 --api-key-file /key
FROM rust:1.95-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo build --locked --release --package engine --bin redline

FROM debian:bookworm-slim
COPY --from=build /source/target/release/redline /usr/local/bin/redline
USER 65534:65534
EXPOSE 23333
ENTRYPOINT ["redline"]
CMD ["serve", "--help"]
