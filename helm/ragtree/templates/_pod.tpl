{{- define "ragtree.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "ragtree.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "ragtree.secretEnv" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret }}
      key: {{ .key }}
{{- end }}

{{- define "ragtree.env" -}}
- name: RAGTREE_CONFIG
  value: /etc/ragtree/ragtree.yaml
- name: RAGTREE_DATA_DIR
  value: /data
- name: RAGTREE_CACHE_DIR
  value: /cache
{{- range $name, $value := .Values.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- with .Values.secrets.apiKeys }}{{ if .existingSecret }}
{{ include "ragtree.secretEnv" (dict "name" "RAGTREE_GATEWAY__API_KEYS" "secret" .existingSecret "key" .key) }}
{{- end }}{{ end }}
{{- with .Values.secrets.adminKey }}{{ if .existingSecret }}
{{ include "ragtree.secretEnv" (dict "name" "RAGTREE_GATEWAY__ADMIN_KEY" "secret" .existingSecret "key" .key) }}
{{- end }}{{ end }}
{{- with .Values.secrets.huggingFaceToken }}{{ if .existingSecret }}
{{ include "ragtree.secretEnv" (dict "name" "HF_TOKEN" "secret" .existingSecret "key" .key) }}
{{- end }}{{ end }}
{{- if .Values.generator.peers.enabled }}
# For all pods, because any of them may read the generators' options. Only generators read the file.
- name: RAGTREE_GENERATOR__KV__PEERS__KEY_FILE
  value: {{ include "ragtree.peersKeyFile" . }}
{{- end }}
{{- with .Values.redis }}{{ if .enabled }}
{{ include "ragtree.secretEnv" (dict "name" "RAGTREE_REDIS__URL" "secret" .existingSecret "key" .urlKey) }}
{{- if not (default dict $.Values.config.redis).prefix }}
# Releases may share a Redis.
- name: RAGTREE_REDIS__PREFIX
  value: {{ printf "ragtree:%s:%s" $.Release.Namespace (include "ragtree.fullname" $) }}
{{- end }}
{{- end }}{{ end }}
{{- end }}

{{- define "ragtree.probes" -}}
{{- /* Ray's agent reports the health of its own raylet, and on the head also that of the cluster's state. */ -}}
{{- $health := dict "path" "/api/healthz" "port" 52365 -}}
startupProbe:
  httpGet: {{ toJson $health }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ divf .modelLoadSeconds 5 | ceil | int }}
livenessProbe:
  httpGet: {{ toJson $health }}
  {{- toYaml .root.Values.probes.liveness | nindent 2 }}
readinessProbe:
  httpGet: {{ toJson (ternary $health (dict "path" "/readyz" "port" "serve") .head) }}
  {{- toYaml .root.Values.probes.readiness | nindent 2 }}
{{- end }}

