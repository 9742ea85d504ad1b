# The public SGLang image with the plug-in of Evenkeel, for replicas of runtime SGLang.
#
#     docker build --file images/sglang.Dockerfile --tag registry.example.com/evenkeel/sglang:0.3.0 .
#
# docs/reference/compatibility.md has the versions that the plug-in supports. The base image contains CUDA.
ARG BASE=docker.io/lmsysorg/sglang:v0.5.23
FROM ${BASE}
WORKDIR /opt/evenkeel
COPY pyproject.toml LICENSE images/project.py ./
COPY fairshare/evenkeel_fairshare evenkeel_fairshare
COPY contract/evenkeel_contract evenkeel_contract
COPY plugins/common/evenkeel_plugin evenkeel_plugin
COPY plugins/sglang/evenkeel_sglang evenkeel_sglang
# The installed packages are the constraint, so none of them changes. `project.py metadata` writes the entry point by
# which SGLang finds the plug-in. On Debian and Ubuntu pip installs outside a virtual environment only with
# PIP_BREAK_SYSTEM_PACKAGES.
RUN export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
 && python3 -m pip list --format=freeze --exclude-editable > there.txt \
 && python3 project.py requirements sglang > wanted.txt \
 && python3 -m pip install --quiet --no-cache-dir --constraint=there.txt --requirement=wanted.txt \
 && python3 project.py metadata /opt/evenkeel \
 && rm there.txt wanted.txt project.py pyproject.toml
ENV PYTHONPATH=/opt/evenkeel HOME=/tmp
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["python3", "-m", "sglang.launch_server"]
