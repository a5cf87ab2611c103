package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
)

// SOCKS5, RFC 1928: names and addresses, outgoing TCP, without a password, because only the sandbox can reach
// the proxy.
const (
	socksVersion = 5
	noPassword   = 0
	noMethod     = 0xff
	socksConnect = 1
	formIPv4     = 1
	formName     = 3
	formIPv6     = 4

	socksOK          = 0
	socksFailed      = 1
	socksDenied      = 2
	socksUnreachable = 4
	socksNoCommand   = 7
	socksNoForm      = 8
)

// greetSocks answers the greeting. It returns false if no method was agreed on.
func greetSocks(in *bufio.Reader, out io.Writer) bool {
	var head [2]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return false
	}
	methods := make([]byte, head[1])
	if _, err := io.ReadFull(in, methods); err != nil {
		return false
	}
	answer := byte(noMethod)
	for _, m := range methods {
		if m == noPassword {
			answer = noPassword
		}
	}
	_, err := out.Write([]byte{socksVersion, answer})
	return err == nil && answer == noPassword
}

// readSocks reads a request. code is the reply for an error.
func readSocks(in io.Reader) (t target, code byte, err error) {
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return t, socksFailed, err
	}
	if head[0] != socksVersion || head[2] != 0 {
		return t, socksFailed, fmt.Errorf("the SOCKS request is malformed")
	}
	host, code, err := readSocksHost(in, head[3])
	if err != nil {
		return t, code, err
	}
	var port [2]byte
	if _, err := io.ReadFull(in, port[:]); err != nil {
		return t, socksFailed, err
	}
	if head[1] != socksConnect {
		return t, socksNoCommand,
			fmt.Errorf("the proxy supports outgoing TCP connections only, neither UDP nor listening")
	}
	t.port = uint16(port[0])<<8 | uint16(port[1])
	if t.port == 0 {
		return t, socksFailed, fmt.Errorf("the port is missing")
	}
	if a, ok := host.(netip.Addr); ok {
		return t, socksDenied, t.setAddr(a)
	}
	return t, socksDenied, t.setHost(host.(string), false)
}

// readSocksHost returns a netip.Addr or a string.
func readSocksHost(in io.Reader, form byte) (host any, code byte, err error) {
	size := 0
	switch form {
	case formIPv4:
		size = 4
	case formIPv6:
		size = 16
	case formName:
		var n [1]byte
		if _, err := io.ReadFull(in, n[:]); err != nil {
			return nil, socksFailed, err
		}
		size = int(n[0])
	default:
		return nil, socksNoForm, fmt.Errorf("the SOCKS request has an unknown address type, %d", form)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(in, b); err != nil {
		return nil, socksFailed, err
	}
	if form == formName {
		return string(b), 0, nil
	}
	a, _ := netip.AddrFromSlice(b)
	return a, 0, nil
}

// answerSocks sends a reply. It does not reveal the address of the proxy's connection.
func answerSocks(out io.Writer, code byte) error {
	_, err := out.Write([]byte{socksVersion, code, 0, formIPv4, 0, 0, 0, 0, 0, 0})
	return err
}
