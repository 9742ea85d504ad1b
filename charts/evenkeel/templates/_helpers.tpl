{{/* The name of all objects: fullnameOverride, or the release's name, with "evenkeel" appended if it does not contain it. */}}
{{- define "evenkeel.name" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains "evenkeel" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-evenkeel" (.Release.Name | trunc 31) -}}
{{- end -}}
{{- end -}}

{{- define "evenkeel.selector" -}}
app.kubernetes.io/name: evenkeel-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "evenkeel.labels" -}}
{{ include "evenkeel.selector" . }}
app.kubernetes.io/part-of: evenkeel
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- range $key, $value := omit (default dict .Values.commonLabels) "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/part-of" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" }}
{{ $key }}: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* The block of annotations of an object, or nothing: (list . own). */}}
{{- define "evenkeel.annotations" -}}
{{- $all := merge dict (default dict (index . 1)) (default dict (index . 0).Values.commonAnnotations) -}}
{{- with $all -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* "true" if pods have a fixed user and group. On OpenShift each namespace has users of its own. */}}
{{- define "evenkeel.fixedUser" -}}
{{- $chosen := default "Auto" .Values.fixedUser -}}
{{- if or (eq $chosen "Always") (and (eq $chosen "Auto") (not (.Capabilities.APIVersions.Has "security.openshift.io/v1"))) -}}
true
{{- end -}}
{{- end -}}

{{/* A mapping with other values for some fields, and without those that are null: (list base others). */}}
{{- define "evenkeel.changed" -}}
{{- $found := mergeOverwrite (index . 0) (deepCopy (default dict (index . 1))) -}}
{{- range $name, $value := default dict (index . 1) -}}
{{- if kindIs "invalid" $value -}}{{- $_ := unset $found $name -}}{{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* Security contexts of the operator and of the test. */}}
{{- define "evenkeel.podSecurityContext" -}}
{{- $user := ternary (dict "runAsUser" 65532 "runAsGroup" 65532) dict (eq (include "evenkeel.fixedUser" .) "true") -}}
{{- $base := merge (dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault")) $user -}}
{{- include "evenkeel.changed" (list $base .Values.podSecurityContext) -}}
{{- end -}}

{{- define "evenkeel.securityContext" -}}
{{- $base := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- include "evenkeel.changed" (list $base .Values.securityContext) -}}
{{- end -}}

{{/* Fails with a message that names the value and the fix. */}}
{{- define "evenkeel.check" -}}
{{- $values := .Values -}}
{{- range $path := list "images" "images.operator" "images.router" "images.sglang" "images.vllm" "images.simulator" "crds" "metrics" "metrics.podMonitor" "metrics.prometheusRule" "metrics.dashboards" "serviceAccount" "networkPolicy" -}}
{{- $found := $values -}}
{{- range $name := splitList "." $path -}}
{{- $found = index $found $name -}}
{{- if kindIs "invalid" $found -}}
{{- fail (printf "%s is null; remove this line from your values to have the defaults, or set the fields below it" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq (toString (.Values.rbac).clusterScoped) "false" -}}
{{- if not .Values.watchNamespaces -}}
{{- fail "rbac.clusterScoped is false, so watchNamespaces is needed; list the namespaces to serve" -}}
{{- end -}}
{{- if .Values.crds.enabled -}}
{{- fail "rbac.clusterScoped is false, and definitions belong to the cluster; set crds.enabled to false, and let an administrator apply them" -}}
{{- end -}}
{{- if (.Values.reservedFields).enabled -}}
{{- fail "rbac.clusterScoped is false, and admission policies belong to the cluster; set reservedFields.enabled to false" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "evenkeel.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "evenkeel.name" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is not set; set it, or set serviceAccount.create to true" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The full name of an image: (list . "router"). */}}
{{- define "evenkeel.image" -}}
{{- $root := index . 0 -}}
{{- $image := index $root.Values.images (index . 1) -}}
{{- $registry := required "images.registry is not set; set it to the registry that you pushed the images to (images/README.md)" $root.Values.images.registry -}}
{{- $name := printf "%s/%s" (trimSuffix "/" $registry) $image.repository -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (coalesce $image.tag $root.Values.images.tag $root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* The operator's rights in each managed namespace, the same as in tests/support/operator_rights.py (a test compares). */}}
{{- define "evenkeel.namespacedRules" -}}
- apiGroups: [evenkeel.dev]
  resources: [fairinferenceservices, inferencetenants, fairinferencegateways]
  verbs: [get, list, watch]
- apiGroups: [evenkeel.dev]
  resources: [fairinferenceservices/status, inferencetenants/status, fairinferencegateways/status]
  verbs: [patch]
# To set services as owners of their objects.
- apiGroups: [evenkeel.dev]
  resources: [fairinferenceservices/finalizers, fairinferencegateways/finalizers]
  verbs: [update]
# Objects of services. Roles give routers their rights, which the operator must have itself.
- apiGroups: [""]
  resources: [configmaps, persistentvolumeclaims, secrets, serviceaccounts, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors, prometheusrules]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [ingresses, networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings, roles]
  verbs: [get, list, watch, create, patch, delete]
# To mark pods that leave on a scale-down, and to set the readiness gate of new pods.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch]
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
# To find the newest revision of a Deployment.
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [get, list]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
# To scale engines that another owner made, if their labels allow it (spec.engine.external.scaleTargetRef).
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get]
- apiGroups: [apps]
  resources: [deployments/scale, statefulsets/scale]
  verbs: [get, patch]
# To read which pods an InferencePool selects.
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [get, list, watch]
# To report autoscalers that scale a Deployment of a service.
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch]
# To report changes, and to read why a pod does not start on its node.
- apiGroups: [""]
  resources: [events]
  verbs: [create, list]
{{- end -}}

{{/* Rights to read namespaces, nodes and the list of APIs. */}}
{{- define "evenkeel.clusterRules" -}}
# To start a second replica before the only one leaves its node.
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch]
# To know the default Ingress class.
- apiGroups: [networking.k8s.io]
  resources: [ingressclasses]
  verbs: [list]
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get, list, watch]
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [get, list, watch]
{{- end -}}
