# The public vLLM image with the plug-in of Evenkeel, for replicas of runtime VLLM.
#
#     docker build --file images/vllm.Dockerfile --tag registry.example.com/evenkeel/vllm:0.3.0 .
#
# docs/reference/compatibility.md has the versions that the plug-in supports. The base image contains CUDA.
ARG BASE=docker.io/vllm/vllm-openai:v0.32.0
FROM ${BASE}
WORKDIR /opt/evenkeel
COPY pyproject.toml LICENSE images/project.py ./
COPY fairshare/evenkeel_fairshare evenkeel_fairshare
COPY contract/evenkeel_contract evenkeel_contract
COPY plugins/common/evenkeel_plugin evenkeel_plugin
COPY plugins/vllm/evenkeel_vllm evenkeel_vllm
# The installed packages are the constraint, so none of them changes. `project.py metadata` writes the entry point by
# which vLLM finds the plug-in's metrics. On Debian and Ubuntu pip installs outside a virtual environment only with
# PIP_BREAK_SYSTEM_PACKAGES.
RUN export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
 && python3 -m pip list --format=freeze --exclude-editable > there.txt \
 && python3 project.py requirements vllm > wanted.txt \
 && python3 -m pip install --quiet --no-cache-dir --constraint=there.txt --requirement=wanted.txt \
 && python3 project.py metadata /opt/evenkeel \
 && rm there.txt wanted.txt project.py pyproject.toml
ENV PYTHONPATH=/opt/evenkeel HOME=/tmp
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["python3", "-m", "vllm.entrypoints.cli.main"]
