{{/* Ray Serve's applications, as `ragtree config render` writes them from the same options. */}}
{{- define "ragtree.serveConfig" -}}
{{- $serving := .Values.config.serving -}}
{{- $shards := int .Values.config.retriever.shards.count -}}
proxy_location: EveryNode
http_options:
  host: {{ .Values.config.server.host }}
  port: {{ .Values.config.server.port }}
logging_config:
  log_level: WARNING
  enable_access_log: false
applications:
{{ include "ragtree.applications" (dict "part" "retriever" "shards" $shards "of" $serving.retriever) }}
{{ include "ragtree.applications" (dict "part" "controller" "shards" .Values.config.controller.shards "of" $serving.controller) }}
{{ include "ragtree.application" (dict "name" "generator" "part" "generator" "of" $serving.generator) }}
{{- if $serving.kv_generators.replicas }}
{{ include "ragtree.application" (dict "name" "kv_generator" "part" "kv_generator" "of" $serving.kv_generators) }}
{{- end }}
{{ include "ragtree.application" (dict "name" "gateway" "part" "gateway" "of" $serving.gateway "route" "/") }}
{{- end }}

{{/* The application of a part, or one for each of its shards. Arguments: `part`, `shards`, `of`. */}}
{{- define "ragtree.applications" -}}
{{- if eq (int .shards) 1 -}}
{{ include "ragtree.application" (dict "name" .part "part" .part "of" .of) }}
{{- else -}}
{{- range $shard := until (int .shards) }}
{{ include "ragtree.application" (dict "name" (printf "%s-%d" $.part $shard) "part" $.part "of" $.of "args" (dict "shard" $shard)) }}
{{- end }}
{{- end -}}
{{- end }}

{{- define "ragtree.application" -}}
- name: {{ .name }}
  route_prefix: {{ default "null" .route }}
  import_path: services.serving:{{ .part }}
  args: {{ toJson (default dict .args) }}
  deployments:
    - name: {{ .name }}
      max_ongoing_requests: 100000
      ray_actor_options:
        num_cpus: {{ .of.num_cpus }}
        num_gpus: {{ .of.num_gpus }}
        resources: {{ toJson .of.resources }}
      max_constructor_retry_count: 2
      health_check_period_s: 1.0
      health_check_timeout_s: 10.0
      graceful_shutdown_timeout_s: {{ .of.drain_s }}
      graceful_shutdown_wait_loop_s: 0.5
      {{- if gt (dig "max_replicas" 1 .of | int) (dig "min_replicas" 1 .of | int) }}
      autoscaling_config:
        {{- pick .of "min_replicas" "max_replicas" "target_ongoing_requests" "upscale_delay_s" "downscale_delay_s" | toYaml | nindent 8 }}
        look_back_period_s: {{ .of.look_back_s }}
      {{- else }}
      num_replicas: {{ dig "replicas" (dig "min_replicas" 1 .of) .of }}
      {{- end }}
{{- end }}

{{/* Longest drain time of some parts, in seconds. Arguments: `parts`, `serving`. */}}
{{- define "ragtree.drain" -}}
{{- $longest := 0 -}}
{{- range .parts -}}{{- $longest = max $longest (index $.serving . | dig "drain_s" 0 | ceil | int) -}}{{- end -}}
{{- $longest -}}
{{- end }}