{{/*
The pods of one group. Arguments: `root`; `group`, its name (`head` for the head); `of`, its values; `parts`, what Serve may
run there; `hostMib`, shared memory besides Ray's; `data`, the volume of /data; `limits`, additional limits; `image`, if it
is another one than that of the other pods.
*/}}
{{- define "ragtree.podTemplate" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $head := eq .group "head" -}}
{{- $image := default (include "ragtree.image" $root) .image -}}
{{- $hasKv := or (has "generator" .parts) (has "kv_generators" .parts) -}}
{{- $peers := and $values.generator.peers.enabled $hasKv -}}
{{- $drain := include "ragtree.drain" .parts | int -}}
metadata:
  labels:
    {{- include "ragtree.selectorLabels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .group }}
    {{- if has "gateway" .parts }}
    {{- include "ragtree.gatewayPodLabel" $root | nindent 4 }}
    {{- end }}
  annotations:
    # A changed ragtree.yaml changes the pods.
    checksum/config: {{ toJson $values.config | sha256sum }}
    {{- with .of.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "ragtree.serviceAccountName" $root }}
  automountServiceAccountToken: false
  # Service links would set RAGTREE_... variables, which are options of RAGTree.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ add 60 $drain }}
  securityContext:
    {{- include "ragtree.podSecurityContext" $root | nindent 4 }}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .of.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .of.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .of.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .of.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .of.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  initContainers:
    # KubeRay skips the image's entry point, which detects read-only volumes and links the image's models into the
    # cache.
    - name: entrypoint
      image: {{ $image }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args: ["true"]
      securityContext:
        {{- include "ragtree.containerSecurityContext" $root | nindent 8 }}
      resources:
        requests: {cpu: 50m, memory: 64Mi}
        limits: {memory: 64Mi}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: data, mountPath: /data}
        - {name: cache, mountPath: /cache}
  containers:
    - name: {{ ternary "ray-head" "ray-worker" $head }}
      image: {{ $image }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      securityContext:
        {{- include "ragtree.containerSecurityContext" $root | nindent 8 }}
      env:
        {{- include "ragtree.env" $root | nindent 8 }}
        - name: RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S
          value: {{ $drain | quote }}
      {{- with $values.secrets.objectStore.existingSecret }}{{ if $hasKv }}
      envFrom:
        - secretRef:
            name: {{ . }}
      {{- end }}{{ end }}
      ports:
        - name: serve
          containerPort: {{ $values.config.server.port }}
        - name: metrics
          containerPort: {{ include "ragtree.metricsPort" $root }}
        {{- if $head }}
        - name: gcs-server
          containerPort: 6379
        - name: dashboard
          containerPort: 8265
        {{- end }}
      resources:
        requests:
          {{- toYaml .of.resources.requests | nindent 10 }}
        {{- with merge (default dict .limits) (default dict .of.resources.limits) }}
        limits:
          {{- toYaml . | nindent 10 }}
        {{- end }}
      {{- include "ragtree.probes" (dict "root" $root "head" $head "modelLoadSeconds" (default 300 .of.modelLoadSeconds)) | nindent 6 }}
      lifecycle:
        preStop:
          exec:
            {{- if $head }}
            # If all pods stop: wait until the others have reported that they drain.
            command: [sleep, "15"]
            {{- else }}
            # Wait until no new requests arrive. Then Ray is told to stop, and Serve finishes running requests first.
            command: [sleep, "5"]
            {{- end }}
      volumeMounts:
        # A subPath mount does not change while the container runs, even if the ConfigMap does.
        - {name: config, mountPath: /etc/ragtree/ragtree.yaml, subPath: ragtree.yaml, readOnly: true}
        {{- if $peers }}
        - {name: peers-key, mountPath: {{ include "ragtree.peersKeyFile" $root }}, subPath: key, readOnly: true}
        {{- end }}
        - {name: tmp, mountPath: /tmp}
        - {name: shm, mountPath: /dev/shm}
        - {name: data, mountPath: /data}
        - {name: cache, mountPath: /cache}
  volumes:
    - name: config
      configMap:
        name: {{ include "ragtree.fullname" $root }}
    {{- if $peers }}
    - name: peers-key
      secret:
        secretName: {{ include "ragtree.peersSecret" $root }}
        items: [{key: {{ $values.generator.peers.key | quote }}, path: key}]
        defaultMode: 0440
    {{- end }}
    - name: tmp
      emptyDir:
        sizeLimit: {{ $values.tmpSizeLimit }}
    - name: shm
      emptyDir:
        medium: Memory
        sizeLimit: {{ add $values.objectStoreMib (default 0 .hostMib) 64 }}Mi
    - name: data
      {{- toYaml (default (dict "emptyDir" dict) .data) | nindent 6 }}
    - name: cache
      {{- if $values.cache.existingClaim }}
      persistentVolumeClaim:
        claimName: {{ $values.cache.existingClaim }}
      {{- else }}
      emptyDir:
        sizeLimit: {{ $values.cache.sizeLimit }}
      {{- end }}
    {{- if and $head $values.autoscaling.enabled }}
    # What automounting gives to every container, for the autoscaler's container only.
    - name: kubernetes-api
      projected:
        sources:
          - serviceAccountToken: {path: token, expirationSeconds: 3607}
          - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
          - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
    {{- end }}
{{- end }}
