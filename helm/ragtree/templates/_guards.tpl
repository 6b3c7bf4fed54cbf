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
{{- if and $serving.kv_generators.replicas (include "ragtree.kvGeneratorsOnCpus" .) (ne (dig "page_layout" "engine" .Values.config.generator.kv) "neutral") -}}
{{- fail "config.serving.kv_generators.num_gpus: without a GPU they compute pages that generators on GPUs cannot read. Give them num_gpus, or set config.generator.kv.page_layout to neutral." -}}
{{- end -}}
{{- if $serving.kv_generators.replicas -}}
{{- $fixed := list "block_size" "dtype" "hf_overrides" "kv_cache_dtype" "kv_transfer_config" "load_format" "model" "pipeline_parallel_size" "quantization" "revision" "rope_scaling" "seed" "tensor_parallel_size" "tokenizer" -}}
{{- range $name, $_ := $serving.kv_generators.engine_args -}}
{{- if has $name $fixed -}}
{{- fail (printf "config.serving.kv_generators.engine_args.%s: it must be the same for all engines, which otherwise cannot use each other's KV. Set config.generator.engine_args." $name) -}}
{{- end -}}
{{- end -}}
{{- $generators := $serving.generator.resources -}}
{{- $kvGenerators := $serving.kv_generators.resources -}}
{{- if not (and (include "ragtree.lacks" (list $kvGenerators $generators)) (include "ragtree.lacks" (list $generators $kvGenerators))) -}}
{{- fail "config.serving.kv_generators.resources: generators and KV generators would take each other's pods. Let each of them need a resource that the other one does not." -}}
{{- end -}}
{{- if and (include "ragtree.kvGeneratorsOnCpus" .) (or .Values.image.tag .Values.image.digest) (not (or .Values.kvGenerator.image.tag .Values.kvGenerator.image.digest)) -}}
{{- fail "kvGenerator.image: image.tag or image.digest names the build for GPUs, and KV generators without num_gpus need that for CPUs. Name it, too." -}}
{{- end -}}
{{- end -}}
{{- $store := dig "object_store" nil .Values.config.generator.kv -}}
{{- with $store -}}
{{- range $address := list .url (default "" .endpoint) -}}
{{- if regexMatch "[@?]" $address -}}
{{- fail "config.generator.kv.object_store: credentials belong in a Secret, and config becomes a ConfigMap. See secrets.objectStore." -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.secrets.objectStore.existingSecret (not $store) -}}
{{- fail "secrets.objectStore.existingSecret: there is no object store. Name one in config.generator.kv.object_store." -}}
{{- end -}}
{{- range $name := list "AWS_SECRET_ACCESS_KEY" "AWS_SESSION_TOKEN" "AZURE_CLIENT_SECRET" "AZURE_STORAGE_ACCOUNT_KEY" "AZURE_STORAGE_SAS_KEY" "GOOGLE_SERVICE_ACCOUNT_KEY" "HF_TOKEN" -}}
{{- if hasKey $.Values.env $name -}}
{{- fail (printf "env.%s: it belongs in a Secret. See secrets." $name) -}}
{{- end -}}
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

{{/* Whether a map has a key that another one lacks: `true` or nothing. Argument: a list of both. */}}
{{- define "ragtree.lacks" -}}
{{- range $name, $_ := first . -}}{{- if not (hasKey (last $) $name) -}}true{{- end -}}{{- end -}}
{{- end }}
