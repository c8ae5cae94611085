#!/usr/bin/env bash
# Builds the container images of compose/Dockerfile from this checkout. It assembles the build
# context: our wheel, what it depends on (as requirements or as wheels), and the tested versions.
set -euo pipefail

usage() {
    cat <<'USAGE'
Usage: compose/build.sh [OPTIONS] [-- DOCKER-BUILD-OPTIONS]

Builds roma/control and roma/model-server.

  --target NAME   control, model-server or all (default: all)
  --tag TAG       tag of the images (default: dev)
  --base IMAGE    base image, Debian or a relative with apt (default: debian:bookworm-slim);
                  its Python, or the one that its apt installs, must be of .venv's minor version
  --offline       bring every wheel in from this machine: the build needs no network, if BASE has
                  python3 and python3-venv
  --plain         install a wheel that is not compiled: built in seconds instead of a minute
  --help          show this
USAGE
}

fail() {
    echo "compose/build.sh: $*" >&2
    exit 2
}

target=all tag=dev base=debian:bookworm-slim offline='' plain=''
while (($#)); do
    case $1 in
        --target | --tag | --base)
            (($# > 1)) || fail "$1 needs a value"
            declare "${1#--}=$2"
            shift
            ;;
        --offline) offline=yes ;;
        --plain) plain=yes ;;
        --help) usage && exit ;;
        --) shift && break ;;
        *) fail "$1: unknown option; see --help" ;;
    esac
    shift
done
case $target in
    all) targets=(control model-server) ;;
    control | model-server) targets=("$target") ;;
    *) fail "--target $target: must be control, model-server or all" ;;
esac

cd "$(dirname "$0")/.."
docker version >/dev/null 2>&1 || fail "no Docker engine answers ('docker version' says why)"

# Beside the wheels, so that the context links to them: copying would take longer than building.
mkdir -p .cache/wheels
context=$(mktemp -d "$PWD/.cache/context.XXXXXX")
trap 'rm -rf "$context"' EXIT
# Quiet even about indexes that this machine names and that lack a package.
pip() { .venv/bin/pip --quiet --quiet --disable-pip-version-check "$@"; }

# Our wheel, and .venv with it.
mkdir "$context/own"
if [[ $plain ]]; then
    make --silent .venv/.has-build
    pip wheel --no-build-isolation --no-deps --wheel-dir "$context/own" .
else
    make --silent wheel
    cp dist/*.whl "$context/own"
fi

# A wheel for one Python does not install under another, which pip would say only in mid-build.
minor='import sys; print("%d.%d" % sys.version_info[:2])'
image=$(docker build --quiet --build-arg "BASE=$base" --target python - <compose/Dockerfile)
theirs=$(docker run --rm --entrypoint python3 "$image" -c "$minor")
ours=$(.venv/bin/python -c "$minor")
[[ $theirs == "$ours" ]] || fail "--base $base has Python $theirs, .venv has $ours: they must be the same"

# Requirements and not the project file: a changed ruff rule must not install TensorFlow anew.
requirements() {
    .venv/bin/python - "$1" <<'PYTHON'
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
control = project["dependencies"] + extras["otel"] + extras["oidc"]
print(*(control if sys.argv[1] == "control" else extras[sys.argv[1]]), sep="\n")
PYTHON
}

# Wheels stay in .cache: from pip's own they take half a minute, and a changed source needs none anew.
bring_wheels() {
    local name=$1 key folder
    key=$(cat "$context/$name"/*.txt - <<<"$ours" | sha256sum | cut -c -16)
    folder=.cache/wheels/$name-$key
    if [[ ! -d $folder ]]; then
        rm -rf ".cache/wheels/$name"-*
        pip wheel --constraint constraints.txt --requirement "$context/$name/requirements.txt" \
            --wheel-dir "$context/new"
        mv "$context/new" "$folder"
    fi
    cp -r --link "$folder" "$context/$name/wheels"
}

bring() {
    mkdir "$context/$1"
    cp constraints.txt "$context/$1"
    requirements "$1" >"$context/$1/requirements.txt"
    [[ ! $offline ]] || bring_wheels "$1"
}

version=$(.venv/bin/python -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')
bring control
for name in "${targets[@]}"; do
    # Only now: control shall not wait until TensorFlow's wheels are sent to the engine.
    [[ $name == control ]] || bring serving
    docker build --file compose/Dockerfile --build-arg "BASE=$base" --target "$name" \
        --tag "roma/$name:$tag" --label "org.opencontainers.image.version=$version" "$@" "$context"
done
