"""The operator: makes FairInferenceServices run on Kubernetes (design §6)."""
