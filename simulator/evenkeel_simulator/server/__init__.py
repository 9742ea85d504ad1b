"""The wall-clock driver: an HTTP server that looks like SGLang to a router, and like a model to an application.

    body ─ chat, responses, messages ─ conversation ─┐
         ─ completions, native, pooled ──────────────┴─ ask ─ speech ─▶ replica ─ driver ─ engine ─▶ served ─ wire, formats ─▶ bytes
                                                         │                │                 └─ cache observer ─▶ kv_events (PUB, replay)
                                        words, structured (JSON, tools)   └─ reports (ROUTER), metrics

Each API is one module that reads its bodies and writes its answers; `Conversation` and `Ask` are the one form of a request
behind them, `Delta` the one form of an answer's pieces.

In a test or another process: `app.running_server(Settings(model="m", port=0))`. By itself:
`python -m evenkeel_simulator.server --model m`.
"""
