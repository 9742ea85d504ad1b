"""The CustomResourceDefinitions of both resources, generated from `spec`: plain data, nothing is written.

Place in the flow: dataclasses (`spec`) + marks (`constraints`) + CEL (`rules`) → **definitions** → the files in
`crds/` (`make crds`), which cluster and chart install.
"""

from evenkeel_contract.crd.definition import definitions as definitions
