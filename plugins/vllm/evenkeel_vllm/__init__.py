"""Evenkeel's replica policies inside an unmodified vLLM (design R1, R3, R5, R9–R11; docs/design/0009-vllm.md).

vLLM loads `scheduler.FairScheduler` by `--scheduler-cls`, in the engine's process. A step, file by file:

    scheduler       schedule → begin … end    update_from_output → processed    finish_requests → ended
    waiting_queue   the queue that vLLM's scheduler asks for the next request: a pass of the policy
    engine_request  vLLM's request, with the attributes that `evenkeel_plugin.scheduling` reads
    metrics         the metrics of the scheduler's process on the page of vLLM's HTTP server
    evenkeel_plugin scheduling, matching, policy, tokenizer, reports, metrics, inactive: what both plug-ins share

Nothing of vLLM is patched: the class inherits from vLLM's scheduler and replaces its queue.
"""
