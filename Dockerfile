# CPU image of aspc. Build and run:
#   docker build -t aspc .
#   docker run --rm -v "$PWD:/logs" --user "$(id -u):$(id -g)" aspc train mylogs.csv --steps 200000
# Extras: docker build --build-arg EXTRAS=mujoco,onnx,tables -t aspc .
FROM python:3.12-slim

ARG EXTRAS=mujoco,onnx,tables

# Keep JAX from looking for an accelerator.
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1 \
    JAX_PLATFORMS=cpu

WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install -c constraints.txt ".[${EXTRAS}]"

# Datasets and compiled programs are in a world-writable folder, so that `--user` can set the owner of the results.
ENV HOME=/home/aspc \
    ASPC_DATA=/home/aspc/data \
    ASPC_COMPILATION_CACHE=/home/aspc/compiled \
    MPLCONFIGDIR=/home/aspc/matplotlib
RUN useradd --create-home --home-dir /home/aspc aspc && mkdir -p /logs && chmod 1777 /home/aspc /logs
USER aspc
WORKDIR /logs

ENTRYPOINT ["aspc"]
CMD ["--help"]
