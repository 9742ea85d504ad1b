//go:build tools

// Package tools pins the Helm that the e2e tests install with.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
