"""The wall-clock driver: an HTTP server that looks like SGLang to a router.

    body ─ parse ─ tokens, speech ─▶ replica ─ driver ─ engine ─▶ served ─ streams, wire ─▶ bytes
                                        │                 └─ cache observer ─▶ kv_events (PUB, replay)
                                        └─ reports (ROUTER), metrics

In a test or another process: `app.running_server(Settings(model="m", port=0))`. By itself:
`python -m evenkeel_simulator.server --model m`.
"""
