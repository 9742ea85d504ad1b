"""The two resources of group evenkeel.dev, v1alpha1 (design §3). The CRDs are generated from these dataclasses.

The docstring under a field is its description in the CRD; the generator appends the default. `decode` reads the
dataclasses, `validate` adds the rules across fields. Enums list only what the runtime implements.
"""
