module evenkeel.dev/e2e/definitions

go 1.26.8

// No program: what is wanted of these modules are the CustomResourceDefinitions in them.
require (
	github.com/prometheus-operator/prometheus-operator v0.85.0
	sigs.k8s.io/gateway-api v1.4.1
)
