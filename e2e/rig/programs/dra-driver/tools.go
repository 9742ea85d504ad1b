//go:build tools

// Package tools pins the driver of simulated devices for dynamic resource allocation.
package tools

import _ "sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin"
