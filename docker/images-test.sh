#!/usr/bin/env bash
# Build both images, start a server and three devices, train two rounds, and look at what came out: `make images-test`.
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
compose+=(-f docker/compose.yml)
finish() {
  code=$?
  [ $code = 0 ] || "${compose[@]}" logs 2>&1 | tail -n 80 || true
  "${compose[@]}" down --volumes > /dev/null 2>&1 || true
  rm -rf "$work"
  [ $code = 0 ] || echo "images-test: failed" >&2
}
trap finish EXIT
chmod 755 "$work"
"$python" examples/devices/prepare_data.py "$work/data" --devices 3
export DATA=$work/data

echo "== start"
"${compose[@]}" up -d
inside() { "${compose[@]}" exec -T "$@"; }
online() { inside server flwr supernode list open --format json 2> /dev/null | grep -o '"status": *"online"' | wc -l; }
for attempt in $(seq 60); do
  [ "$(online)" = 3 ] && break
  [ "$attempt" != 60 ] || { echo "images-test: expected three devices online, found $(online)" >&2; exit 1; }
  sleep 3
done
for service in server device-0 device-1 device-2; do
  port=$([ $service = server ] && echo 8000 || echo 9094)
  inside $service python3 /health.py "$port" || { echo "images-test: $service is not healthy" >&2; exit 1; }
  [ "$(inside $service id -u | tr -d '\r')" = 10001 ] || { echo "images-test: $service does not run as 10001" >&2; exit 1; }
done
if inside device-0 touch /data/x 2> /dev/null; then
  echo "images-test: /data can be written" >&2
  exit 1
fi

echo "== train"
inside server flwr run /app open --stream \
  --run-config "num-server-rounds=2 report='/state/rounds.jsonl' output='/state/model.npz'"
inside server cat /state/rounds.jsonl > "$work/rounds.jsonl"
inside server ls -l /state/model.npz
"$python" - "$work/rounds.jsonl" << 'EOF'
import json, sys
rounds = [json.loads(line) for line in open(sys.argv[1])]
found = [sorted(line["clients"]) for line in rounds]
expected = [["device-0", "device-1", "device-2"]] * 2
sys.exit(f"images-test: expected the clients {expected}, found {found}" if found != expected else 0)
EOF

echo "== sizes"
"$engine" images --format '{{.Repository}}:{{.Tag}}  {{.Size}}' | grep fedcome-
echo "images-test: two rounds of three containers, passed"
