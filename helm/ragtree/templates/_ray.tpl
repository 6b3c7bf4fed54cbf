{{/* Port of Ray's metrics in each pod. KubeRay's default, 8080, is the gateway's port here. */}}
{{- define "ragtree.metricsPort" -}}8090{{- end }}

{{/* Parameters of `ray start` that all groups share. */}}
{{- define "ragtree.rayStartParams" -}}
metrics-export-port: {{ include "ragtree.metricsPort" . | quote }}
dashboard-agent-listen-port: "52365"
object-store-memory: {{ mul .Values.objectStoreMib 1048576 | quote }}
{{- end }}

{{/*
Ray's custom resources that a group offers, quoted for `ray start`. Arguments: `parts`, a map from part to number of
replicas; `serving`, the options of all parts. Whole numbers only, because the autoscaler accepts no others.
*/}}
{{- define "ragtree.offers" -}}
{{- $offered := dict -}}
{{- range $part, $replicas := .parts -}}
{{- range $name, $amount := (index $.serving $part).resources -}}
{{- $_ := set $offered $name (addf (default 0 (get $offered $name)) (mulf $amount $replicas)) -}}
{{- end -}}
{{- end -}}
{{- range $name, $amount := $offered -}}{{- $_ := set $offered $name (ceil $amount | int) -}}{{- end -}}
{{- printf "'%s'" (toJson $offered) -}}
{{- end }}

{{/* Pods of a group with one replica of a part each. Without an autoscaler, as many as Serve may need. */}}
{{- define "ragtree.groupSize" -}}
{{- $least := ternary .of.min_replicas .of.max_replicas .autoscaling | int -}}
replicas: {{ $least }}
minReplicas: {{ $least }}
maxReplicas: {{ int .of.max_replicas }}
{{- end }}
