{{/* Checks that the schema cannot express, with messages. */}}
{{- define "ragtree.guards" -}}
{{- $open := not .Values.secrets.apiKeys.existingSecret -}}
{{- if and $open .Values.ingress.enabled -}}
{{- fail "ingress.enabled: without secrets.apiKeys.existingSecret everyone could read and delete all documents. Name a Secret with API keys." -}}
{{- end -}}
{{- if and $open (ne .Values.service.type "ClusterIP") -}}
{{- fail (printf "service.type %s: without secrets.apiKeys.existingSecret everyone could read and delete all documents. Name a Secret with API keys." .Values.service.type) -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
{{- fail "ingress.enabled: ingress.host must name the host." -}}
{{- end -}}
{{- if and .Values.redis.enabled (not (and .Values.redis.host .Values.redis.existingSecret)) -}}
{{- fail "redis.enabled: redis.host and redis.existingSecret are required." -}}
{{- end -}}
{{- if and (eq .Values.upgrade.strategy "NewCluster") .Values.retriever.persistence.enabled -}}
{{- fail "upgrade.strategy NewCluster: two clusters would share the documents' volume, which has one owner. Use None, or turn retriever.persistence.enabled off." -}}
{{- end -}}
{{- if (default dict .Values.config.redis).url -}}
{{- fail "config.redis.url: a URL with a password belongs in a Secret; use redis.enabled and redis.existingSecret." -}}
{{- end -}}
{{- range $key := list "api_keys" "admin_key" -}}
{{- if hasKey (default dict $.Values.config.gateway) $key -}}
{{- fail (printf "config.gateway.%s: keys belong in a Secret, and config becomes a ConfigMap. See secrets." $key) -}}
{{- end -}}
{{- end -}}
{{- $peers := dig "peers" dict .Values.config.generator.kv -}}
{{- if $peers.key_file -}}
{{- fail "config.generator.kv.peers.key_file: the pods have no such file. Use generator.peers, which mounts one." -}}
{{- end -}}
{{- if $peers.host -}}
{{- fail "config.generator.kv.peers.host: all pods would have the same address. Leave it empty, and each has its own." -}}
{{- end -}}
{{- if and $peers.port (eq (int $peers.port) (int .Values.config.server.port)) -}}
{{- fail (printf "config.generator.kv.peers.port %d: it is the gateway's port." (int $peers.port)) -}}
{{- end -}}
{{- if and .Values.config.serving.kv_generators.replicas (not .Values.generator.peers.enabled) (not .Values.config.generator.kv.object_store) -}}
{{- fail "config.serving.kv_generators.replicas: other pods could not read what they compute. Enable generator.peers, or name an object store in config.generator.kv.object_store." -}}
{{- end -}}
{{- $serving := .Values.config.serving -}}
{{- if and $serving.kv_generators.replicas $serving.generator.num_gpus (not $serving.kv_generators.num_gpus) (ne (dig "page_layout" "engine" .Values.config.generator.kv) "neutral") -}}
{{- fail "config.serving.kv_generators.num_gpus: without a GPU they compute pages that generators on GPUs cannot read. Give them num_gpus, or set config.generator.kv.page_layout to neutral." -}}
{{- end -}}
{{- range $part := list "generator" "gateway" -}}
{{- $of := index $.Values.config.serving $part -}}
{{- if gt (int $of.min_replicas) (int $of.max_replicas) -}}
{{- fail (printf "config.serving.%s: min_replicas %v is above max_replicas %v." $part $of.min_replicas $of.max_replicas) -}}
{{- end -}}
{{- end -}}
{{- $gateways := .Values.config.serving.gateway.max_replicas | int -}}
{{- if and (gt $gateways 1) (not .Values.gateway.dedicated) -}}
{{- fail (printf "config.serving.gateway.max_replicas %d: several gateways need pods of their own, where each is scraped separately. Set gateway.dedicated." $gateways) -}}
{{- end -}}
{{- end }}
