"""What the plug-ins of SGLang and vLLM share: a replica policy in charge of an engine's waiting queue (design R1, R3, R5, R9–R11).

    scheduling  the policy's view of the queue, its pass, and what each request produced
    request     the engine's request, and the policy's request beside it
    matching    how much of each waiting request is cached
    policy      the policy that an engine's settings describe
    reports     what each client was served, on request of routers
    inactive    the same port of an engine that does not fit the plug-in
    tokenizer   what the engine tokenizes with
    metrics     what the engine's `/metrics` gains

Nothing here imports an engine.
"""
