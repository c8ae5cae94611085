#!/usr/bin/env bash
# Builds what tests/system/kubernetes runs, as far as it is missing: build.sh DIRECTORY VERSION.
set -euo pipefail
out=$1 version=$2
here=$(cd "$(dirname "$0")" && pwd)

if ! command -v go >/dev/null; then
    echo "Kubernetes cannot be built: go is not installed (1.26 or newer is needed)" >&2
    exit 1
fi
mkdir -p "$out"

build() {
    local module=$1 package=$2
    shift 2
    local program=$out/${package##*/}
    [[ -x $program && ! $here/../$module/go.sum -nt $program ]] && return
    echo "Building ${package##*/}"
    (cd "$here/../$module" && go build -o "$program" "$@" "$package")
}

component=k8s.io/component-base/version
stamp="-s -w -X $component.gitVersion=v$version -X $component.gitMajor=${version%%.*}"
stamp+=" -X $component.gitMinor=$(cut -d. -f2 <<<"$version")"
for program in kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet; do
    build kubernetes "k8s.io/kubernetes/cmd/$program" -ldflags "$stamp"
done
CGO_ENABLED=0 build kubernetes ./pause  # its image has no libraries
for program in containerd containerd-shim-runc-v2 ctr; do
    build containerd "github.com/containerd/containerd/v2/cmd/$program" \
        -ldflags "-s -w" -tags no_btrfs,no_zfs,no_devmapper
done
build helm helm.sh/helm/v3/cmd/helm -ldflags "-s -w"

# The kinds of Prometheus' operator, as an administrator would have installed them.
crds=$out/crds module=$here/../monitoring
if [[ ! -d $crds || $module/go.sum -nt $crds ]]; then
    echo "Generating the kinds of Prometheus' operator"
    types=github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1
    (cd "$module" && go tool controller-gen crd paths="$types" output:crd:dir="$crds")
    touch "$crds"
fi
