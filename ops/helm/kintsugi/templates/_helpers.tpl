{{- define "kintsugi.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- /* Of everything: (dict "root" $ "role" "gateway") */}}
{{- define "kintsugi.labels" -}}
{{ include "kintsugi.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "kintsugi.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "kintsugi.image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}

{{- define "kintsugi.claim" -}}
{{ .Values.shared.existingClaim | default (printf "%s-shared" (include "kintsugi.name" .)) }}
{{- end }}

{{- /* Port of a role's metrics: (dict "root" $ "role" "work"); as daemon/metrics/exposition.py */}}
{{- define "kintsugi.metrics" -}}
{{- $after := dict "consume" 0 "ship" 1 "schedule" 2 "work" 3 "trace" 4 -}}
{{ add (int .root.Values.monitoring.port) (get $after .role) }}
{{- end }}

{{- define "kintsugi.env" -}}
- { name: KINTSUGI_HOME, value: /var/lib/kintsugi }
- { name: KINTSUGI_CONFIG, value: /etc/kintsugi/kintsugi.toml }
- { name: KINTSUGI_SECRETS, value: /run/secrets/kintsugi }
- { name: KINTSUGI_KAFKA_BOOTSTRAP_SERVERS, value: {{ .Values.kafka.bootstrapServers | quote }} }
- { name: KINTSUGI_METRICS__HOST, value: 0.0.0.0 }
- { name: KINTSUGI_METRICS__PORT, value: {{ .Values.monitoring.port | quote }} }
- { name: KINTSUGI_GATEWAY__HOST, value: 0.0.0.0 }
- { name: KINTSUGI_GATEWAY__PORT, value: {{ .Values.gateway.port | quote }} }
- { name: KINTSUGI_JOBS__RUNNER, value: {{ .Values.jobs.runner }} }
{{- if eq .Values.jobs.runner "ray" }}
- { name: KINTSUGI_JOBS__RAY__ADDRESS, value: {{ .Values.jobs.ray.address | quote }} }
- { name: KINTSUGI_JOBS__RAY__PYTHON, value: {{ .Values.jobs.ray.python | quote }} }
- { name: KINTSUGI_JOBS__RAY__CPUS, value: {{ .Values.jobs.ray.cpus | quote }} }
- { name: KINTSUGI_JOBS__RAY__GPUS, value: {{ .Values.jobs.ray.gpus | quote }} }
{{- end }}
{{- if .Values.trace.enabled }}
# Of every role: whoever decides writes down within which span.
- { name: KINTSUGI_TRACING__ENDPOINT, value: {{ .Values.trace.endpoint | quote }} }
- { name: KINTSUGI_TRACING__CONTENT, value: {{ .Values.trace.content | quote }} }
{{- end }}
# The root of the file system is read-only: what libraries keep for themselves goes here.
- { name: HOME, value: /tmp }
{{- end }}

{{- /* A container of a role: (dict "root" $ "role" "work" "shared" (list "blobs")) */}}
{{- define "kintsugi.container" -}}
name: {{ .role }}
{{ include "kintsugi.image" .root }}
args: [{{ .role }}]
env:
  {{- include "kintsugi.env" .root | nindent 2 }}
{{- if ne .role "gateway" }}
ports:
  - { name: metrics-{{ .role }}, containerPort: {{ include "kintsugi.metrics" . }} }
{{- end }}
{{- /* Not of ship: a broker that is away takes no gateway out of service. And none is killed by a
       probe: what a role waits for comes back, and that it is stuck is told by its metrics. */}}
{{- if and (ne .role "gateway") (ne .role "ship") }}
readinessProbe:
  httpGet: { path: /metrics, port: metrics-{{ .role }} }
  timeoutSeconds: 5
{{- end }}
volumeMounts:
  - { name: home, mountPath: /var/lib/kintsugi }
  - { name: tmp, mountPath: /tmp }
  - { name: config, mountPath: /etc/kintsugi, readOnly: true }
  - { name: secrets, mountPath: /run/secrets/kintsugi, readOnly: true }
  {{- range .shared }}
  - { name: shared, mountPath: /var/lib/kintsugi/{{ . }}, subPath: {{ . }} }
  {{- end }}
  {{- with .root.Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- /* What a pod has around its containers: (dict "root" $ "role" "work" "shared" (list "blobs")) */}}
{{- define "kintsugi.pod" -}}
{{- $own := index .root.Values .role -}}
automountServiceAccountToken: false
# Else every service of the namespace is a variable, and one called kintsugi looks like a setting.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: { type: RuntimeDefault }
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
volumes:
  - { name: tmp, emptyDir: {} }
  - { name: config, configMap: { name: {{ include "kintsugi.name" .root }} } }
  - { name: secrets, secret: { secretName: {{ .root.Values.existingSecret }} } }
  {{- if .shared }}
  - { name: shared, persistentVolumeClaim: { claimName: {{ include "kintsugi.claim" .root }} } }
  {{- end }}
  {{- with .root.Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "kintsugi.annotations" -}}
# A setting that changes starts the roles anew.
checksum/config: {{ include (print $.Template.BasePath "/config.yaml") . | sha256sum }}
{{- end }}

{{- /* What owns a spool: (dict "root" $ "role" "work" "replicas" 1 "grace" 60 "shared" (list ...)) */}}
{{- define "kintsugi.spooling" -}}
{{- $own := index .root.Values .role -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ include "kintsugi.name" .root }}-{{ .role }}
  labels: {{- include "kintsugi.labels" . | nindent 4 }}
spec:
  serviceName: {{ include "kintsugi.name" .root }}-{{ .role }}
  replicas: {{ .replicas }}
  # Spools know nothing of each other.
  podManagementPolicy: Parallel
  selector:
    matchLabels: {{- include "kintsugi.selector" . | nindent 6 }}
  # A spool that was not shipped is the only copy of what it holds: nobody but a person deletes it.
  persistentVolumeClaimRetentionPolicy: { whenDeleted: Retain, whenScaled: Retain }
  template:
    metadata:
      labels: {{- include "kintsugi.labels" . | nindent 8 }}
      annotations: {{- include "kintsugi.annotations" .root | nindent 8 }}
    spec:
      {{- include "kintsugi.pod" . | nindent 6 }}
      terminationGracePeriodSeconds: {{ .grace }}
      # Started before the role and stopped after it: what the role recorded last is shipped too.
      initContainers:
        - {{ include "kintsugi.container" (dict "root" .root "role" "ship" "shared" .shared) | indent 10 | trim }}
          restartPolicy: Always
          {{- with .root.Values.ship.resources }}
          resources: {{- toYaml . | nindent 12 }}
          {{- end }}
      containers:
        - {{ include "kintsugi.container" . | indent 10 | trim }}
          {{- with .more }}
          {{- . | nindent 10 }}
          {{- end }}
          {{- with $own.resources }}
          resources: {{- toYaml . | nindent 12 }}
          {{- end }}
  volumeClaimTemplates:
    - metadata: { name: home }
      spec:
        accessModes: [ReadWriteOnce]
        {{- with $own.storage.className }}
        storageClassName: {{ . }}
        {{- end }}
        resources: { requests: { storage: {{ $own.storage.size }} } }
---
apiVersion: v1
kind: Service
metadata:
  name: {{ include "kintsugi.name" .root }}-{{ .role }}
  labels: {{- include "kintsugi.labels" . | nindent 4 }}
spec:
  clusterIP: None
  selector: {{- include "kintsugi.selector" . | nindent 4 }}
  ports:
    {{- if eq .role "gateway" }}
    - { name: http, port: {{ .root.Values.gateway.port }}, targetPort: http }
    {{- else }}
    - { name: metrics, port: {{ include "kintsugi.metrics" . }}, targetPort: metrics-{{ .role }} }
    {{- end }}
    - name: metrics-ship
      port: {{ include "kintsugi.metrics" (dict "root" .root "role" "ship") }}
      targetPort: metrics-ship
{{- end }}
