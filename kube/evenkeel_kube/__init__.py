"""The API server of Kubernetes for operator and routers: the official client, with objects as plain data.

docs/design/kubernetes-client.md has the reasons and the measurements.
"""
