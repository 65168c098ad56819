#!/usr/bin/env bash
# The RDMA collector on a real RDMA device: soft-RoCE (rdma_rxe) in a QEMU guest with Debian's kernel, no
# network and no disk. A coordinator and an agent run in it, RC traffic goes over the device, and
# what operators would see of it is printed. Takes half a minute without KVM.
#
# As root, on Debian: agent/tests/rdma/guest.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

need=(qemu-system-x86 busybox-static cpio kmod ibverbs-utils ibverbs-providers rdma-core)
if ! dpkg -s "${need[@]}" >/dev/null 2>&1; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${need[@]}"
fi
kernel="$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: //p' | head -1)"
(cd "$work" && apt-get download -qq -o APT::Sandbox::User=root "$kernel" && dpkg-deb -x ./*.deb kernel)
release="${kernel#linux-image-}"
cargo build --locked --bin gangline --bin gangline-agent --bin gangline-coordinator
target="${CARGO_TARGET_DIR:-target}/debug"

root="$work/root"
mkdir -p "$root"/{bin,dev,proc,sys,tmp,etc/libibverbs.d,srv}
cp "$(command -v busybox)" "$root/bin/"
for applet in sh mount mkdir sleep cat grep sed head insmod poweroff wget; do
  ln -s busybox "$root/bin/$applet"
done
# Programs at the paths they have here, with every library that they load.
programs=("$(command -v ip)" "$(command -v rdma)" "$(command -v ibv_rc_pingpong)")
for name in gangline gangline-agent gangline-coordinator; do
  strip -o "$root/bin/$name" "$target/$name"
  programs+=("$target/$name")
done
provider="$(ls /usr/lib/*/libibverbs/librxe-rdmav*.so | head -1)"
for file in "${programs[@]:0:3}" "$provider"; do
  install -D "$file" "$root$file"
done
cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
ldd "${programs[@]}" "$provider" | grep -o '/[^ :]*\.so[^ :]*' | sort -u | while read -r library; do
  install -D "$library" "$root$library"
done

# The module with everything it needs, in the order of loading.
depmod -b "$work/kernel" "$release"
modules="$work/kernel/lib/modules/$release"
: >"$root/modules"
for name in dummy crc32_generic rdma_rxe; do
  modprobe -d "$work/kernel" -S "$release" --show-depends "$name" | sed -n 's/^insmod //p' |
    while read -r module _; do
      name="$(basename "$module")"
      grep -qx "$name" "$root/modules" && continue
      cp "$module" "$root/$name"
      echo "$name" >>"$root/modules"
    done
done
test -d "$modules"

cat >"$root/init" <<'INIT'
#!/bin/sh
export PATH=/bin:/sbin:/usr/sbin:/usr/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /sys/fs/cgroup
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t cgroup2 none /sys/fs/cgroup
while read -r module; do insmod "/$module" || echo "insmod $module failed"; done </modules
ip link set lo up
ip link add d0 type dummy
ip addr add 10.231.251.1/24 dev d0
ip link set d0 up
rdma link add rxe0 type rxe netdev d0
echo "== $(rdma link show)"
gangline-coordinator serve --state-dir /srv/state --shared-root /srv/shared \
  --http 127.0.0.1:8700 --quic 127.0.0.1:8701 >/tmp/coordinator.log 2>&1 &
until test -s /srv/state/admin.token; do sleep 1; done
export GANGLINE_ADDRESS=http://127.0.0.1:8700 GANGLINE_TOKEN="$(cat /srv/state/admin.token)"
gangline node token >/tmp/join
gangline-agent run --name guest --join quic://127.0.0.1:8701 --token-file /tmp/join \
  --state-dir /srv/agent --temp-root /tmp/t >/tmp/agent.log 2>&1 &
sleep 15
ibv_rc_pingpong -d rxe0 -g 1 -n 200 >/tmp/server.log 2>&1 &
sleep 2
ibv_rc_pingpong -d rxe0 -g 1 -n 200 10.231.251.1 2>&1 | sed 's/^/== pingpong: /'
sleep 5
gangline node show guest 2>&1 | sed 's/^/== show: /'
wget -q -O - --header "Authorization: Bearer $GANGLINE_TOKEN" \
  "$GANGLINE_ADDRESS/api/v1/nodes/guest/metrics" | grep "^node_infiniband" | sed 's/^/== metrics: /'
gangline-agent doctor 2>&1 | grep InfiniBand | sed 's/^/== doctor: /'
cat /tmp/agent.log /tmp/coordinator.log | grep -i "warn\|error" | head -20 | sed 's/^/== log: /'
for file in /sys/class/infiniband/rxe0/ports/1/hw_counters/*; do
  echo "== sysfs: ${file##*/} $(cat $file)"
done
poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/initramfs"
timeout 180 qemu-system-x86_64 -accel tcg -cpu max -m 1536 -nic none -nographic -no-reboot \
  -kernel "$work/kernel/boot/vmlinuz-$release" -initrd "$work/initramfs" \
  -append "console=ttyS0 quiet panic=-1" </dev/null | tr -d '\r' | grep -a '^== ' | cut -c4-
