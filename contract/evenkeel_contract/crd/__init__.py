"""The CustomResourceDefinitions of both resources, generated from `spec`, `values` and `rules`.

The result is plain data; `make crds` writes the files that the cluster and the chart install.
"""

from evenkeel_contract.crd.definition import definitions as definitions
