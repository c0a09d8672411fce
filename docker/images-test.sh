#!/usr/bin/env bash
# Build both images, start a server and three devices, train two rounds, and look at what came out; in the open, then with
# TLS and keys: `make images-test`.
#
# With Docker where its engine runs, else with podman, buildah, runc and podman-compose. Some minutes and 10 GB of disk.
# BUILD_OPTIONS: more options for the build (such as -v, --build-arg); BASE, TORCH, TORCH_INDEX_URL: as in docker/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
export FLWR_VERSION=${FLWR_VERSION:-1.42.0} BASE=${BASE:-python:3.11-slim} TORCH=${TORCH:-torch} TORCH_INDEX_URL=${TORCH_INDEX_URL:-}
read -ra options <<< "${BUILD_OPTIONS:-}"
options+=(--build-arg "BASE=$BASE" --build-arg "FLWR_VERSION=$FLWR_VERSION")
options+=(--build-arg "TORCH=$TORCH" --build-arg "TORCH_INDEX_URL=$TORCH_INDEX_URL")

if docker info > /dev/null 2>&1 && docker compose version > /dev/null 2>&1; then
  engine=docker compose=(docker compose) build=(docker build)
else
  missing=()
  for tool in podman buildah runc podman-compose; do
    command -v "$tool" > /dev/null || missing+=("$tool")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    echo "images-test: no Docker engine answers, and without one this is missing: ${missing[*]}." >&2
    echo "Start Docker, or install them (podman-compose: pip install podman-compose); nothing was built or tested." >&2
    exit 1
  fi
  engine=podman compose=(podman-compose) build=(buildah bud --layers --isolation chroot --format docker)
fi

for side in server device; do
  echo "== build $side"
  "${build[@]}" "${options[@]}" -f "docker/Dockerfile.$side" -t "fedcome-$side:$FLWR_VERSION" .
done

work=$(mktemp -d)
bare=("${compose[@]}")
finish() {
  code=$?
  [ $code = 0 ] || "${compose[@]}" logs 2>&1 | tail -n 80 || true
  "${compose[@]}" down --volumes > /dev/null 2>&1 || true
  rm -rf "$work"
  [ $code = 0 ] || echo "images-test: failed" >&2
}
trap finish EXIT
fail() { echo "images-test: $*" >&2; exit 1; }
inside() { "${compose[@]}" exec -T "$@"; }
online() { inside server flwr supernode list "$1" --format json 2> /dev/null | grep -o '"status": *"online"' | wc -l; }
wait_until() {
  what=$1
  shift
  for _ in $(seq 60); do
    "$@" > /dev/null 2>&1 && return
    sleep 3
  done
  fail "$what: not within three minutes"
}
are_online() { [ "$(online "$1")" = 3 ]; }

# What a run with the given connection of connections.toml (open or tls) must show; the containers are up.
train() {
  connection=$1
  wait_until "three devices online" are_online "$connection"
  for service in server device-0 device-1 device-2; do
    port=$([ $service = server ] && echo 8000 || echo 9094)
    inside $service python3 /health.py "$port" || fail "$service is not healthy"
    [ "$(inside $service id -u | tr -d '\r')" = 10001 ] || fail "$service does not run as user 10001"
  done
  ! inside device-0 touch /data/x 2> /dev/null || fail "/data can be written"
  inside server flwr run /app "$connection" --stream \
    --run-config "num-server-rounds=2 report='/state/rounds.jsonl' output='/state/model.npz'"
  inside server cat /state/rounds.jsonl > "$work/rounds.jsonl"
  inside server test -s /state/model.npz || fail "no model in /state"
  "$python" - "$work/rounds.jsonl" << 'EOF'
import json, sys
rounds = [json.loads(line) for line in open(sys.argv[1])]
found = [sorted(line["clients"]) for line in rounds]
expected = [["device-0", "device-1", "device-2"]] * 2
sys.exit(f"images-test: expected the clients {expected}, found {found}" if found != expected else 0)
EOF
  echo "== $connection: two rounds of three containers, passed"
}

chmod 755 "$work"
"$python" examples/devices/prepare_data.py "$work/data" --devices 3
examples/devices/keys.sh "$work/keys" server device-0 device-1 device-2
chmod a+rx "$work/keys" && chmod a+r "$work/keys"/*  # throw-away keys, for the images' own user
export DATA=$work/data KEYS=$work/keys
unset FLOWER_UID

echo "== compose.yml: in the open"
compose=("${bare[@]}" -f docker/compose.yml)
"${compose[@]}" up -d
train open
"${compose[@]}" down --volumes > /dev/null 2>&1

echo "== compose.tls.yml: TLS and keys"
compose+=(-f docker/compose.tls.yml)
"${compose[@]}" up -d server
wait_until "SuperLink" inside server python3 /health.py 8000
for device in device-0 device-1 device-2; do
  inside server flwr supernode register "/keys/$device.pub" tls --name "$device"
done
"${compose[@]}" up -d
train tls

echo "== sizes"
"$engine" images --format '{{.Repository}}:{{.Tag}}  {{.Size}}' | grep fedcome-
echo "images-test: passed"
