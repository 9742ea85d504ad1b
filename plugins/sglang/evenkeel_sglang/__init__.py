"""Evenkeel's replica policies inside an unmodified SGLang (design R1, R3, R5, R9–R11).

SGLang loads `plugin.register` through its entry point `sglang.srt.plugins`, in the process that parses the command line and
in every scheduler process. A step of a scheduler, file by file:

    hooks       calc_priority → begin_pass    add_one_req → tried    process_batch_result → processed
    plugin      scheduling, request, matching: the policy's view of the queue (`evenkeel_plugin`)
    engine      SGLang's scheduler process, as the plug-in sees it
    chunks      a prompt in chunks that waits, and what may enter meanwhile
    fairshare   replica/contract: the pass as a conversation    replica/dlpm, deficit: order and charges
    contract    reportbook: what each client was served, for reports

Only `hooks` and `seams` touch SGLang's functions.
"""
