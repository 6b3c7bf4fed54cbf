{{/* Where each pod's Ray shows its metrics. KubeRay's own choice is 8080, which is the gateway's here. */}}
{{- define "ragtree.metricsPort" -}}8090{{- end }}

{{/* `ray start`'s parameters that all groups have. */}}
{{- define "ragtree.rayStartParams" -}}
metrics-export-port: {{ include "ragtree.metricsPort" . | quote }}
dashboard-agent-listen-port: "52365"
object-store-memory: {{ mul .Values.objectStoreMib 1048576 | quote }}
{{- end }}

{{/*
What a group offers of Ray's custom resources, in the quotes that `ray start` needs: `parts`, a map of the parts that it
runs to how many of their replicas; `serving`, the options of all parts. Whole numbers: the autoscaler takes no others.
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

{{/* Pods of a group that has one replica of a part in each. Without an autoscaler there are as many as Serve may want. */}}
{{- define "ragtree.groupSize" -}}
{{- $least := ternary .of.min_replicas .of.max_replicas .autoscaling -}}
replicas: {{ $least }}
minReplicas: {{ $least }}
maxReplicas: {{ .of.max_replicas }}
{{- end }}
