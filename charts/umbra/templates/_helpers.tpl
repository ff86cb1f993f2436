{{- define "umbra.name" -}}
{{- printf "%s-operator" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "umbra.labels" -}}
app.kubernetes.io/name: umbra-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Ours and, from a list of the root and a map, more; ours stand where both have a label. */}}
{{- define "umbra.labelsAnd" -}}
{{- merge (include "umbra.labels" (first .) | fromYaml) (last . | default dict) | toYaml -}}
{{- end -}}

{{- define "umbra.selector" -}}
app.kubernetes.io/name: umbra-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "umbra.image" -}}
{{- $image := .Values.image -}}
{{- if not $image.repository -}}
{{- fail "image.repository is not set: name the operator's image, best with image.digest" -}}
{{- end -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else if $image.tag -}}
{{ $image.repository }}:{{ $image.tag }}
{{- else -}}
{{- fail "set image.digest (best) or image.tag" -}}
{{- end -}}
{{- end -}}

{{/* "now", or "later" while the cluster has no such kind yet, or "" when no profile is wanted. */}}
{{- define "umbra.profiles" -}}
{{- if .Values.profiles.create -}}
{{- if not (and .Values.profiles.engineImage .Values.profiles.kitImage) -}}
{{- fail "set profiles.engineImage and profiles.kitImage, each as REPOSITORY@sha256:DIGEST: profiles.create needs both" -}}
{{- end -}}
{{- .Capabilities.APIVersions.Has "umbra.dev/v1alpha1/K3Profile" | ternary "now" "later" -}}
{{- end -}}
{{- end -}}
