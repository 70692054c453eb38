# farflung for brokers and workers on the CPU: docker build --tag farflung .
# For NVIDIA GPUs give an index of PyTorch's CUDA builds, which https://pytorch.org/get-started/locally names:
#   docker build --tag farflung:cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
# Their wheels bring CUDA's libraries; the host needs NVIDIA's driver and its container toolkit.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /source
RUN python -m venv /opt/farflung
# torch comes first and alone, so that this layer, by far the largest, outlives changes of farflung's sources.
COPY requirements.lock ./
RUN /opt/farflung/bin/pip install --no-cache-dir --index-url "$TORCH_INDEX" \
    --extra-index-url https://pypi.org/simple "$(grep '^torch==' requirements.lock)"
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/farflung/bin/pip install --no-cache-dir --constraint requirements.lock '.[torch]'

FROM python:${PYTHON}-slim
COPY --from=build /opt/farflung /opt/farflung
# As process 1 farflung would be spared a SIGTERM that comes while it starts; tini passes it on.
RUN apt-get update && apt-get install --yes --no-install-recommends tini && rm -rf /var/lib/apt/lists/*
# The number is also that of `farflung launch kubernetes`, whose pods do not run as root.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/farflung farflung \
    && install --directory --owner farflung --group farflung --mode 700 /var/lib/farflung
ENV PATH=/opt/farflung/bin:$PATH \
    FARFLUNG_HOME=/var/lib/farflung \
    PYTHONUNBUFFERED=1
USER 10001:10001
VOLUME /var/lib/farflung
EXPOSE 7700
# A worker hands over its share at SIGTERM: give it 660 s (`docker stop --time 660`, `stop_grace_period`).
STOPSIGNAL SIGTERM
ENTRYPOINT ["tini", "--", "farflung"]
CMD ["--help"]
