# The first process of a real node, in the namespaces that `unshare` made: it sets the machine up and keeps its programs
# running. configuration.py names its values.
set -euo pipefail
trap 'exit 0' TERM INT  # the kernel ends whatever else runs in here
hostname "$NAME"

# Kubelets want mounts in here to be seen by containers; unshare cut the ties to the machine before.
mount --make-rshared /
# A /run and a /var/lib of the node's own, so that nothing of it lies outside its folder.
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p "$OWN" "$PROGRAMS" "$SHARED" /run/lock /run/netns
mount --bind "$FOLDER" "$OWN"
mount --bind "$PROGRAMS_FOLDER" "$PROGRAMS"
mount --bind "$SHARED_FOLDER" "$SHARED"
mount -t tmpfs -o mode=755 tmpfs /var/lib
for each in $DISK; do
  mkdir "/var/lib/$each"
  mount --bind "$OWN/$each" "/var/lib/$each"
done
mount --bind "$OWN/log" /var/log

until ip link show "$PORT" &> /dev/null; do sleep 0.05; done
ip link set lo up
ip address add "$ADDRESS/24" dev "$PORT"
ip link set "$PORT" up
ip route add default via "$HOST"
for each in $ROUTES; do ip route add "${each%=*}" via "${each#*=}"; done
echo 1 > /proc/sys/net/ipv4/ip_forward
# Else a pod that calls a service of its own node gets the answer from an address that it never called.
echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables

keep_running() {
  while true; do
    code=0
    "$@" &>> "/var/log/$1.log" || code=$?
    echo "$1 ended with $code; started again"
    sleep 1
  done
}

keep_running containerd "--config=$OWN/containerd.toml" &
until ctr version &> /dev/null; do sleep 0.05; done
ctr --namespace=k8s.io images import "$OWN/pause.tar"
keep_running kubelet "--config=$OWN/kubelet.yaml" "--kubeconfig=$OWN/kubelet.kubeconfig" "--hostname-override=$NAME" \
  "--node-ip=$ADDRESS" "--node-labels=$LABELS" --root-dir=/var/lib/kubelet --v=1 &
keep_running kube-proxy "--config=$OWN/kube-proxy.yaml" &
wait
