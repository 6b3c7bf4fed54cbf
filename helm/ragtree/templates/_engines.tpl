{{/*
What a group of pods has that runs one engine in each pod: its KV in memory and on disk, and its GPUs. Arguments: `root`;
`group`, its name; `part`, the part that runs there; `of`, the group's values; `image`, as for `ragtree.podTemplate`.
*/}}
{{- define "ragtree.engineGroup" -}}
{{- $values := .root.Values -}}
{{- $serving := $values.config.serving -}}
{{- $kv := $values.config.generator.kv -}}
{{- $gpus := ceil (index $serving .part).num_gpus | int -}}
{{- /* A quarter more than KV may have: files are whole before older ones are deleted. */ -}}
{{- $diskGib := mulf $kv.disk_gib 1.25 | ceil | int | add 1 -}}
{{- $disk := dict "emptyDir" (dict "sizeLimit" (printf "%dGi" $diskGib)) -}}
{{- with $values.generator.disk.storageClassName -}}
{{- $claim := dict "accessModes" (list "ReadWriteOnce") "storageClassName" . "resources" (dict "requests" (dict "storage" (printf "%dGi" $diskGib))) -}}
{{- $disk = dict "ephemeral" (dict "volumeClaimTemplate" (dict "spec" $claim)) -}}
{{- end -}}
{{- $limits := dict -}}
{{- if $gpus }}{{ $_ := set $limits $values.generator.gpuResourceName $gpus }}{{ end -}}
rayStartParams:
  {{- include "ragtree.rayStartParams" .root | nindent 2 }}
  num-gpus: {{ $gpus | quote }}
  resources: {{ include "ragtree.offers" (dict "parts" (dict .part 1) "serving" $serving) | quote }}
template:
  {{- include "ragtree.podTemplate" (dict "root" .root "group" .group "of" .of "parts" (list .part) "data" $disk "limits" $limits "hostMib" (add 256 (mulf $kv.host_gib 1024 | ceil | int)) "image" .image) | nindent 2 }}
{{- end }}
