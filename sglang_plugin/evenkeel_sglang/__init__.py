"""Evenkeel's replica policies inside an unmodified SGLang (design R1, R3, R5, R9–R11).

SGLang loads `plugin.register` through its entry point `sglang.srt.plugins`, in the process that parses the
command line and in every scheduler process. The flow inside a scheduler:

    calc_priority → **scheduling** (who waits, what is cached) → the policy's pass, request by request
    add_one_req → admitted or not → the policy charges the input
    process_batch_result → output tokens and ends → the policy charges the output → reports

Only `hooks` and `seams` touch SGLang; the rest sees requests through the few attributes in `engine`.
"""
