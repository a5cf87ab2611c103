//go:build linux && (amd64 || arm64)

package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"gatehouse/internal/sandbox/agentprotocol"

	"golang.org/x/sys/unix"
)

// loopback is the index of the loopback interface, which is the first of a network namespace.
const loopback = 1

// routeToHost makes every address one of the sandbox's own, so that what a program sends to any address arrives at the
// sandbox's loopback interface, and passes to the host the sockets that receive it there: one for the queries of a
// resolver, one that sees what no other socket receives, and a listener for each port. The host serves them; no
// process of the sandbox does.
func routeToHost(p agentprotocol.Plan) error {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		if err := routeFamily(family); err != nil && family == unix.AF_INET {
			return err // a kernel may lack IPv6, and then nothing can be reached by it
		}
	}
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	add := func(fd int, err error) error {
		if err == nil {
			fds = append(fds, fd)
		}
		return err
	}
	if err := add(bindAny(unix.SOCK_DGRAM, 53)); err != nil {
		return err
	}
	if err := add(watchLoopback()); err != nil {
		return err
	}
	for _, port := range p.Ports {
		if port < 1 || port > math.MaxUint16 {
			return fmt.Errorf("%w: the plan names no valid port", agentprotocol.ErrBroken)
		}
		if err := add(bindAny(unix.SOCK_STREAM, int(port))); err != nil {
			return err
		}
	}
	return sysErr(
		"sendmsg",
		"the sockets of the route",
		unix.Sendmsg(int(p.ListenerSocket), []byte{0}, unix.UnixRights(fds...), nil,
			unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT),
	)
}

// routeFamily adds the route local 0.0.0.0/0 dev lo, or the same of IPv6. See rtnetlink(7).
func routeFamily(family byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return sysErr("socket", "NETLINK_ROUTE", err)
	}
	defer unix.Close(fd)
	const size = unix.SizeofNlMsghdr + unix.SizeofRtMsg + unix.SizeofRtAttr + 4
	b := make([]byte, size)
	order := binary.NativeEndian
	order.PutUint32(b, size)
	order.PutUint16(b[4:], unix.RTM_NEWROUTE)
	order.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	m := b[unix.SizeofNlMsghdr:]
	m[0] = family
	m[4], m[5], m[6], m[7] = unix.RT_TABLE_LOCAL, unix.RTPROT_BOOT, unix.RT_SCOPE_HOST, unix.RTN_LOCAL
	a := m[unix.SizeofRtMsg:]
	order.PutUint16(a, unix.SizeofRtAttr+4)
	order.PutUint16(a[2:], unix.RTA_OIF)
	order.PutUint32(a[4:], loopback)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return sysErr("sendto", "RTM_NEWROUTE", err)
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return sysErr("recvfrom", "RTM_NEWROUTE", err)
	}
	if n < unix.SizeofNlMsghdr+4 || order.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("the kernel's answer to RTM_NEWROUTE is malformed")
	}
	if errno := -int32(order.Uint32(answer[unix.SizeofNlMsghdr:])); errno != 0 {
		return sysErr("rtnetlink", "RTM_NEWROUTE", unix.Errno(errno))
	}
	return nil
}

// bindAny binds a socket to a port of every address of both families, and has it listen if it is a stream.
func bindAny(kind, port int) (fd int, err error) {
	var to unix.Sockaddr = &unix.SockaddrInet6{Port: port}
	fd, err = unix.Socket(unix.AF_INET6, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	six := err == nil
	if !six {
		to = &unix.SockaddrInet4{Port: port}
		fd, err = unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	}
	if err != nil {
		return -1, sysErr("socket", fmt.Sprint("port ", port), err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if six {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	}
	switch {
	case err != nil || kind != unix.SOCK_DGRAM:
	case six: // the answer has to come from the address that was asked
		if err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1); err == nil {
			err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)
		}
	default:
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
	if err != nil {
		return -1, sysErr("setsockopt", fmt.Sprint("port ", port), err)
	}
	if err = unix.Bind(fd, to); err == nil && kind == unix.SOCK_STREAM {
		err = unix.Listen(fd, backlog)
	}
	return fd, sysErr("bind", fmt.Sprint("port ", port), err)
}

// watchLoopback opens a socket that receives the start of each packet which begins a connection or belongs to none,
// and is not for the loopback network. The host reports what no rule allows.
func watchLoopback() (fd int, err error) {
	fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, sysErr("socket", "AF_PACKET", err)
	}
	program := unix.SockFprog{Len: uint16(len(attempts)), Filter: &attempts[0]}
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		uintptr(unsafe.Pointer(&program)), unsafe.Sizeof(program), 0)
	if errno != 0 {
		unix.Close(fd)
		return -1, sysErr("setsockopt", "SO_ATTACH_FILTER", errno)
	}
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: loopback}); err != nil {
		unix.Close(fd)
		return -1, sysErr("bind", "AF_PACKET", err)
	}
	return fd, nil
}

// attempts is a filter of the kernel, see bpf(4): it keeps the first 96 bytes of SYN packets and of packets that are
// not TCP, unless they are for 127.0.0.0/8 or ::1.
var attempts = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 0},                         //  0 version
	{Code: unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K, K: 4},                        //  1
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 6, Jt: 11},                //  2 to 14
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 4, Jf: 21},                //  3 else to 25
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 16},                        //  4 first byte of the destination
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 127, Jt: 19},              //  5 to 25
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 9},                         //  6 protocol
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_TCP, Jf: 16}, //  7 else to 24
	{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: 0},                        //  8
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_IND, K: 13},                        //  9 flags
	{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0x12},                     // 10
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0x02, Jt: 12, Jf: 13},     // 11 to 24 or 25
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},                                       // 12
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},                                       // 13
	{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 36},                        // 14 last word of the destination
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 1, Jf: 4},                 // 15 else to 20
	{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 24},                        // 16
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jf: 2},                 // 17 else to 20
	{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 28},                        // 18
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jt: 5},                 // 19 to 25: ::x:0:1 is as good
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 6},                         // 20 next header
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_TCP, Jf: 2},  // 21 else to 24
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 53},                        // 22 flags
	{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: 0x10, Jt: 1},             // 23 an ACK to 25
	{Code: unix.BPF_RET | unix.BPF_K, K: 96},                                      // 24
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},                                       // 25
}
