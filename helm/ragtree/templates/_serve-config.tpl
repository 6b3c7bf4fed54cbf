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
{{ include "ragtree.application" (dict "name" "generator" "part" "generator" "of" $serving.generator "target" (divf .Values.config.controller.max_running 2)) }}
{{- if $serving.kv_generators.replicas }}
{{ include "ragtree.application" (dict "name" "kv_generator" "part" "kv_generator" "of" $serving.kv_generators) }}
{{- end }}
{{ include "ragtree.application" (dict "name" "gateway" "part" "gateway" "of" $serving.gateway "route" "/" "target" 64) }}
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
        num_gpus: {{ dig "num_gpus" 0 .of }}
        resources: {{ toJson .of.resources }}
      max_constructor_retry_count: 2
      health_check_period_s: 1.0
      health_check_timeout_s: 10.0
      graceful_shutdown_timeout_s: {{ include "ragtree.drain" (list .part) }}
      graceful_shutdown_wait_loop_s: 0.5
      {{- if gt (dig "max_replicas" 1 .of | int) (dig "min_replicas" 1 .of | int) }}
      autoscaling_config:
        {{- pick .of "min_replicas" "max_replicas" "upscale_delay_s" "downscale_delay_s" | toYaml | nindent 8 }}
        target_ongoing_requests: {{ .target }}
        look_back_period_s: 30
      {{- else }}
      num_replicas: {{ dig "replicas" (dig "min_replicas" 1 .of) .of }}
      {{- end }}
{{- end }}

{{/* Seconds that replicas of some parts have to finish their requests, which are streams in generators and gateways. */}}
{{- define "ragtree.drain" -}}
{{- if or (has "generator" .) (has "gateway" .) -}}300{{- else -}}{{- ternary 10 0 (not (empty .)) -}}{{- end -}}
{{- end }}
