"""An SGLang-shaped replica: one engine model, driven by virtual time or by the wall clock; and the traffic of both."""
