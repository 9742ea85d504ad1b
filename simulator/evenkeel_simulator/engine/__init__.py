"""The engine model, pure: continuous batching over a radix cache and a KV pool.

Reading order: `model` (the loop), `request`, `config`, `batch`, `cache`, `memory`, `admission`, `makers`,
`iteration`, `profiles`. A driver needs this much:

    engine = Engine(EngineConfig(), policy, PROFILES["a100-llama3.1-8b"], observer=kv_events)
    engine.submit(EngineRequest(...), now_s)
    while (end_s := engine.start(now_s, until_s=now_s)) is not None:    # until_s=inf: jump over decode steps
        ...  # let the time come to end_s; `submit` and `abort` may be called on the way
        step = engine.finish()
        now_s = end_s
"""
