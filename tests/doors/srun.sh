#!/usr/bin/env bash
# A client of the lease door with bash, curl and jq alone: what others have in the field, written from the wire's facts.
#
#   srun.sh [-n|--num-gpus N] command...     wait for N GPUs (default 1), then become the command
#   srun.sh status | jobs
#
# Exit codes: the command's own; 2 usage, 69 no server, 75 refused.
set -u
url=${GPUSCHED_URL:-http://localhost:9123}

usage() { sed -n '4,5s/^# *//p' "$0"; }
fail() { echo "srun: $2" >&2; exit "$1"; }

gpus=1
case ${1-} in
  status | jobs) exec curl -sS --fail-with-body "$url/$1" ;;
  -h | --help) usage; exit 0 ;;
  -n | --num-gpus) [ $# -ge 2 ] || fail 2 "$1 needs a number"; gpus=$2; shift 2 ;;
  -n?*) gpus=${1#-n}; shift ;;
  --num-gpus=*) gpus=${1#*=}; shift ;;
  --) ;;
  -*) fail 2 "unknown option $1" ;;
esac
[ "${1-}" = -- ] && shift
[ $# -ge 1 ] || { usage >&2; exit 2; }
[[ $gpus =~ ^-?[0-9]+$ ]] || fail 2 "$gpus is not a number of GPUs"

# curl runs beside this shell, so that a signal is obeyed at once and takes the request with it. It has no pipe of ours:
# a curl that outlived us would hold the place in the queue.
answer=$(mktemp) || exit 1
asking=
leave() { [ -n "$asking" ] && kill "$asking" 2>/dev/null; rm -f "$answer"; trap - "$1"; kill -s "$1" $$; }
trap 'leave INT' INT
trap 'leave TERM' TERM
trap 'leave HUP' HUP

said=
while :; do
  curl -sS -X POST "$url/acquire" -H 'Content-Type: application/json' \
    -d "{\"pid\": $$, \"num_gpus\": $gpus}" -o "$answer" -w '%{http_code}' >"$answer.code" 2>"$answer.err" &
  asking=$!
  wait "$asking"
  ended=$?
  asking=
  code=$(cat "$answer.code")
  why=$(cat "$answer.err")
  rm -f "$answer.code" "$answer.err"
  [ "$ended" = 0 ] && break
  if [ "$ended" = 7 ] && [ -z "$said" ]; then
    rm -f "$answer"
    fail 69 "no server at $url (${why#curl: })"
  fi
  # it took the request and went away: wait for it to come back, and ask again
  [ -n "$said" ] || echo "srun: lost the server at $url; still waiting" >&2
  said=yes
  sleep 0.5
done

error=$(jq -r '.error // empty' <"$answer")
job=$(jq -r '.job_id // empty' <"$answer")
held=$(jq -r '.gpus // empty' <"$answer")
rm -f "$answer"
[ -z "$error" ] || fail 75 "$error"
[ "$code" = 200 ] && [ -n "$job" ] || fail 75 "the server answered $code"

trap - INT TERM HUP
export CUDA_VISIBLE_DEVICES=$held ROTA_JOB_ID=$job
exec "$@"
