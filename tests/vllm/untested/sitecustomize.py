"""On PYTHONPATH, the plug-in was tested with another version of vLLM than the installed one."""

from evenkeel_vllm import seams

seams.TESTED = ("0.0.1",)
