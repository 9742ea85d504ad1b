"""A small service and a tenant with one key, as text for `evenkeel check` and `evenkeel up`."""

SERVICE = """\
apiVersion: evenkeel.dev/v1alpha1
kind: FairInferenceService
metadata: {name: sample}
spec:
  model: {source: hf://org/model}
  engine: {runtime: Simulator, replicas: 2}
"""
TENANT = """\
apiVersion: evenkeel.dev/v1alpha1
kind: InferenceTenant
metadata: {name: ads}
spec:
  weight: 4
  clients: [{name: chat}]
  apiKeys:
    - {name: k, client: chat, secretRef: {name: keys, key: chat}}
"""
