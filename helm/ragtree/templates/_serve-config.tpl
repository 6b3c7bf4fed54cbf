{{/* Ray Serve's applications, as `ragtree config render` writes them from the same options. */}}
{{- define "ragtree.serveConfig" -}}
{{- $serving := .Values.config.serving -}}
{{- $shards := int .Values.config.retriever.shards.count -}}
proxy_location: EveryNode
http_options:
  host: {{ .Values.config.server.host }}
  port: {{ .Values.config.server.port }}
applications:
{{- range $shard := until $shards }}
{{- $name := ternary "retriever" (printf "retriever-%d" $shard) (eq $shards 1) }}
{{ include "ragtree.application" (dict "name" $name "part" "retriever" "of" $serving.retriever "shard" (ternary nil $shard (eq $shards 1))) }}
{{- end }}
{{ include "ragtree.application" (dict "name" "controller" "part" "controller" "of" $serving.controller) }}
{{ include "ragtree.application" (dict "name" "generator" "part" "generator" "of" $serving.generator "scales" true) }}
{{ include "ragtree.application" (dict "name" "gateway" "part" "gateway" "of" $serving.gateway "scales" true "route" "/") }}
{{- end }}

{{- define "ragtree.application" -}}
- name: {{ .name }}
  import_path: services.serving:{{ .part }}
  route_prefix: {{ default "null" .route }}
  {{- if not (kindIs "invalid" .shard) }}
  args:
    shard: {{ .shard }}
  {{- end }}
  deployments:
    - name: {{ .name }}
      {{- if .scales }}
      autoscaling_config:
        min_replicas: {{ .of.min_replicas }}
        max_replicas: {{ .of.max_replicas }}
        target_ongoing_requests: {{ .of.target_ongoing_requests }}
      {{- else }}
      num_replicas: 1
      {{- end }}
      max_ongoing_requests: 100000
      graceful_shutdown_timeout_s: {{ .of.drain_s }}
      health_check_period_s: 1
      health_check_timeout_s: 10
      ray_actor_options:
        num_cpus: {{ .of.num_cpus }}
        num_gpus: {{ .of.num_gpus }}
        resources: {{ toJson .of.resources }}
{{- end }}

{{/* How long the slowest of some parts may take to finish what it has begun, in seconds: `parts`, and `serving`. */}}
{{- define "ragtree.drain" -}}
{{- $longest := 0 -}}
{{- range .parts -}}{{- $longest = max $longest (index $.serving . | dig "drain_s" 0 | ceil | int) -}}{{- end -}}
{{- $longest -}}
{{- end }}
