{{/* Name of the release's objects. KubeRay allows 47 characters for a RayService and appends to them. */}}
{{- define "ragtree.fullname" -}}
{{- $chart := default .Chart.Name .Values.nameOverride -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- $name = ternary .Release.Name (printf "%s-%s" .Release.Name $chart) (contains $chart .Release.Name) -}}
{{- end -}}
{{- /* A DNS label that begins with a letter. A hash keeps truncated names apart. */ -}}
{{- if not (regexMatch "^[a-z]" $name) -}}{{- $name = printf "r-%s" $name -}}{{- end -}}
{{- if gt (len $name) 47 -}}
{{- $name = printf "%s-%s" (trunc 40 $name | trimSuffix "-") (sha256sum $name | trunc 6) -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{/* Selector of the release's pods. It must never change, because selectors are immutable. */}}
{{- define "ragtree.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ragtree.labels" -}}
{{ include "ragtree.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Label of all pods in which a gateway replica may run. */}}
{{- define "ragtree.gatewayPodLabel" -}}
ragtree/gateway: "true"
{{- end }}

{{- define "ragtree.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}{{ include "ragtree.fullname" . }}{{- else -}}{{ default "default" .Values.serviceAccount.name }}{{- end -}}
{{- end }}

{{- define "ragtree.claimName" -}}
{{- default (printf "%s-documents" (include "ragtree.fullname" .)) .Values.retriever.persistence.existingClaim -}}
{{- end }}

{{/* Secret with the key that generators share. */}}
{{- define "ragtree.peersSecret" -}}
{{- default (printf "%s-peers" (include "ragtree.fullname" .)) .Values.generator.peers.existingSecret -}}
{{- end }}

{{/* File with that key in the generators' pods. */}}
{{- define "ragtree.peersKeyFile" -}}/etc/ragtree/peers-key{{- end }}

{{/* Image of all pods but KV generators on CPUs beside GPUs. */}}
{{- define "ragtree.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default (printf "%s-%s" .Chart.AppVersion .Values.image.variant) .Values.image.tag }}
{{- end -}}
{{- end }}

{{/* Whether KV generators compute on CPUs, and generators on GPUs: `true` or nothing. */}}
{{- define "ragtree.kvGeneratorsOnCpus" -}}
{{- $serving := .Values.config.serving -}}
{{- if and $serving.generator.num_gpus (not $serving.kv_generators.num_gpus) -}}true{{- end -}}
{{- end }}

{{- define "ragtree.kvGeneratorImage" -}}
{{- $own := .Values.kvGenerator.image -}}
{{- if not (include "ragtree.kvGeneratorsOnCpus" .) -}}
{{- include "ragtree.image" . -}}
{{- else if $own.digest -}}
{{ .Values.image.repository }}@{{ $own.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default (printf "%s-cpu" .Chart.AppVersion) $own.tag }}
{{- end -}}
{{- end }}

{{/* Port of an object store: that of its endpoint, or of the endpoint's scheme. The clouds' own have TLS. */}}
{{- define "ragtree.objectStorePort" -}}
{{- $endpoint := urlParse (default "https://" .endpoint) -}}
{{- $named := regexFind ":[0-9]+$" $endpoint.host | trimPrefix ":" -}}
{{- default (ternary 80 443 (eq $endpoint.scheme "http")) $named -}}
{{- end }}
