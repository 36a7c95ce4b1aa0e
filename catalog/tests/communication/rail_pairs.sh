# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
# Measures the nodes of a group in pairs with a program of perftest: each NIC with the one of the same number of the partner.
# Sourced by the script of each pod, which brings fail() and READINESS_*; every pod works out the same rounds by itself, as a
# round-robin tournament does: in each round every node has one partner, and no two nodes meet twice. The one of lower index serves.
# usage: . rail_pairs.sh --program P --rounds N [--devices a,b] [--cuda true] [--port P] [--wait S] -- further arguments of the program
program=ib_write_bw rounds=1 devices='' cuda=false port=18515 wait_s=300
while [ $# -gt 0 ]; do
  case $1 in
    --program) program=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --devices) devices=$2; shift 2 ;;
    --cuda) cuda=$2; shift 2 ;;
    --port) port=$2; shift 2 ;;
    --wait) wait_s=$2; shift 2 ;;
    --) shift; break ;;
    *) fail "rail_pairs.sh does not know $1" ;;
  esac
done
command -v "$program" >/dev/null || fail "the image has no ${program##*/}; name one with perftest (workload.image)"
if [ "$cuda" = true ] && ! "$program" --help 2>&1 | grep -q use_cuda; then
  fail "${program##*/} of the image was built without CUDA; name another image (workload.image), or options.use_cuda: false"
fi

# The host's devices all show in sysfs; those that the pod may open have their file in /dev.
found_devices() {
  local device verbs
  for device in "${READINESS_SYS:-/sys}"/class/infiniband/*; do
    for verbs in "$device"/device/infiniband_verbs/uverbs*; do
      [ ! -e "${READINESS_DEV:-/dev}/infiniband/${verbs##*/}" ] || echo "${device##*/}"
    done
  done
}
if [ -n "$devices" ]; then
  IFS=, read -r -a rails <<<"$devices"
else
  mapfile -t rails < <(found_devices)
fi
[ ${#rails[@]} -gt 0 ] || fail "the pod sees no RDMA device; ask for them (workload.nic_resource), or name them (options.devices)"

hosts=()
while read -r host _slots; do hosts+=("$host"); done <"$READINESS_HOSTS"
me=$READINESS_INDEX
seats=$((READINESS_NODES + READINESS_NODES % 2)) # an odd one out rests
[ "$seats" -ge 2 ] && [ "$READINESS_NODES" -ge 2 ] || fail "a pair needs two nodes, and this group has one"
cycle=$((seats - 1))
[ "$rounds" -le "$cycle" ] || rounds=$cycle

# The partner of a seat in a round: their numbers add up to the round, but for the last seat, which takes who is left.
partner_of() {
  local round=$1 seat=$2 other
  if [ "$seat" -eq "$cycle" ]; then
    other=$((round * (seats / 2) % cycle))
  else
    other=$(((round - seat + cycle) % cycle))
    [ "$other" -ne "$seat" ] || other=$cycle
  fi
  echo "$other"
}

output=$(mktemp)
trap 'rm -f "$output"' EXIT

# The other side may still be at an earlier pair: its port tells the pairs apart.
as_client() {
  local until=$((SECONDS + wait_s))
  until timeout "$wait_s" "$program" "$@" >"$output" 2>&1; do
    if ! grep -qiE "couldn't connect|unable to init the socket|failed to resolve|connection refused|name or service not known" "$output"; then
      break
    fi
    [ "$SECONDS" -lt "$until" ] || break
    sleep 1
  done
  cat "$output"
}

for ((round = 0; round < rounds; round++)); do
  partner=$(partner_of "$round" "$me")
  [ "$partner" -lt "$READINESS_NODES" ] || continue
  for rail in "${!rails[@]}"; do
    arguments=(-d "${rails[rail]}" -p "$((port + round * ${#rails[@]} + rail))" "$@")
    [ "$cuda" != true ] || arguments+=("--use_cuda=$((rail % READINESS_GPUS_PER_NODE))")
    if [ "$me" -lt "$partner" ]; then
      timeout "$wait_s" "$program" "${arguments[@]}" >"$output" 2>&1 ||
        { echo "server of ${rails[rail]} for ${hosts[partner]%%.*}: exit $?"; grep -v '^ *#bytes' "$output" | head -n 20; }
    else
      echo "pair: ${hosts[me]%%.*} ${rails[rail]} - ${hosts[partner]%%.*}"
      as_client "${arguments[@]}" "${hosts[partner]}"
    fi
  done
done
