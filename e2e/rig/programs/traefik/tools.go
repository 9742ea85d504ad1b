//go:build tools

// Package tools pins the ingress controller of the e2e cluster.
package tools

import _ "github.com/traefik/traefik/v3/cmd/traefik"
